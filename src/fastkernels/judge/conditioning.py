"""How far the right answer itself moves when the inputs move by a rounding.

    m = max over a few draws of  ||o(x (1 + step xi)) - o(x)|| / ||o(x)||,     xi uniform in [-1, 1]

One draw of inputs compares two numbers with luck in them: the candidate's error and the baseline's. In a
module of several operations (a softmax between two matrix products, a single row) a rounding is amplified by
what the inputs happen to be, and two correct kernels differ by more than k = 2 once in a few hundred draws. A
result that is exact for inputs one rounding away is not wrong, so where the error-ratio gate says no, the
candidate is held against k max(e(b), u, m) as well. It costs some oracle runs and is done only then.

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

Outputs = Mapping[str, Tensor]


def step(case: Case) -> float:
    """The relative rounding of one operation inside this task."""
    dtype = getattr(torch, case.dtype) if case.task[1] != "1" else torch.float32
    return torch.finfo(dtype).eps


def conditioning(
    oracle: Callable[[Outputs], Outputs], inputs: Outputs, truth: Outputs, case: Case, seed: int
) -> dict[str, Errors]:
    """m for the whole and for the worst row of every floating-point output."""
    found: dict[str, Errors] = {}
    for draw in range(DRAWS):
        moved = {name: _moved(tensor, step(case), seed + draw) for name, tensor in inputs.items()}
        outputs = oracle(moved)
        found = merge(
            found,
            {
                name: errors(outputs[name], value, getattr(torch, case.dtype))
                for name, value in truth.items()
                if value.is_floating_point()
            },
        )
    return found


def _moved(tensor: Tensor, step: float, seed: int) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    generator = torch.Generator(tensor.device).manual_seed(seed)
    wide = tensor.to(torch.float64)
    xi = torch.rand(wide.shape, generator=generator, dtype=torch.float64, device=tensor.device)
    return wide * (1 + step * (2 * xi - 1))
