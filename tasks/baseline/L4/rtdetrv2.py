"""RT-DETRv2 detector: images to boxes and class logits of queries, which it chooses among its own cells.

    m = [decoder_input_proj_l(n_l)],  n = encoder(encoder_input_proj(backbone(x)))
    o = norm(valid m W^T + b),  s = o Ws^T + bs                            forward
    cells = top K of max_c s                                               select
    q = o[cells],  r = sigmoid(box(q) + logit(anchors[cells]))
    logits, boxes = decoder(q, m, r)                                       decode

B images, Y, X rows and columns, N cells of maps at strides 8, 16, 32, E width of the decoder, Q queries, C
classes. The anchor of a cell is its centre and a side of 0.05, 0.1, 0.2; it is valid where all four lie
within 0.01 .. 0.99, else r is 1. Norms are folded into the convolutions when weights are loaded, and both
branches of a RepVGG block into one. Parameters and activations have the dtype of the module, anchors and
boxes float32 at least: in float16 production rounds these, too. `config` is the complete Hugging Face
configuration of RTDetrV2ForObjectDetection with a bottleneck RTDetrResNetConfig. What only training reads is
left out.
Mirrors transformers.RTDetrV2ForObjectDetection.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.nn.batching import Pixels
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.detections import PLACES, rows_of_detections
from fastkernels.nn.examples import Batch, Examples
from fastkernels.nn.folding import Folding
from fastkernels.nn.program import Call, Place, Program, Stage
from fastkernels.nn.weight_map import WeightMap

from ..L1.detection import BoxRefine, TopCells
from ..L1.layer_norm import LayerNorm
from ..L1.linear import Linear
from ..L2.conv_norm_act import ConvNormAct
from ..L2.mlp import LayeredMLP
from ..L3.detr import Backbone, Decoder, HybridEncoder

STRIDES = (8, 16, 32)
STAGES = 4  # of the backbone, of which the last three are read
ANCHOR_SIDE, VALID = 0.05, 0.01  # of the first map; how far from an edge of the image
BLOCKS = 3  # RepVGG blocks of a CSPRepLayer
# What other values of a configuration would change.
FIXED: dict[str, tuple[Any, ...]] = {
    "encode_proj_layers": ([2],),
    "feat_strides": ([*STRIDES],),
    "num_feature_levels": (len(STRIDES),),
    "decoder_n_levels": (len(STRIDES),),
    "hidden_expansion": (1.0,),
    "activation_function": ("silu",),
    "decoder_method": ("default",),
    "batch_norm_eps": (1e-5,),  # the backbone's norms have it in any case
    "with_box_refine": (True,),
    "normalize_before": (False,),
    "learn_initial_query": (False,),
    "eval_size": (None,),
    "anchor_image_size": (None, []),
}
FIXED_BACKBONE: dict[str, tuple[Any, ...]] = {
    "layer_type": ("bottleneck",),
    "hidden_act": ("relu",),
    "out_features": (["stage2", "stage3", "stage4"],),
    "downsample_in_first_stage": (False,),
    "downsample_in_bottleneck": (False,),
}


class RTDetrV2ForObjectDetection(nn.Module):
    place: Place

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        _require(reader, FIXED)
        backbone = backbone_arguments(reader.section("backbone_config"))
        encoder, decoder = encoder_arguments(reader), decoder_arguments(reader)
        width, d_model = encoder["encoder_hidden_dim"], decoder["d_model"]
        inputs = backbone["hidden_sizes"][1:]
        _require(reader, {"encoder_in_channels": (inputs,), "decoder_in_channels": ([width] * len(inputs),)})
        self.num_channels, self.multiple = backbone["num_channels"], STRIDES[-1]

        self.backbone = Backbone(**backbone)
        self.encoder_input_proj = nn.ModuleList(ConvNormAct(c, width, activation="none") for c in inputs)
        self.encoder = HybridEncoder(**encoder)
        self.decoder_input_proj = nn.ModuleList(
            ConvNormAct(width, d_model, activation="none") for _ in inputs
        )
        eps = decoder["layer_norm_eps"]
        self.enc_output = nn.Sequential(Linear(d_model, d_model, bias=True), LayerNorm(d_model, eps))
        self.enc_score_head = Linear(d_model, decoder["num_labels"], bias=True)
        self.select = TopCells(reader.integer("num_queries"))
        self.enc_bbox_head = LayeredMLP(d_model, [d_model, d_model, 4], activation_on_last=False)
        self.refine = BoxRefine()
        self.decoder = Decoder(**decoder)
        self.best = TopCells(PLACES)
        self.weight_map = weight_map(backbone["depths"], width, decoder)

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """pixel_values [B, Y, X, 3] within 0 .. 1, Y and X multiples of 32 -> the maps' cells [B, N, E], what
        queries are made of [B, N, E], and its logits [B, N, C]"""
        maps = self.backbone(pixel_values)
        maps = self.encoder(*(project(x) for project, x in zip(self.encoder_input_proj, maps)))
        cells = [project(x).flatten(1, 2) for project, x in zip(self.decoder_input_proj, maps)]
        memory_BNE = torch.cat(cells, dim=1)
        _, is_valid_N1 = anchors(spatial_shapes(*pixel_values.shape[1:3]), memory_BNE)
        output_BNE = self.enc_output(memory_BNE * is_valid_N1.to(memory_BNE.dtype))
        return memory_BNE, output_BNE, self.enc_score_head(output_BNE)

    def decode(
        self, memory: Tensor, output_memory: Tensor, cells: Tensor, spatial_shapes_list: list[list[int]]
    ) -> tuple[Tensor, Tensor]:
        """memory and output_memory [B, N, E], cells int64 [B, Q], spatial_shapes_list L of
        [Y, X] -> logits [B, Q, C], boxes [B, Q, 4]: centre and size, from 0 to 1"""
        anchors_N4, is_valid_N1 = anchors(spatial_shapes_list, memory)
        query_BQE = output_memory.gather(1, cells[..., None].expand(-1, -1, output_memory.shape[-1]))
        refined_BQ4 = self.refine(self.enc_bbox_head(query_BQE), anchors_N4[cells])
        boxes_BQ4 = torch.where(is_valid_N1[cells], refined_BQ4, 1)
        return self.decoder(query_BQE, memory, boxes_BQ4, spatial_shapes_list)

    def examples(self, run: str, batch: Batch) -> Examples:
        """What a pass over images of one size calls, with what chooses among its cells and queries."""
        assert batch.images is not None
        memory_BNE, output_BNE, logits_BNC = yield run, (torch.empty(*batch.images, self.num_channels),)
        cells_BQ = yield "select", (logits_BNC,)
        shapes = spatial_shapes(*batch.images[1:])
        logits_BQC, _ = yield "decode", (memory_BNE, output_BNE, cells_BQ, shapes)
        yield "best", (logits_BQC,)

    def detect(self, pixel_values: Tensor) -> Tensor:
        """[B, Y, X, 3] -> [B, 100, 6]: left, top, right, bottom in pixels, score above 0.25, label; falling
        scores, each of another query. Free places have label -1 and zeros else."""
        _, rows, columns, _ = pixel_values.shape
        memory_BNE, output_BNE, logits_BNC = self(pixel_values)
        shapes = spatial_shapes(rows, columns)
        logits_BQC, boxes_BQ4 = self.decode(memory_BNE, output_BNE, self.select(logits_BNC), shapes)
        best_BK1 = self.best(logits_BQC)[..., None]
        best_BKC = best_BK1.expand(-1, -1, logits_BQC.shape[-1])
        best_logits_BK, labels_BK = logits_BQC.gather(1, best_BKC).max(-1)
        centre_BK2, size_BK2 = boxes_BQ4.gather(1, best_BK1.expand(-1, -1, 4)).split(2, dim=-1)
        corners_BK4 = torch.cat((centre_BK2 - size_BK2 / 2, centre_BK2 + size_BK2 / 2), dim=-1)
        corners_BK4[..., 0::2] *= columns  # a graph cannot hold a tensor of both, from the host
        corners_BK4[..., 1::2] *= rows
        return rows_of_detections(corners_BK4, best_logits_BK.to(corners_BK4.dtype).sigmoid(), labels_BK)

    def stages(self) -> dict[str, Stage]:
        return {"detect": Stage(Pixels(self.multiple, self.num_channels, self.place))}

    def program(self, image: Tensor) -> Program:
        """uint8 [H, W, 3], sides multiples of 32 -> detections [100, 6]"""
        return {"detections": (yield Call("detect", image))}


def spatial_shapes(height: int, width: int) -> list[list[int]]:
    """Rows and columns of each map of an image."""
    return [[height // stride, width // stride] for stride in STRIDES]


def anchors(shapes: list[list[int]], like: Tensor) -> tuple[Tensor, Tensor]:
    """The boxes of all maps' cells [N, 4], float32 at least, and whether they are valid [N, 1]."""
    dtype, device = torch.promote_types(like.dtype, torch.float32), like.device
    of_maps = []
    for level, (rows, columns) in enumerate(shapes):
        y_Y, x_X = ((torch.arange(side, dtype=dtype, device=device) + 0.5) / side for side in (rows, columns))
        y_N, x_N = torch.cartesian_prod(y_Y, x_X).unbind(1)
        side_N = torch.full_like(x_N, ANCHOR_SIDE * 2**level)
        of_maps.append(torch.stack((x_N, y_N, side_N, side_N), dim=1))
    anchors_N4 = torch.cat(of_maps)
    return anchors_N4, ((anchors_N4 > VALID) & (anchors_N4 < 1 - VALID)).all(-1, keepdim=True)


