"""Logits of a vocabulary that is split over ranks: of each row the best id, by eight bytes from each; or all
of them on every rank, where rows ask for more than that.

S sampled rows · V vocabulary · R ranks
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.engine.core.inputs import SamplingInputs
from fastkernels.kernels.group import group
from fastkernels.kernels.sample import id_of
from fastkernels.nn.fusion import Fusion
from fastkernels.nn.partition import Partition

NOISE_AT_ONCE = 4  # ids whose noise is made together: a rank's must not begin among them


class SplitVocabulary:
    def __init__(self, model: nn.Module, partition: Partition, vocabulary: int) -> None:
        self._mine = partition.share(vocabulary, "ids of the vocabulary")
        # In the place of the model's sampler: a candidate's gets all logits, as on one rank.
        self._fuses = Fusion(model, "sampler") if len(self._mine) % NOISE_AT_ONCE == 0 else False

    def best(self, logits: Tensor, sampling: SamplingInputs) -> Tensor | None:
        """ids_S: what the sampler would choose without top_k and top_p; None where it must see all logits."""
        if not self._fuses:
            return None
        drawn = sampling.temperature_S, sampling.seeds_S, sampling.positions_S
        keys_S = kernels.sample_part(logits, *drawn, self._mine.start)
        dist.all_reduce(keys_S, dist.ReduceOp.MAX)
        return id_of(keys_S)

    def whole(self, logits: Tensor) -> Tensor:
        """[S, V] of every rank's [S, V / R]."""
        return torch.cat(group().gather(logits), dim=1)
