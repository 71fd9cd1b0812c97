"""What V-JEPA 2 does with the tokens of a video's encoder: predict those of other places, or pool them.

    default    z = [h[C] We^T + be | m for each of T];  z = block_i(z at places C, T) for each i
               y = layer_norm(z of T) Wp^T + bp
    pooler     x = block_i(x) for each i;  q = p Wq^T + bq,  [k | v] = layer_norm(x) Wkv^T + bkv
               a = p + attention(q, k, v);  y = a + mlp(layer_norm(a))

B videos of N tokens, C and T (context and target) the places of Nc and Nt of them, D hidden, E hidden of the
predictor, K its head size; m a learned token, the second of M; p a learned query, H heads. The places are
those of the whole video, in any order: attention does not see an order, so nothing is sorted. Blocks of the
pooler have no positions. Rounded to the dtype of h after each product, norm and sum, after the attention.
Mirrors transformers.models.vjepa2.modeling_vjepa2.VJEPA2Predictor and
transformers.models.vjepa2.modeling_vjepa2.VJEPA2AttentivePooler.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels

from ..L1.dense_attention import PooledAttention
from ..L1.layer_norm import LayerNorm
from ..L1.linear import Linear
from ..L1.video_rope import VideoRopeTable
from ..L2.mlp import MLP
from .vision_block import VideoBlock, VisionBlock

MASK_TOKEN = 1  # of those that training had


class VideoPredictor(nn.Module):
    def __init__(
        self,
        encoder_hidden_size: int,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        num_layers: int,
        hidden_act: str,
        layer_norm_eps: float,
        qkv_bias: bool,
        num_mask_tokens: int,
        num_tokens: int,
    ) -> None:
        super().__init__()
        self.mask_index = MASK_TOKEN % num_mask_tokens
        self.num_tokens = num_tokens  # of the longest video
        self.projection = Linear(encoder_hidden_size, hidden_size, bias=True)
        # [M, 1, 1, E] in a checkpoint, which has filters' input before rows and columns.
        self.mask_tokens = nn.Parameter(torch.empty(num_mask_tokens, 1, hidden_size, 1), requires_grad=False)
        self.rope_table = VideoRopeTable(hidden_size // num_heads)
        block = (hidden_size, intermediate_size, num_heads, hidden_act, layer_norm_eps, qkv_bias)
        self.layers = nn.ModuleList(VideoBlock(*block) for _ in range(num_layers))
        self.layernorm = LayerNorm(hidden_size, layer_norm_eps)
        self.proj = Linear(hidden_size, encoder_hidden_size, bias=True)

    def forward(
        self, encoder_hidden_states: Tensor, context_mask: Tensor, target_mask: Tensor, ids: Tensor
    ) -> Tensor:
        """encoder_hidden_states [B, N, D], context_mask int64 [B, Nc] and target_mask int64 [B, Nt], within
        0 .. N - 1, ids integers [N, 3], frame, row and column of a token -> [B, Nt, D]"""
        videos, contexts = context_mask.shape
        context_BCE = self.projection(rows_at(encoder_hidden_states, context_mask))
        mask_E = self.mask_tokens[self.mask_index].flatten()
        hidden_BLE = torch.cat((context_BCE, mask_E.expand(videos, target_mask.shape[1], -1)), dim=1)
        positions_T = torch.cat((context_mask, target_mask), dim=1).flatten()
        length, table_NK = hidden_BLE.shape[1], self.rope_table(ids)
        starts_B1 = packed_starts(videos, length, ids.device)
        hidden_TE = hidden_BLE.flatten(0, 1)
        for layer in self.layers:
            hidden_TE = layer(hidden_TE, table_NK, positions_T, starts_B1, length)
        return self.proj(self.layernorm(hidden_TE.unflatten(0, (videos, length))[:, contexts:]))


class AttentivePooler(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        num_layers: int,
        hidden_act: str,
        layer_norm_eps: float,
    ) -> None:
        super().__init__()
        self.num_heads, self.head_size = num_heads, hidden_size // num_heads
        self.query_tokens = nn.Parameter(torch.empty(1, 1, hidden_size), requires_grad=False)
        block = (hidden_size, intermediate_size, num_heads, hidden_act, layer_norm_eps)
        self.self_attention_layers = nn.ModuleList(VisionBlock(*block) for _ in range(num_layers))
        self.layer_norm1 = LayerNorm(hidden_size, layer_norm_eps)
        self.q_proj = Linear(hidden_size, hidden_size, bias=True)
        self.kv_proj = Linear(hidden_size, 2 * hidden_size, bias=True)
        self.attn = PooledAttention(self.head_size**-0.5)
        self.layer_norm2 = LayerNorm(hidden_size, layer_norm_eps)
        self.mlp = MLP(hidden_size, intermediate_size, hidden_act)

    def forward(self, hidden_state: Tensor) -> Tensor:
        """[B, N, D] -> [B, D]"""
        videos, length, _ = hidden_state.shape
        starts_B1 = packed_starts(videos, length, hidden_state.device)
        x_TD = hidden_state.flatten(0, 1)
        for layer in self.self_attention_layers:
            x_TD = layer(x_TD, starts_B1, length)
        heads = (self.num_heads, self.head_size)
        q_BHK = self.q_proj(self.query_tokens[0]).repeat(videos, 1).unflatten(-1, heads)
        k_THK, v_THK = self.kv_proj(self.layer_norm1(x_TD)).unflatten(-1, (2, *heads)).unbind(1)
        o_BHK = self.attn(q_BHK, k_THK, v_THK, starts_B1, length)
        a_BD = self.query_tokens[0] + o_BHK.flatten(1)
        return a_BD + self.mlp(self.layer_norm2(a_BD))


def rows_at(states_BND: Tensor, ids_BL: Tensor) -> Tensor:
    """[B, L, D]: of each video its rows at these places."""
    videos, tokens = states_BND.shape[:2]
    first_B1 = torch.arange(0, videos * tokens, tokens, device=ids_BL.device)[:, None]
    return kernels.embedding(ids_BL + first_B1, states_BND.flatten(0, 1))


def packed_starts(videos: int, length: int, device: torch.device) -> Tensor:
    """int32 [B+1]: where the rows of each video begin."""
    return torch.arange(0, (videos + 1) * length, length, dtype=torch.int32, device=device)