def backbone_arguments(config: ConfigReader) -> dict[str, Any]:
    """What the backbone is made with; a UsageError names the key that is wrong."""
    _require(config, FIXED_BACKBONE)
    sizes, depths = config.integers("hidden_sizes"), config.integers("depths")
    for key, values, unit in (("hidden_sizes", sizes, 4), ("depths", depths, 1)):
        if len(values) != STAGES or any(value % unit for value in values):
            multiples = f", multiples of {unit}" if unit > 1 else ""
            raise config.error(key, f"must be {STAGES} numbers{multiples}, not {values}")
    embedding_size = config.integer("embedding_size")
    if embedding_size % 2:
        raise config.error("embedding_size", f"must be even, not {embedding_size}")
    return {
        "embedding_size": embedding_size,
        "hidden_sizes": sizes,
        "depths": depths,
        "num_channels": config.integer("num_channels", default=3),
    }


def encoder_arguments(config: ConfigReader) -> dict[str, Any]:
    """What the encoder is made with."""
    activations = {name: name for name in ("gelu", "relu")}
    return {
        "encoder_hidden_dim": _width(config, "encoder_hidden_dim", "encoder_attention_heads", 4),
        "encoder_ffn_dim": config.integer("encoder_ffn_dim"),
        "encoder_attention_heads": config.integer("encoder_attention_heads"),
        "encoder_layers": config.integer("encoder_layers"),
        "encoder_activation_function": config.choice("encoder_activation_function", activations),
        "positional_encoding_temperature": config.number("positional_encoding_temperature"),
        "layer_norm_eps": config.number("layer_norm_eps"),
    }


