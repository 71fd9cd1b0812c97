"""kernels/lockstep.py: the i-th tokens of all rows lie together, longest rows first; steps in pieces."""

import pytest
import torch

from fastkernels.kernels import lockstep as kernels_lockstep
from fastkernels.kernels.lockstep import accumulated, in_lockstep, lockstep


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


@pytest.mark.parametrize("piece", [1, 40, 1 << 24])
def test_states_do_not_depend_on_how_many_steps_are_taken_at_once(monkeypatch, piece):
    monkeypatch.setattr(kernels_lockstep, "_PIECE", piece)
    generator, lens = torch.Generator().manual_seed(0), (2, 0, 5, 3)
    starts_B1, rows_B = torch.tensor([0, *lens]).cumsum(0), torch.tensor([4, 1, 2, 3])
    decay_TX, increment_TX = torch.rand(2, sum(lens), 6, generator=generator, dtype=torch.float64)
    state_RX = torch.rand(5, 6, generator=generator, dtype=torch.float64)
    expected_RX, expected_TX = state_RX.clone(), torch.empty_like(decay_TX)
    for row, start, end in zip(rows_B.tolist(), starts_B1.tolist(), starts_B1[1:].tolist()):
        for t in range(start, end):
            expected_RX[row] = expected_TX[t] = decay_TX[t] * expected_RX[row] + increment_TX[t]
    found_TX = in_lockstep(accumulated, state_RX, rows_B, starts_B1, (decay_TX, increment_TX), like=decay_TX)
    assert torch.allclose(found_TX, expected_TX, rtol=1e-14)
    assert torch.allclose(state_RX, expected_RX, rtol=1e-14)
