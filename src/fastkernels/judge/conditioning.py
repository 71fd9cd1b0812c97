"""How far the right answer itself moves when the inputs move by a rounding.

    m = max over a few draws of  ||o(x (1 + step xi(x))) - o(x)|| / ||o(x)||,     xi uniform in [-1, 1]

xi is a function of the value, as a rounding is: equal values move together. Where all elements of a row are
equal, roundings do not average out, and a softmax over such rows moves by several times what independent
ones would give.

One draw of inputs compares two numbers with luck in them: the candidate's error and the baseline's. In a
module of several operations (a softmax between two matrix products, a single row) a rounding is amplified by
what the inputs happen to be, and two correct kernels differ by more than k = 2 once in a few hundred draws. A
result that is exact for inputs one rounding away is not wrong, so where the error-ratio gate says no, the
candidate is held against k max(e(b), u, m) as well. It costs some oracle runs and is done only then.

Sums round as well, by their order, which no input shows. So m also holds the error of plain arithmetic: the
reference in the case's own dtype on these inputs.

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
    dtype = getattr(torch, case.dtype) if case.task[1] != "1" else torch.float32
    return torch.finfo(dtype).eps


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
        moved = {name: _moved(tensor, step(case), seed + draw) for name, tensor in inputs.items()}
        found = merge(found, _errors(oracle(moved), truth, case))
    return found


def _errors(outputs: Outputs, truth: Outputs, case: Case) -> dict[str, Errors]:
    dtype = getattr(torch, case.dtype)
    return {
        name: errors(outputs[name], value, dtype)
        for name, value in truth.items()
        if value.is_floating_point()
    }


def _moved(tensor: Tensor, step: float, seed: int) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    wide = tensor.to(torch.float64)
    return wide * (1 + step * _xi(wide, seed))


def _xi(values: Tensor, seed: int) -> Tensor:
    """Uniform in [-1, 1): the bits of a float64, stirred."""
    mixed = values.contiguous().view(torch.int64) + (2 * seed + 1) * _ODD % 2**63
    for shift in (32, 29):
        mixed = (mixed ^ (mixed >> shift)) * _ODD
    return mixed.to(torch.float64) / 2**63
