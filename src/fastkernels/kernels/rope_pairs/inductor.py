"""rope_pairs as torch compiles the reference."""

from __future__ import annotations

from fastkernels.kernels.compiled import compiled
from fastkernels.kernels.rope_pairs import reference

rope_pairs = compiled(reference.rope_pairs)
