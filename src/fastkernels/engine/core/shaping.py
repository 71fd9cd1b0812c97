"""Logits for rows that ask for others than the model's: penalties, min_tokens and min_p, in this order.

    l[v] <- l[v] / r if l[v] > 0 else l[v] r            v in prompt or output; r repetition_penalty
    l[v] <- l[v] - f count[v] - p [count[v] > 0]        count in the output; f frequency_, p presence_penalty
    l[v] <- -inf                                        v would stop before min_tokens
    l[v] <- -inf if l[v] < max l + t log(min_p)         t temperature: P(v) < min_p P(best)

Nothing of it lives on the device: a step that has such a row carries the columns of all its sampled rows, and
counts are taken anew from the rows' ids, which are there already, those of the running step's predecessor
included. Neutral values leave a row's logits as they are, bit by bit.

    R rows · S sampled rows · C rows at a time · L positions · V vocabulary · K stop ids
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fastkernels.engine.core.cache import Ints
from fastkernels.engine.core.packet import Packet
from fastkernels.engine.core.plan import Plan
from fastkernels.engine.core.request import Request

# Stop ids that min_tokens can hold back: the layout of a captured step is fixed.
MOST_MASKED = 64
# Rows whose counts are made at a time: 64 rows of a vocabulary of 128k take 33 MB for each temporary.
ROWS_AT_ONCE = 64
_NEVER_ENDS = np.iinfo(np.int64).max
_NEUTRAL: dict[str, tuple[float, type[np.generic]]] = {
    "repetition": (1, np.float32),
    "frequency": (0, np.float32),
    "presence": (0, np.float32),
    "min_p": (0, np.float32),
    "prompt_length": (0, np.int32),
    "min_length": (0, np.int32),  # positions below it are not to be stop ids
}


class RowShapes:
    """What every row asks for, on the host; row 0, the padding, asks for nothing."""

    def __init__(self, num_rows: int) -> None:
        self._columns = {name: np.full(num_rows, value, dtype) for name, (value, dtype) in _NEUTRAL.items()}
        self._masked_RK = np.zeros((num_rows, MOST_MASKED), np.int32)
        self._until_R = np.zeros(num_rows, np.int64)  # positions below it are chosen from shaped logits

    def enter(self, row: int, request: Request) -> None:
        params, prompt_length = request.sampling, len(request.prompt)
        least = prompt_length + params.min_tokens
        until = _NEVER_ENDS if params.is_penalised else least if params.min_tokens else 0
        if not until and not self._until_R[row]:
            return
        self._until_R[row] = until
        values = {
            "repetition": params.repetition_penalty,
            "frequency": params.frequency_penalty,
            "presence": params.presence_penalty,
            "min_p": 0 if params.is_greedy else params.min_p,
            "prompt_length": prompt_length,
            "min_length": least if params.min_tokens and request.masked_ids else 0,
        }
        for name, column in self._columns.items():
            column[row] = values[name]
        # Filled up with the first one: what is masked twice stays masked.
        self._masked_RK[row] = request.masked_ids[0] if request.masked_ids else 0
        self._masked_RK[row, : len(request.masked_ids)] = request.masked_ids

    def are_needed(self, plan: Plan) -> bool:
        """Whether some row asks for other logits at the position that it samples now."""
        if not self._until_R.any():
            return False
        targets = plan.starts_B + plan.counts_B
        return bool((plan.samples_B & (targets < self._until_R[plan.rows_B])).any())

    def add_to(self, packet: Packet, rows: Ints) -> None:
        for name, column in self._columns.items():
            packet.add(f"shape.{name}", column[rows], column.dtype.type)
        packet.add("shape.masked", self._masked_RK[rows].reshape(-1))


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a step's sampled rows, on the device."""

    repetition_S: Tensor
    frequency_S: Tensor
    presence_S: Tensor
    min_p_S: Tensor
    prompt_length_S: Tensor
    min_length_S: Tensor
    masked_SK: Tensor

    @staticmethod
    def of(sections: dict[str, Tensor]) -> Shape | None:
        """From a packet on the device; None if no row of it asks for anything."""
        if "shape.masked" not in sections:
            return None
        columns: dict[str, Tensor] = {}
        for name, (_, dtype) in _NEUTRAL.items():
            column = sections[f"shape.{name}"]
            columns[f"{name}_S"] = column.view(torch.float32) if dtype is np.float32 else column
        return Shape(**columns, masked_SK=sections["shape.masked"].view(-1, MOST_MASKED))


def shape_(
    logits_SV: Tensor,
    temperature_S: Tensor,
    targets_S: Tensor,
    rows_S: Tensor,
    tokens_RL: Tensor,
    shape: Shape,
) -> None:
    """Change the logits in place. tokens_RL: ids of all rows; those before `targets_S` count."""
    for begin in range(0, len(logits_SV), ROWS_AT_ONCE):
        part = slice(begin, begin + ROWS_AT_ONCE)
        logits_CV, targets_C1 = logits_SV[part], targets_S[part, None]

        def column(values_S: Tensor, part: slice = part) -> Tensor:
            return values_S[part, None].to(logits_SV.dtype)

        ids_CL = tokens_RL[rows_S[part]].long()
        at_L = torch.arange(ids_CL.shape[1], device=ids_CL.device)
        there_CL = at_L < targets_C1
        output_CL = there_CL & (at_L >= shape.prompt_length_S[part, None])
        seen_CV = torch.zeros_like(logits_CV).scatter_add_(1, ids_CL, there_CL.to(logits_CV.dtype)) > 0
        count_CV = torch.zeros_like(logits_CV).scatter_add_(1, ids_CL, output_CL.to(logits_CV.dtype))

        repetition_C1 = column(shape.repetition_S)
        repeated_CV = torch.where(logits_CV > 0, logits_CV / repetition_C1, logits_CV * repetition_C1)
        logits_CV.copy_(torch.where(seen_CV, repeated_CV, logits_CV))
        logits_CV -= column(shape.frequency_S) * count_CV + column(shape.presence_S) * (count_CV > 0)

        masked_CK = shape.masked_SK[part].long()
        kept_CK = logits_CV.gather(1, masked_CK)
        is_early_C1 = targets_C1 < shape.min_length_S[part, None]
        logits_CV.scatter_(1, masked_CK, kept_CK.masked_fill(is_early_C1, -torch.inf))

        min_p_C1 = column(shape.min_p_S)
        # log(0) would be -inf, times temperature 0 not a number.
        reach_C1 = temperature_S[part, None].to(logits_CV.dtype) * min_p_C1.clamp(min=1e-30).log()
        least_C1 = (logits_CV.amax(1, keepdim=True) + reach_C1).masked_fill(min_p_C1 == 0, -torch.inf)
        logits_CV.masked_fill_(logits_CV < least_C1, -torch.inf)
