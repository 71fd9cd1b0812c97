"""RWKV-7 by its equations, in float64 from the tensors of a checkpoint, one token after another: what our
model and its production reference are both held against.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

MIXES = "rwkvag"


def shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors of a checkpoint."""
    d, f, v = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads = d // config["head_dim"]
    ranks = {"w": "decay", "a": "a", "v": "v", "g": "gate"}
    ranks = {name: config[f"{word}_low_rank_dim"] for name, word in ranks.items()}
    found: dict[str, tuple[int, ...]] = {"model.embeddings.weight": (v, d)}
    for i in range(config["num_hidden_layers"]):
        norms = ["attn_norm", "ffn_norm", "attn.g_norm", *(["pre_norm"] if i == 0 else [])]
        layer: dict[str, tuple[int, ...]] = {
            f"{name}.{end}": (d,) for name in norms for end in ("weight", "bias")
        }
        layer |= {f"attn.x_{x}": (1, 1, d) for x in MIXES}
        layer |= {f"attn.{x}_proj.weight": (d, d) for x in "rkvo"}
        layer |= {"attn.k_k": (d,), "attn.k_a": (d,), "attn.r_k": (heads, config["head_dim"])}
        for name, rank in ranks.items():
            if name == "v" and i == 0:
                continue
            layer[f"attn.{name}_lora.lora.0.weight"] = (rank, d)
            layer[f"attn.{name}_lora.lora.2.weight"] = (d, rank)
            if name != "g":
                layer[f"attn.{name}_lora.lora.2.bias"] = (d,)
        layer |= {"ffn.x_k": (d,), "ffn.key.weight": (f, d), "ffn.value.weight": (d, f)}
        found |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return found | {"model.norm.weight": (d,), "model.norm.bias": (d,), "lm_head.weight": (v, d)}


