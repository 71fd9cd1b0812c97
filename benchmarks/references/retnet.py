"""RetNet in flash-linear-attention, with transformers' `generate`."""

from __future__ import annotations

from functools import partial

from references.base import Comparison
from references.gla import FlashLinearAttention, recurrent_workloads
from references.language import Ours

COMPARISONS = [
    Comparison(
        "retnet",
        "flash-linear-attention",
        Ours,
        FlashLinearAttention,
        partial(recurrent_workloads, throughput=128),  # states of a request take 168 MB
        bars={"single-request": 10.0, "batch": 2.0, "prefill": 1.0},
    )
]
