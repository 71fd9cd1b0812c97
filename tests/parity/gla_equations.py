"""GLA and RetNet by their equations, in float64 from the tensors of a checkpoint: what our models and their
production references are both held against. GLA goes from token to token, RetNet takes all pairs of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

LOW_RANK, NORMALIZER = 16, 16.0


def shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors of a checkpoint."""
    d, f, v = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    keys, values = int(d * config["expand_k"]), int(d * config["expand_v"])
    found: dict[str, tuple[int, ...]] = {"model.embeddings.weight": (v, d)}
    for i in range(config["num_hidden_layers"]):
        layer = {
            "attn_norm.weight": (d,),
            "attn.q_proj.weight": (keys, d),
            "attn.k_proj.weight": (keys, d),
            "attn.v_proj.weight": (values, d),
            "attn.g_proj.weight": (values, d),
            "attn.g_norm_swish_gate.weight": (values // config["num_heads"],),
            "attn.o_proj.weight": (d, values),
            "mlp_norm.weight": (d,),
            "mlp.gate_proj.weight": (f, d),
            "mlp.up_proj.weight": (f, d),
            "mlp.down_proj.weight": (d, f),
        }
        if config["model_type"] == "gla":
            layer |= {
                "attn.gk_proj.0.weight": (LOW_RANK, d),
                "attn.gk_proj.1.weight": (keys, LOW_RANK),
                "attn.gk_proj.1.bias": (keys,),
            }
        found |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return found | {"model.norm.weight": (d,), "lm_head.weight": (v, d)}


def random_checkpoint(config: Mapping[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Every parameter random, norms and biases too: defaults of 1 and 0 would hide mistakes."""
    generator = torch.Generator().manual_seed(seed)

    def draw(name: str, shape: tuple[int, ...]) -> Tensor:
        if len(shape) == 2:
            scale = 1.0 if "embeddings" in name else shape[1] ** -0.5
            return torch.randn(shape, generator=generator) * scale
        return torch.rand(shape, generator=generator) + (-0.5 if name.endswith("bias") else 0.5)

    return {name: draw(name, shape) for name, shape in shapes(config).items()}


def logits(config: Mapping[str, Any], weights: Mapping[str, Tensor], ids: list[int]) -> Tensor:
    """[T, V] float64 of one sequence."""
    w = {name: value.double() for name, value in weights.items()}
    eps, heads = config["norm_eps"], config["num_heads"]

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight

    def silu(x: Tensor) -> Tensor:
        return x / (1 + torch.exp(-x))

    h = w["model.embeddings.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{i}."
        a = {name.removeprefix(prefix): value for name, value in w.items() if name.startswith(prefix)}
        x = norm(h, a["attn_norm.weight"])
        q, k, v, g = (
            (x @ a[f"attn.{n}_proj.weight"].T).unflatten(-1, (heads, -1)) for n in ("q", "k", "v", "g")
        )
        read = gated_read(a, x, q, k, v) if config["model_type"] == "gla" else retained_read(q, k, v)
        o = norm(read / q.shape[-1] ** 0.5, a["attn.g_norm_swish_gate.weight"]) * silu(g)
        h = h + o.flatten(1) @ a["attn.o_proj.weight"].T
        x = norm(h, a["mlp_norm.weight"])
        gated = silu(x @ a["mlp.gate_proj.weight"].T) * (x @ a["mlp.up_proj.weight"].T)
        h = h + gated @ a["mlp.down_proj.weight"].T
    return norm(h, w["model.norm.weight"]) @ w["lm_head.weight"].T


def gated_read(a: Mapping[str, Tensor], x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What GLA's queries read, [T, H, V], before the scale."""
    z = x @ a["attn.gk_proj.0.weight"].T @ a["attn.gk_proj.1.weight"].T + a["attn.gk_proj.1.bias"]
    decay = ((1 / (1 + torch.exp(-z))) ** (1 / NORMALIZER)).unflatten(-1, q.shape[1:])
    state, read = torch.zeros(*q.shape[1:], v.shape[-1], dtype=torch.float64), []
    for t in range(len(q)):
        state = decay[t][:, :, None] * state + k[t][:, :, None] * v[t][:, None, :]
        read.append((state * q[t][:, :, None]).sum(1))
    return torch.stack(read)


def retained_read(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What RetNet's queries read, [T, H, V], before the scale."""
    position = torch.arange(len(q), dtype=torch.float64)
    half = q.shape[-1] // 2
    angle = position[:, None] * 10000 ** (-torch.arange(half, dtype=torch.float64) / half)
    turn = torch.polar(torch.ones_like(angle), angle)[:, None]
    q, k = (torch.complex(x[..., :half], x[..., half:]) * turn for x in (q, k))
    kept = 1 - 2.0 ** (-5 - torch.arange(q.shape[1], dtype=torch.float64))
    past = (position[:, None] - position).clamp(min=0)
    pairs = torch.einsum("ihk,jhk->hij", q, k.conj()).real * kept[:, None, None] ** past
    return torch.einsum("hij,jhv->ihv", pairs.tril(), v)


def greedy(config: Mapping[str, Any], weights: Mapping[str, Tensor], ids: list[int], count: int) -> list[int]:
    """The greedy continuation; an assertion that no choice is a near-tie, which float32 could decide anew."""
    text = list(ids)
    for _ in range(count):
        best = logits(config, weights, text)[-1].topk(2)
        assert best.values[0] - best.values[1] > 1e-4, "a near-tie: choose another seed"
        text.append(int(best.indices[0]))
    return text[len(ids) :]
