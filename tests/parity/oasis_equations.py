"""Oasis' published equations in float64, from a checkpoint under open-oasis' names: one clip at a time, one
head at a time, and the whole window at every step. Nothing of the package is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Shape:
    """Of the network: blocks, heads, size of a patch. Of the autoencoder: the same of each half."""

    depth: int
    heads: int
    patch: int
    vae_depth: tuple[int, int]
    vae_heads: tuple[int, int]
    vae_patch: int


def velocity(w: Weights, shape: Shape, x: Tensor, t: list[float], actions: Tensor) -> Tensor:
    """x [T, C, h, w], actions [T, A] -> [T, C, h, w]"""
    frames, channels, height, width = x.shape
    p = shape.patch
    rows, columns = height // p, width // p
    h = torch.nn.functional.conv2d(x, w["x_embedder.proj.weight"], w["x_embedder.proj.bias"], stride=p)
    h = h.flatten(2).transpose(1, 2)  # [T, L, D]
    c = torch.stack([_sinusoid(one) for one in t])
    c = _affine(w, "t_embedder.mlp.2", _silu(_affine(w, "t_embedder.mlp.0", c)))
    c = c + _affine(w, "external_cond", actions)
    size = h.shape[-1] // shape.heads
    turns = _axial(rows, columns, size // 2, 256.0)
    times = torch.arange(frames)[:, None] * 10000.0 ** -(torch.arange(0, size, 2).double() / size)
    for i in range(shape.depth):
        for half in "st":
            name = f"blocks.{i}.{half}"
            m = _affine(w, f"{name}_adaLN_modulation.1", _silu(c)).chunk(6, dim=-1)
            shift, scale, gate, shift2, scale2, gate2 = (one[:, None] for one in m)
            n = _norm(h) * (1 + scale) + shift
            qkv = n @ w[f"{name}_attn.to_qkv.weight"].T
            if half == "s":
                o = torch.stack([_attend(of_frame, shape.heads, turns) for of_frame in qkv])
            else:
                places = [
                    _attend(qkv[:, place], shape.heads, times, causal=True) for place in range(h.shape[1])
                ]
                o = torch.stack(places, dim=1)
            h = h + gate * _affine(w, f"{name}_attn.to_out", o)
            n = _norm(h) * (1 + scale2) + shift2
            h = h + gate2 * _mlp(w, f"{name}_mlp", n, "tanh")
    shift, scale = (
        one[:, None] for one in _affine(w, "final_layer.adaLN_modulation.1", _silu(c)).chunk(2, -1)
    )
    out = _affine(w, "final_layer.linear", _norm(h) * (1 + scale) + shift)
    out = out.view(frames, rows, columns, p, p, channels)
    return torch.einsum("nhwpqc->nchpwq", out).reshape(x.shape)


def alphas(levels: int = 1000) -> Tensor:
    """The sigmoid schedule as the sheet's test vector has it, its end and the product in float32."""
    betas = []
    end = float(torch.tensor(3.0).sigmoid())
    for m in range(levels):
        now, after = (end - 1 / (1 + math.exp(3 - 6 * s / levels)) for s in (m, m + 1))
        betas.append(min(1 - after / now, 0.999))
    return (1 - torch.tensor(betas, dtype=torch.float64).float()).cumprod(0)


def rollout(
    w: Weights, shape: Shape, prompt: Tensor, noise: Tensor, actions: Tensor, steps: int, context: int = 14
) -> Tensor:
    """prompt [P, C, h, w], noise [N, C, h, w], actions [P + N, A] -> all P + N frames; nothing is kept."""
    abar = alphas().double()
    levels = [math.trunc(-1 + (len(abar) / steps) * s) for s in range(steps + 1)]
    done = list(prompt)
    for new in noise:
        x = new.clamp(-20, 20)
        for s in range(steps, 0, -1):
            window = torch.stack([*done, x])
            t = [float(context)] * len(done) + [float(levels[s])]
            v = velocity(w, shape, window, t, actions[: len(window)])[-1]
            a = abar[levels[s]]
            start = a.sqrt() * x - (1 - a).sqrt() * v
            eps = ((1 / a).sqrt() * x - start) / (1 / a - 1).sqrt()
            after = abar[levels[s - 1]] if s > 1 else torch.tensor(1.0, dtype=torch.float64)
            x = after.sqrt() * start + (1 - after).sqrt() * eps
        done.append(x)
    return torch.stack(done)


