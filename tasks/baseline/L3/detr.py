"""The parts of a real-time DETR: a ResNet, an encoder that mixes its maps, and a decoder of boxes.

    p3, p4, p5 = backbone(image)
    p5 = aifi(p5);  t5 = l_0(p5),  t4 = l_1(f_0([up(t5) | p4])),  n3 = f_1([up(t4) | p3])
    n4 = g_0([d_0(n3) | t4]),  n5 = g_1([d_1(n4) | t5])                             encoder: n3, n4, n5
    a = norm(q + attend(q, e(r)));  b = norm(a + deform(a, e(r); r, maps));  q = norm(b + mlp(b))
    r = refine(box(q), r)                                                           each layer of the decoder

B images, Y, X rows and columns of an image, multiples of 32; maps at strides 8, 16, 32; D channels of the
encoder's maps; Q queries q of width E, their boxes r (centre, size) from 0 to 1, N cells of all maps, C
classes. l 1 x 1, d 3 x 3 with stride 2, both with SiLU; f, g CSPRepLayers; up nearest. An AIFI layer is x =
norm(x + attend(x, p)), norm(x + mlp(x)), p = [sin(y w) | cos(y w) | sin(x w) | cos(x w)], of float64 rounded
once, w_i = temperature^(-4 i / D). e is two layers of the box, box three of a query. Boxes are float32 at
least; else rounded to the dtype of the maps after each convolution, product, norm and sum.
Mirrors transformers.models.rt_detr.modeling_rt_detr_resnet.RTDetrResNetBackbone, and RTDetrV2EncoderLayer,
RTDetrV2HybridEncoder, RTDetrV2DecoderLayer and RTDetrV2Decoder of transformers.models.rt_detr_v2, less the
classes and boxes of layers before the last, which training alone reads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels.nn.fusion import Fusion, normed_sum

from ..L1.detection import BoxRefine
from ..L1.image_ops import UpsampleConcat
from ..L1.layer_norm import LayerNorm
from ..L1.linear import Linear
from ..L1.pool import MaxPool2d
from ..L2.conv_norm_act import ConvNormAct
from ..L2.csp_block import CSPRepLayer
from ..L2.deformable_attention import DeformableAttention
from ..L2.encoder_attention import PositionedAttention
from ..L2.mlp import MLP, LayeredMLP
from ..L2.resnet_block import BottleNeckLayer


class Backbone(nn.Module):
    def __init__(
        self, embedding_size: int, hidden_sizes: list[int], depths: list[int], num_channels: int = 3
    ) -> None:
        """hidden_sizes, depths: of four stages, the first at stride 4."""
        super().__init__()
        half = embedding_size // 2
        self.embedder = nn.Sequential(
            ConvNormAct(num_channels, half, 3, 2, activation="relu"),
            ConvNormAct(half, half, 3, activation="relu"),
            ConvNormAct(half, embedding_size, 3, activation="relu"),
        )
        self.pooler = MaxPool2d(3, 2, 1)
        self.stages = nn.ModuleList()
        inputs = embedding_size
        for stage, (outputs, depth) in enumerate(zip(hidden_sizes, depths)):
            first = BottleNeckLayer(inputs, outputs, stride=2 if stage else 1)
            self.stages.append(
                nn.Sequential(first, *(BottleNeckLayer(outputs, outputs) for _ in range(depth - 1)))
            )
            inputs = outputs

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """pixel_values [B, Y, X, 3] within 0 .. 1 -> maps [B, Y / 8, X / 8, c3], [B, Y / 16, X / 16, c4],
        [B, Y / 32, X / 32, c5], of the last three stages"""
        maps = [self.pooler(self.embedder(pixel_values))]
        for stage in self.stages:
            maps.append(stage(maps[-1]))
        return maps[-3], maps[-2], maps[-1]


class AIFILayer(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_attention_heads: int,
        hidden_act: str = "gelu",
        layer_norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.self_attn = PositionedAttention(hidden_size, num_attention_heads)
        self.self_attn_layer_norm = LayerNorm(hidden_size, layer_norm_eps)
        self.mlp = MLP(hidden_size, intermediate_size, hidden_act)
        self.final_layer_norm = LayerNorm(hidden_size, layer_norm_eps)
        self.fuses = Fusion(self, "self_attn_layer_norm", "final_layer_norm")

    def forward(self, hidden_states: Tensor, spatial_position_embeddings: Tensor) -> Tensor:
        """hidden_states [B, S, D], spatial_position_embeddings [S, D] -> [B, S, D]"""
        attended_BSD = self.self_attn(hidden_states, spatial_position_embeddings)
        a_BSD = normed_sum(attended_BSD, hidden_states, self.self_attn_layer_norm, self.fuses)
        return normed_sum(self.mlp(a_BSD), a_BSD, self.final_layer_norm, self.fuses)


class HybridEncoder(nn.Module):
    def __init__(
        self,
        encoder_hidden_dim: int,
        encoder_ffn_dim: int,
        encoder_attention_heads: int,
        encoder_layers: int = 1,
        encoder_activation_function: str = "gelu",
        positional_encoding_temperature: float = 10000.0,
        layer_norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        width = encoder_hidden_dim
        self.temperature = positional_encoding_temperature
        self.aifi = nn.ModuleList(
            AIFILayer(
                width, encoder_ffn_dim, encoder_attention_heads, encoder_activation_function, layer_norm_eps
            )
            for _ in range(encoder_layers)
        )
        self.join = UpsampleConcat()
        self.lateral_convs = nn.ModuleList(ConvNormAct(width, width) for _ in range(2))
        self.fpn_blocks = nn.ModuleList(CSPRepLayer(2 * width, width) for _ in range(2))
        self.downsample_convs = nn.ModuleList(ConvNormAct(width, width, 3, 2) for _ in range(2))
        self.pan_blocks = nn.ModuleList(CSPRepLayer(2 * width, width) for _ in range(2))

    def forward(self, p3: Tensor, p4: Tensor, p5: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Maps [B, Y / 8, X / 8, D], [B, Y / 16, X / 16, D], [B, Y / 32, X / 32, D] -> the same shapes"""
        _, rows, columns, width = p5.shape
        position_SD = positions(rows, columns, width, self.temperature, p5.device).to(p5.dtype)
        tokens_BSD = p5.flatten(1, 2)
        for layer in self.aifi:
            tokens_BSD = layer(tokens_BSD, position_SD)

        top5 = self.lateral_convs[0](tokens_BSD.view(p5.shape))
        top4 = self.lateral_convs[1](self.fpn_blocks[0](self.join(top5, p4)))
        out3 = self.fpn_blocks[1](self.join(top4, p3))
        out4 = self.pan_blocks[0](torch.cat((self.downsample_convs[0](out3), top4), dim=-1))
        return out3, out4, self.pan_blocks[1](torch.cat((self.downsample_convs[1](out4), top5), dim=-1))


