"""The baseline, beside packets of its own (packets.py)."""

from fastkernels.baseline.L1.selective_scan import SelectiveScan  # noqa: F401

from . import packets  # noqa: F401
