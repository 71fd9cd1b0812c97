"""layer_norm and add_layer_norm as torch compiles the reference."""

from __future__ import annotations

from fastkernels.kernels.compiled import compiled
from fastkernels.kernels.layer_norm import reference

layer_norm = compiled(reference.layer_norm)
add_layer_norm = compiled(reference.add_layer_norm)