class DecoderLayer(nn.Module):
    def __init__(
        self,
        d_model: int,
        decoder_ffn_dim: int,
        decoder_attention_heads: int,
        n_levels: int = 3,
        n_points: int = 4,
        offset_scale: float = 0.5,
        decoder_activation_function: str = "relu",
        layer_norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        heads = decoder_attention_heads
        self.self_attn = PositionedAttention(d_model, heads)
        self.self_attn_layer_norm = LayerNorm(d_model, layer_norm_eps)
        self.encoder_attn = DeformableAttention(d_model, heads, n_levels, n_points, offset_scale)
        self.encoder_attn_layer_norm = LayerNorm(d_model, layer_norm_eps)
        self.mlp = MLP(d_model, decoder_ffn_dim, decoder_activation_function)
        self.final_layer_norm = LayerNorm(d_model, layer_norm_eps)
        self.fuses = Fusion(self, "self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")

    def forward(
        self,
        hidden_states: Tensor,
        object_queries_position_embeddings: Tensor,
        reference_points: Tensor,
        spatial_shapes_list: list[list[int]],
        encoder_hidden_states: Tensor,
    ) -> Tensor:
        """hidden_states and object_queries_position_embeddings [B, Q, E], reference_points [B, Q, 4],
        spatial_shapes_list rows and columns of each map, encoder_hidden_states [B, N, E] -> [B, Q, E]"""
        position_BQE = object_queries_position_embeddings
        attended_BQE = self.self_attn(hidden_states, position_BQE)
        a_BQE = normed_sum(attended_BQE, hidden_states, self.self_attn_layer_norm, self.fuses)
        maps = (encoder_hidden_states, position_BQE, reference_points, spatial_shapes_list)
        b_BQE = normed_sum(self.encoder_attn(a_BQE, *maps), a_BQE, self.encoder_attn_layer_norm, self.fuses)
        return normed_sum(self.mlp(b_BQE), b_BQE, self.final_layer_norm, self.fuses)


class Decoder(nn.Module):
    def __init__(
        self,
        d_model: int,
        decoder_ffn_dim: int,
        decoder_attention_heads: int,
        decoder_layers: int,
        num_labels: int,
        n_levels: int = 3,
        n_points: int = 4,
        offset_scale: float = 0.5,
        decoder_activation_function: str = "relu",
        layer_norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        sampling = (n_levels, n_points, offset_scale)
        self.layers = nn.ModuleList(
            DecoderLayer(
                d_model,
                decoder_ffn_dim,
                decoder_attention_heads,
                *sampling,
                decoder_activation_function,
                layer_norm_eps,
            )
            for _ in range(decoder_layers)
        )
        self.query_pos_head = LayeredMLP(4, [2 * d_model, d_model], activation_on_last=False)
        self.bbox_head = nn.ModuleList(
            LayeredMLP(d_model, [d_model, d_model, 4], activation_on_last=False)
            for _ in range(decoder_layers)
        )
        self.score_head = Linear(d_model, num_labels, bias=True)
        self.refine = BoxRefine()

    def forward(
        self,
        inputs_embeds: Tensor,
        encoder_hidden_states: Tensor,
        reference_points: Tensor,
        spatial_shapes_list: list[list[int]],
    ) -> tuple[Tensor, Tensor]:
        """inputs_embeds, the queries [B, Q, E], encoder_hidden_states, the cells of all maps [B, N, E],
        reference_points [B, Q, 4], spatial_shapes_list L of [Y, X] -> logits [B, Q, C], boxes [B, Q, 4]"""
        q_BQE = inputs_embeds
        for layer, bbox_head in zip(self.layers, self.bbox_head):
            position_BQE = self.query_pos_head(reference_points.to(q_BQE.dtype))
            q_BQE = layer(q_BQE, position_BQE, reference_points, spatial_shapes_list, encoder_hidden_states)
            reference_points = self.refine(bbox_head(q_BQE), reference_points)
        return self.score_head(q_BQE), reference_points


def positions(rows: int, columns: int, width: int, temperature: float, device: torch.device) -> Tensor:
    """[rows * columns, width] of a map's cells, row by row, float64."""
    quarter = width // 4
    grid = [torch.arange(side, dtype=torch.float64, device=device) for side in (rows, columns)]
    omega_W = temperature ** (-torch.arange(quarter, dtype=torch.float64, device=device) / quarter)
    y_SW, x_SW = (place_S[:, None] * omega_W for place_S in torch.cartesian_prod(*grid).unbind(1))
    return torch.cat((y_SW.sin(), y_SW.cos(), x_SW.sin(), x_SW.cos()), dim=1)
