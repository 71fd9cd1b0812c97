"""Grids, networks and rays for the kernels of a radiance field, and their results by loops in float64."""

from __future__ import annotations

import math
from itertools import pairwise, product

import torch
from torch import Tensor

from fastkernels.kernels.hash_encoding import Levels, levels_of
from fastkernels.kernels.init_rays import cone_angle_of
from fastkernels.loader.rays import _sure_rays

# (levels, log2 of the rows of one, base resolution, ratio, features, points): counted and hashed levels, rows
# that are no power of two, one point, more than a block.
GRIDS = {
    "counted": (2, 12, 5, 1.5, 4, 37),
    "hashed": (3, 6, 16, 2.0, 2, 200),
    "one-point": (4, 10, 8, 1.5, 1, 1),
    "none": (2, 8, 4, 2.0, 2, 0),
}
# (rows, inputs, neurons, outputs, hidden layers)
NETWORKS = {
    "density": (131, 8, 16, 16, 1),
    "colour": (64, 32, 64, 3, 2),
    "odd": (1, 17, 24, 5, 2),
    "none": (0, 8, 16, 4, 1),
}
# (rays, cells on a side, aabb_scale, samples)
MARCHES = {"cascades": (70, 32, 4, 3), "unit-cube": (33, 16, 1, 8), "two": (9, 32, 2, 1)}
SUMS = {"few": (130, 8), "one": (3, 1), "none": (0, 2)}


def grid(name: str) -> tuple[Tensor, Tensor, Levels]:
    """(points, table, levels), float32; the first point is the last node."""
    number, log2_rows, base, ratio, features, points = GRIDS[name]
    levels, generator = levels_of(number, log2_rows, base, ratio), torch.Generator().manual_seed(len(name))
    x_M3 = torch.rand(points, 3, generator=generator)
    x_M3[:1] = 1
    return x_M3, torch.randn(levels.offsets[-1], features, generator=generator), levels


def encoded(x_M3: Tensor, table_EF: Tensor, levels: Levels) -> Tensor:
    table, rows = table_EF.double(), []
    for point in x_M3.double().tolist():
        row = []
        for level, (scale, side) in enumerate(zip(levels.scales, levels.resolutions)):
            first, count = levels.offsets[level], levels.offsets[level + 1] - levels.offsets[level]
            p = [scale * u + 0.5 for u in point]
            g = [math.floor(v) for v in p]
            total = torch.zeros(table.shape[1], dtype=torch.float64)
            for corner in product((0, 1), repeat=3):
                x, y, z = (a + b for a, b in zip(g, corner))
                place = x + y * side + z * side**2
                if side**3 > count:
                    place = x ^ y * 2654435761 % 2**32 ^ z * 805459861 % 2**32
                weight = math.prod(v - a if b else 1 - v + a for v, a, b in zip(p, g, corner))
                total += weight * table[first + place % count]
            row.append(total)
        rows.append(torch.cat(row))
    width = len(levels.scales) * table.shape[1]
    return torch.stack(rows) if rows else torch.zeros(0, width, dtype=torch.float64)


def network(name: str) -> tuple[Tensor, list[Tensor]]:
    rows, inputs, neurons, outputs, hidden = NETWORKS[name]
    generator, widths = torch.Generator().manual_seed(rows), [inputs, *[neurons] * hidden, outputs]
    weights = [torch.randn(n, k, generator=generator) / k**0.5 for k, n in pairwise(widths)]
    return torch.randn(rows, inputs, generator=generator), weights


def through(x: Tensor, weights: list[Tensor]) -> Tensor:
    x = x.double()
    for weight in weights[:-1]:
        x = (x @ weight.double().T).relu()
    return x @ weights[-1].double().T


def march(name: str, device: str = "cpu") -> tuple:
    """Arguments of march_rays, float32; no rounding decides."""
    rays, side, aabb_scale, samples = MARCHES[name]
    cascades, cone = aabb_scale.bit_length(), cone_angle_of(aabb_scale)
    made = _sure_rays(rays, (cascades, side**3 // 8), aabb_scale, cone, max(samples, 16), 5, device)
    names = ("origins", "directions", "starts", "steps", "density_grid")
    return (*(made[one] for one in names), aabb_scale, cone, samples)


def marched(origins: Tensor, directions: Tensor, starts: Tensor, steps: Tensor, density_grid: Tensor,
            aabb_scale: int, cone: float, samples: int) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Place by place, without skipping."""
    low, least = 0.5 - aabb_scale / 2, math.sqrt(3) / 1024
    side = round((8 * density_grid.shape[1]) ** (1 / 3))
    cells = [[byte >> bit & 1 for byte in row for bit in range(8)] for row in density_grid.tolist()]

    def distance(n: float) -> float:
        if not cone:
            return n * least
        rate = math.log(1 + cone)
        bend = math.log(least / rate) / rate
        return (n - bend) * least + least / rate if n < bend else math.exp(n * rate)

    def is_full(p: list[float]) -> bool:
        largest = max(abs(v - 0.5) for v in p)
        mip = min(max(math.frexp(largest)[1] + 1, 0), len(cells) - 1)
        at = [int(((v - 0.5) / 2**mip + 0.5) * side) for v in p]
        if not all(0 <= c < side for c in at):
            return False
        place = sum((c >> bit & 1) << 3 * bit + axis for axis, c in enumerate(at) for bit in range(10))
        return bool(cells[mip][place])

    x = torch.zeros(len(starts), samples, 3, dtype=torch.float64)
    deltas, ends = x[..., 0].clone(), torch.full_like(steps, -1)
    for ray in range(len(starts)):
        k, found = int(steps[ray]), 0
        o, d, start = origins[ray].tolist(), directions[ray].tolist(), float(starts[ray])
        while k >= 0 and found < samples:
            t = distance(start + k)
            p = [a + t * b for a, b in zip(o, d)]
            if not all(low <= v <= low + aabb_scale for v in p):
                break
            k += 1
            if is_full(p):
                x[ray, found] = torch.tensor([(v - low) / aabb_scale for v in p])
                deltas[ray, found] = distance(start + k) - t
                found += 1
        if found == samples:
            ends[ray] = k
    return x, deltas, ends


def samples(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """(rgba, raw, deltas) of rays that are new, nearly through, ended, or without samples."""
    rays, number = SUMS[name]
    generator = torch.Generator().manual_seed(rays)
    rgba_R4 = torch.rand(rays, 4, generator=generator)
    rgba_R4[::4] = 0
    rgba_R4[1::4, 3] = 1
    deltas_RK = torch.rand(rays, number, generator=generator) * 0.2
    deltas_RK[::3, number // 2 :] = 0
    raw_RK4 = 2 * torch.randn(rays, number, 4, generator=generator)
    raw_RK4[3::5, :, 3] = 200  # beyond what exp can say
    return rgba_R4, raw_RK4, deltas_RK


def composed(rgba_R4: Tensor, raw_RK4: Tensor, deltas_RK: Tensor) -> Tensor:
    found = rgba_R4.double().tolist()
    for ray, seen in enumerate(found):
        for raw, delta in zip(raw_RK4[ray].tolist(), deltas_RK[ray].double().tolist()):
            if seen[3] == 1 or not delta:
                continue
            weight = -math.expm1(-math.exp(raw[3]) * delta) * (1 - seen[3])
            for channel in range(3):
                seen[channel] += weight / (1 + math.exp(-raw[channel]))
            seen[3] += weight
            if seen[3] > 0.99:
                found[ray] = seen = [value / seen[3] for value in seen]
    return torch.tensor(found, dtype=torch.float64).view(-1, 4)
