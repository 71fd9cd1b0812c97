"""Collectives on real GPUs, two and four of them: every implementation agrees with the reference."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

if torch.cuda.device_count() < 2:
    pytest.skip("needs two GPUs", allow_module_level=True)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
LIMIT_S = 200


@pytest.mark.parametrize("ranks", [2, 4])
def test_implementations_agree_on_real_ranks(ranks: int, tmp_path: Path) -> None:
    if ranks > torch.cuda.device_count():
        pytest.skip(f"needs {ranks} GPUs")
    script, store = Path(__file__).parent / "ranks_on_gpus.py", tmp_path / "store"
    logs = [tmp_path / f"rank{rank}" for rank in range(ranks)]
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(ranks), str(store)],
            stdout=log.open("wb"),
            stderr=subprocess.STDOUT,
        )
        for rank, log in enumerate(logs)
    ]
    try:
        deadline = time.monotonic() + LIMIT_S
        while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
            if any(process.poll() for process in processes):
                break
            time.sleep(0.2)
        codes = [process.poll() for process in processes]
    finally:
        for process in processes:  # those that wait for a rank that has failed
            process.kill()
            process.wait()
    said = "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)
    assert codes == [0] * ranks, f"{codes}\n{said}"
