"""The best detections of each image, the largest scores in two steps: no box suppresses another.

    cells = the K cells n with the largest max_c logits[n, c]      falling; equal ones: the lower n first
    (i, c) = the K largest of logits[cells[i], c]                  falling; equal: the lower i C + c first
    o = boxes[cells[i]],  1 / (1 + exp(-logits[cells[i], c])),  c

B images · N cells · C classes · K detections, at most N. The choice is by logit: scores tie
where logits do not. Scores in float32 (float64 stays float64); boxes are taken as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.top_cells import largest, largest_keys, too_wide


def _fake(boxes_BN4: Tensor, logits_BNC: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    shape = (logits_BNC.shape[0], count)
    scores_BK = logits_BNC.new_empty(shape, dtype=torch.promote_types(logits_BNC.dtype, torch.float32))
    return boxes_BN4.new_empty((*shape, 4)), scores_BK, logits_BNC.new_empty(shape, dtype=torch.int64)


def _reference(boxes_BN4: Tensor, logits_BNC: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Two stable sorts."""
    classes = logits_BNC.shape[-1]
    cells_BK = largest(logits_BNC.amax(-1), count)
    logits_BKC = logits_BNC.gather(1, cells_BK[..., None].expand(-1, -1, classes))
    chosen_BK = largest(logits_BKC.flatten(1), count)
    cells_BK = cells_BK.gather(1, chosen_BK // classes)
    logits_BK = logits_BKC.flatten(1).gather(1, chosen_BK)
    wide_BK = logits_BK.to(torch.promote_types(logits_BK.dtype, torch.float32))
    boxes_BK4 = boxes_BN4.gather(1, cells_BK[..., None].expand(-1, -1, 4))
    return boxes_BK4, 1 / (1 + torch.exp(-wide_BK)), chosen_BK % classes


def _torch(boxes_BN4: Tensor, logits_BNC: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    classes = logits_BNC.shape[-1]
    cells_BK = largest_keys(logits_BNC.amax(-1), count)
    logits_BKC = logits_BNC.gather(1, cells_BK[..., None].expand(-1, -1, classes))
    chosen_BK = largest_keys(logits_BKC.flatten(1), count)
    cells_BK = cells_BK.gather(1, chosen_BK // classes)
    logits_BK = logits_BKC.flatten(1).gather(1, chosen_BK)
    boxes_BK4 = boxes_BN4.gather(1, cells_BK[..., None].expand(-1, -1, 4))
    return boxes_BK4, logits_BK.float().sigmoid(), chosen_BK % classes


_top_detections = Kernel(
    "top_detections",
    "(Tensor boxes, Tensor logits, int count) -> (Tensor, Tensor, Tensor)",
    _reference,
    fake=_fake,
    implementations=(
        Implementation(
            "torch",
            _torch,
            devices=("cpu", "cuda"),
            unsupported=lambda boxes_BN4, logits_BNC, count: too_wide(logits_BNC),
        ),
    ),
    # reference / torch, us, of a tiny detector: 229 / 242.
    cpu=(),
    rows=lambda boxes_BN4, *_: boxes_BN4.shape[0],
)


def top_detections(
    boxes_BN4: Tensor, logits_BNC: Tensor, count: int, *, impl: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(boxes [B, K, 4], scores [B, K], labels int64 [B, K]), K = min(count, N), falling scores.

    Logits are finite. Raises KernelError when `impl` cannot serve the call.
    """
    return _top_detections(boxes_BN4, logits_BNC, min(count, logits_BNC.shape[1]), impl=impl)