def decoder_arguments(config: ConfigReader) -> dict[str, Any]:
    """What the decoder is made with."""
    activations = {name: name for name in ("gelu", "relu")}
    return {
        "d_model": _width(config, "d_model", "decoder_attention_heads"),
        "decoder_ffn_dim": config.integer("decoder_ffn_dim"),
        "decoder_attention_heads": config.integer("decoder_attention_heads"),
        "decoder_layers": config.integer("decoder_layers"),
        "num_labels": config.num_labels(),
        "n_levels": config.integer("decoder_n_levels"),
        "n_points": config.integer("decoder_n_points"),
        "offset_scale": config.number("decoder_offset_scale"),
        "decoder_activation_function": config.choice("decoder_activation_function", activations),
        "layer_norm_eps": config.number("layer_norm_eps"),
    }


def _width(config: ConfigReader, key: str, heads_key: str, unit: int = 1) -> int:
    width, heads = config.integer(key), config.integer(heads_key)
    if width % heads or width % unit:
        also = f" and of {unit}" if unit > 1 else ""
        raise config.error(key, f"{width} is no multiple of {heads_key}, {heads}{also}")
    return width


def _require(config: ConfigReader, fixed: dict[str, tuple[Any, ...]]) -> None:
    for key, allowed in fixed.items():
        value = config.config.get(key)
        value = list(value) if isinstance(value, tuple) else value
        if value not in allowed:
            raise config.error(key, f"{value!r} is not supported; supported: {allowed[0]!r}")


