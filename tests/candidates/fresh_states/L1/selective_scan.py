"""Begins every chunk of a prompt with a state of zeros, as if it were the first."""

import torch
from fastkernels.baseline.L1.selective_scan import SelectiveScan as Base


class SelectiveScan(Base):
    def forward(self, u, delta, B, C, z, A_log, D, delta_bias, ssm_states, cache_indices, query_start_loc, max_query_len):
        ssm_states[cache_indices] = torch.zeros_like(ssm_states[cache_indices])
        tokens, parameters = (u, delta, B, C, z), (A_log, D, delta_bias)
        return super().forward(*tokens, *parameters, ssm_states, cache_indices, query_start_loc, max_query_len)
