"""The same beside another."""

from fastkernels.baseline.L1.selective_scan import SelectiveScan  # noqa: F401

from . import rms_norm  # noqa: F401
