"""The baseline tasks as plain modules: `from fastkernels.baseline.L1.rms_norm import RMSNorm` in a candidate extends them."""

from fastkernels.layout import data_dir

__path__ = [str(data_dir("baseline"))]
