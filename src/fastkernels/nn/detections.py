"""What a detector answers for an image: rows of boxes, scores and labels, as many for every image."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

MIN_SCORE, PLACES = 0.25, 100  # of detections


def rows_of_detections(boxes_BK4: Tensor, scores_BK: Tensor, labels_BK: Tensor) -> Tensor:
    """Falling scores -> [B, 100, 6]: left, top, right, bottom in pixels, score above 0.25, label. Free places
    have label -1 and zeros else."""
    rows_BK6 = torch.cat((boxes_BK4, scores_BK[..., None], labels_BK[..., None].to(scores_BK.dtype)), -1)
    rows_BK6 = functional.pad(rows_BK6, (0, 0, 0, max(0, PLACES - rows_BK6.shape[1])))[:, :PLACES]
    is_free_BK1 = ~(rows_BK6[..., 4:5] > MIN_SCORE)
    rows_BK6 = rows_BK6.masked_fill(is_free_BK1, 0)
    rows_BK6[..., 5:] -= is_free_BK1.to(rows_BK6.dtype)
    return rows_BK6
