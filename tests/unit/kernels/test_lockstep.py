"""kernels/lockstep.py: the i-th tokens of all rows lie together, longest rows first."""

import pytest
import torch

from fastkernels.kernels.lockstep import lockstep


@pytest.mark.parametrize("lens", [(), (0,), (3,), (1, 1, 1), (2, 0, 5, 2), (4, 3, 2, 1)])
@pytest.mark.parametrize("begin", [0, 7])
def test_every_token_has_its_turn(lens, begin):
    starts_B1 = begin + torch.tensor([0, *lens]).cumsum(0)
    order_B, tokens_T, active = lockstep(starts_B1)
    assert order_B.tolist() == sorted(range(len(lens)), key=lambda row: -lens[row])
    expected = [
        int(starts_B1[row]) - begin + i
        for i in range(max(lens, default=0))
        for row in order_B.tolist()
        if lens[row] > i
    ]
    assert tokens_T.tolist() == expected
    assert active == [sum(length > i for length in lens) for i in range(max(lens, default=0))]
