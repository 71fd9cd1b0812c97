"""bias_activation as torch compiles the reference."""

from __future__ import annotations

from fastkernels.kernels.bias_activation import reference
from fastkernels.kernels.compiled import compiled

bias_activation = compiled(reference.bias_activation)
