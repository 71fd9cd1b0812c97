"""log_sigmoid as torch compiles the reference."""

from __future__ import annotations

from fastkernels.kernels.compiled import compiled
from fastkernels.kernels.log_sigmoid import reference

log_sigmoid = compiled(reference.log_sigmoid)
