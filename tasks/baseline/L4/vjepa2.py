"""V-JEPA 2: a video to the features of its patches, those of some places predicted from others, or class
logits.

    h = tubelets(x);  h = block_i(h) for each i;  h = layer_norm(h)
    target = h[T],  predicted = predictor(h, C, T)
    logits = pooler(h) W^T + b

B videos, F frames, Y, X rows and columns, C channels; N tokens of a video, each a patch over several frames;
D hidden; Nc context and Nt target places (`context_mask`, `target_mask`). The encoder sees the whole video:
places are chosen behind it. Parameters and activations have the dtype of the module, tables of angles
float32. `config` is the complete Hugging Face configuration of VJEPA2Model, or of
VJEPA2ForVideoClassification, which has a pooler and a classifier as well.
Mirrors transformers.models.vjepa2.modeling_vjepa2.VJEPA2Model, with videos that have their channels last, and
VJEPA2ForVideoClassification.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.nn.batching import IMAGENET, Videos, require_places
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.examples import Batch, Examples
from fastkernels.nn.program import Call, Place, Program, RequestError, Stage
from fastkernels.nn.weight_map import WeightMap

from ..L1.layer_norm import LayerNorm
from ..L1.linear import Linear
from ..L1.video_rope import VideoRopeTable
from ..L2.patch_embed import TubeletEmbed
from ..L3.video_predictor import AttentivePooler, VideoPredictor, packed_starts, rows_at
from ..L3.vision_block import VideoBlock

CLASSIFIER = "VJEPA2ForVideoClassification"
ACTIVATIONS = {"gelu": "gelu"}
TOGETHER = 4  # videos of one launch: of 64 frames at 256 x 256 an MLP's activations are 64 MiB in 16 bits
TARGET_SHARE = 4  # of an example's tokens one in so many is a target


class VJEPA2Model(nn.Module):
    place: Place

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        block, predictor = block_arguments(reader), block_arguments(reader, "pred_")
        hidden_size, eps = block["hidden_size"], block["layer_norm_eps"]
        layers = reader.integer("num_hidden_layers")
        self.tubelet_size, self.num_channels = reader.integer("tubelet_size"), reader.integer("in_chans")
        self.crop_size, self.most_frames = reader.integer("crop_size"), reader.integer("frames_per_clip")
        patch_size = reader.integer("patch_size")
        if self.crop_size % patch_size:
            raise reader.error("crop_size", f"{self.crop_size} is no multiple of patch_size, {patch_size}")
        self.grid_size = self.crop_size // patch_size

        self.patches = TubeletEmbed(self.num_channels, patch_size, self.tubelet_size, hidden_size)
        self.rope_table = VideoRopeTable(hidden_size // block["num_heads"])
        self.layers = nn.ModuleList(VideoBlock(**block) for _ in range(layers))
        self.layernorm = LayerNorm(hidden_size, eps)
        self.predictor = VideoPredictor(
            encoder_hidden_size=hidden_size,
            num_layers=reader.integer("pred_num_hidden_layers"),
            num_mask_tokens=reader.integer("pred_num_mask_tokens"),
            num_tokens=self.num_tokens(self.most_frames),
            **predictor,
        )
        self.weight_map = weight_map(hidden_size, predictor["hidden_size"], block["qkv_bias"])

        self.pooler: AttentivePooler | None = None
        if CLASSIFIER in config.get("architectures", ()):
            arguments = {name: value for name, value in block.items() if name != "qkv_bias"}
            self.pooler = AttentivePooler(num_layers=reader.integer("num_pooler_layers"), **arguments)
            self.classifier = Linear(hidden_size, reader.num_labels(), bias=True)
            self.weight_map = self.weight_map.under("vjepa2.") | classifier_weights(hidden_size)

    def forward(
        self,
        pixel_values_videos: Tensor,
        context_mask: Tensor,
        target_mask: Tensor,
        skip_predictor: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """pixel_values_videos [B, F, Y, X, C], context_mask int64 [B, Nc], target_mask int64 [B, Nt], within
        0 .. N - 1 -> last_hidden_state [B, N, D], its rows at the targets [B, Nt, D], and those that the
        predictor makes of its rows at the contexts [B, Nt, D], or none, [B, 0, D]"""
        last_BND = self.encode(pixel_values_videos)
        target_BLD = rows_at(last_BND, target_mask)
        if skip_predictor:
            return last_BND, target_BLD, last_BND[:, :0]
        ids_N3 = self.token_ids(last_BND.shape[1], last_BND.device)
        return last_BND, target_BLD, self.predictor(last_BND, context_mask, target_mask, ids_N3)

    def encode(self, pixel_values_videos: Tensor) -> Tensor:
        """[B, F, Y, X, C] -> last_hidden_state [B, N, D]"""
        hidden_BND = self.patches(pixel_values_videos)
        (videos, length), device = hidden_BND.shape[:2], hidden_BND.device
        table_NK = self.rope_table(self.token_ids(length, device))
        positions_T = torch.arange(length, device=device).repeat(videos)
        starts_B1 = packed_starts(videos, length, device)
        hidden_TD = hidden_BND.flatten(0, 1)
        for layer in self.layers:
            hidden_TD = layer(hidden_TD, table_NK, positions_T, starts_B1, length)
        return self.layernorm(hidden_TD).unflatten(0, (videos, length))

    def classify(self, pixel_values_videos: Tensor) -> Tensor:
        """[B, F, Y, X, C] -> logits [B, classes]; a model with a classifier"""
        assert self.pooler is not None, f"the configuration is none of {CLASSIFIER}"
        return self.classifier(self.pooler(self.encode(pixel_values_videos)))

    def token_ids(self, tokens: int, device: torch.device) -> Tensor:
        """int64 [N, 3]: frame, row and column of each token."""
        side = torch.arange(self.grid_size, device=device)
        frames = torch.arange(tokens // self.grid_size**2, device=device)
        return torch.cartesian_prod(frames, side, side)

    def num_tokens(self, frames: int) -> int:
        return max(1, frames // self.tubelet_size) * self.grid_size**2

    def examples(self, run: str, batch: Batch) -> Examples:
        """What a pass over videos of one length calls, or its encoder, its predictor or its classifier alone;
        the tokens of a video are those of its frames."""
        videos, (tokens,) = len(batch.seq_lens), set(batch.seq_lens)
        frames = tokens // self.grid_size**2 * self.tubelet_size
        pixels = torch.empty(videos, frames, self.crop_size, self.crop_size, self.num_channels)
        targets = tokens // TARGET_SHARE
        masks = tuple(torch.empty(videos, n, dtype=torch.int64) for n in (tokens - targets, targets))
        if run == "forward":
            yield run, (pixels, *masks, False)
        elif run == "predictor":
            states_BND = torch.empty(videos, tokens, self.layernorm.weight.shape[0])
            yield run, (states_BND, *masks, self.token_ids(tokens, states_BND.device))
        else:
            yield run, (pixels,)

    def stages(self) -> dict[str, Stage]:
        sides = (self.crop_size, self.crop_size)
        videos = Videos(self.most_frames, self.tubelet_size, sides, self.num_channels, self.place, IMAGENET)
        classify = {} if self.pooler is None else {"classify": Stage(videos, most=TOGETHER)}
        return {"forward": Stage(videos, most=TOGETHER), **classify}

    def program(
        self,
        video: Tensor,
        context_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        skip_predictor: bool = False,
        classify: bool = False,
    ) -> Program:
        """video: uint8 [F, Y, X, C], or floats that are normalised already. The masks are places, int64 [Nc]
        and [Nt]; without targets all are both, without a context it is all that are no targets ->
        target_hidden_state [Nt, D] and predictor_hidden_state [Nt, D], with skip_predictor [0, D]; or, to
        classify, logits [classes]"""
        if classify:
            if self.pooler is None:
                raise RequestError(f"classify: the model is no {CLASSIFIER}, it has no classifier")
            if context_mask is not None or target_mask is not None or skip_predictor:
                raise RequestError("classify: it takes the whole video, without masks and skip_predictor")
            return {"logits": (yield Call("classify", video))}
        if isinstance(video, Tensor) and video.dim():  # anything else the stage refuses
            context_mask, target_mask = self.places(len(video), context_mask, target_mask)
        _, target, predicted = yield Call("forward", video, context_mask, target_mask, bool(skip_predictor))
        return {"target_hidden_state": target, "predictor_hidden_state": predicted}

    def places(
        self, frames: int, context_mask: Tensor | None, target_mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Context and target as `program` takes them, checked, or what stands for them."""
        tokens = self.num_tokens(frames)
        every_N = torch.arange(tokens)
        if target_mask is None:
            if context_mask is not None:
                raise RequestError("context_mask without target_mask: say what to predict")
            return every_N, every_N
        require_places("target_mask", target_mask, tokens)
        if context_mask is None:
            context_mask = every_N[~torch.isin(every_N, target_mask.cpu())]
        require_places("context_mask", context_mask, tokens)
        return context_mask, target_mask


