"""gated_rms_norm as torch compiles the reference."""

from __future__ import annotations

from fastkernels.kernels.compiled import compiled
from fastkernels.kernels.gated_rms_norm import reference

gated_rms_norm = compiled(reference.gated_rms_norm)
