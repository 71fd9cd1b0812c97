"""Leaves a process outside of its group, which keeps all cores busy while its parent is stopped."""

import os
import subprocess
import sys
import time

import torch
from torch import nn


BURN = """
import os, sys, time
parent = int(sys.argv[1])
os.fork() and os.fork()
end = time.monotonic() + 60
while time.monotonic() < end:
    try:
        state = open(f"/proc/{parent}/stat").read().rpartition(")")[2].split()[0]
    except OSError:
        break
    if state not in "Tt":
        time.sleep(0.001)
"""
subprocess.Popen([sys.executable, "-c", BURN, str(os.getpid())], start_new_session=True)


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, x, residual=None):
        time.sleep(0.002)
        return torch.nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.eps)
