"""A grid of features resampled to the grids of packed images: bilinear with antialiasing.

    o[t] = sum_m u_m(y) sum_n v_n(x) table[m, n]            t at row y, column x of its image's h x w grid

    u_m(y) = k_m / sum_m k_m,  k_m = max(0, 1 - |m + 1/2 - c| / max(s, 1)),  c = s (y + 1/2),  s = M / h

v likewise with w and N. T tokens · B images · M, N rows and columns of the table · D features. Images are
packed: image b has sizes[b, 0] x sizes[b, 1] tokens, row by row, behind those of image b - 1. Weights and
sums in float32 (float64 stays float64), rounded once to the dtype of the table. A grid of the table's own
size gives the table itself. This is the mathematics of torch's interpolate(mode="bilinear", antialias=True,
align_corners=False).
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.resize_grid import reference

_resize_grid = Kernel(
    "resize_grid",
    "(Tensor table, Tensor sizes, SymInt num_tokens) -> Tensor",
    reference.resize_grid,
    fake=lambda table_MND, sizes_B2, num_tokens: table_MND.new_empty((num_tokens, table_MND.shape[-1])),
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
    ),
    rows=lambda table_MND, sizes_B2, num_tokens: num_tokens,
)


def resize_grid(table_MND: Tensor, sizes_B2: Tensor, num_tokens: int, *, impl: str | None = None) -> Tensor:
    """[num_tokens, D], contiguous, in the dtype of the table.

    sizes_B2: int64 rows and columns of each image, on the table's device; their products add up to
    num_tokens, which the host knows. Raises KernelError when `impl` cannot serve the call.
    """
    return _resize_grid(table_MND, sizes_B2, num_tokens, impl=impl)
