"""Blocks of mobile networks as timm writes them, and what their convolutions are called in its checkpoints.

    uir_r2_a3_k5_s2_e4_c80     universal inverted residual, twice; depthwise 3 x 3 (a) before and 5 x 5 (k)
                               after the expansion by 4 (e), to 80 channels (c)
    er_r3_k3_s1_e1_c32         edge residual: the expansion is 3 x 3
    ir_r8_k3_s2_e4_c152_se0.25 inverted residual with squeeze and excitation to a quarter of its input's width
    cn_r1_k1_s1_c960           convolution, norm, activation

The stride (s) is that of the first of its repetitions (r), others have 1. A kernel size of 0: none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any

from fastkernels.nn.config import ConfigReader
from fastkernels.nn.folding import Folding
from fastkernels.nn.weight_map import WeightMap

Block = dict[str, Any]  # its kind and arguments (tasks/baseline/L3/conv_stage.py)

# Letters of a definition -> an argument; all have in_chs, out_chs and stride too. `se` is a share of in_chs.
ARGUMENTS = {
    "er": {"k": "exp_kernel_size", "e": "exp_ratio"},
    "uir": {"a": "dw_kernel_size_start", "k": "dw_kernel_size_mid", "e": "exp_ratio"},
    "ir": {"k": "dw_kernel_size", "e": "exp_ratio", "se": "rd_channels"},
    "cn": {"k": "kernel_size"},
}
KINDS = {"er": "edge", "uir": "universal", "ir": "squeezed", "cn": "conv"}
# Of each kind: a checkpoint's convolution -> (its norm, our module), within the block.
CONVOLUTIONS = {
    "edge": {"conv_exp": ("bn1", "conv_exp"), "conv_pwl": ("bn2", "conv_pwl")},
    "universal": {
        f"{name}.conv": (f"{name}.bn", name) for name in ("dw_start", "pw_exp", "dw_mid", "pw_proj")
    },
    "squeezed": {
        "conv_pw": ("bn1", "conv_pw"),
        "conv_dw": ("bn2", "conv_dw"),
        "conv_pwl": ("bn3", "conv_pwl"),
    },
    "conv": {"conv": ("bn1", "")},
}


def stages_of(reader: ConfigReader, in_chs: int, activation: str) -> list[list[Block]]:
    """Of `block_args`, a list of definitions for each stage. A UsageError names what is wrong."""
    given = reader.config.get("block_args")
    if not isinstance(given, list) or not given or not all(isinstance(s, list) and s for s in given):
        raise reader.error("block_args", f"must be lists of definitions, one for each stage, not {given!r}")
    stages: list[list[Block]] = []
    for definitions in given:
        stage: list[Block] = []
        for text in definitions:
            blocks, in_chs = _decoded(reader, text, in_chs, activation)
            stage += blocks
        stages.append(stage)
    return stages


def width_of(stages: Sequence[Sequence[Block]]) -> int:
    """Channels after the last block."""
    return stages[-1][-1]["out_chs"]


def stride_of(stages: Sequence[Sequence[Block]]) -> int:
    """Pixels of the first map for one of the last."""
    return prod(block["stride"] for stage in stages for block in stage)


def _decoded(reader: ConfigReader, text: Any, in_chs: int, activation: str) -> tuple[list[Block], int]:
    """The blocks of one definition, and their output channels."""
    name, *parts = text.split("_") if isinstance(text, str) else (None,)
    if name not in KINDS:
        raise reader.error("block_args", f"{text!r} must begin with one of {', '.join(KINDS)}")
    letters = ARGUMENTS[name]
    values: dict[str, float] = {"r": 1, "s": 1}
    for part in parts:
        found = re.fullmatch(r"([a-z]+)(\d+(?:\.\d+)?)", part)
        if found is None or found[1] not in {"r", "s", "c", *letters}:
            raise reader.error("block_args", f"{text!r}: {part!r} is not supported")
        values[found[1]] = float(found[2])
    if absent := {"c", *letters} - values.keys():
        raise reader.error("block_args", f"{text!r} does not say {', '.join(sorted(absent))}")
    if fractions := [key for key in values if key not in ("e", "se") and values[key] != int(values[key])]:
        raise reader.error("block_args", f"{text!r}: {fractions[0]} must be an integer")
    if zeros := [key for key in ("r", "s", "c", "e") if values.get(key, 1) == 0]:
        raise reader.error("block_args", f"{text!r}: {zeros[0]} must not be 0")
    out_chs, blocks = int(values["c"]), []
    for repetition in range(int(values["r"])):
        block: Block = {letters[k]: v if k == "e" else int(v) for k, v in values.items() if k in letters}
        if "se" in letters:  # a share of the block's own input
            block["rd_channels"] = max(1, round(values["se"] * in_chs))
        block |= {"kind": KINDS[name], "in_chs": in_chs, "out_chs": out_chs, "activation": activation}
        block["stride"] = 1 if repetition else int(values["s"])
        blocks.append(block)
        in_chs = out_chs
    return blocks, out_chs


def weight_map(stages: Sequence[Sequence[Block]], others: dict[str, str], eps: float) -> WeightMap:
    """Names of timm's checkpoint. others: a convolution outside of the blocks -> its norm; both sides call it
    alike. eps: of the norms, which are folded."""
    modules = {name: name for name in others}
    norms = dict(others)
    for s, stage in enumerate(stages):
        for j, block in enumerate(stage):
            for name, (norm, ours) in CONVOLUTIONS[block["kind"]].items():
                modules[f"blocks.{s}.{j}.{name}"] = f"blocks.{s}.{j}{'.' * bool(ours)}{ours}"
                norms[f"blocks.{s}.{j}.{name}"] = f"blocks.{s}.{j}.{norm}"
    names = {f"{theirs}.weight": f"{ours}.conv.weight" for theirs, ours in modules.items()}
    names |= {f"{theirs}.bias": f"{ours}.bias" for theirs, ours in modules.items()}
    names |= {f"blocks.*.*.se.{name}.*": f"blocks.*.*.se.{name}.*" for name in ("conv_reduce", "conv_expand")}
    names["classifier.*"] = "classifier.*"
    return WeightMap(names, folding=Folding(eps, norms=norms))
