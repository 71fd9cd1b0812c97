"""sample in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.sample.philox import exponential_noise
from fastkernels.kernels.sample.threshold import threshold

# Logits whose noise is made at a time: ten int64 temporaries of 128 MiB each at most.
MAX_ELEMENTS = 2**24


def sample(
    logits_BV: Tensor,
    temperature_B: Tensor,
    top_k_B: Tensor | None,
    top_p_B: Tensor | None,
    seeds_B: Tensor,
    positions_B: Tensor,
) -> Tensor:
    batch, vocabulary = logits_BV.shape
    rows = max(1, MAX_ELEMENTS // vocabulary)
    if batch > rows:
        chunks = zip(*(part.split(rows) if part is not None else [None] * -(-batch // rows) for part in
                       (logits_BV, temperature_B, top_k_B, top_p_B, seeds_B, positions_B)))  # fmt: skip
        return torch.cat([sample(*chunk) for chunk in chunks])

    ids_B = _first_argmax(logits_BV)
    # Looking costs a synchronisation on a GPU; a CPU engine's greedy rows are spared ten rounds of noise.
    if logits_BV.is_cpu and not temperature_B.any():
        return ids_B
    scores_BV = _scores(logits_BV, temperature_B, seeds_B, positions_B)
    if top_k_B is not None or top_p_B is not None:
        last = threshold(logits_BV, temperature_B, top_k_B, top_p_B)
        behind_BV = torch.arange(vocabulary, device=logits_BV.device) > last.id_B[:, None]
        logit_B1 = last.logit_B[:, None]
        scores_BV.masked_fill_((logits_BV < logit_B1) | ((logits_BV == logit_B1) & behind_BV), -torch.inf)
    return torch.where(temperature_B > 0, _first_argmax(scores_BV), ids_B)


def sample_part(
    logits_BV: Tensor, temperature_B: Tensor, seeds_B: Tensor, positions_B: Tensor, first: int
) -> Tensor:
    scores_BV = logits_BV
    if not logits_BV.is_cpu or temperature_B.any():
        noisy_BV = _scores(logits_BV, temperature_B, seeds_B, positions_B, first)
        scores_BV = torch.where(temperature_B[:, None] > 0, noisy_BV, logits_BV)
    ids_B = _first_argmax(scores_BV)
    bits_B = (scores_BV.gather(1, ids_B[:, None])[:, 0].float() + 0.0).view(torch.int32)  # -0 becomes 0
    ordered_B = bits_B ^ ((bits_B >> 31) & 0x7FFFFFFF)
    return (ordered_B.long() << 32) + (0x7FFFFFFF - first - ids_B)


def _scores(
    logits_BV: Tensor, temperature_B: Tensor, seeds_B: Tensor, positions_B: Tensor, first: int = 0
) -> Tensor:
    """Of rows at temperature 0 they mean nothing."""
    divisor_B1 = torch.where(temperature_B > 0, temperature_B, 1.0)[:, None]
    noise_BV = exponential_noise(seeds_B, positions_B, logits_BV.shape[1], logits_BV.dtype, first)
    return logits_BV / divisor_B1 - noise_BV.log_()


def _first_argmax(scores_BV: Tensor) -> Tensor:
    """argmax with ties to the lowest index, which torch.argmax leaves open."""
    vocabulary = scores_BV.shape[1]
    index_V = torch.arange(vocabulary, device=scores_BV.device)
    return torch.where(scores_BV == scores_BV.amax(1, keepdim=True), index_V, vocabulary - 1).amin(1)
