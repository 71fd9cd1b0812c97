"""The baseline itself, and slower."""

import time

from fastkernels.baseline.L1.rms_norm import RMSNorm as Baseline


class RMSNorm(Baseline):
    def forward(self, x, residual=None):
        time.sleep(0.002)
        return super().forward(x, residual)
