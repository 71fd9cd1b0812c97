"""Right outputs, but the requests' states stay as they were."""

from fastkernels.baseline.L1.selective_scan import SelectiveStateUpdate as Base


class SelectiveStateUpdate(Base):
    def forward(self, u, delta, B, C, z, A_log, D, delta_bias, state, rows):
        return super().forward(u, delta, B, C, z, A_log, D, delta_bias, state.clone(), rows)
