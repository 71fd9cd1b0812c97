"""A hash-grid radiance field from its equations, pixel by pixel and place by place in Python floats, without
skipping, rounds or batches. `wrong` makes one of the mistakes that renderers have been seen to make."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from typing import Any

import torch
from torch import Tensor

LEAST = math.sqrt(3) / 1024
Vector = list[float]


class Field:
    """parameters: by the names of a checkpoint, matrices [out, in], the grid of bits [cascades, S^3 / 8]."""

    def __init__(self, config: Mapping[str, Any], parameters: Mapping[str, Tensor], wrong: str = "") -> None:
        self.config, self.wrong = config, wrong
        self.parameters = {
            name: value.double() if value.is_floating_point() else value for name, value in parameters.items()
        }
        self.scale = config["aabb_scale"]
        self.low = 0.5 - self.scale / 2
        self.cone = 0.0 if self.scale == 1 or wrong == "steps of one length" else 1 / 256
        cells = self.parameters["density_grid"]
        self.bits = [[byte >> bit & 1 for byte in row for bit in range(8)] for row in cells.tolist()]
        self.side = round(len(self.bits[0]) ** (1 / 3))
        self.table = self.parameters["grid.table"].tolist()

    # ------------------------------------------------------------ rays

    def image(self, transform: Tensor, K: Tensor, every: int = 1) -> Tensor:
        """[pixels, 4], row by row, of a NeRF camera [4, 4], which looks along -z with y up, and intrinsics
        [3, 3]. One of `every` pixels is taken."""
        pose, (width, height) = transform.double().clone(), (self.config["width"], self.config["height"])
        pose[:3, 1:3] *= -1
        offset = torch.tensor(self.config["offset"], dtype=torch.float64)
        pose[:3, 3] = pose[:3, 3] * self.config["scale"] + offset
        if self.wrong != "axes as they are":
            pose[:3] = pose[[1, 2, 0]]
        half = 0.0 if self.wrong == "corners of pixels" else 0.5
        pixels = []
        for y, x in list(product(range(height), range(width)))[::every]:
            uv = torch.tensor([(x + half) / width, (y + half) / height, 0], dtype=torch.float64)
            principal = torch.tensor([K[0, 2] / width, K[1, 2] / height, 0], dtype=torch.float64)
            size = torch.tensor([width / K[0, 0], height / K[1, 1], 0], dtype=torch.float64)
            d = pose[:3, :3] @ ((uv - principal) * size + torch.tensor([0, 0, 1.0], dtype=torch.float64))
            pixel = x * height + y if self.wrong == "jitter by columns" else x + y * width
            pixels.append(self.ray(pose[:3, 3].tolist(), (d / d.norm()).tolist(), pixel))
        return torch.tensor(pixels, dtype=torch.float64)

    def ray(self, o: Vector, d: Vector, pixel: int) -> Vector:
        high = self.low + self.scale
        entry = max(min((self.low - a) / b, (high - a) / b) for a, b in zip(o, d))
        t = max(entry, 0.0) + 1e-6
        place = self.place(t)
        if self.wrong != "no jitter":
            place += ld_random(0, 786433 * pixel % 2**32) / 2**32
        colour, alpha = [0.0] * 3, 0.0
        while self.inside(p := [a + self.distance(place) * b for a, b in zip(o, d)]):
            delta = self.distance(place + 1) - self.distance(place)
            place += 1
            if not self.occupied(p):
                continue
            rgb, density = self.seen(p, d)
            if self.wrong == "sRGB of samples":
                rgb = [linear(c) for c in rgb]
            weight = (1 - math.exp(-density * delta)) * (1 - alpha)
            if self.wrong == "ended before the sample" and alpha + weight > 0.99:
                break
            colour, alpha = [c + weight * s for c, s in zip(colour, rgb)], alpha + weight
            if alpha > 0.99:
                if self.wrong != "not divided at the end":
                    colour, alpha = [c / alpha for c in colour], 1.0
                break
        if self.wrong != "sRGB of samples":
            colour = [linear(c) for c in colour]
        *background, opacity = self.config["background_color"]
        rest = opacity * (1 - alpha)
        return [*(c + rest * b for c, b in zip(colour, background)), alpha + rest]

    def inside(self, p: Vector) -> bool:
        return all(self.low <= v <= self.low + self.scale for v in p)

    def place(self, t: float) -> float:
        if not self.cone:
            return t / LEAST
        rate = math.log(1 + self.cone)
        bend = LEAST / rate
        return (t - bend) / LEAST + math.log(bend) / rate if t <= bend else math.log(t) / rate

    def distance(self, n: float) -> float:
        if not self.cone:
            return n * LEAST
        rate = math.log(1 + self.cone)
        first = math.log(LEAST / rate) / rate
        return (n - first) * LEAST + LEAST / rate if n <= first else math.exp(n * rate)

    def occupied(self, p: Vector) -> bool:
        if self.wrong == "everything is occupied":
            return True
        centred = [v - 0.5 for v in p]
        if self.wrong == "cells of the box":
            centred = [(v - self.low) / self.scale - 0.5 for v in p]
        mip = min(max(math.frexp(max(map(abs, centred)))[1] + 1, 0), len(self.bits) - 1)
        cell = [int((v * 2.0**-mip + 0.5) * self.side) for v in centred]
        if self.wrong == "cells row by row":
            place = (cell[0] * self.side + cell[1]) * self.side + cell[2]
        else:
            place = sum((c >> k & 1) << 3 * k + axis for axis, c in enumerate(cell) for k in range(10))
        return all(0 <= c < self.side for c in cell) and bool(self.bits[mip][place])

    # ------------------------------------------------------------ the field

    def seen(self, p: Vector, d: Vector) -> tuple[Vector, float]:
        """(red, green, blue in 0 .. 1 as sRGB, density)"""
        u = p if self.wrong == "positions as they are" else [(v - self.low) / self.scale for v in p]
        h = self.network("density", self.features(u))
        if self.wrong == "directions halved":
            d = [(v + 1) / 2 for v in d]
        y = harmonics(*d, self.wrong)
        logits = self.network("colour", torch.cat((y, h) if self.wrong == "directions first" else (h, y)))
        return torch.sigmoid(logits).tolist(), math.exp(h[-1 if self.wrong == "the last is density" else 0])

    def network(self, name: str, x: Tensor) -> Tensor:
        weights = [value for key, value in sorted(self.parameters.items()) if key.startswith(f"{name}.")]
        for weight in weights[:-1]:
            x = (weight @ x).relu()
        return weights[-1] @ x

    def features(self, u: Vector) -> Tensor:
        encoding, first, found = self.config["encoding"], 0, []
        for level in range(encoding["n_levels"]):
            scale = encoding["base_resolution"] * encoding["per_level_scale"] ** level - 1
            side = math.ceil(scale) + 1
            rows = min(-(-(side**3) // 8) * 8, 2 ** encoding["log2_hashmap_size"])
            found += self.of_level(u, scale, side, first, rows)
            first += rows
        return torch.tensor(found, dtype=torch.float64)

    def of_level(self, u: Vector, scale: float, side: int, first: int, rows: int) -> Vector:
        if self.wrong == "floor of the scale":
            scale = math.floor(scale)
        half = 0.0 if self.wrong == "nodes without half" else 0.5
        at = [scale * v + half for v in u]
        node = [math.floor(v) for v in at]
        found = [0.0] * len(self.table[0])
        for corner in product((0, 1), repeat=3):
            x, y, z = (n + c for n, c in zip(node, corner))
            hashed = x ^ y * 2654435761 % 2**32 ^ z * 805459861 % 2**32
            row = hashed if side**3 > rows or self.wrong == "always hashed" else x + side * (y + side * z)
            share = math.prod(v - n if c else 1 - v + n for v, n, c in zip(at, node, corner))
            place = row % rows + (0 if self.wrong == "levels share rows" else first)
            found = [a + share * b for a, b in zip(found, self.table[place])]
        return found


def harmonics(x: float, y: float, z: float, wrong: str = "") -> Tensor:
    sign = 1 if wrong == "signs of harmonics" else -1
    return torch.tensor([
        0.28209479177387814,
        sign * 0.4886025119029199 * y, 0.4886025119029199 * z, sign * 0.4886025119029199 * x,
        1.0925484305920792 * x * y, sign * 1.0925484305920792 * y * z,
        0.9461746957575601 * z * z - 0.31539156525252005, sign * 1.0925484305920792 * x * z,
        0.5462742152960396 * (x * x - y * y),
        sign * 0.5900435899266435 * y * (3 * x * x - y * y), 2.890611442640554 * x * y * z,
        -sign * 0.4570457994644658 * y * (1 - 5 * z * z), 0.3731763325901154 * z * (5 * z * z - 3),
        -sign * 0.4570457994644658 * x * (1 - 5 * z * z), 1.445305721320277 * z * (x * x - y * y),
        sign * 0.5900435899266435 * x * (x * x - 3 * y * y),
    ], dtype=torch.float64)  # fmt: skip


def linear(c: float) -> float:
    return c / 12.92 if c < 0.04045 else ((c + 0.055) / 1.055) ** 2.4


def ld_random(index: int, seed: int) -> int:
    mixed = seed ^ ((seed << 6) + (seed >> 2)) % 2**32
    return scrambled(reversed_bits(scrambled(index, seed)), mixed)


def scrambled(x: int, seed: int) -> int:
    x = (reversed_bits(x) + seed) % 2**32
    for mixer in (0x6C50B47C, 0xB82F1E52, 0xC7AFE638, 0x8D22F6E6):
        x ^= x * mixer % 2**32
    return reversed_bits(x)


def reversed_bits(x: int) -> int:
    return int(f"{x:032b}"[::-1], 2)
