"""Begins every chunk of a prompt with a state of zeros, as if it were the first."""

import torch
from fastkernels.baseline.L1.selective_scan import SelectiveScan as Base


class SelectiveScan(Base):
    def forward(self, u, delta, B, C, z, A_log, D, delta_bias, state, rows, query_starts, max_query_len):
        state[rows] = torch.zeros_like(state[rows])
        tokens, parameters = (u, delta, B, C, z), (A_log, D, delta_bias)
        return super().forward(*tokens, *parameters, state, rows, query_starts, max_query_len)
