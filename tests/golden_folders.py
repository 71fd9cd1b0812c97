"""Golden folders for tests: by hand from expert ids, and a checkpoint whose routers have favourites.

L layers · N tokens · k experts of a token · E experts · D hidden
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralForCausalLM

from fastkernels.loader import golden
from fastkernels.measure.environment import environment
from fastkernels.nn.random_weights import random_weights
from fastkernels.records import Capture, CapturedTokens

WIDTH = 8
FAVOURITE = 2  # of the skewed checkpoint, in every layer


def chain(ids_LNK: Tensor, experts: int) -> dict[str, Tensor]:
    """hidden states, router logits and ids that follow from each other, with a gate that is the identity."""
    layers, tokens, k = ids_LNK.shape
    logits_LNE = torch.zeros(layers, tokens, experts)
    logits_LNE.scatter_(2, ids_LNK, torch.arange(k, 0, -1.0).expand(layers, tokens, k))
    hidden_LND = torch.nn.functional.pad(logits_LNE, (0, WIDTH - experts))
    return {"expert_ids": ids_LNK.int(), "router_logits": logits_LNE, "hidden_states": hidden_LND}


def hand_made(
    folder: Path, ids: dict[str, Tensor], experts: int, architecture: str = "mixtral", **changes: object
) -> Path:
    """A golden folder from int64 ids [L, N, k] of both phases; `changes` replace tensors afterwards."""
    layers, _, k = ids["prefill"].shape
    tensors = {"gate": torch.eye(experts, WIDTH).expand(layers, experts, WIDTH)}
    tokens = {}
    for phase, ids_LNK in ids.items():
        count = ids_LNK.shape[1]
        tokens[phase] = CapturedTokens(seen=count, kept=count, hidden=count)
        loads = [torch.bincount(ids_NK.flatten(), minlength=experts) for ids_NK in ids_LNK]
        tensors |= {f"{phase}.{name}": value for name, value in chain(ids_LNK, experts).items()}
        tensors |= {f"{phase}.load": torch.stack(loads), f"{phase}.steps": torch.zeros(count).int()}
    capture = Capture(
        schema=1,
        model="by hand",
        architecture=architecture,
        weights="checkpoint",
        revision=None,
        config={},
        dtype="float32",
        seed=0,
        workload="balanced",
        requests=1,
        output_len=2,
        prompts="random ids",
        top_k=k,
        experts=experts,
        layers=tuple(f"layers.{i}.moe" for i in range(layers)),
        tokens=tokens,
        digest="",
        environment=environment("cpu"),
    )
    golden.write(folder, capture, {**tensors, **changes}, [])
    return folder


def skewed_checkpoint(folder: Path) -> Path:
    """A tiny Mixtral as transformers saves it; its routers prefer one expert for nearly all tokens.

    All embeddings share a direction, which the favourite's gate recognises.
    """
    config = MixtralConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=256,
    )
    model = MixtralForCausalLM._from_config(config, dtype=torch.float32).eval()
    random_weights(model, seed=0)
    with torch.no_grad():
        common_D = torch.randn(64, generator=torch.Generator().manual_seed(1))
        model.model.embed_tokens.weight += common_D
        for layer in model.model.layers:
            layer.mlp.gate.weight[FAVOURITE] = common_D / 8  # pyright: ignore
    model.save_pretrained(folder)
    return folder
