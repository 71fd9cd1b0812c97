"""Token ids of requests of any length as one launch, padded or not, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fastkernels import Model
from fastkernels.errors import RequestError
from fastkernels.nn.sequences import LEAST, SMALL, Sequences, padding, stepped

CPU = torch.device("cpu")
LENGTHS = (5, 1, 12, 3)


def ids(length: int, seed: int = 0) -> Tensor:
    return torch.randint(4, 200, (length,), generator=torch.Generator().manual_seed(seed))


def packed(pads: bool, of_tokens: tuple[bool, ...] = (True,)) -> Sequences:
    sequences = Sequences(200, 64, CPU, first=2, of_tokens=of_tokens)
    sequences.pads = pads
    return sequences


@pytest.mark.parametrize("pads", [False, True])
def test_a_launch_holds_each_request_and_gives_each_its_rows(pads: bool):
    calls: list[tuple[Any, ...]] = [(ids(length, seed).int(),) for seed, length in enumerate(LENGTHS)]
    sequences = packed(pads, (True, False))
    crossing, longest = sequences.join([sequences.read(call) for call in calls])
    ids_T, positions_T, starts_B1 = crossing.tensors()
    assert (ids_T.dtype, positions_T.dtype, starts_B1.dtype) == (torch.int32,) * 3
    assert starts_B1[:5].tolist() == [0, 5, 6, 18, 21]
    assert starts_B1.diff().min() > 0, "a row without a token has no first one"
    assert starts_B1[-1] == len(ids_T) == len(positions_T) == (32 if pads else 21)
    assert (len(starts_B1), longest) == ((9, 16) if pads else (5, 12))
    assert longest >= starts_B1.diff().max()
    shares = sequences.divide((ids_T, starts_B1[:-1]), calls)
    for (given,), (rows, start) in zip(calls, shares, strict=True):
        assert torch.equal(rows, given)
        positions = positions_T[int(start) : int(start) + len(given)]
        assert positions.tolist() == list(range(2, 2 + len(given)))


def test_one_tensor_is_divided_too():
    calls: list[tuple[Any, ...]] = [(ids(3),), (ids(2),)]
    first, second = packed(True).divide(torch.arange(16), calls)
    assert (first.tolist(), second.tolist()) == ([0, 1, 2], [3, 4])


def test_padded_sizes_are_few():
    """Of requests of any length below the bound: a ninth of the tokens at most is added, above 128."""
    alone = {(n + sum(padding([n])), len(padding([n]))) for n in range(1, SMALL)}
    assert len(alone) <= 64, "as many graphs as the engine captures"
    assert all(stepped(n) <= max(n + LEAST, 9 * n // 8 + 1) for n in range(1, SMALL))
    assert all(min(padding([n] * rows)) >= 1 for n in (1, 7, 75) for rows in (1, 2, 3, 32))
    assert padding([SMALL + 1]) == padding([SMALL, 1]) == []


def test_padding_changes_no_answer():
    plain, padded = (Model("bge_m3", config="tiny", device="cpu") for _ in range(2))
    padded.stages["forward"].batching.pads = True  # type: ignore[attr-defined]
    requests = [{"input_ids": ids(length, seed)} for seed, length in enumerate(LENGTHS)]
    for a, b in zip(plain.run(requests), padded.run(requests), strict=True):
        assert [len(a[name]) for name in a] == [len(b[name]) for name in a]
        for name in a:
            torch.testing.assert_close(a[name], b[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([1, 2], "int64 or int32 tensor or array"),
        (torch.zeros(3), r"not float32 \[3\]"),
        (torch.zeros(1, 3).long(), r"not int64 \[1, 3\]"),
        (torch.zeros(0).long(), "without token ids"),
        (torch.zeros(65).long(), "65 token ids: the model takes up to 64"),
        (np.array([3, 200]), r"token id 200: the model's vocabulary is 0 .. 199"),
        (torch.tensor([3, -1]), "token id -1"),
        (torch.tensor([1, 2]).to_sparse(), "sparse"),
        (torch.zeros(2, dtype=torch.int64, device="meta"), "meta"),
    ],
)
def test_a_request_that_is_none_harms_no_other(given: Any, says: str):
    model = Model("bge_m3", config="tiny", device="cpu")
    good = {"input_ids": ids(7)}
    first, refused, last = model.run([good, {"input_ids": given}, good], errors="return")
    assert isinstance(refused, RequestError)
    with pytest.raises(RequestError, match=says):
        raise refused
    (alone,) = model.run([good])
    for answer in (first, last):
        torch.testing.assert_close(answer["colbert"], alone["colbert"], rtol=0, atol=1e-5)
    with pytest.raises(RequestError, match=f"request 1: .*{says}"):
        model.run([good, {"input_ids": given}])
    assert model.run([]) == []
