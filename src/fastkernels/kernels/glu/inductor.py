"""glu as torch compiles the reference: one fused Triton kernel of Inductor's."""

from __future__ import annotations

from fastkernels.kernels.compiled import compiled
from fastkernels.kernels.glu import reference

glu = compiled(reference.glu)