def encode(w: Weights, shape: Shape, image: Tensor, scaling: float) -> Tensor:
    """image [3, Y, X] within 0 .. 1 -> latents [C, h, w]"""
    patch = {"stride": shape.vae_patch}
    h = torch.nn.functional.conv2d(
        2 * image[None] - 1, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], **patch
    )
    rows, columns = h.shape[2:]
    h = _through(w, "encoder", shape.vae_depth[0], shape.vae_heads[0], h[0].flatten(1).T, (rows, columns))
    moments = _affine(w, "quant_conv", _weighted_norm(w, "enc_norm", h))
    mean = moments[:, : moments.shape[1] // 2]
    return scaling * mean.T.reshape(-1, rows, columns)


def decode(w: Weights, shape: Shape, latents: Tensor, scaling: float) -> Tensor:
    """latents [C, h, w] -> image [3, Y, X], not clamped"""
    _, rows, columns = latents.shape
    h = _affine(w, "post_quant_conv", latents.flatten(1).T / scaling)
    h = _through(w, "decoder", shape.vae_depth[1], shape.vae_heads[1], h, (rows, columns))
    y = _affine(w, "predictor", _weighted_norm(w, "dec_norm", h))
    p = shape.vae_patch
    y = y.view(rows, columns, 3, p, p)
    return (torch.einsum("hwcpq->chpwq", y).reshape(3, rows * p, columns * p) + 1) / 2


def _through(w: Weights, part: str, depth: int, heads: int, h: Tensor, grid: tuple[int, int]) -> Tensor:
    turns = _axial(*grid, h.shape[1] // heads // 4, float(grid[0] * grid[1]))
    for i in range(depth):
        name = f"{part}.{i}"
        qkv = _affine(w, f"{name}.attn.qkv", _weighted_norm(w, f"{name}.norm1", h))
        h = h + _affine(w, f"{name}.attn.proj", _attend(qkv, heads, turns))
        h = h + _mlp(w, f"{name}.mlp", _weighted_norm(w, f"{name}.norm2", h), "none")
    return h


def _axial(rows: int, columns: int, dim: int, most: float) -> Tensor:
    """Angles [L, dim] of pairs: of the row, then of the column."""
    rates = math.pi * torch.linspace(1, most / 2, dim // 2, dtype=torch.float64)
    y, x = (torch.linspace(-1, 1, side, dtype=torch.float64) for side in (rows, columns))
    return torch.stack([torch.cat((a * rates, b * rates)) for a in y for b in x])


def _attend(qkv: Tensor, heads: int, angles: Tensor, causal: bool = False) -> Tensor:
    """[L, 3 D] -> [L, D]"""
    q, k, v = qkv.chunk(3, dim=-1)
    size = q.shape[-1] // heads
    parts = []
    for head in range(heads):
        here = slice(head * size, (head + 1) * size)
        scores = _turned(q[:, here], angles) @ _turned(k[:, here], angles).T / math.sqrt(size)
        if causal:
            scores = scores + torch.full_like(scores, -torch.inf).triu(1)
        parts.append(scores.softmax(-1) @ v[:, here])
    return torch.cat(parts, dim=-1)


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    """Neighbours are a pair; features behind the angles stay."""
    turned = x.clone()
    for j in range(angles.shape[1]):
        cos, sin = angles[:, j].cos(), angles[:, j].sin()
        turned[:, 2 * j] = x[:, 2 * j] * cos - x[:, 2 * j + 1] * sin
        turned[:, 2 * j + 1] = x[:, 2 * j + 1] * cos + x[:, 2 * j] * sin
    return turned


def _sinusoid(t: float) -> Tensor:
    angles = t * 10000.0 ** -(torch.arange(128).double() / 128)
    return torch.cat((angles.cos(), angles.sin()))


def _affine(w: Weights, name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def _mlp(w: Weights, name: str, x: Tensor, approximate: str) -> Tensor:
    inner = torch.nn.functional.gelu(_affine(w, f"{name}.fc1", x), approximate=approximate)
    return _affine(w, f"{name}.fc2", inner)


def _norm(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + 1e-6)


def _weighted_norm(w: Weights, name: str, x: Tensor) -> Tensor:
    return _norm(x) * w[f"{name}.weight"] + w[f"{name}.bias"]


def _silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)
