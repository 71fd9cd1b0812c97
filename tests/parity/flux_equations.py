"""FLUX.1's published equations in float64, from a checkpoint under diffusers' names: one request at a time,
one head at a time, one group of channels at a time; maps have channels first. Nothing of the package is used.
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


# ---------------------------------------------------------------- from latents to an image


def image(w: Weights, groups: int, latents: Tensor, scaling: float, shift: float) -> Tensor:
    """latents [C, Y, X] -> [3, 8 Y, 8 X] within 0 .. 1; the names are those of the autoencoder's file."""
    h = _conv(w, "decoder.conv_in", latents / scaling + shift)
    h = _resnet(w, "decoder.mid_block.resnets.0", h, groups)
    h = _attend_to_all(w, "decoder.mid_block.attentions.0", h, groups)
    h = _resnet(w, "decoder.mid_block.resnets.1", h, groups)
    for i in range(4):
        name, j = f"decoder.up_blocks.{i}", 0
        while f"{name}.resnets.{j}.conv1.weight" in w:
            h, j = _resnet(w, f"{name}.resnets.{j}", h, groups), j + 1
        if i < 3:
            h = torch.stack((h, h), -1).flatten(-2)  # each column twice, then each row
            h = torch.stack((h, h), -2).flatten(-3, -2)
            h = _conv(w, f"{name}.upsamplers.0.conv", h)
    y = _conv(w, "decoder.conv_out", _silu(_group_norm(w, "decoder.conv_norm_out", h, groups)))
    return torch.clamp(y / 2 + 0.5, 0, 1)


def _resnet(w: Weights, name: str, x: Tensor, groups: int) -> Tensor:
    h = _conv(w, f"{name}.conv1", _silu(_group_norm(w, f"{name}.norm1", x, groups)))
    h = _conv(w, f"{name}.conv2", _silu(_group_norm(w, f"{name}.norm2", h, groups)))
    return h + (_conv(w, f"{name}.conv_shortcut", x) if f"{name}.conv_shortcut.weight" in w else x)


def _attend_to_all(w: Weights, name: str, x: Tensor, groups: int) -> Tensor:
    n = _group_norm(w, f"{name}.group_norm", x, groups).flatten(1).T
    q, k, v = (_affine(w, f"{name}.to_{part}", n) for part in "qkv")
    o = torch.softmax(q @ k.T / math.sqrt(q.shape[-1]), dim=-1) @ v
    return x + _affine(w, f"{name}.to_out.0", o).T.view(x.shape)


def _group_norm(w: Weights, name: str, x: Tensor, groups: int) -> Tensor:
    parts = []
    for part in x.chunk(groups):
        variance, mean = torch.var_mean(part, correction=0)
        parts.append((part - mean) / torch.sqrt(variance + 1e-6))
    gain, shift = (w[f"{name}.{kind}"].double()[:, None, None] for kind in ("weight", "bias"))
    return torch.cat(parts) * gain + shift


def _conv(w: Weights, name: str, x: Tensor) -> Tensor:
    """Every output pixel is a product of the filters and its neighbourhood, zeros beyond the edges."""
    filters = w[f"{name}.weight"].double()
    side = filters.shape[-1]
    around = torch.nn.functional.unfold(x[None], side, padding=side // 2)[0]
    flat = filters.flatten(1) @ around + w[f"{name}.bias"].double()[:, None]
    return flat.view(-1, *x.shape[1:])
