"""A side of tier 1 that is a group of ranks: the worker is rank 0 and forks the others, a process for each.

    judge ──call──▶ rank 0 ──the same call──▶ rank 1, rank 2, ...        one answer, of all

Every rank has a KernelSide with its own part of the boxes: rank r has what link r has of a chain. All ranks
are isolated as the worker is, in its process group, and meet over torch.distributed before a candidate is
imported: NCCL, rank r on GPU r (the boxes lie on GPU 0), or Gloo by loopback. A timed call begins on each
when the last one is ready, or on GPUs when the judge lets all of them go (transfer/gpu_hold.py), and has
lasted as long as on the one that took longest. In some calls, which are not timed, a rank is late: the others
begin without it, its inputs come when they have begun, and are gone from the inbox, where there is one for
all, when it begins. Who takes what a peer brings without waiting for it, or out of its inbox, as no rank of a
model could, is wrong then.

An error ends its rank, because the others may wait for it in a collective. They notice that its connections
are closed, or the group ends some seconds later. The earliest error is the group's. Where one hangs and none
fails, the judge's timeout ends all.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from fastkernels.kernels.group import Distributed, use_group
from fastkernels.runner.inside.kernel_side import KernelSide
from fastkernels.runner.ranks.peer import Failed, Peer, Start, answers, end_with, failure
from fastkernels.runner.transfer.protocol import INPUTS_ARE_TAKEN, Reported
from fastkernels.runner.transfer.shared_memory import Ticket


class RanksSide:
    """`ranks`: how many. The rest as KernelSide."""

    def __init__(self, device: str, threads: int, ranks: int) -> None:
        start = Start(ranks)
        folder = tempfile.mkdtemp(prefix="ranks-", dir=os.environ.get("TMPDIR"))
        place = os.path.join(folder, "store")
        self._peers: list[Peer] = []
        for rank in range(1, ranks):
            others = list(self._peers)
            self._peers.append(Peer(rank, lambda r: _Rank(r, device, threads, start, place), others))
        end_with(self._peers)
        self._own = _Rank(0, device, threads, start, place)

    def hello(self) -> dict[str, Any]:
        return self._all("hello")[0]

    def probe(self, ticket: Ticket, descriptors: Sequence[int] = ()) -> dict[str, Any]:
        first, *others = self._all("probe", descriptors, ticket=ticket)
        return first if all(other == first for other in others) else {"byte": None}

    # ------------------------------------------------------------ KernelSide's steps, on every rank

    def open(self, **arguments: Any) -> dict[str, Any]:
        return self._all("open", **arguments)[0]

    def build(self) -> dict[str, Any]:
        built = self._all("build")
        return {"prepares": any(each["prepares"] for each in built), "put_back": _put_back(built)}

    def attach(self, descriptors: Sequence[int] = (), **arguments: Any) -> dict[str, Any]:
        return self._all("attach", descriptors, **arguments)[0]

    def first(self) -> dict[str, Any]:
        first = self._all("first")
        return {**first[0], "put_back": _put_back(first)}

    def boxes(self, outbox: Ticket, echo: Ticket, descriptors: Sequence[int] = ()) -> dict[str, Any]:
        return self._all("boxes", descriptors, outbox=outbox, echo=echo)[0]

    def settle(self, **arguments: Any) -> dict[str, Any]:
        return self._all("settle", **arguments)[0]

    def prepare(self, descriptors: Sequence[int] = (), **arguments: Any) -> dict[str, Any]:
        return self._all("prepare", descriptors, **arguments)[0]

    def go(self) -> dict[str, Any]:
        return {"ns": max(timed["ns"] for timed in self._all("go"))}

    def inspect(self, **arguments: Any) -> dict[str, Any]:
        """Results of every rank; settings of all but rank 0 under their rank's number."""
        seen = self._all("inspect", **arguments)
        own, *others = (one["flags"] for one in seen)
        flags = own | {f"rank {r} {key}": v for r, one in enumerate(others, 1) for key, v in one.items()}
        outputs = [described for one in seen for described in one["outputs"]]
        return {"outputs": outputs, "threads": max(one["threads"] for one in seen), "flags": flags}

    def again(self) -> dict[str, Any]:
        return self._all("again")[0]

    def launched(self) -> dict[str, Any]:
        """The first rank's kernels, of a call that all make."""
        return self._all("launched")[0]

    def close(self) -> dict[str, Any]:
        return self._all("close")[0]

    def _all(self, do: str, descriptors: Sequence[int] = (), **arguments: Any) -> list[dict[str, Any]]:
        """What each rank answers, in their order. Reported: the earliest error of them."""
        for peer in self._peers:
            peer.ask(do, descriptors, arguments)
        extra = {"descriptors": descriptors} if descriptors else {}
        own: dict[str, Any] | Failed
        try:
            own = getattr(self._own, do)(**arguments, **extra)
        except BaseException as error:  # SystemExit of a candidate is its failure
            own = failure(error, self._own)
        told = [own, *answers(self._peers, failed=isinstance(own, Failed))]
        failures = {rank: answer for rank, answer in enumerate(told) if isinstance(answer, Failed)}
        if failures:
            rank = min(failures, key=lambda rank: failures[rank].at_ns)
            report = failures[rank].report
            raise Reported(report.model_copy(update={"message": f"rank {rank}: {report.message}"}))
        return [answer for answer in told if not isinstance(answer, Failed)]


class _Rank(KernelSide):
    """A rank's own side, in the group from its beginning."""

    def __init__(self, rank: int, device: str, threads: int, start: Start, place: str) -> None:
        from torch._C._distributed_c10d import FileStore  # every worker's template imports this file

        # In a network namespace of its own there is nothing else.
        os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        on_gpu = device == "cuda"
        here = torch.device(device, rank) if on_gpu else None
        if here is not None:
            torch.cuda.set_device(here)
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=FileStore(place, start.ranks),
            rank=rank,
            world_size=start.ranks,
            device_id=here,
        )
        self._membership = contextlib.ExitStack()
        self._membership.enter_context(use_group(Distributed()))
        begin = start.of(rank)
        self._let_go = begin.let_go
        self._leads: socket.socket | None = None  # the judge's word, where this rank is late
        super().__init__(device, threads, rank, begin)

    def prepare(self, late: int | None = None, descriptors: Sequence[int] = (), **arguments: Any) -> dict:
        """`late`: the rank that begins after the others. By the descriptor the judge says when its inputs
        are there, and, by ending it, that they no longer are."""
        for descriptor in descriptors:
            leads = socket.socket(fileno=descriptor)
            if late == self._rank:
                self._leads = leads
            else:
                leads.close()
        return super().prepare(**arguments)

    def _stage(self) -> None:
        leads, self._leads = self._leads, None
        if leads is None:
            super()._stage()
            return
        self._let_go()
        with leads:
            leads.recv(1)
            super()._stage()
            self._device.wait()
            leads.send(INPUTS_ARE_TAKEN)
            leads.recv(1)


def _put_back(answers: list[dict[str, Any]]) -> list[str]:
    """Of any rank."""
    return sorted({name for answer in answers for name in answer.get("put_back", ())})