def block_arguments(config: ConfigReader, prefix: str = "") -> dict[str, Any]:
    """What every block is made with, of the encoder or (prefix `pred_`) of the predictor; a UsageError names
    the key that is wrong."""
    hidden_size = config.integer(f"{prefix}hidden_size")
    num_heads = config.integer(f"{prefix}num_attention_heads")
    if hidden_size % (2 * num_heads):
        problem = f"{hidden_size} is no multiple of 2 times {prefix}num_attention_heads, {num_heads}"
        raise config.error(f"{prefix}hidden_size", problem)
    return {
        "hidden_size": hidden_size,
        "intermediate_size": int(hidden_size * config.number(f"{prefix}mlp_ratio")),
        "num_heads": num_heads,
        "hidden_act": config.choice("hidden_act", ACTIVATIONS),
        "layer_norm_eps": config.number("layer_norm_eps"),
        "qkv_bias": config.flag("qkv_bias"),
    }


def weight_map(hidden_size: int, pred_hidden_size: int, qkv_bias: bool) -> WeightMap:
    names = {
        "encoder.embeddings.patch_embeddings.proj.*": "patches.*",
        "encoder.layernorm.*": "layernorm.*",
        "predictor.embeddings.predictor_embeddings.*": "predictor.projection.*",
        "predictor.embeddings.mask_tokens": "predictor.mask_tokens",
        "predictor.layernorm.*": "predictor.layernorm.*",
        "predictor.proj.*": "predictor.proj.*",
    }
    packed = {}
    for theirs, ours, size in (
        ("encoder.layer.*", "layers.*", hidden_size),
        ("predictor.layer.*", "predictor.layers.*", pred_hidden_size),
    ):
        names |= {
            f"{theirs}.norm1.*": f"{ours}.norm1.*",
            f"{theirs}.norm2.*": f"{ours}.norm2.*",
            f"{theirs}.attention.proj.*": f"{ours}.attention.o_proj.linear.*",
            f"{theirs}.mlp.fc1.*": f"{ours}.mlp.fc1.linear.*",
            f"{theirs}.mlp.fc2.*": f"{ours}.mlp.fc2.linear.*",
        }
        packed[f"{ours}.attention.qkv_proj.linear.*"] = {
            f"{theirs}.attention.{name}.*": size for name in ("query", "key", "value")
        }
    return WeightMap(names, packed)


