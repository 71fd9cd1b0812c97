"""Mixtures of experts, as configurations and checkpoints of Hugging Face have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastkernels.nn.config import ConfigReader
from fastkernels.nn.weight_map import WeightMap


def expert_arguments(
    config: ConfigReader, experts: str = "num_experts", chosen: str = "num_experts_per_tok"
) -> dict[str, int]:
    """num_experts and top_k, by the keys that say them; a UsageError names the one that is wrong."""
    num_experts, top_k = config.integer(experts), config.integer(chosen)
    if top_k > num_experts:
        raise config.error(chosen, f"{top_k} of {num_experts} experts cannot be chosen")
    return {"num_experts": num_experts, "top_k": top_k}


def expert_weights(
    layer: Mapping[str, Any],
    theirs: str,
    ours: str,
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    stacks: str | None = None,
) -> WeightMap:
    """Of matrices for each expert, as `theirs.7.gate_proj.weight`, which fill `ours.w13.weight` and
    `ours.w2.weight`.

    layer: num_experts, intermediate_size F and hidden_size D; parts: gate, up and down. stacks: how the two
    stacks are called that transformers 5 writes, `.gate_up_proj` [E, 2F, D] with the gate first and
    `.down_proj` [E, D, F]; None: they are not accepted.
    """
    each, (gate, up, down) = range(layer["num_experts"]), parts
    w13, w2 = f"{ours}.w13.weight", f"{ours}.w2.weight"
    packed = {
        w13: {f"{theirs}.{e}.{part}.weight": layer["intermediate_size"] for e in each for part in (gate, up)},
        w2: {f"{theirs}.{e}.{down}.weight": layer["hidden_size"] for e in each},
    }
    spellings = {} if stacks is None else {f"{stacks}.gate_up_proj": w13, f"{stacks}.down_proj": w2}
    return WeightMap(packed=packed, spellings=spellings)
