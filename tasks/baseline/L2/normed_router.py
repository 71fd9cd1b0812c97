"""Router of a mixture of experts that reads the residual stream through a norm of its own.

    r = rms_norm(x; w) Wg^T
    w, e = the k largest of softmax(r / sqrt(D)), renormalised, times the experts' own weights

T tokens, D hidden, E experts. Wg is [E, D]. Rounded to the dtype of x after the norm and after the product;
the softmax, which takes the factor 1/sqrt(D), is float32. Two experts whose logits differ by less than a
rounding may be exchanged; inputs that are judged choose clearly.
Mirrors vllm.model_executor.models.gemma4.Gemma4Router and its routing function (also transformers'
Gemma4TextRouter).
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.nn.routing import Router

from ..L1.linear import Linear
from ..L1.moe_routing import ScaledTopKSoftmax
from ..L1.rms_norm import RMSNorm


class NormedRouter(Router):
    def __init__(self, hidden_size: int, num_experts: int, top_k: int, rms_norm_eps: float = 1e-6) -> None:
        super().__init__()
        self.norm = RMSNorm(hidden_size, rms_norm_eps)
        self.gate = Linear(hidden_size, num_experts)
        self.topk = ScaledTopKSoftmax(num_experts, top_k, hidden_size**-0.5)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """[T, D] -> (weights [T, k] float32, ids [T, k] int32)"""
        return self.choose(self.norm(hidden_states))

    def choose(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        """The same of rows that the norm has made."""
        return self.topk(self.gate(normed))
