"""Waits for the device in its call, as a library does that plans on the host. The kernel is the baseline's."""

import torch
from fastkernels.baseline.L1.rms_norm import RMSNorm as Baseline


class RMSNorm(Baseline):
    def forward(self, x, residual=None):
        torch.cuda.current_stream().synchronize()
        return super().forward(x, residual)
