"""Our kernels over shared memory, with all ranks on one GPU: each agrees with its reference.

What it shows: they compile for this GPU, and compute rightly through the addresses of other processes'
memory, eagerly and from a CUDA graph, with slots that are used again. What it does not show: anything of
speed, of links between GPUs and their order of writes, or of NCCL, which refuses two ranks on a GPU.
Processes take turns on a GPU, some milliseconds each, so every wait for another rank takes as long.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.gpu.on_ranks import on_ranks

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]
LIMIT_S = 90
PLAIN = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
PRODUCTS = ("all_reduce_norm", "gemm_all_reduce", "gemm_reduce_scatter", "all_gather_gemm")
EXPERTS = ("ep_dispatch", "ep_combine", "expert_parallel")


@pytest.mark.parametrize(
    ("ranks", "names"),
    [(2, PLAIN), (2, PRODUCTS), (2, EXPERTS), (4, PLAIN + PRODUCTS + EXPERTS)],
    ids=["2 ranks, plain", "2 ranks, products", "2 ranks, experts", "4 ranks, all"],
)
def test_our_kernels_agree_with_all_ranks_on_one_gpu(
    ranks: int, names: tuple[str, ...], tmp_path: Path
) -> None:
    on_ranks(ranks, tmp_path, LIMIT_S, *names, ONE_GPU="1")
