"""The best detections of each image, the largest scores in two steps: no box suppresses another.

    cells = the K cells n with the largest max_c logits[n, c]      falling; equal ones: the lower n first
    (i, c) = the K largest of logits[cells[i], c]                  falling; equal: the lower i C + c first
    o = boxes[cells[i]],  1 / (1 + exp(-logits[cells[i], c])),  c

B images · N cells · C classes · K detections, at most N. The choice is by logit: scores tie
where logits do not. Scores in float32 (float64 stays float64); boxes are taken as they are.
"""

from __future__ import annotations

# Names of torch, not torch itself: importing the implementation `.torch` binds that name here.
from torch import Tensor, float32, int64, promote_types

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.top_detections import reference


def _fake(boxes_BN4: Tensor, logits_BNC: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    shape = (logits_BNC.shape[0], count)
    scores_BK = logits_BNC.new_empty(shape, dtype=promote_types(logits_BNC.dtype, float32))
    return boxes_BN4.new_empty((*shape, 4)), scores_BK, logits_BNC.new_empty(shape, dtype=int64)


_top_detections = Kernel(
    "top_detections",
    "(Tensor boxes, Tensor logits, int count) -> (Tensor, Tensor, Tensor)",
    reference.top_detections,
    fake=_fake,
    implementations=(Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),),
    rows=lambda boxes_BN4, *_: boxes_BN4.shape[0],
)


def top_detections(
    boxes_BN4: Tensor, logits_BNC: Tensor, count: int, *, impl: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(boxes [B, K, 4], scores [B, K], labels int64 [B, K]), K = min(count, N), falling scores.

    Logits are finite. Raises KernelError when `impl` cannot serve the call.
    """
    return _top_detections(boxes_BN4, logits_BNC, min(count, logits_BNC.shape[1]), impl=impl)
