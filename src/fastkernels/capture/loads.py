"""How many tokens each expert gets: as captured, and as drawn uniformly or with favourites.

    share[e] = choices of expert e / all choices         even: 1 / E for each
    imbalance = E max(share)                             1 where all are even
    entropy = -sum share log2 share                      log2(E) bits where all are even

The drawn loads are of as many tokens as were counted, so that chance is as large in all three.
L layers with a router · E experts
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from fastkernels.loader import golden, routing
from fastkernels.loader.golden import PHASES, GoldenValues
from fastkernels.records import Golden, Routing, TokenPhase

SKEWS = ("uniform", "captured", "zipf")
MOST_DRAWN = 1 << 16  # tokens: more change no share by a thousandth
STEP = 8  # tokens of a small decode step, in which an expert may have none


@dataclass(frozen=True)
class Load:
    """Shares of one routing in one phase."""

    skew: str
    phase: TokenPhase
    share_LE: Tensor  # float64
    reached: int  # experts that STEP consecutive tokens reach

    @property
    def imbalance_L(self) -> Tensor:
        return self.share_LE.amax(1) * self.share_LE.shape[1]

    @property
    def entropy_L(self) -> Tensor:
        return -torch.special.xlogy(self.share_LE, self.share_LE).sum(1) / torch.log(torch.tensor(2.0))

    @property
    def coldest_L(self) -> Tensor:
        return self.share_LE.amin(1)

    @property
    def hottest_L(self) -> Tensor:
        return self.share_LE.amax(1)


def loads(values: GoldenValues, folder: str) -> list[Load]:
    """For both phases uniform, captured and zipf."""
    return [_load(values, folder, phase, skew) for phase in PHASES for skew in SKEWS]


def _load(values: GoldenValues, folder: str, phase: TokenPhase, skew: str) -> Load:
    capture = values.capture
    source = Golden(folder=folder, phase=phase) if skew == "captured" else None
    kind = Routing(top_k=capture.top_k, experts=capture.experts, skew=skew, golden=source)  # type: ignore
    if source is not None:
        counts_LE, reached = values.of(phase, "load"), golden.reached(source, STEP)
    else:
        tokens = min(capture.tokens[phase].seen, MOST_DRAWN)
        drawn = [
            routing.plan(kind, tokens, Generator().manual_seed(layer)) for layer in range(len(capture.layers))
        ]
        counts_LE = torch.stack(
            [torch.bincount(ids_TK.flatten(), minlength=capture.experts) for ids_TK in drawn]
        )
        reached = routing.reached(kind, STEP)
    return Load(skew, phase, counts_LE.double() / counts_LE.sum(1, keepdim=True), reached)
