"""Mamba and Mamba 2 in flash-linear-attention and in transformers, both with transformers' `generate`.

Both take the kernels of mamba_ssm and causal_conv1d where those are installed; the version says whether.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from references.base import Comparison
from references.gla import FlashLinearAttention, recurrent_workloads
from references.language import Ours
from references.transformers_lm import Transformers


class WithoutAttention(Transformers):
    settings: ClassVar[tuple[str, ...]] = ("default", "static")
    attention: ClassVar[str] = "eager"  # the only name that such a model takes


BARS = {"single-request": 10.0, "batch": 2.0, "prefill": 1.0}
# Requests of the throughput workload: a state of the larger model takes 276 MB.
MODELS = {"mamba": 256, "mamba2": 64}
COMPARISONS = [
    Comparison(model, name, Ours, theirs, partial(recurrent_workloads, throughput=requests), bars)
    for model, requests in MODELS.items()
    for name, theirs, bars in (
        ("flash-linear-attention", FlashLinearAttention, BARS),
        ("transformers", WithoutAttention, {}),
    )
]
