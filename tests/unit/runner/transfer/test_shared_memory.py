"""Arenas: where tensors lie, and what the other side can do to them."""

import ctypes
import mmap
import os

import pytest
import torch

from fastkernels.runner.transfer.shared_memory import ALIGNMENT, Arena, Attached, Want, place, span_elements


def arena(writable: bool = False) -> Arena:
    wanted = [
        Want("arg.x", (3, 5), torch.float32),
        Want("arg.i", (7,), torch.int64),
        Want("e", (0, 4), torch.bfloat16),
    ]
    return Arena.create(wanted, "cpu", writable)


def attach(box: Arena) -> Attached:
    return Attached(box.ticket, [os.dup(box.descriptors[0])])


def test_slots_are_aligned_and_do_not_overlap() -> None:
    slots, size = place(
        [Want("a", (3,), torch.uint8), Want("b", (1,), torch.int64, 1000), Want("c", (), torch.float16)]
    )
    assert [slot.offset % ALIGNMENT for slot in slots.values()] == [0, 0, 0]
    assert slots["b"].capacity == 1000
    assert slots["b"].offset >= slots["a"].offset + 3
    assert slots["c"].offset >= slots["b"].offset + 1000
    assert size >= slots["c"].offset + 2


def test_the_other_side_reads_what_the_judge_wrote() -> None:
    box = arena()
    box.write({"arg.x": torch.arange(15.0).view(1, 3, 5), "arg.i": torch.arange(7).view(1, 7)})
    attached = attach(box)
    values = (ctypes.c_float * 15).from_address(attached.address("arg.x"))
    assert list(values) == list(range(15))
    attached.close()
    box.close()


def test_the_judge_reads_what_the_other_side_wrote() -> None:
    box = arena(writable=True)
    box.poison()
    assert box.tensors["arg.x"].isnan().all()
    assert (box.tensors["arg.i"] == -1).all()
    attached = attach(box)
    ctypes.memset(attached.address("arg.i"), 0, 56)
    assert box.tensors["arg.i"].tolist() == [[0] * 7]
    assert box.tensors["arg.x"].isnan().all()
    attached.close()
    box.close()


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memory files")
def test_an_inbox_cannot_be_written_or_resized_from_outside() -> None:
    box = arena(writable=False)
    descriptor = os.dup(box.descriptors[0])
    with pytest.raises(PermissionError):
        mmap.mmap(descriptor, box.ticket.size, access=mmap.ACCESS_WRITE)
    with pytest.raises(PermissionError):
        os.pwrite(descriptor, b"forged", 0)
    for size in (0, box.ticket.size * 2):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)
    with pytest.raises(PermissionError):
        os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_TRUNC)
    box.tensors["arg.x"].fill_(1)  # the judge still can
    os.close(descriptor)
    box.close()


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memory files")
def test_an_outbox_cannot_be_resized_under_the_judge() -> None:
    box = arena(writable=True)
    with pytest.raises(PermissionError):
        os.ftruncate(box.descriptors[0], 0)
    box.close()


def test_links_have_their_own_parts_of_a_slot() -> None:
    wanted = [
        Want("a", (3,), torch.float32, links=3),
        Want("out.0", (2, 2), torch.float32, 32, links=3),
        Want("param.shared", (2,), torch.float32),
    ]
    box = Arena.create(wanted, "cpu", writable=True)
    attached = attach(box)
    assert box.tensors["a"].shape == (3, 3)
    assert box.tensors["param.shared"].shape == (1, 2)
    assert attached.address("param.shared", 2) == attached.address("param.shared", 0)
    for link in range(3):
        ctypes.memset(attached.address("a", link), link, 12)
        ctypes.memset(attached.address("out.0", link), 0x10 + link, 32)
    assert [row.view(torch.uint8).unique().tolist() for row in box.tensors["a"]] == [[0], [1], [2]]
    strided = box.view("out.0", (2, 2), (4, 1))
    assert [part.contiguous().view(torch.uint8).unique().tolist() for part in strided] == [[16], [17], [18]]
    box.write({"a": torch.ones(2, 3)})
    assert box.tensors["a"][:2].eq(1).all()
    assert box.tensors["a"][2].view(torch.uint8).eq(2).all(), "the third link was not written"
    attached.close()
    box.close()


def test_strides_are_laid_over_a_slot_that_is_large_enough() -> None:
    box = Arena.create([Want("out.0", (2, 3), torch.float32, 48)], "cpu", writable=True)
    box.bytes.view(torch.float32)[:12] = torch.arange(12.0)
    assert box.view("out.0", (2, 3), (4, 1))[0].tolist() == [[0, 1, 2], [4, 5, 6]]
    assert box.view("out.0", (2, 3), (1, 2))[0].tolist() == [[0, 2, 4], [1, 3, 5]]
    box.close()


@pytest.mark.parametrize(
    ("shape", "stride"),
    [
        ((2, 3), (100, 1)),
        ((2, 3), (1,)),
        ((2, 3), (-1, 1)),
        ((-2, 3), (1, 1)),
        ((2, 3), (1 << 70, 1)),
        ((1 << 40,), (1,)),
    ],
)
def test_a_claimed_layout_that_does_not_fit_is_refused(shape, stride) -> None:
    box = Arena.create([Want("out.0", (2, 3), torch.float32, 48)], "cpu", writable=True)
    with pytest.raises(ValueError, match="does not fit"):
        box.view("out.0", shape, stride)
    box.close()


def test_the_span_of_a_strided_tensor() -> None:
    assert span_elements((2, 3), (3, 1)) == 6
    assert span_elements((2, 3), (10, 2)) == 15
    assert span_elements((0, 3), (3, 1)) == 0
    assert span_elements((), ()) == 1
