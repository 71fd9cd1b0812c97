"""A rank beside the first: a process that builds its part of the model, and launches what rank 0 launches.

Over the channel come the blueprint, then the plan of every step. It schedules nothing, reads no sampled id
and answers nothing. Where it fails it says why, and ends; it ends with rank 0, too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from fastkernels.engine.core.build import Options, build
from fastkernels.engine.core.memory import Limits
from fastkernels.engine.core.model_runner import ModelRunner
from fastkernels.errors import FastKernelsError
from fastkernels.kernels import base as kernels
from fastkernels.kernels.group import Distributed, use_group
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.weights import ModelSource, load_model
from fastkernels.nn.partition import Partition, use_partition

_TRACEBACK_LINES = 12
_LOOK_S = 0.5  # how often a rank looks whether rank 0 still lives


@dataclass(frozen=True)
class Blueprint:
    """What all ranks build. Rank 0 adds how they meet, and what its caller has set."""

    source: ModelSource
    layers: tuple[Path, ...]
    device_type: str
    dtype: torch.dtype
    seed: int
    vocabulary: int
    limits: Limits
    options: Options
    size: int
    splits_experts: bool
    place: str = ""  # a file by which they meet
    threads: int = 1
    forced: tuple[dict[str, str], ...] = ()  # implementations of kernels, by name

    def partition(self, rank: int) -> Partition:
        return Partition(rank, self.size, self.splits_experts)

    def device(self, rank: int) -> torch.device:
        return torch.device("cuda", rank) if self.device_type == "cuda" else torch.device("cpu")


@dataclass(frozen=True)
class Failure:
    """Why a rank has ended, and when (CLOCK_MONOTONIC, the same for all)."""

    at_ns: int
    message: str
    traceback: str
    exit_code: int | None  # of our own exceptions

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        is_ours = isinstance(error, FastKernelsError)
        message = str(error) if is_ours else f"{type(error).__name__}: {error}"
        said = "".join(traceback.format_exception(error)).splitlines()[-_TRACEBACK_LINES:]
        return cls(time.monotonic_ns(), message, "\n".join(said), error.exit_code if is_ours else None)


def join(blueprint: Blueprint, rank: int) -> Distributed:
    """A member of torch.distributed's default group: NCCL on GPUs, Gloo on a CPU, all on this machine. They
    meet by a file, so no port has to be free."""
    device = blueprint.device(rank)
    on_gpu = device.type == "cuda"
    store = FileStore(blueprint.place, blueprint.size)
    with _by_loopback():
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=store,
            rank=rank,
            world_size=blueprint.size,
            device_id=device if on_gpu else None,
        )
    return Distributed()


@contextlib.contextmanager
def _by_loopback() -> Iterator[None]:
    """A sandbox has no other network, and a laptop's may change."""
    before = {name: os.environ.get(name) for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}
    os.environ |= dict.fromkeys(before, "lo" if sys.platform == "linux" else "lo0")
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def start(channel: int, rank: int) -> NoReturn:
    """Of a process that inherits the channel by its number."""
    follow(Connection(channel), rank)


def follow(channel: Connection, rank: int) -> NoReturn:
    """What the process does until rank 0 lets it go, or has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; rank 0 decides
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        _follow(channel, rank)
    except EOFError:
        os._exit(0)
    except BaseException as error:
        with contextlib.suppress(OSError):
            channel.send(Failure.of(error))
        os._exit(1)
    os._exit(0)  # nothing here is worth a slow shutdown of a device context


def _follow(channel: Connection, rank: int) -> None:
    blueprint: Blueprint = channel.recv()
    torch.set_num_threads(blueprint.threads)
    device = blueprint.device(rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with contextlib.ExitStack() as stack:
        for forced in blueprint.forced:
            every, named = forced.get("*"), {k: v for k, v in forced.items() if k != "*"}
            stack.enter_context(kernels.use(every, **named))
        with use_partition(blueprint.partition(rank)):
            overlay = Overlay(blueprint.layers)
            model = load_model(blueprint.source, overlay, device, blueprint.dtype, blueprint.seed)
            channel.send("loaded")
            channel.recv()
            stack.enter_context(use_group(join(blueprint, rank)))
            machinery = build(
                model,
                blueprint.vocabulary,
                blueprint.limits,
                blueprint.dtype,
                device,
                blueprint.options,
                others=_First(channel),
            )
        runner = machinery.runner
        channel.send("built")
        while (order := channel.recv()) is not None:
            plan, runner.pool.disabled = order  # captured or not as rank 0 does it
            runner.launch(plan)
        leave(runner)


def leave(runner: ModelRunner) -> None:
    """Leave the group, whose buffers captured graphs hold."""
    if runner.device.type == "cuda":
        torch.cuda.synchronize(runner.device)
    runner.graphs.captures.made.clear()
    runner.pieces.captures.made.clear()
    dist.destroy_process_group()


class _First:
    """Rank 0, as `build` sees the other ranks."""

    def __init__(self, channel: Connection) -> None:
        self._channel = channel

    def alive(self) -> None:
        """A thread looks after that."""

    def least(self, room: int) -> int:
        self._channel.send(room)
        return self._channel.recv()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)
