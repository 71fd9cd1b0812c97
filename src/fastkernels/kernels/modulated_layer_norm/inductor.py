"""modulated_layer_norm as torch compiles the reference."""

from __future__ import annotations

from fastkernels.kernels.compiled import compiled
from fastkernels.kernels.modulated_layer_norm import reference

modulated_layer_norm = compiled(reference.modulated_layer_norm)
