"""RWKV-7 in flash-linear-attention, with transformers' `generate`."""

from __future__ import annotations

from references.base import Comparison
from references.gla import FlashLinearAttention, recurrent_workloads
from references.language import Ours
from references.mamba import BARS

COMPARISONS = [
    Comparison("rwkv7", "flash-linear-attention", Ours, FlashLinearAttention, recurrent_workloads, bars=BARS)
]
