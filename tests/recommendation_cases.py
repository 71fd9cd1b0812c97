"""Calls of the kernels of recommendation models, with their answers by loops in float64."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from tests.pointwise_cases import KernelCase, randn

ROWS = 23  # of the table
# Lengths of bags, feature by feature; empty ones at both ends, a long one, and ids that no bag holds.
BAGS = {
    "ragged": [[0, 3, 1, 0, 2], [1, 1, 1, 1, 1], [17, 0, 2, 9, 0]],
    "one-sample": [[1], [1], [1], [0]],
    "one-feature": [[2, 0, 40, 1, 1, 1, 1, 1, 1, 1, 1]],
    "all-empty": [[0, 0], [0, 0]],
    "no-sample": [[], []],
}


def bag_cases() -> list[KernelCase]:
    return [
        _bags(f"{name}-{mode}-D{dim}", lengths, mode, dim, torch.int32 if dim % 16 else torch.int64)
        for name, lengths in BAGS.items()
        for mode in ("sum", "mean")
        for dim in ((16, 20) if name == "ragged" else (16,))
    ]


def _bags(name: str, lengths: list[list[int]], mode: str, dim: int, index: torch.dtype) -> KernelCase:
    flat = [length for row in lengths for length in row]
    spare = 4
    ids = torch.randint(ROWS, (sum(flat) + spare,), generator=torch.Generator().manual_seed(1)).to(index)
    offsets = torch.tensor([0, *accumulate(flat)], dtype=index)

    def answer(ids: Tensor, offsets: Tensor, weight: Tensor, features: int, mode: str) -> tuple[Tensor]:
        samples = len(flat) // features
        found = torch.zeros(samples, features, weight.shape[1], dtype=torch.float64)
        for bag, length in enumerate(flat):
            for place in range(int(offsets[bag]), int(offsets[bag]) + length):
                share = length if mode == "mean" else 1
                found[bag % samples, bag // samples] += weight[ids[place]].double() / share
        return (found,)

    return KernelCase(
        "embedding_bag",
        name,
        lambda dt: (ids, offsets, randn(ROWS, dim, dtype=dt), len(lengths), mode),
        answer,
    )


def interaction_cases() -> list[KernelCase]:
    def answer(dense: Tensor, sparse: Tensor) -> tuple[Tensor]:
        rows = []
        for h, e in zip(dense.double(), sparse.double()):
            z = [h, *e]
            pairs = [z[i] @ z[j] for i in range(len(z)) for j in range(i + 1, len(z))]
            rows.append(torch.cat((h, torch.stack(pairs))))
        return (torch.stack(rows) if rows else torch.empty(0, 0, dtype=torch.float64),)

    def made(batch: int, features: int, dim: int) -> KernelCase:
        return KernelCase(
            "dot_interaction",
            f"B{batch}-F{features}-D{dim}",
            lambda dt: (randn(batch, dim, dtype=dt), randn(batch, features, dim, dtype=dt, seed=1)),
            answer,
        )

    return [made(*shape) for shape in ((5, 4, 16), (3, 8, 64), (2, 1, 20), (2, 26, 36))]


# Entries of each row: empty ones at both ends and between, one that is longer than two chunks of the Triton
# kernel (256), rows that end where a chunk does.
ENTRIES = {
    "ragged": [0, 3, 1, 0, 0, 700, 0, 57, 7, 0, 0],
    "at-chunks": [256, 0, 255, 1, 0, 512, 0],
    "short": [2] * 150,
    "one-row": [1],
    "empty": [0, 0, 0],
    "no-row": [],
}


def sparse_cases(kernel: str) -> list[KernelCase]:
    return [
        _sparse(kernel, name, lengths, dim, index)
        for name, lengths in ENTRIES.items()
        for dim, index in ((16, torch.int32), (20, torch.int64))
        if dim == 16 or name == "ragged"
    ]


def _sparse(kernel: str, name: str, lengths: list[int], dim: int, index: torch.dtype) -> KernelCase:
    starts = torch.tensor([0, *accumulate(lengths)], dtype=index)
    generator = torch.Generator().manual_seed(2)
    columns = torch.randint(ROWS, (sum(lengths),), generator=generator).to(index)

    def make(dtype: torch.dtype) -> tuple:
        x, values = randn(ROWS, dim, dtype=dtype), randn(sum(lengths), dtype=dtype, seed=1)
        more = (randn(len(lengths), dim, dtype=dtype, seed=3), 0.25) if kernel == "sparse_mm_add" else ()
        return (starts, columns, values, x, *more)

    def answer(starts: Tensor, columns: Tensor, values: Tensor, x: Tensor, *more: Any) -> tuple[Tensor, ...]:
        y = torch.zeros(len(lengths), dim, dtype=torch.float64)
        for row in range(len(lengths)):
            for entry in range(int(starts[row]), int(starts[row + 1])):
                y[row] += values[entry].double() * x[columns[entry]].double()
        return (y, more[0].double() + more[1] * y) if more else (y,)

    return KernelCase(kernel, f"{name}-D{dim}", make, answer)


def pair_cases() -> list[KernelCase]:
    def answer(x: Tensor, pairs: Tensor) -> tuple[Tensor]:
        return (torch.stack([x[i].double() @ x[j].double() for i, j in pairs.T.tolist()]),)

    def made(pairs: int, dim: int, index: torch.dtype) -> KernelCase:
        rows = torch.randint(ROWS, (2, pairs), generator=torch.Generator().manual_seed(4)).to(index)
        return KernelCase(
            "pair_dot", f"P{pairs}-D{dim}", lambda dt: (randn(ROWS, dim, dtype=dt), rows), answer
        )

    return [made(1, 64, torch.int64), made(37, 64, torch.int32), made(130, 20, torch.int32)]
