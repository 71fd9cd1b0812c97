"""The baseline tasks as plain modules, for candidates that extend them.

from fastkernels.baseline.L1.rms_norm import RMSNorm as Baseline
"""

from fastkernels.layout import data_dir

__path__ = [str(data_dir("baseline"))]
