"""Results by content: what is launched once, kept, given up and taken back."""

from __future__ import annotations

import gc

import torch
from torch import Tensor

from fastkernels.engine.programs.batch_stage import BatchStage
from fastkernels.engine.programs.remembering import Remembering
from fastkernels.nn.batching import Stacked
from fastkernels.nn.program import Call

BYTES = 16 * 4


def stage(most: int = 1 << 20, has_room=lambda: True) -> Remembering:
    batches = BatchStage(lambda x_BN: x_BN * 2, Stacked(), 64, has_room)
    return Remembering(batches, lambda call: bytes(call.args[0][:1].byte().tolist()), most)


def call(value: float) -> Call:
    return Call("encode", torch.full((16,), float(value)))


def run(one: Remembering, *values: float) -> list[Tensor]:
    for ticket, value in enumerate(values):
        one.submit(ticket, call(value))
    results = dict(one.advance() + one.advance())
    return [results[ticket] for ticket in range(len(values))]


def test_equal_contents_are_launched_once():
    one = stage()
    first, again, other = run(one, 1, 1, 2)
    assert first is again
    assert (other == 4).all()
    assert one.stage.batch_sizes == [2]
    (later,) = run(one, 1)
    assert later is first
    assert one.stage.batch_sizes == [2]
    assert (one.num_asked, one.num_found) == (4, 2)


def test_the_oldest_go_and_are_counted_while_somebody_has_them():
    one = stage(most=2 * BYTES)
    (first,) = run(one, 1)
    run(one, 2)
    run(one, 3)  # 1 goes from the store; the caller has it
    assert one.bytes == 3 * BYTES
    del first
    gc.collect()
    assert one.bytes == 2 * BYTES
    run(one, 2)
    assert one.stage.batch_sizes == [1, 1, 1]
    run(one, 1)
    assert one.stage.batch_sizes == [1, 1, 1, 1]


def test_a_cancelled_call_leaves_its_twin():
    one = stage()
    one.submit(0, call(1))
    one.submit(1, call(1))
    one.submit(2, call(2))
    one.cancel(0)
    one.cancel(2)
    ((ticket, result),) = one.advance()
    assert ticket == 1
    assert (result == 2).all()
    assert one.stage.batch_sizes == [1]
    one.submit(3, call(1))
    one.cancel(3)
    assert one.advance() == []
    one.submit(4, call(5))
    one.abandon()
    assert one.advance() == []
    run(one, 1)  # nothing that was there is trusted
    assert one.stage.batch_sizes == [1, 1]
