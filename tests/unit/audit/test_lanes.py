"""Cases audited beside each other: the same rows, in places with room, whatever becomes of a process."""

from __future__ import annotations

import os
import time

import pytest
import torch

from fastkernels import registry
from fastkernels.audit import lanes
from fastkernels.audit.room import Audited, audited, needed_bytes

(ENTRY,) = registry.find_tasks(("L1/rope",), 1)
FOUND = [(ENTRY, case) for case in registry.cases(ENTRY, "tiny")[:4]]


def place(taken: int = 0) -> lanes._Place:
    return lanes._Place(torch.device("cpu"), None, bytes=100, taken=taken)


def dying(connection, *_):
    connection.recv()
    os._exit(3)


def never_there(*_):
    os._exit(4)


def hanging(connection, *_):
    _, case = connection.recv()
    if case != FOUND[0][1]:
        connection.send((Audited(case, row=case.id), False))
    time.sleep(100)


def echoing(connection, *_):
    while True:
        _, case = connection.recv()
        connection.send((Audited(case, row=case.id), False))


def test_processes_say_what_one_process_says():
    rows = {str(done): done.row for done in lanes.beside(FOUND[:2], "cpu", 0, processes=2, timeout_s=100)}
    for entry, case in FOUND[:2]:
        one = audited(entry, case, "cpu", 0)
        assert rows[str(one)].margin == pytest.approx(one.row.margin, rel=0.5)  # another number of threads
        assert [check.name for check in rows[str(one)].checks] == [check.name for check in one.row.checks]


@pytest.mark.whole
@pytest.mark.parametrize(("served", "code"), [(dying, 3), (never_there, 4)])
def test_a_process_that_dies_is_told_and_its_place_taken_again(monkeypatch, served, code):
    monkeypatch.setattr(lanes, "_serve", served)
    monkeypatch.setattr(lanes, "_places", lambda *_: [place()])
    monkeypatch.setattr(lanes, "needed_bytes", lambda *_: 50)
    ended = list(lanes.beside(FOUND[:2], "cpu", 0, processes=2, timeout_s=100))
    assert {done.case.id for done in ended} == {case.id for _, case in FOUND[:2]}
    assert {done.reason for done in ended} == {f"its process ended with exit code {code}"}


@pytest.mark.whole
def test_a_case_that_hangs_is_ended_and_its_place_taken_again(monkeypatch):
    monkeypatch.setattr(lanes, "_serve", hanging)
    monkeypatch.setattr(lanes, "_places", lambda *_: [place()])
    monkeypatch.setattr(lanes, "needed_bytes", lambda *_: 50)
    monkeypatch.setattr(lanes, "_END_S", 5)
    begin = time.monotonic()
    ended = list(lanes.beside(FOUND[:2], "cpu", 0, processes=2, timeout_s=5))
    assert time.monotonic() - begin < 60
    assert [(done.case.id, done.row) for done in ended] == [
        (FOUND[1][1].id, FOUND[1][1].id),
        (FOUND[0][1].id, None),
    ]
    assert ended[1].reason == "not ended after 5 s: its process hung and was killed"


@pytest.mark.whole
def test_a_slow_case_is_ended_by_its_own_process():
    ended = list(lanes.beside(FOUND[:2], "cpu", 0, processes=1, timeout_s=0.005))
    assert [done.reason for done in ended] == ["not ended after 0.005 s"] * 2


def test_one_process_takes_the_largest_that_fits_and_the_others_the_smallest(monkeypatch):
    sizes = dict(zip((case.id for _, case in FOUND), (10, 30, 1000, 20)))
    monkeypatch.setattr(lanes, "_serve", echoing)
    monkeypatch.setattr(lanes, "_places", lambda *_: [place()])
    monkeypatch.setattr(lanes, "needed_bytes", lambda _, case: sizes[case.id])
    begun = []
    begin = lanes._Lane.begin
    monkeypatch.setattr(lanes._Lane, "begin", lambda lane, job: (begun.append(job.bytes), begin(lane, job)))
    assert len(list(lanes.beside(FOUND, "cpu", 0, processes=1, timeout_s=100))) == 4
    assert begun == [30, 20, 10, 1000]
    begun.clear()
    assert len(list(lanes.beside(FOUND[:2], "cpu", 0, processes=2, timeout_s=100))) == 2
    assert begun == [30, 10]


def test_a_case_waits_for_room():
    small, large, huge = (lanes._Job(ENTRY, FOUND[0][1], size) for size in (30, 40, 1000))
    assert place().chosen([huge, large, small], largest=True) is large
    assert place().chosen([huge], largest=False) is huge
    assert place(taken=70).chosen([huge, large, small], largest=True) is small
    assert place(taken=70).chosen([huge, large], largest=False) is None


def test_a_case_that_leaves_nothing_for_others_comes_last():
    small, large, whole = (lanes._Job(ENTRY, FOUND[0][1], size) for size in (30, 75, 90))
    assert place().chosen([small, whole, large], largest=True) is large
    assert place().chosen([whole], largest=True) is whole
    assert place(taken=20).chosen([whole], largest=True) is None


def test_a_case_waits_where_others_have_filled_the_device(monkeypatch):
    monkeypatch.setattr(lanes, "available_bytes", lambda device: 20)
    job = lanes._Job(ENTRY, FOUND[0][1], 30)
    assert place(taken=1).chosen([job], largest=True) is None
    assert place().chosen([job], largest=True) is job


def test_what_a_case_needs_grows_with_its_tensors():
    few, *_, many = sorted(registry.cases("L1/linear", "tiny"), key=lambda case: case.inputs["x"].shape[0])
    (entry,) = registry.find_tasks(("L1/linear",), 1)
    assert needed_bytes(entry, few) < needed_bytes(entry, many)
