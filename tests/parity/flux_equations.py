"""FLUX.1's published equations in float64, from a checkpoint under diffusers' names: one request at a time,
one head at a time. Nothing of the package is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Shape:
    double: int
    single: int
    heads: int
    axes: tuple[int, ...]


def velocity(
    w: Weights,
    shape: Shape,
    x: Tensor,
    text: Tensor,
    pooled: Tensor,
    t: float,
    g: float,
    grid: tuple[int, int],
) -> Tensor:
    """x [L, C], text [S, J], pooled [P]; t and g times 1000; grid: rows and columns of tokens."""
    temb = (
        _mlp(w, "time_text_embed.timestep_embedder", _sinusoid(t))
        + _mlp(w, "time_text_embed.guidance_embedder", _sinusoid(g))
        + _mlp(w, "time_text_embed.text_embedder", pooled)
    )
    rows, columns = grid
    places = [(0, 0, 0)] * len(text) + [(0, r, c) for r in range(rows) for c in range(columns)]
    turns = torch.stack([_turn(place, shape.axes) for place in places])
    h, y = _affine(w, "x_embedder", x), _affine(w, "context_embedder", text)
    for i in range(shape.double):
        h, y = _double(w, f"transformer_blocks.{i}", shape, h, y, temb, turns)
    z = torch.cat((y, h))
    for i in range(shape.single):
        z = _single(w, f"single_transformer_blocks.{i}", shape, z, temb, turns)
    scale, shift = _affine(w, "norm_out.linear", _silu(temb)).chunk(2)
    return _affine(w, "proj_out", _norm(z[len(text) :]) * (1 + scale) + shift)


def _double(w: Weights, name: str, shape: Shape, h: Tensor, y: Tensor, temb: Tensor, turns: Tensor):
    image, text = (
        _affine(w, f"{name}.{norm}.linear", _silu(temb)).chunk(6) for norm in ("norm1", "norm1_context")
    )
    parts = []
    for stream, m, names, norms in (
        (y, text, ("add_q_proj", "add_k_proj", "add_v_proj"), ("norm_added_q", "norm_added_k")),
        (h, image, ("to_q", "to_k", "to_v"), ("norm_q", "norm_k")),
    ):
        n = _norm(stream) * (1 + m[1]) + m[0]
        parts.append(_qkv(w, f"{name}.attn", n, names, norms, shape.heads))
    q, k, v = (torch.cat(pair) for pair in zip(*parts))
    o = _attention(q, k, v, turns)
    outs = {}
    for stream, m, part, out, ff in (
        (y, text, o[: len(y)], "to_add_out", "ff_context"),
        (h, image, o[len(y) :], "to_out.0", "ff"),
    ):
        a = stream + m[2] * _affine(w, f"{name}.attn.{out}", part)
        inner = _affine(w, f"{name}.{ff}.net.0.proj", _norm(a) * (1 + m[4]) + m[3])
        outs[ff] = a + m[5] * _affine(w, f"{name}.{ff}.net.2", _gelu_tanh(inner))
    return outs["ff"], outs["ff_context"]


def _single(w: Weights, name: str, shape: Shape, z: Tensor, temb: Tensor, turns: Tensor) -> Tensor:
    shift, scale, gate = _affine(w, f"{name}.norm.linear", _silu(temb)).chunk(3)
    n = _norm(z) * (1 + scale) + shift
    qkv = _qkv(w, f"{name}.attn", n, ("to_q", "to_k", "to_v"), ("norm_q", "norm_k"), shape.heads)
    o = _attention(*qkv, turns)
    m = _gelu_tanh(_affine(w, f"{name}.proj_mlp", n))
    return z + gate * _affine(w, f"{name}.proj_out", torch.cat((o, m), dim=-1))


def _qkv(w: Weights, name: str, n: Tensor, names: tuple[str, ...], norms: tuple[str, ...], heads: int):
    """q, k, v [T, H, K]; q and k normalised over each head."""
    q, k, v = (_affine(w, f"{name}.{part}", n).view(len(n), heads, -1) for part in names)
    q, k = (
        x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-6) * w[f"{name}.{norm}.weight"].double()
        for x, norm in zip((q, k), norms)
    )
    return q, k, v


def _attention(q: Tensor, k: Tensor, v: Tensor, turns: Tensor) -> Tensor:
    """[T, H K]; a pair of features is a complex number that its position turns."""
    heads = []
    for i in range(q.shape[1]):
        a, b = (torch.view_as_complex(x[:, i].reshape(len(x), -1, 2)) * turns for x in (q, k))
        # The real part of a product with the conjugate is the inner product of the pairs.
        scores = (a @ b.conj().T).real / math.sqrt(q.shape[-1])
        heads.append(torch.softmax(scores, dim=-1) @ v[:, i])
    return torch.cat(heads, dim=-1)


def _turn(place: tuple[int, ...], axes: tuple[int, ...]) -> Tensor:
    """complex [K / 2]: e^(i angle) of each pair."""
    angles = [p * 10000.0 ** (-2 * k / dim) for p, dim in zip(place, axes) for k in range(dim // 2)]
    return torch.polar(
        torch.ones(len(angles), dtype=torch.float64), torch.tensor(angles, dtype=torch.float64)
    )


def _sinusoid(v: float) -> Tensor:
    angles = [v * 10000.0 ** (-k / 128) for k in range(128)]
    return torch.tensor([math.cos(a) for a in angles] + [math.sin(a) for a in angles], dtype=torch.float64)


def _mlp(w: Weights, name: str, x: Tensor) -> Tensor:
    return _affine(w, f"{name}.linear_2", _silu(_affine(w, f"{name}.linear_1", x)))


def _affine(w: Weights, name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"].double().T + w[f"{name}.bias"].double()


def _norm(x: Tensor) -> Tensor:
    variance, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-6)


def _silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def _gelu_tanh(x: Tensor) -> Tensor:
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
