"""What turns what a detector says of cells or queries into boxes, and chooses the best of them.

    decode    d_s = sum_j j softmax_j(logits[s])
              y = (centre - (d_left, d_top), centre + (d_right, d_bottom)) stride
    top       the K cells with the largest logit of any class, then the K largest logits of their classes
    cells     the K cells with the largest logit of any class
    refine    y = sigmoid(x + logit(p)),  logit(p) = log(max(p, eps) / max(1 - p, eps))

B images, N cells, R bins of a distance, C classes, eps 1e-5. No box suppresses another. Equal logits: the
lower cell first, then the lower class of it. Boxes and scores are float32 at least: a float16 box in an image
of 640 pixels would be right to half a pixel only. The choice is by logit and exact.
Mirrors ultralytics.nn.modules.head.v10Detect (ultralytics.nn.modules.block.DFL and v10postprocess), and
what transformers.models.rt_detr_v2.modeling_rt_detr_v2.RTDetrV2Model and RTDetrV2Decoder do by torch.topk and
inverse_sigmoid.
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


class TopCells(nn.Module):
    def __init__(self, num_queries: int) -> None:
        super().__init__()
        self.num_queries = num_queries

    def forward(self, enc_outputs_class: Tensor) -> Tensor:
        """logits [B, N, C] -> cells int64 [B, K], falling; K = min(num_queries, N)"""
        return kernels.top_cells(enc_outputs_class, self.num_queries)


class BoxRefine(nn.Module):
    def forward(self, predicted_corners: Tensor, reference_points: Tensor) -> Tensor:
        """x and p [B, K, 4], p within 0 .. 1 -> boxes [B, K, 4]"""
        return kernels.box_refine(predicted_corners, reference_points)
