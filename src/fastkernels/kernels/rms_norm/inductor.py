"""rms_norm and add_rms_norm as torch compiles the reference: one fused Triton kernel of Inductor's each."""

from __future__ import annotations

from fastkernels.kernels.compiled import compiled
from fastkernels.kernels.rms_norm import reference

rms_norm = compiled(reference.rms_norm)
add_rms_norm = compiled(reference.add_rms_norm)
