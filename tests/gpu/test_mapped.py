"""Arguments in memory that is lent to another process, and results that are taken from its own."""

from __future__ import annotations

import contextlib
import multiprocessing as mp

import pytest
import torch

from fastkernels.records import TensorSpec
from fastkernels.runner.inside.device import Cuda
from fastkernels.runner.inside.results import place
from fastkernels.runner.transfer.gpu_arguments import LENT, GpuArguments, NoMemory, Shown, Spot, shown
from fastkernels.runner.transfer.shared_memory import Attached, Ticket, Want

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

LINKS = 3
ARGUMENTS = {
    "arg.x": TensorSpec(shape=(5, 7), dtype="bfloat16"),
    "arg.y": TensorSpec(shape=(3,), dtype="float32"),
}
WANTED = [
    Want("out.0", (5, 7), torch.bfloat16, capacity=140),
    Want("out.1", (3,), torch.float32),
    Want("arg.y", (3,), torch.float32),
]


def serve(channel) -> None:
    """A worker: doubles x into memory of its own, at an odd place in the last link, and adds one to y. Asked
    for something else, it does it again, or spoils what it has."""
    device = Cuda()
    while (ticket := channel.recv()) is not None:
        lent = Attached(ticket, driver=device.driver)
        results = []
        for link in range(LINKS):
            x, y = lent.tensor("arg.x", link), lent.tensor("arg.y", link)
            own = torch.empty(40, dtype=torch.bfloat16, device="cuda")[link : link + 35].view(5, 7)
            results.append((own, y * 3, x, y))
        where = [{"out.0": place(own), "out.1": place(z)} for own, z, _, _ in results]
        channel.send(shown(where, lent.span, device.block_of))
        while channel.recv() == "go":
            for own, z, x, y in results:
                own.copy_(2 * x)
                z.copy_(3 * y)
                y += 1
            torch.cuda.synchronize()
            channel.send("done")
        results = own = z = x = y = None
        lent.close()
        channel.send("left")


@pytest.fixture
def worker():
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,))
    process.start()
    theirs.close()
    yield ours
    with contextlib.suppress(BrokenPipeError):  # it may end by itself
        ours.send(None)
    process.join(20)
    process.kill()


def drawn(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)
    return {
        name: torch.randn(LINKS, *spec.shape, generator=generator, device="cuda").to(
            getattr(torch, spec.dtype)
        )
        for name, spec in ARGUMENTS.items()
    }


def ask(worker, what: Ticket | str):
    worker.send(what)
    assert worker.poll(60)
    return worker.recv()


def test_arguments_come_and_results_are_taken_without_code_of_the_worker(worker) -> None:
    torch.zeros(1, device="cuda")
    mapped = GpuArguments(WANTED, ARGUMENTS)
    addresses = set()
    for seed in range(3):
        (ticket,) = mapped.lend(LINKS, drawn(9))
        where = Shown.model_validate(ask(worker, ticket))
        mapped.take_back()
        mapped.find([where])
        addresses.add(mapped._sides[0]._ours.bytes.data_ptr())
        inputs = drawn(seed)
        mapped.spoil()
        mapped.get_ready(inputs)
        mapped.enqueue_arguments(0)
        torch.cuda.synchronize()
        assert ask(worker, "go") == "done"
        mapped.enqueue_results(0)
        mapped.note(["arg.x"])
        kept = mapped.kept()
        torch.testing.assert_close(kept.view("out.0", (5, 7)), 2 * inputs["arg.x"])
        torch.testing.assert_close(kept.view("out.1", (3,)), 3 * inputs["arg.y"])
        torch.testing.assert_close(kept.view("arg.y", (3,)), inputs["arg.y"] + 1)
        assert torch.equal(mapped.echoed()["arg.x"], inputs["arg.x"])
        assert mapped.last()
        assert mapped.strayed([1]), "the others were written"
        mapped.get_ready(inputs, [1])
        assert mapped.walk_ns is not None, "over the others' arguments"
        mapped.enqueue_results(0, [1])
        alone = mapped.kept().view("out.0", (5, 7))
        assert torch.equal(alone[1], 2 * inputs["arg.x"][1])
        assert alone[[0, 2]].isnan().all(), "of one link only"
        mapped.spoil()
        assert not mapped.last([1])
        assert not mapped.strayed([1])
        mapped.lose()
        assert ask(worker, "leave") == "left"
    mapped.close()
    assert len(addresses) > 1, "other memory than the last time"


def test_places_that_are_none_are_refused() -> None:
    torch.zeros(1, device="cuda")
    mapped = GpuArguments(WANTED, ARGUMENTS)
    (ticket,) = mapped.lend(LINKS)
    for spot, why in (
        (Spot(block=0, offset=0, bytes=10), "in a block of 0 bytes"),
        (Spot(block=LENT, offset=ticket.size, bytes=2), "in a block of"),
    ):
        with pytest.raises(NoMemory, match=why):
            mapped.find([Shown(blocks=[], links=[{"out.0": spot}])])
    for blocks, why in ((["zz"], "nobody can map"), (["00" * 64], "nobody can map"), (["ab", "ab"], "twice")):
        with pytest.raises(NoMemory, match=why):
            mapped.find([Shown(blocks=blocks, links=[])])
    mapped.close()


def test_a_worker_that_has_ended_leaves_what_it_has_shown(worker) -> None:
    torch.zeros(1, device="cuda")
    mapped = GpuArguments(WANTED, ARGUMENTS)
    (ticket,) = mapped.lend(LINKS, drawn(0))
    mapped.find([Shown.model_validate(ask(worker, ticket))])
    worker.send("leave")
    worker.recv()
    worker.send(None)
    with pytest.raises(EOFError):
        worker.recv()
    mapped.take()
    assert mapped.last(), "and nobody's context is lost by it"
    mapped.close()
