"""Of an image autoencoder as diffusers writes it: its decoder's arguments, and the names of its weights."""

from __future__ import annotations

from typing import Any

from fastkernels.nn.config import ConfigReader
from fastkernels.nn.weight_map import WeightMap

RGB = 3
UP_BLOCKS = 4  # a latent is 8 x 8 pixels
ENCODER_DEPTH = range(2, 7)  # dots in the names of the half that is left out


def decoder_arguments(config: ConfigReader, post_quant_conv: bool = False) -> dict[str, Any]:
    """What the decoder of an AutoencoderKL is made with; a UsageError names the key that is wrong.
    post_quant_conv: whether the model has the convolution before it, which newer autoencoders lack."""
    if (has := config.flag("use_post_quant_conv", default=post_quant_conv)) != post_quant_conv:
        raise config.error("use_post_quant_conv", f"{has} is not supported")
    config.refuse(["latents_mean", "latents_std", "quantization_config"])
    config.choice("act_fn", {"silu": "silu"}, default="silu")
    if not config.flag("mid_block_add_attention", default=True):
        raise config.error("mid_block_add_attention", "a middle without attention is not supported")
    if other := set(config.config.get("up_block_types") or ()) - {"UpDecoderBlock2D"}:
        raise config.error(
            "up_block_types", f"{', '.join(sorted(map(str, other)))}: only UpDecoderBlock2D is supported"
        )
    if (pixel_channels := config.integer("out_channels", default=RGB)) != RGB:
        raise config.error("out_channels", f"{pixel_channels}: an image has {RGB}")
    widths, groups = config.config.get("block_out_channels"), config.integer("norm_num_groups")
    if not isinstance(widths, (list, tuple)) or len(widths) != UP_BLOCKS:
        raise config.error("block_out_channels", f"must be {UP_BLOCKS} numbers, not {widths!r}")
    if any(not isinstance(width, int) or width < 1 or width % groups for width in widths):
        raise config.error("block_out_channels", f"{widths!r}: not multiples of norm_num_groups, {groups}")
    return {
        "in_channels": config.integer("latent_channels"),
        "block_out_channels": list(widths),
        "layers_per_block": config.integer("layers_per_block"),
        "norm_num_groups": groups,
    }


def decoder_weights(width: int) -> WeightMap:
    """Names of diffusers' file. Query, key and value of `width` channels fill one matrix; the other half,
    which makes latents of images, is left out."""
    attention = "mid_block.attentions.0"
    same = (
        "conv_in.*",
        "conv_norm_out.*",
        "conv_out.*",
        "mid_block.resnets.*.*.*",
        "up_blocks.*.resnets.*.*.*",
    )
    names = {name: name for name in same} | {
        f"{attention}.group_norm.*": "mid_block.attention.group_norm.*",
        f"{attention}.to_out.0.*": "mid_block.attention.to_out.*",
        "up_blocks.*.upsamplers.0.conv.*": "up_blocks.*.upsampler.conv.*",
    }
    packed = {"mid_block.attention.to_qkv.*": {f"{attention}.to_{part}.*": width for part in "qkv"}}
    ignored = ("quant_conv.*", *(f"encoder{'.*' * depth}" for depth in ENCODER_DEPTH))
    return WeightMap(names, packed).under("decoder.") | WeightMap(ignored=ignored)
