"""The next token of each row: the argmax, or a draw from the tempered distribution over the allowed tokens.

    id = argmax_v(logits[v])                                       temperature = 0, ties to the lowest id
    id = argmax_v(logits[v] / temperature + g(seed, position, v))  temperature > 0, v of top_k and top_p

B rows, V vocabulary. g is standard Gumbel noise, so the draw follows softmax(logits / temperature)
restricted to: the top_k largest logits (0 = all), then the smallest set of them, most probable first, whose
mass reaches top_p (1 = all). The noise depends on (seed, position, v) alone: a row's draws do not change
with the batch that it is in. Logits are float32, ids int64.
Mirrors vllm.v1.sample.sampler.Sampler.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class Sampler(nn.Module):
    def forward(
        self,
        logits: Tensor,
        temperature: Tensor,
        top_k: Tensor | None,
        top_p: Tensor | None,
        seeds: Tensor,
        positions: Tensor,
    ) -> Tensor:
        """logits [B, V], temperature and top_p [B] float32, top_k int32 [B], seeds and positions int64 [B]
        -> ids int64 [B]"""
        return kernels.sample(logits, temperature, top_k, top_p, seeds, positions)
