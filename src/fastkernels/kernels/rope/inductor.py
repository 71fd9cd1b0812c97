"""rope as torch compiles the reference."""

from __future__ import annotations

from fastkernels.kernels.compiled import compiled
from fastkernels.kernels.rope import reference

rope = compiled(reference.rope)
