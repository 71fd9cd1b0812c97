"""DINOv3 vision transformer: images of one size to the mean of their patches and to their class token.

    h = [class | registers | patches(x)];  h = block_i(h) for each i;  z = layer_norm(h)
    features = mean of z over patches,  class_token = z[class]

B images, Y, X rows and columns, C channels, D hidden; L patches, N = 1 + R + L tokens of an image, R
registers, K head size. Patches have rotary positions, by their places between -1 and 1 on each axis: an image
of another size has the same range. Parameters and activations have the dtype of the module, the table of
angles float32. `config` is the complete Hugging Face configuration of DINOv3ViTModel.
Mirrors transformers.models.dinov3_vit.modeling_dinov3_vit.DINOv3ViTModel (`pooler_output` is the class token)
and timm.models.eva.Eva, whose pooling is the mean.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.nn.batching import IMAGENET, Pixels
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.examples import Batch, Examples
from fastkernels.nn.program import Call, Place, Program, Stage
from fastkernels.nn.weight_map import WeightMap

from ..L1.axial_rope import AxialRopeTable
from ..L1.layer_norm import LayerNorm
from ..L1.pool import GlobalMeanPool
from ..L2.patch_embed import PrefixedPatchEmbed
from ..L3.vision_block import LayerScaleBlock

NEEDED = ("use_gated_mlp", "proj_bias", "mlp_bias")  # as the 7B has them
REFUSED = ("query_bias", "key_bias", "value_bias")


class DINOv3ViTModel(nn.Module):
    place: Place

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        layer = layer_arguments(reader)
        hidden_size = layer["hidden_size"]
        registers = reader.integer("num_register_tokens", minimum=0)
        self.patch_size, self.num_channels = reader.integer("patch_size"), reader.integer("num_channels")
        self.num_features, self.num_prefix_tokens = hidden_size, 1 + registers

        self.patches = PrefixedPatchEmbed(self.num_channels, self.patch_size, hidden_size, registers)
        self.rope_embeddings = AxialRopeTable(
            hidden_size // layer["num_heads"], reader.number("rope_theta"), self.num_prefix_tokens
        )
        self.layers = nn.ModuleList(
            LayerScaleBlock(**layer) for _ in range(reader.integer("num_hidden_layers"))
        )
        self.norm = LayerNorm(hidden_size, layer["layer_norm_eps"])
        self.pool = GlobalMeanPool()
        self.weight_map = weight_map(hidden_size, layer["intermediate_size"])

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        """pixel_values [B, Y, X, C], sides multiples of the patch size -> features and class_token [B, D]"""
        images, height, width, _ = pixel_values.shape
        device = pixel_values.device
        table_NK = self.rope_embeddings(self.patch_coords(height, width, device))
        hidden_BND = self.patches(pixel_values)
        length = hidden_BND.shape[1]
        positions_T = torch.arange(length, device=device).repeat(images)
        starts_B1 = torch.arange(0, (images + 1) * length, length, dtype=torch.int32, device=device)
        hidden_TD = hidden_BND.flatten(0, 1)
        for layer in self.layers:
            hidden_TD = layer(hidden_TD, table_NK, positions_T, starts_B1, length)
        normed_BND = self.norm(hidden_TD).unflatten(0, (images, length))
        return self.pool(normed_BND[:, self.num_prefix_tokens :]), normed_BND[:, 0]

    def patch_coords(self, height: int, width: int, device: torch.device) -> Tensor:
        """[L, 2]: row and column of each patch's centre, from -1 to 1 over the image; in float32 at least."""
        dtype = self.rope_embeddings.dtype
        places = [side // self.patch_size for side in (height, width)]
        axes = [(torch.arange(1, 2 * n, 2, dtype=dtype, device=device) - n) / n for n in places]
        return torch.cartesian_prod(*axes)

    def examples(self, run: str, batch: Batch) -> Examples:
        """What a pass over images of one size calls."""
        assert batch.images is not None
        yield run, (torch.empty(*batch.images, self.num_channels),)

    def stages(self) -> dict[str, Stage]:
        return {"forward": Stage(Pixels(self.patch_size, self.num_channels, self.place, IMAGENET))}

    def program(self, image: Tensor) -> Program:
        """uint8 [H, W, C], sides that the patch size divides -> features [D], class_token [D]"""
        features, class_token = yield Call("forward", image)
        return {"features": features, "class_token": class_token}


def layer_arguments(config: ConfigReader) -> dict[str, Any]:
    """What every block is made with; a UsageError names the key that is wrong."""
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if hidden_size % (4 * num_heads):
        raise config.error(
            "hidden_size", f"{hidden_size} is no multiple of 4 times num_attention_heads, {num_heads}"
        )
    config.refuse(REFUSED)
    for key in NEEDED:
        if not config.flag(key):
            raise config.error(key, "false is not supported")
    return {
        "hidden_size": hidden_size,
        "intermediate_size": config.integer("intermediate_size"),
        "num_heads": num_heads,
        "hidden_act": config.choice("hidden_act", {"silu": "silu"}),
        "layer_norm_eps": config.number("layer_norm_eps"),
    }


def weight_map(hidden_size: int, intermediate_size: int) -> WeightMap:
    """Names of transformers' module; files of the hub may write `layer` for `model.layer`. The mask token is
    training's."""
    theirs, ours = "model.layer.*", "layers.*"
    names = {
        "embeddings.cls_token": "patches.cls_token",
        "embeddings.register_tokens": "patches.register_tokens",
        "embeddings.patch_embeddings.*": "patches.*",
        f"{theirs}.norm1.*": f"{ours}.norm1.*",
        f"{theirs}.norm2.*": f"{ours}.norm2.*",
        f"{theirs}.attention.o_proj.*": f"{ours}.attention.o_proj.linear.*",
        f"{theirs}.layer_scale1.lambda1": f"{ours}.layer_scale1.lambda1",
        f"{theirs}.layer_scale2.lambda1": f"{ours}.layer_scale2.lambda1",
        f"{theirs}.mlp.down_proj.*": f"{ours}.mlp.down_proj.linear.*",
        "norm.*": "norm.*",
    }
    packed = {
        f"{ours}.attention.qkv_proj.linear.*": {
            f"{theirs}.attention.{name}_proj.*": hidden_size for name in ("q", "k", "v")
        },
        f"{ours}.mlp.gate_up_proj.linear.*": {
            f"{theirs}.mlp.{name}_proj.*": intermediate_size for name in ("gate", "up")
        },
    }
    return WeightMap(names, packed, ("embeddings.mask_token",), prefixes={"model.layer.": "layer."})