def weight_map(depths: list[int], width: int, decoder: dict[str, Any]) -> WeightMap:
    """Names of transformers 5, and those that files of the hub have in their place. width: of the encoder."""
    norms, names = {}, {}
    for theirs, norm, ours in convolutions(depths):
        norms[theirs] = norm
        if ours is not None:
            names |= {f"{theirs}.weight": f"{ours}.conv.weight", f"{theirs}.bias": f"{ours}.bias"}
    sums = {}
    for block in range(BLOCKS):
        large, small = (f"bottlenecks.{block}.conv{which}.conv" for which in (1, 2))
        sums[f"bottlenecks.{block}.conv"] = (large, small)
        for blocks in ("fpn_blocks", "pan_blocks"):
            ours = f"encoder.{blocks}.*.bottlenecks.{block}"
            names[f"model.{ours}.conv.weight"] = f"{ours}.conv.weight"
            names[f"model.{ours}.conv.bias"] = f"{ours}.bias"

    d_model, places = decoder["d_model"], decoder["n_levels"] * decoder["n_points"]
    offsets = decoder["decoder_attention_heads"] * places
    packed, spellings = {}, {}
    for theirs, ours, size in (
        ("model.encoder.aifi.0.layers.*", "encoder.aifi.*", width),
        ("model.decoder.layers.*", "decoder.layers.*", d_model),
    ):
        attn = f"{theirs}.self_attn"
        packed[f"{ours}.self_attn.qk_proj.linear.*"] = {f"{attn}.q_proj.*": size, f"{attn}.k_proj.*": size}
        names[f"{attn}.v_proj.*"] = f"{ours}.self_attn.v_proj.linear.*"
        for new, old in (("self_attn.o_proj", "self_attn.out_proj"), ("mlp.fc1", "fc1"), ("mlp.fc2", "fc2")):
            names[f"{theirs}.{new}.*"] = f"{ours}.{new}.linear.*"
            for begin in (theirs, theirs.replace("aifi", "encoder")):
                spellings[f"{begin}.{old}.*"] = f"{ours}.{new}.linear.*"
        for norm in ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"):
            names[f"{theirs}.{norm}.*"] = f"{ours}.{norm}.*"
    sampling = "model.decoder.layers.*.encoder_attn"
    packed["decoder.layers.*.encoder_attn.sampling_offsets_weights.linear.*"] = {
        f"{sampling}.sampling_offsets.*": 2 * offsets,
        f"{sampling}.attention_weights.*": offsets,
    }
    last = decoder["decoder_layers"] - 1
    names |= {
        f"{sampling}.value_proj.*": "decoder.layers.*.encoder_attn.value_proj.*",
        f"{sampling}.output_proj.*": "decoder.layers.*.encoder_attn.output_proj.*",
        "model.decoder.query_pos_head.layers.*.*": "decoder.query_pos_head.layers.*.linear.*",
        "model.decoder.bbox_embed.*.layers.*.*": "decoder.bbox_head.*.layers.*.linear.*",
        f"model.decoder.class_embed.{last}.*": "decoder.score_head.*",
        "model.enc_output.*.*": "enc_output.*.*",
        "model.enc_score_head.*": "enc_score_head.*",
        "model.enc_bbox_head.layers.*.*": "enc_bbox_head.layers.*.linear.*",
    }
    heads = [
        f"class_embed.{last}",
        *(f"bbox_embed.{i}.layers.{j}" for i in range(last + 1) for j in range(3)),
    ]
    repeated = {f"{head}.{k}": f"model.decoder.{head}.{k}" for head in heads for k in ("weight", "bias")}
    earlier = [f"{below}class_embed.{i}.*" for i in range(last) for below in ("", "model.decoder.")]
    ignored = (*earlier, "model.denoising_class_embed.weight", f"{sampling}.n_points_scale")
    return WeightMap(
        names,
        packed,
        ignored,
        spellings,
        folding=Folding(1e-5, sums, norms),
        prefixes={"model.encoder.aifi.": "model.encoder.encoder."},
        repeated=repeated,
    )


def convolutions(depths: list[int]) -> Iterator[tuple[str, str, str | None]]:
    """(convolution and norm of a checkpoint, our module); None: it is a part of another one, of a RepVGG
    block."""
    model = "model.backbone.model"
    for i in range(3):
        theirs = f"{model}.embedder.embedder.{i}"
        yield f"{theirs}.convolution", f"{theirs}.normalization", f"backbone.embedder.{i}"
    for s, depth in enumerate(depths):
        for j in range(depth):
            theirs, ours = f"{model}.encoder.stages.{s}.layers.{j}", f"backbone.stages.{s}.{j}"
            parts = {f"layer.{i}": name for i, name in enumerate(("narrow", "conv", "widen"))}
            if j == 0:
                parts["shortcut.1" if s else "shortcut"] = "shortcut"
            for part, name in parts.items():
                yield f"{theirs}.{part}.convolution", f"{theirs}.{part}.normalization", f"{ours}.{name}"
    for level in range(len(STRIDES)):
        for ours in (f"encoder_input_proj.{level}", f"decoder_input_proj.{level}"):
            yield f"model.{ours}.0", f"model.{ours}.1", ours
    for i in range(2):
        for ours in (f"encoder.lateral_convs.{i}", f"encoder.downsample_convs.{i}"):
            yield f"model.{ours}.conv", f"model.{ours}.norm", ours
        for block in (f"encoder.fpn_blocks.{i}", f"encoder.pan_blocks.{i}"):
            for part in ("conv1", "conv2"):
                yield f"model.{block}.{part}.conv", f"model.{block}.{part}.norm", f"{block}.{part}"
            for j in range(BLOCKS):
                for part in ("conv1", "conv2"):
                    theirs = f"model.{block}.bottlenecks.{j}.{part}"
                    yield f"{theirs}.conv", f"{theirs}.norm", None
