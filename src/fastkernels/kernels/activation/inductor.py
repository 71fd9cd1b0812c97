"""activation as torch compiles the reference."""

from __future__ import annotations

from fastkernels.kernels.activation import reference
from fastkernels.kernels.compiled import compiled

activation = compiled(reference.activation)
