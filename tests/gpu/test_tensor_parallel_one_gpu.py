"""Two ranks of an engine on one GPU say what one says (engine_on_one_gpu.py).

What it shows: each rank loads its part onto a GPU, plans reach both, and our sum over ranks serves a whole
model there. What it does not show: NCCL, decode graphs with collectives in them, or anything of speed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]
PROGRAM = "from tests.gpu import engine_on_one_gpu; engine_on_one_gpu.main()"


def test_text_is_that_of_one_rank(pytestconfig: pytest.Config) -> None:
    """Float32 and tiny: the tokens of a choice do not depend on the order of a sum."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"PYTHONPATH": str(pytestconfig.rootpath)},  # for rank 1 as well
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr[-12000:]}"
    for name, (alone, both) in json.loads(done.stdout.splitlines()[-1])["texts"].items():
        assert both == alone, name
        assert len({tuple(text) for text in alone}) == len(alone), name
