"""Who may write where while the host has not read yet."""

from __future__ import annotations

import torch

from fastkernels.engine.core.outbox import SLOTS, Outbox
from fastkernels.engine.core.packing import pack_decode, padding


def test_slots_take_turns_and_none_is_the_null_slot():
    outbox = Outbox(4, torch.device("cpu"))
    turns = [outbox.next_slot() for _ in range(2 * SLOTS)]
    assert turns[:SLOTS] == turns[SLOTS:]
    assert sorted(turns[:SLOTS]) == list(range(1, SLOTS + 1))
    assert SLOTS > 2, "two steps are in flight, and one is being read"


def test_what_warms_a_graph_up_writes_to_the_null_slot():
    packet = pack_decode(padding(1), 4)
    buffer = torch.full((packet.length,), 9, dtype=torch.int32)
    packet.write(buffer.numpy())
    assert buffer[packet.sections["slot"]].tolist() == [0]


def test_ids_of_a_step_are_its_own():
    outbox = Outbox(4, torch.device("cpu"))
    first, second = outbox.next_slot(), outbox.next_slot()
    outbox.ids_KR[first], outbox.ids_KR[second] = 5, 6
    assert outbox.ids(first, 3).tolist() == [5, 5, 5]
    assert outbox.ids(second, 1).tolist() == [6]
