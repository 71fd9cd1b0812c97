"""Runs ranks_on_gpus.py as so many processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def on_ranks(ranks: int, folder: Path, limit_s: float, *names: str, **environment: str) -> None:
    """An AssertionError with what every rank said, if one fails or they take longer. None is left."""
    script, store = Path(__file__).parent / "ranks_on_gpus.py", folder / "store"
    logs = [folder / f"rank{rank}" for rank in range(ranks)]
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(ranks), str(store), *names],
            stdout=log.open("wb"),
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
        )
        for rank, log in enumerate(logs)
    ]
    try:
        deadline = time.monotonic() + limit_s
        while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
            if any(process.poll() for process in processes):
                time.sleep(2)  # for others to say what they have found
                break
            time.sleep(0.2)
        codes = [process.poll() for process in processes]
    finally:
        for process in processes:  # those that wait for a rank that has failed say where
            if process.poll() is None:
                process.send_signal(signal.SIGUSR1)
                time.sleep(0.3)
                process.kill()
            process.wait()
    said = "\n".join(f"--- {log.name}\n{_said(log.read_text(errors='replace'))}" for log in logs)
    assert codes == [0] * ranks, f"exit codes {codes}; None: still running, killed\n{said}"


def _said(log: str) -> str:
    """Without the calls that were made, but the last."""
    lines = log.splitlines()
    calls = [at for at, line in enumerate(lines) if line.startswith("at ")]
    return "\n".join(line for at, line in enumerate(lines) if at not in calls[:-1])[-12000:]
