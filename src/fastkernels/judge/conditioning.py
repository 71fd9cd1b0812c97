"""How far the right answer itself moves when the inputs move by a rounding.

    m = max over a few draws of  ||o(x (1 + step xi)) - o(x)|| / ||o(x)||

Each draw moves the inputs as roundings do:

    of values   xi is uniform in [-1, 1] and a function of the value: equal values move together. Where all
                elements of a row are equal, roundings do not average out, and a softmax over such rows moves
                by several times what independent ones would give.
    of sums     single operations only; between several, values are rounded. Adding up a row rounds each
                partial sum, by half a step at most: as if all elements before it had moved. So xi is a random
                walk along the row. A layer norm of equal values is nothing but that.

One draw of inputs compares two numbers with luck in them: the candidate's error and the baseline's. In a
module of several operations (a softmax between two matrix products, a single row) a rounding is amplified by
what the inputs happen to be, and two correct kernels differ by more than k = 2 once in a few hundred draws. A
result that is exact for inputs one rounding away is not wrong, so where the error-ratio gate says no, the
candidate is held against k max(e(b), u, m) as well. It costs some oracle runs and is done only then.

m also holds the error of plain arithmetic: the reference in the case's own dtype on these inputs.

step is what the arithmetic rounds by: eps of the case's dtype for a module that hands rounded intermediates
on (level 2 and above), eps of float32 for a single operation, which is computed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fastkernels.judge.compare import Errors, errors, merge
from fastkernels.records import Case

DRAWS = 3
_ODD = 0x1E3779B97F4A7C15  # a large odd number of no meaning

Outputs = Mapping[str, Tensor]


def step(case: Case) -> float:
    """The relative rounding of one operation inside this task."""
    return torch.finfo(torch.float32 if _is_single(case) else getattr(torch, case.dtype)).eps


def _is_single(case: Case) -> bool:
    return case.task.startswith("L1/")


def conditioning(
    oracle: Callable[[Outputs], Outputs],
    plain: Callable[[Outputs], Outputs],
    inputs: Outputs,
    truth: Outputs,
    case: Case,
    seed: int,
) -> dict[str, Errors]:
    """m for the whole and for the worst row of every floating-point output. `plain`: the oracle's modules in
    the case's dtype."""
    found = _errors(plain(inputs), truth, case)
    for draw in range(DRAWS):
        for xi in (_of_values, _of_sums) if _is_single(case) else (_of_values,):
            moved = {name: _moved(tensor, step(case), xi, seed + draw) for name, tensor in inputs.items()}
            found = merge(found, _errors(oracle(moved), truth, case))
    return found


def _errors(outputs: Outputs, truth: Outputs, case: Case) -> dict[str, Errors]:
    dtype = getattr(torch, case.dtype)
    return {
        name: errors(outputs[name], value, dtype)
        for name, value in truth.items()
        if value.is_floating_point()
    }


def _moved(tensor: Tensor, step: float, xi: Callable[[Tensor, int], Tensor], seed: int) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    wide = tensor.to(torch.float64)
    return wide * (1 + step * xi(wide, seed))


def _of_values(values: Tensor, seed: int) -> Tensor:
    """Uniform in [-1, 1): the bits of a float64, stirred."""
    mixed = values.contiguous().view(torch.int64) + (2 * seed + 1) * _ODD % 2**63
    for shift in (32, 29):
        mixed = (mixed ^ (mixed >> shift)) * _ODD
    return mixed.to(torch.float64) / 2**63


def _of_sums(values: Tensor, seed: int) -> Tensor:
    """A random walk from the end of each row, whose steps are uniform in [-1/2, 1/2)."""
    generator = torch.Generator(values.device).manual_seed(seed)
    steps = torch.empty_like(values).uniform_(-0.5, 0.5, generator=generator)
    return steps.flip(-1).cumsum(-1).flip(-1) if values.dim() else steps