def classifier_weights(hidden_size: int) -> WeightMap:
    layer, cross = "pooler.self_attention_layers.*", "pooler.cross_attention_layer"
    names = {
        "classifier.*": "classifier.*",
        "pooler.query_tokens": "pooler.query_tokens",
        f"{cross}.cross_attn.q_proj.*": "pooler.q_proj.*",
        f"{cross}.layer_norm1.*": "pooler.layer_norm1.*",
        f"{cross}.layer_norm2.*": "pooler.layer_norm2.*",
        f"{cross}.mlp.fc1.*": "pooler.mlp.fc1.linear.*",
        f"{cross}.mlp.fc2.*": "pooler.mlp.fc2.linear.*",
        f"{layer}.layer_norm1.*": f"{layer}.layer_norm1.*",
        f"{layer}.layer_norm2.*": f"{layer}.layer_norm2.*",
        f"{layer}.self_attn.out_proj.*": f"{layer}.self_attn.out_proj.linear.*",
        f"{layer}.mlp.fc1.*": f"{layer}.mlp.fc1.linear.*",
        f"{layer}.mlp.fc2.*": f"{layer}.mlp.fc2.linear.*",
    }
    packed = {
        "pooler.kv_proj.*": {f"{cross}.cross_attn.{name}_proj.*": hidden_size for name in ("k", "v")},
        f"{layer}.self_attn.qkv_proj.linear.*": {
            f"{layer}.self_attn.{name}_proj.*": hidden_size for name in ("q", "k", "v")
        },
    }
    return WeightMap(names, packed)
