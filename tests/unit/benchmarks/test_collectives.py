"""The program that times collectives: what it lists, how it hears ranks that answer, die or say nothing."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import pytest
import torch
from benchmarks import collectives

from fastkernels import kernels
from fastkernels.kernels.group import simulated

JOBS = [{"task": "all_reduce", "bytes": 4096 << i, "implementation": "torch"} for i in range(4)]


def listed(**changed) -> list[dict]:
    defaults = {"least": 4096, "most": 1 << 26, "tasks": [], "sweep": False}
    return collectives.jobs(argparse.Namespace(**{**defaults, **changed}))


def test_jobs_are_those_that_were_asked_for():
    sizes = {job["bytes"] for job in listed(tasks=["all_reduce"], most=1 << 14)}
    assert sizes == {4096, 8192, 16384}
    assert {job["task"] for job in listed(tasks=["ep_combine"])} == {"ep_combine"}
    assert len(listed(sweep=True)) > len(listed())
    names = {(job["task"], job["implementation"]) for job in listed()}
    for task, implementation in names:
        known = kernels.registered[task].names
        assert implementation in known or (implementation == "sequential" and "parts" in known), (task, known)


@pytest.mark.parametrize(
    "task", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_reduce_norm"]
)
def test_calls_are_as_large_as_they_say(task):
    job = next(job for job in listed(tasks=[task]) if job["bytes"] <= 1 << 16)

    def call(rank: int):
        name, arguments, size = collectives.Call(job, rank, 2, torch.device("cpu")).arguments()
        result = kernels.registered[name](*arguments)
        return arguments[0], result[0] if isinstance(result, tuple) else result, size

    for x, y, size in simulated([lambda rank=rank: call(rank) for rank in range(2)]):
        assert size == job["bytes"] == 2 * max(x.numel(), y.numel())


RANK = """
import json, os, sys, time
rank, first = int(sys.argv[1]), int(sys.argv[2])
for index in range(first, 4):
    if index == {bad} and rank == 1 and {dies}:
        os._exit(3)
    if index == {bad} and rank == 0:
        time.sleep(60)
    if rank == 0:
        print(json.dumps({{"index": index, "us": 10.0 + index, "bytes": 4096}}), flush=True)
"""


@pytest.mark.parametrize(("dies", "said"), [(True, "a rank ended"), (False, "nothing was heard")])
def test_a_rank_that_dies_or_hangs_costs_its_own_row_alone(monkeypatch, dies, said):
    started = []

    def start(rank, ranks, store, path, first):
        text = RANK.format(bad=2, dies=dies)
        command = [sys.executable, "-c", text, str(rank), str(first)]
        started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL if rank else subprocess.PIPE))
        return started[-1]

    monkeypatch.setattr(collectives, "_start", start)
    monkeypatch.setattr(collectives, "SILENT_S", 2)
    found = collectives.outcomes(JOBS, 2, 30)
    assert [found[index].get("us") for index in range(4)] == [10.0, 11.0, None, 13.0]
    assert said in found[2]["error"]
    assert all(process.poll() is not None for process in started), "a rank is left"


def test_rows_are_compared_with_nccl_on_the_same_call():
    jobs = [
        {"task": "all_reduce", "bytes": 8, "implementation": "torch"},
        {"task": "all_reduce", "bytes": 8, "implementation": "triton"},
        {"task": "gemm_reduce_scatter", "tokens": 2, "layer": "down", "implementation": "sequential"},
        {"task": "gemm_reduce_scatter", "tokens": 2, "layer": "down", "implementation": "torch"},
        {"task": "all_reduce", "bytes": 16, "implementation": "triton"},
    ]
    times = (20.0, 5.0, 100.0, 50.0, 7.0)
    found = {i: {"us": us, "bytes": 4_000_000, "link_gbs": 400.0} for i, us in enumerate(times)}
    found[4] = {"error": "it hangs"}
    rows = collectives.rows(jobs, found, 4)
    assert [row.get("ratio_to_nccl") for row in rows] == [1.0, 0.25, 1.0, 0.5, None]
    assert rows[0]["busbw_gbs"] == pytest.approx(2 * 3 / 4 * 4e6 / 20e-6 / 1e9)
    assert rows[2]["busbw_gbs"] == pytest.approx(3 / 4 * 4e6 / 100e-6 / 1e9)
    assert rows[0]["ceiling_share"] == pytest.approx(rows[0]["busbw_gbs"] / 400)
    assert rows[4]["error"] == "it hangs"
    json.dumps(rows)
