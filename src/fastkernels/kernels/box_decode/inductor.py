"""box_decode as torch compiles the reference."""

from __future__ import annotations

from fastkernels.kernels.box_decode import reference
from fastkernels.kernels.compiled import compiled

box_decode = compiled(reference.box_decode)
