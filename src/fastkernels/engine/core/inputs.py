"""What a step computes from, on the device: made by rows.py, read by the model, the head and the sampler.

T tokens · S sampled rows · R rows · L positions of a row · N table entries · G cache groups
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fastkernels.engine.core.outbox import Outbox
from fastkernels.engine.core.shaping import Shape
from fastkernels.nn.context import Step


class Rows(Protocol):
    """Tensors of all rows (rows.py), for what computes with them."""

    device: torch.device
    block_sizes: list[int]
    outbox: Outbox
    tokens_RL: Tensor
    tables_GRN: list[Tensor]
    temperature_R: Tensor
    top_k_R: Tensor
    top_p_R: Tensor
    seeds_R: Tensor
    frozen_R: Tensor
    shift_R: Tensor


class Parameters(NamedTuple):
    """Sampling parameters of the sampled rows."""

    temperature_S: Tensor
    top_k_S: Tensor
    top_p_S: Tensor
    seeds_S: Tensor


@dataclass(frozen=True, slots=True)
class Inputs:
    """A step on the device. last_S: the token whose hidden state is sampled from; None: every token.
    In a step of `Spliced` positions_T is [3, T], and media_T its index; None in others."""

    input_ids_T: Tensor
    positions_T: Tensor
    step: Step
    last_S: Tensor | None
    rows_S: Tensor
    targets_S: Tensor  # position that the sampled id goes to
    shape: Shape | None
    parameters: Parameters | None = None  # None: not gathered with the rest
    slot: Tensor | None = None  # int32 [1], of the outbox; None: the ids are copied to the host
    media_T: Tensor | None = None


@dataclass(frozen=True, slots=True)
class SamplingInputs:
    temperature_S: Tensor
    top_k_S: Tensor
    top_p_S: Tensor
    seeds_S: Tensor
    positions_S: Tensor
    rows_S: Tensor
    tokens_RL: Tensor  # ids of all rows, up to the longest row's
    shape: Shape | None  # None: the model's own logits
