"""Cameras as renderers are asked for images from them, and those of several requests as one launch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from fastkernels.errors import RequestError
from fastkernels.nn.batching import Crossing, described, require_values, words_of
from fastkernels.nn.program import Place

RIGID = 1e-3  # how far from a rotation a view's first three rows and columns may be


class Cameras:
    """Requests of a view [4, 4] and an intrinsic matrix [3, 3] each: [C, 4, 4] and [C, 3, 3]."""

    def __init__(self, place: Place) -> None:
        self.device, self.dtype = place

    def read(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Both on the host; a RequestError names what is wrong with them, and where."""
        viewmat, K = _matrix("viewmat", args[0], 4), _matrix("intrinsics", args[1], 3)
        turn = viewmat[:3, :3].double()
        off = float((turn @ turn.T - torch.eye(3, dtype=torch.float64)).abs().max())
        if off > RIGID:
            raise RequestError(f"viewmat[:3, :3] is {off:.3g} from a rotation: it may be {RIGID:g}")
        focal, skew = (float(K[0, 0]), float(K[1, 1])), (float(K[0, 1]), float(K[1, 0]))
        if min(focal) <= 0:
            raise RequestError(f"intrinsics have focal lengths {focal}: they are above 0")
        if any(skew):
            raise RequestError(f"intrinsics have a skew of {skew}: it must be 0")
        return viewmat, K

    def key(self, args: tuple[Any, ...]) -> Hashable:
        """All share a launch."""
        return ()

    def join(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        count = len(calls)
        crossing = Crossing(self.device, ((count, 4, 4), self.dtype), ((count, 3, 3), self.dtype))
        for arrays, matrices in zip(crossing.arrays(), zip(*calls), strict=True):
            for place, matrix in enumerate(matrices):
                arrays[place] = words_of(matrix, self.dtype)
        return [crossing]


def _matrix(name: str, given: Any, side: int) -> Tensor:
    """A finite matrix whose last row is 0, .., 0, 1."""
    if isinstance(given, Tensor):
        require_values(name, given)
    if not isinstance(given, Tensor) or not given.is_floating_point() or given.shape != (side, side):
        raise RequestError(f"{name} must be floats [{side}, {side}], not {described(given)}")
    matrix = given.detach().to("cpu", torch.float64)
    if not bool(matrix.isfinite().all()):
        raise RequestError(f"{name} is not finite")
    last = matrix[-1].tolist()
    if last != [0.0] * (side - 1) + [1.0]:
        raise RequestError(f"{name} ends with the row {last}: it must be 0, .., 0, 1")
    return matrix
