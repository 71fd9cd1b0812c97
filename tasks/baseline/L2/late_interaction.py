"""Late interaction (MaxSim): scores of documents for a query, both as a vector for each token.

    score[b] = sum_i max_j Q[i] . D[b, j]          j over the tokens of document b that count

L tokens of the query, B documents of up to N tokens, S in all, K vector size. A product counts as -9999 at
least: what a document of padding alone gives for each token of the query. Products and sums in at least
float32; scores are float32 (float64 of float64).
Mirrors colbert.modeling.colbert.colbert_score for one query and, packed, colbert_score_packed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels


class LateInteraction(nn.Module):
    def forward(self, Q: Tensor, D_padded: Tensor, D_mask: Tensor) -> Tensor:
        """Q [1, L, K], D_padded [B, N, K], D_mask bool [B, N] -> [B]"""
        keep_S = D_mask.flatten()
        return kernels.late_interaction(Q[0], D_padded.flatten(0, 1), None, keep_S, D_padded.shape[1])


class PackedLateInteraction(nn.Module):
    def forward(self, Q: Tensor, D_packed: Tensor, D_lengths: Tensor) -> Tensor:
        """Q [L, K], D_packed [S, K], D_lengths int32 [B], their sum S -> [B]"""
        starts_B1 = nn.functional.pad(D_lengths.cumsum(0, dtype=torch.int32), (1, 0))
        return kernels.late_interaction(Q, D_packed, starts_B1)
