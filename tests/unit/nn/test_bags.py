"""Bags of ids: several requests' as one lookup, and what is refused with its place."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
import torch
from torch import Tensor

from fastkernels import Model
from fastkernels.errors import RequestError
from fastkernels.nn.bags import Bags
from fastkernels.nn.program import Place

ROWS = [5, 3, 9]  # of three tables, which begin at 0, 5 and 8
BAGS = Bags(ROWS, 2, Place(torch.device("cpu"), torch.float32))
Request = tuple[Tensor, Tensor, Tensor]


def request(lengths: list[list[int]], seed: int = 0) -> Request:
    generator = np.random.default_rng(seed)
    values = [generator.integers(0, rows, sum(row)) for rows, row in zip(ROWS, lengths)]
    dense = torch.from_numpy(generator.standard_normal((len(lengths[0]), 2)))
    return dense, torch.from_numpy(np.concatenate(values)), torch.tensor(lengths)


def listed(asked: Request) -> list[list[list[int]]]:
    """The rows of the whole table in each bag: [table][row]."""
    _, values, lengths = asked
    bags = values.split(lengths.flatten().tolist())
    starts = [0, *accumulate(ROWS)]
    count = lengths.shape[1]
    return [
        [(bags[table * count + row] + starts[table]).tolist() for row in range(count)] for table in range(3)
    ]


RAGGED = [[[1, 0], [2, 3], [0, 1]], [[0, 0], [0, 0], [0, 0]], [[4, 1], [0, 2], [1, 0]]]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_bags_of_a_launch_lie_feature_by_feature(count: int):
    requests = [request(lengths, seed) for seed, lengths in enumerate(RAGGED[:count])]
    read = [BAGS.read(one) for one in requests]
    assert len({BAGS.key(one) for one in read}) == 1
    dense, ids, offsets = BAGS.join(read)[0].tensors()
    assert torch.equal(dense, torch.stack([one[0] for one in requests]).float())
    assert (ids.dtype, offsets.dtype) == (torch.int32, torch.int32)
    found = [ids[begin:end].tolist() for begin, end in zip(offsets.tolist(), offsets.tolist()[1:])]
    wanted = [bag for table in range(3) for one in requests for bag in listed(one)[table]]
    assert found == wanted
    assert not ids[int(offsets[-1]) :].any(), "the first row fills up"


@pytest.mark.parametrize(("ids", "room"), [(0, 1), (5, 5), (17, 18), (31, 32), (1000, 1024), (1025, 1152)])
def test_batches_of_nearly_as_many_ids_have_one_size(ids: int, room: int):
    lengths = [[ids], [0], [0]]
    assert len(BAGS.join([BAGS.read(request(lengths))])[0].tensors()[1]) == room


DENSE, VALUES, LENGTHS = request([[1, 2], [0, 3], [2, 0]])


def broken(place: int, value: int) -> Tensor:
    values = VALUES.clone()
    values[place] = value
    return values


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ((torch.zeros(0, 2), VALUES[:0], LENGTHS[:, :0]), "a request of 0 rows: they are 1 to 16384"),
        (
            (torch.zeros(2, 3), VALUES, LENGTHS),
            r"dense must be floating-point \[rows, 2\], not float32 \[2, 3\]",
        ),
        ((DENSE, VALUES, LENGTHS[:2]), r"lengths are \[2, 2\]: they must be \[3, 2\]"),
        ((DENSE, VALUES[:-1], LENGTHS), "lengths add up to 8, but values has 7 ids"),
        ((DENSE, VALUES, LENGTHS - 1), r"lengths\[1, 0\] is -1: a bag has 0 ids or more"),
        (
            (DENSE, VALUES, LENGTHS + (LENGTHS.sign() << 62)),
            f"lengths add up to {2**64 + 8}, but values has 8",
        ),
        ((DENSE, broken(4, 3), LENGTHS), r"values\[4\] is 3: table 1 has rows 0 to 2"),
        ((DENSE, broken(7, -1), LENGTHS), r"values\[7\] is -1: table 2 has rows 0 to 8"),
        ((DENSE, VALUES.float(), LENGTHS), r"values must be int64 or int32 \[ids\], not float32 \[8\]"),
        ((DENSE, "ids", LENGTHS), r"values must be int64 or int32 \[ids\], not str"),
    ],
)
def test_what_cannot_be_served_is_named_with_its_place(asked: Request, says: str):
    BAGS.read((DENSE, VALUES, LENGTHS))
    with pytest.raises(RequestError, match=says):
        BAGS.read(asked)


def test_a_request_that_is_refused_leaves_others_unharmed():
    model = Model("dlrmv2", config="tiny")
    lengths = torch.tensor([[1, 1], [2, 0], [0, 0], [1, 1]])
    good = {"dense": torch.randn(2, 6), "values": torch.tensor([9, 0, 16, 3, 15, 0]), "lengths": lengths}
    bad = [
        {**good, "values": torch.tensor([9, 0, 17, 3, 15, 0])},
        {**good, "lengths": lengths + 1},
        {**good, "dense": torch.randn(0, 6)},
    ]
    (alone,) = model.run([good])
    found = model.run([bad[0], good, *bad[1:], good], errors="return")
    assert [type(one) is RequestError for one in found] == [True, False, True, True, False]
    for place in (1, 4):  # of another batch: its products may be summed in another order
        torch.testing.assert_close(found[place]["logits"], alone["logits"], rtol=0, atol=1e-6)
    with pytest.raises(RequestError, match=r"request 1: values\[2\] is 17: table 1 has rows 0 to 16"):
        model.run([good, bad[0]])
