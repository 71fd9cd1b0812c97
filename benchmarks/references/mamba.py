"""Mamba and Mamba 2 in flash-linear-attention and in transformers, both with transformers' `generate`.

Both take the kernels of mamba_ssm and causal_conv1d where those are installed; the version says whether.
"""

from __future__ import annotations

from typing import ClassVar

from references.base import Comparison
from references.gla import FlashLinearAttention, recurrent_workloads
from references.language import Ours
from references.transformers_lm import Transformers


class WithoutAttention(Transformers):
    settings: ClassVar[tuple[str, ...]] = ("default", "static")
    attention: ClassVar[str] = "eager"  # the only name that such a model takes


BARS = {"single-request": 10.0, "batch": 2.0, "prefill": 1.0}
MODELS = ("mamba", "mamba2")
COMPARISONS = [
    *(
        Comparison(
            model, "flash-linear-attention", Ours, FlashLinearAttention, recurrent_workloads, bars=BARS
        )
        for model in MODELS
    ),
    *(Comparison(model, "transformers", Ours, WithoutAttention, recurrent_workloads) for model in MODELS),
]
