from fastkernels.baseline.L1.selective_scan import SelectiveScan  # noqa
from . import rms_norm  # noqa
