"""What turns the logits of a detector's cells into boxes, and chooses the best of them.

    decode    d_s = sum_j j softmax_j(logits[s])
              y = (centre - (d_left, d_top), centre + (d_right, d_bottom)) stride
    top       the K cells with the largest logit of any class, then the K largest logits of their classes

B images, N cells, R bins of a distance, C classes. No box suppresses another. Equal logits: the lower cell
first, then the lower class of it. Boxes and scores are float32 at least: a float16 box in an image of 640
pixels would be right to half a pixel only. The choice is by logit and exact.
Mirrors ultralytics.nn.modules.head.v10Detect (ultralytics.nn.modules.block.DFL and v10postprocess).
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class BoxDecode(nn.Module):
    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """x [B, Y, X, 4 R], logits of left, top, right, bottom -> [B, Y X, 4] in pixels: corners
        x, y, x, y"""
        return kernels.box_decode(x, self.stride)


class TopDetections(nn.Module):
    def __init__(self, max_det: int) -> None:
        super().__init__()
        self.max_det = max_det

    def forward(self, boxes: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """boxes [B, N, 4], logits [B, N, C] -> boxes [B, K, 4], scores [B, K], labels int64 [B, K], scores
        falling; K = min(max_detections, N)"""
        return kernels.top_detections(boxes, logits, self.max_det)
