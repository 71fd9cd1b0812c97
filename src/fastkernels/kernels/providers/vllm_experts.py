"""experts by vLLM's fused_experts: Triton kernels with tile sizes that it measured for models and devices.

It is Python inside vLLM, so vLLM is imported. What that changes of the environment and of torch's settings is
put back; its patches of Inductor stay.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fastkernels.kernels import checks


def _imported() -> tuple[Callable[..., Tensor], Any]:
    environment, cudnn = dict(os.environ), torch.backends.cuda.cudnn_sdp_enabled()
    try:
        from vllm.model_executor.layers.fused_moe.activation import (  # pyright: ignore[reportMissingImports]
            MoEActivation,
        )
        from vllm.model_executor.layers.fused_moe.fused_moe import (  # pyright: ignore[reportMissingImports]
            fused_experts,
        )
    finally:
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
        for added in os.environ.keys() - environment.keys():
            del os.environ[added]
        os.environ.update(environment)
    return fused_experts, MoEActivation


_fused_experts, _Activation = _imported()
ACTIVATIONS = ("silu", "gelu", "gelu_tanh")


def unsupported(
    kernel: str,
    x_TD: Tensor,
    topk_weights_TK: Tensor,
    topk_ids_TK: Tensor,
    w13_E2FD: Tensor,
    w2_EDF: Tensor,
    activation: str,
) -> str | None:
    if activation not in ACTIVATIONS:
        return f"has no {activation}"
    if not x_TD.is_contiguous():
        return "needs a contiguous x"
    return checks.not_half(x_TD, w13_E2FD, w2_EDF) or checks.not_aligned(x_TD, w13_E2FD, w2_EDF)


def experts(
    x_TD: Tensor,
    topk_weights_TK: Tensor,
    topk_ids_TK: Tensor,
    w13_E2FD: Tensor,
    w2_EDF: Tensor,
    activation: str,
) -> Tensor:
    if not len(x_TD):
        return x_TD.new_empty(x_TD.shape)
    routing = topk_weights_TK, topk_ids_TK
    return _fused_experts(x_TD, w13_E2FD, w2_EDF, *routing, _Activation.from_str(activation))