def random_checkpoint(config: Mapping[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Every parameter random, also those that training begins as constants. The values of the first head are
    small, so that the epsilon of its norm shows."""
    generator = torch.Generator().manual_seed(seed)

    def draw(name: str, shape: tuple[int, ...]) -> Tensor:
        if ".x_" in name:
            return torch.rand(shape, generator=generator)
        if len(shape) == 2:
            scale = 1.0 if "embeddings" in name else shape[1] ** -0.5
            x = torch.randn(shape, generator=generator) * scale
            if "v_proj" in name:
                x[: config["head_dim"]] *= 0.02
            return x
        return torch.rand(shape, generator=generator) + (-0.5 if name.endswith("bias") else 0.5)

    return {name: draw(name, shape) for name, shape in shapes(config).items()}


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def removed(s: Tensor, w: Tensor, kk: Tensor, a: Tensor) -> Tensor:
    """A state [H, K, V] that has decayed and lost what lay under kk before."""
    return w.exp()[..., None] * s - (kk * a)[..., None] * (kk[..., None] * s).sum(-2, keepdim=True)


# What a wrong model has in the place of one of these; see the test that swaps them.
RIGHT: dict[str, Callable[..., Any]] = {
    "decay": lambda z: -math.exp(-0.5) * sigmoid(z),
    "act_w": torch.tanh,
    "act_a": lambda z: z,
    "act_v": lambda z: z,
    "act_g": sigmoid,
    "length": lambda x: x.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-12),
    "head_eps": lambda config: config["head_dim"] * config["norm_eps"],
    "removed": removed,
    "removal_key": lambda before, after: before,
    "bonus_key": lambda before, after: after,
    "bonus_value": lambda before, after: after,
    "gated": lambda o, bonus, g: (o + bonus) * g,
    "first": lambda v, v_first: v_first,
    "stream": lambda embedded, normed: normed,
    "shifted": lambda normed, raw: normed,
    "before": lambda x: torch.cat((torch.zeros_like(x[:1]), x[:-1])),
    "activated": lambda z: z.clamp(min=0) ** 2,
    "mixes": lambda a: {x: a[f"attn.x_{x}"].flatten() for x in MIXES},
}


def logits(
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    ids: list[int],
    wrong: Mapping[str, Callable[..., Any]] | None = None,
) -> Tensor:
    """[T, V] float64 of one sequence."""
    do = {**RIGHT, **(wrong or {})}
    p = {name: value.double() for name, value in weights.items()}
    size = config["head_dim"]
    embedded = p["model.embeddings.weight"][ids]
    h = do["stream"](embedded, norm(embedded, p, "model.layers.0.pre_norm", config["norm_eps"]))
    v_first = None
    for i in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{i}."
        a = {name.removeprefix(prefix): value for name, value in p.items() if name.startswith(prefix)}
        x = do["shifted"](norm(h, a, "attn_norm", config["norm_eps"]), h)
        delta, mixes = do["before"](x) - x, do["mixes"](a)
        s = {name: x + delta * share for name, share in mixes.items()}

        def lora(name: str, x: Tensor, a: Mapping[str, Tensor] = a) -> Tensor:
            low = do[f"act_{name}"](x @ a[f"attn.{name}_lora.lora.0.weight"].T)
            return low @ a[f"attn.{name}_lora.lora.2.weight"].T + a.get(f"attn.{name}_lora.lora.2.bias", 0)

        r, k, own_v = (s[name] @ a[f"attn.{name}_proj.weight"].T for name in "rkv")
        w, rate, g = do["decay"](lora("w", s["w"])), sigmoid(lora("a", s["a"])), lora("g", s["g"])
        if v_first is None:
            v = v_first = own_v
        else:
            v = own_v + (do["first"](own_v, v_first) - own_v) * sigmoid(lora("v", s["v"]))
        new_k = k * (1 + (rate - 1) * a["attn.k_a"])
        kk = (do["removal_key"](k, new_k) * a["attn.k_k"]).unflatten(-1, (-1, size))
        kk = kk / do["length"](kk)
        bonus_k, bonus_v = do["bonus_key"](k, new_k), do["bonus_value"](own_v, v)
        r, w, new_k, v, rate, bonus_k, bonus_v = (
            t.unflatten(-1, (-1, size)) for t in (r, w, new_k, v, rate, bonus_k, bonus_v)
        )
        state, read = torch.zeros(*r.shape[1:], size, dtype=torch.float64), []
        for t in range(len(ids)):
            state = do["removed"](state, w[t], kk[t], rate[t]) + new_k[t][..., None] * v[t][:, None]
            read.append((state * r[t][..., None]).sum(-2))
        o = torch.stack(read)
        o = (o - o.mean(-1, keepdim=True)) / (
            o.var(-1, unbiased=False, keepdim=True) + do["head_eps"](config)
        ).sqrt()
        o = o.flatten(1) * a["attn.g_norm.weight"] + a["attn.g_norm.bias"]
        bonus = ((r * bonus_k * a["attn.r_k"]).sum(-1, keepdim=True) * bonus_v).flatten(1)
        h = h + do["gated"](o, bonus, g) @ a["attn.o_proj.weight"].T
        x = do["shifted"](norm(h, a, "ffn_norm", config["norm_eps"]), h)
        mixed = x + (do["before"](x) - x) * a["ffn.x_k"]
        h = h + do["activated"](mixed @ a["ffn.key.weight"].T) @ a["ffn.value.weight"].T
    return norm(h, p, "model.norm", config["norm_eps"]) @ p["lm_head.weight"].T


def norm(x: Tensor, p: Mapping[str, Tensor], name: str, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    normed = centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + eps)
    return normed * p[f"{name}.weight"] + p[f"{name}.bias"]


def greedy(config: Mapping[str, Any], weights: Mapping[str, Tensor], ids: list[int], count: int) -> list[int]:
    """The greedy continuation; an assertion that no choice is a near-tie, which float32 could decide anew."""
    text = list(ids)
    for _ in range(count):
        best = logits(config, weights, text)[-1].topk(2)
        assert best.values[0] - best.values[1] > 1e-4, "a near-tie: choose another seed"
        text.append(int(best.indices[0]))
    return text[len(ids) :]
