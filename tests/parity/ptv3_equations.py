"""Point Transformer V3 from its equations, voxel by voxel, with the names of its checkpoint's tensors; no
modules."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

WRONG = (
    "sum is carried", "patches as long as the shortest cloud", "borrowed from the front",
    "nothing is borrowed", "one curve", "x and y exchanged", "codes not decoded", "taps mirrored",
    "taps along z first", "mean of a cluster", "gelu before the maximum", "bits of each level",
    "eps of a batch norm", "gelu by tanh", "conv without bias", "heads first",
)  # fmt: skip

Voxel = tuple[int, int, int, int]  # cloud, x, y, z


def interleaved(axes: Sequence[int], depth: int) -> int:
    text = "".join(str(axis >> bit & 1) for bit in reversed(range(depth)) for axis in axes)
    return int(text, 2)


def hilbert(axes: Sequence[int], depth: int, is_decoded: bool = True) -> int:
    """By Skilling's transform, one voxel at a time."""
    found = list(axes)
    for bit in reversed(range(depth)):
        top, lower = 1 << bit, (1 << bit) - 1
        for axis in range(3):
            if found[axis] & top:
                found[0] ^= lower
            else:
                differing = (found[0] ^ found[axis]) & lower
                found[0] ^= differing
                found[axis] ^= differing
    gray, place = interleaved(found, depth), 0
    while is_decoded and gray:
        place, gray = place ^ gray, gray >> 1
    return place if is_decoded else gray


def code(order: str, axes: Sequence[int], depth: int, wrong: str = "") -> int:
    x, y, z = axes
    if order.endswith("-trans") != (wrong == "x and y exchanged"):
        x, y = y, x
    if order.startswith("z"):
        return interleaved((x, y, z), depth)
    return hilbert((x, y, z), depth, wrong != "codes not decoded")


