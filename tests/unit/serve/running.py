"""`fk serve` as a user starts it: a process, its address, what it said, how it ended."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

TINY = ("--size", "tiny", "--device", "cpu")


@dataclass
class Server:
    process: subprocess.Popen[str]
    url: str  # without /v1
    said: Path  # stderr

    @property
    def engine_pid(self) -> int:
        """The child with the model; the other one keeps track of shared memory."""
        (pid,) = [
            child
            for child in map(
                int, Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            )
            if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()
        ]
        return pid

    def metric(self, name: str) -> float:
        """The sum over its labels."""
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        names = (f"fastkernels_{name} ", f"fastkernels_{name}{{")
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(names))


@contextlib.contextmanager
def serving(folder: Path, *flags: str) -> Iterator[Server]:
    """With the flags beside `--port 0`; ended behind the body if it has not."""
    said = folder / "stderr"
    command = [sys.executable, "-m", "fastkernels", "serve", "--port", "0", *TINY, *flags]
    with said.open("w") as stderr:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, "FK_TRACKING": "false"},
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving "), said.read_text()
        yield Server(process, line.split()[-1].removesuffix("/v1"), said)
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()
            process.stdout.close()


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether it does within a minute."""
    deadline = time.monotonic() + 60
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
