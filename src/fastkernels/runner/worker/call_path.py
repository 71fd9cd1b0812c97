"""Two ways to make a call, and what the judge has of it.

    held     between two words to a device, while the process stands still (transfer/gpu_hold.py)
    asked    from before its inputs come until the process stands still after its answer
             (transfer/boxes.py)

Either way results that are not in memory when the process stands still are discarded. A thread inside a
system call writes on until that ends: such results are worth as much time as they took.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from fastkernels.runner.ranks.late_rank import Late, led
from fastkernels.runner.transfer import hold_gate
from fastkernels.runner.transfer.boxes import Boxes
from fastkernels.runner.transfer.gpu_arguments import GpuArguments, Shown
from fastkernels.runner.transfer.gpu_hold import PATIENCE_S, Hold
from fastkernels.runner.transfer.shared_memory import Arena
from fastkernels.runner.worker.worker_calls import Timed, WorkerCalls

_USUAL_S = 2.0  # of a held device's work


class Made(NamedTuple):
    """`window_ns`: by the judge's own clock. `kept`: the results as they lay there. `late`: a held call that
    did not come to its gate before the device went on."""

    timed: Timed
    window_ns: int
    kept: Arena
    late: bool = False


def held(
    calls: WorkerCalls,
    channels: Sequence[socket.socket],
    hold: Hold,
    mapped: GpuArguments,
    inputs: Mapping[str, Tensor],
    echo: Sequence[str],
    late: Late | None,
    contract: str,
    ran: Collection[int] | None,
    **how: Any,
) -> Made:
    """`channels`: of each rank's gate. An eager call may wait for the device before it comes there: such a
    call is not hidden, and its results are taken when it has come. `contract` and `how`: it is
    prepared. `ran`: the links of a captured chain that run, if not all."""
    worker, timeout_s = calls.worker, calls.timeouts.call
    is_captured = contract == "graph"
    late_rank = None if late is None else late.rank

    def come() -> None:
        with calls.telling("go"):
            for channel in channels:
                worker.wait_at(channel, timeout_s)
            worker.pause()
        if not is_captured:  # an uncaptured call says where its results lie
            shown = [calls.read("go", Shown, hold_gate.said(channel)) for channel in channels]
            calls.reached("go", lambda: mapped.find(shown))

    calls.call("prepare", calls.timeouts.first, contract=contract, **how)
    mapped.take_back()
    hold.shut()
    try:
        with calls.telling("go"):
            worker.ask("go")
            is_there = is_captured or all(worker.comes_to(channel, PATIENCE_S) for channel in channels)
        if is_there:
            come()
        mapped.get_ready(inputs, ran)
        hold.arm(
            mapped.enqueue_arguments,
            lambda rank: mapped.enqueue_results(rank, ran) if is_there else None,
            late_rank,
        )
        hold.open(late_rank)
        if late is not None:
            time.sleep(late.after_s)
            hold.let_go(late.rank)
        is_done = hold.passed(_USUAL_S)
        if not is_there:
            come()
            mapped.take()
        if is_done:
            mapped.note(echo)
        with calls.telling("go"):
            for channel in channels:
                hold_gate.let_through(channel)
            timed = calls.read("go", Timed, worker.answer(timeout_s))
        if not is_done:  # it has failed, or goes on for long: its own process waits for it
            is_done = hold.passed(_USUAL_S)
            mapped.note(echo)
        if not is_done:
            raise calls.garbled("go", "its device did not say that the call has ended")
    finally:
        hold.release()
    return Made(timed, hold.device_ns(), mapped.kept(), late=not is_there)


def asked(
    calls: WorkerCalls, boxes: Boxes, inputs: Mapping[str, Tensor], late: Late | None, **how: Any
) -> Made:
    """`how`: it is prepared. Of a rank that is `late` the inbox holds other inputs at first."""
    with led(late) as (descriptors, lead):
        if late is not None:
            how["late"] = late.rank
        calls.call("prepare", calls.timeouts.first, descriptors, **how)
        begin_ns = time.perf_counter_ns()
        boxes.deliver(inputs if late is None else late.mixed)
        lead()
        timed = calls.answer("go", Timed, calls.timeouts.call)
        window_ns = calls.worker.pause() - begin_ns
    return Made(timed, window_ns, boxes.take())
