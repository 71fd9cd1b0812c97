"""Collectives on real GPUs, two and four of them: every implementation agrees with the reference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.gpu.on_ranks import on_ranks

if torch.cuda.device_count() < 2:
    pytest.skip("needs two GPUs", allow_module_level=True)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.mark.parametrize("ranks", [2, 4])
def test_implementations_agree_on_real_ranks(ranks: int, tmp_path: Path) -> None:
    if ranks > torch.cuda.device_count():
        pytest.skip(f"needs {ranks} GPUs")
    on_ranks(ranks, tmp_path, 200)
