"""Right outputs, but the requests' states stay as they were."""

from fastkernels.baseline.L1.selective_scan import SelectiveStateUpdate as Base


class SelectiveStateUpdate(Base):
    def forward(self, x, dt, B, C, z, A_log, D, dt_bias, state, state_batch_indices):
        return super().forward(x, dt, B, C, z, A_log, D, dt_bias, state.clone(), state_batch_indices)