@dataclass
class Backbone:
    """wrong: one of WRONG, a mistake that implementations make."""

    weights: Mapping[str, Tensor]
    config: Mapping[str, Any]
    wrong: str = ""

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def layer_norm(self, name: str, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        n = (x - mean) / (variance + 1e-5).sqrt()
        return n * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def batch_norm(self, name: str, x: Tensor) -> Tensor:
        eps = 1e-5 if self.wrong == "eps of a batch norm" else 1e-3
        mean, variance, weight, bias = (
            self.weights[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / (variance + eps).sqrt() * weight + bias

    def gelu(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh" if self.wrong == "gelu by tanh" else "none")

    def conv(self, name: str, x: Tensor, voxels: list[Voxel]) -> Tensor:
        """Each voxel asks a dictionary for the voxels around it."""
        weight, places = self.weights[f"{name}.weight"], {voxel: n for n, voxel in enumerate(voxels)}
        taps, y = weight.shape[1], x.new_zeros(len(x), len(weight))
        sign = -1 if self.wrong == "taps mirrored" else 1
        for tap in product(range(taps), repeat=3):
            step = tap[::-1] if self.wrong == "taps along z first" else tap
            a, b, c = (sign * (k - taps // 2) for k in step)
            pairs = [
                (n, places[v, i + a, j + b, k + c])
                for n, (v, i, j, k) in enumerate(voxels)
                if (v, i + a, j + b, k + c) in places
            ]
            to, of = (torch.tensor(each, dtype=torch.int64) for each in zip(*pairs)) if pairs else ([], [])
            y[to] += x[of] @ weight[:, tap[0], tap[1], tap[2]].T
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None or self.wrong == "conv without bias" else y + bias

    def patches(self, order: list[int], size: int) -> list[tuple[list[int], int]]:
        """Of a cloud in an order: the voxels of each patch, and how many of them are its own."""
        if len(order) <= size:
            return [(order, len(order))]
        found = []
        for at in range(0, len(order), size):
            own = order[at : at + size]
            borrowed = order[at - size + len(own) : at] if len(own) < size else []
            if self.wrong == "borrowed from the front":
                borrowed = order[: size - len(own)]
            found.append((own + ([] if self.wrong == "nothing is borrowed" else borrowed), len(own)))
        return found

    def attention(self, name: str, x: Tensor, clouds: list[list[int]], size: int, heads: int) -> Tensor:
        if self.wrong == "patches as long as the shortest cloud":
            size = min(size, *map(len, clouds))
        q, k, v = self.linear(f"{name}.qkv", x).chunk(3, -1)
        if self.wrong == "heads first":
            by_head = self.linear(f"{name}.qkv", x).unflatten(-1, (heads, 3, -1))
            q, k, v = (each.flatten(1) for each in by_head.unbind(2))
        o = torch.empty_like(x)
        for cloud in clouds:
            for voxels, own in self.patches(cloud, size):
                one, two, three = (each[voxels].unflatten(-1, (heads, -1)) for each in (q, k, v))
                scores = torch.einsum("ihd,jhd->hij", one, two) / math.sqrt(one.shape[-1])
                seen = torch.einsum("hij,jhd->ihd", scores.softmax(-1), three).flatten(1)
                o[voxels[:own]] = seen[:own]
        return self.linear(f"{name}.proj", o)

    def block(
        self,
        name: str,
        x: Tensor,
        carried: Tensor,
        voxels: list[Voxel],
        clouds: list[list[int]],
        size: int,
        heads: int,
    ) -> Tensor:
        c = self.linear(f"{name}.cpe.1", self.conv(f"{name}.cpe.0", carried, voxels))
        x = x + self.layer_norm(f"{name}.cpe.2", c)
        x = x + self.attention(f"{name}.attn", self.layer_norm(f"{name}.norm1.0", x), clouds, size, heads)
        h = self.linear(f"{name}.mlp.0.fc1", self.layer_norm(f"{name}.norm2.0", x))
        return x + self.linear(f"{name}.mlp.0.fc2", self.gelu(h))

    def stage(self, part: str, s: int, x: Tensor, carried: Tensor, voxels: list[Voxel], depth: int) -> Tensor:
        sizes = {key: self.config[f"{part}_{key}"][s] for key in ("depths", "num_head", "patch_size")}
        for i in range(sizes["depths"]):
            names = self.config["order"]
            curve = names[0 if self.wrong == "one curve" else i % len(names)]
            keys = [(v, code(curve, axes, depth, self.wrong)) for v, *axes in voxels]
            order = sorted(range(len(voxels)), key=keys.__getitem__)
            clouds = [list(run) for _, run in groupby(order, key=lambda n: voxels[n][0])]
            at = f"{part}.{part}{s}.block{i}"
            x = self.block(at, x, carried, voxels, clouds, sizes["patch_size"], sizes["num_head"])
            carried = x
        return x

    def pooled(
        self, name: str, x: Tensor, voxels: list[Voxel], depth: int
    ) -> tuple[Tensor, list[Voxel], Tensor]:
        """Also the cluster of each voxel. Clusters are in the order of the first curve."""
        halved = [(v, i >> 1, j >> 1, k >> 1) for v, i, j, k in voxels]
        first = self.config["order"][0]
        found = sorted(set(halved), key=lambda voxel: (voxel[0], code(first, voxel[1:], depth - 1)))
        places = {voxel: m for m, voxel in enumerate(found)}
        cluster = torch.tensor([places[voxel] for voxel in halved])
        x = self.linear(f"{name}.proj", x)
        x = self.gelu(x) if self.wrong == "gelu before the maximum" else x
        rows = [x[cluster == m] for m in range(len(found))]
        x = torch.stack(
            [each.mean(0) if self.wrong == "mean of a cluster" else each.amax(0) for each in rows]
        )
        x = self.batch_norm(f"{name}.norm.0", x)
        return x if self.wrong == "gelu before the maximum" else self.gelu(x), found, cluster

    def __call__(self, feat: Tensor, clouds: Sequence[Tensor]) -> Tensor:
        """feat [N, C] of the voxels of all clouds, one behind the other -> [N, D]"""
        voxels = [(b, *axes) for b, cloud in enumerate(clouds) for axes in cloud.tolist()]
        depth = max(max(axes) for _, *axes in voxels).bit_length()
        x = self.conv("embedding.stem.conv", feat, voxels)
        x = self.gelu(self.batch_norm("embedding.stem.norm", x))
        x, kept = self.stage("enc", 0, x, x, voxels, depth), []
        for s in range(1, len(self.config["enc_depths"])):
            skip, finer = x, voxels
            x, voxels, cluster = self.pooled(f"enc.enc{s}.down", x, voxels, depth - s + 1)
            kept.append((skip, finer, cluster))
            x = self.stage("enc", s, x, x, voxels, self.bits(depth, s))
        for s, (skip, finer, cluster) in reversed(list(enumerate(kept))):
            at = f"dec.dec{s}.up"
            up = self.gelu(self.batch_norm(f"{at}.proj.1", self.linear(f"{at}.proj.0", x)))
            skip = self.gelu(self.batch_norm(f"{at}.proj_skip.1", self.linear(f"{at}.proj_skip.0", skip)))
            x = skip + up[cluster]
            carried = x if self.wrong == "sum is carried" else skip
            x = self.stage("dec", s, x, carried, finer, self.bits(depth, s))
        return x

    def bits(self, depth: int, level: int) -> int:
        """Of coordinates at a level: one fewer each time, whatever the coordinates are."""
        return depth if self.wrong == "bits of each level" else depth - level
