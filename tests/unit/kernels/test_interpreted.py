"""The row-wise Triton kernels on CPU: this folder's `triton` tests, in a process with Triton's interpreter."""

import os
import re
import subprocess
import sys
from pathlib import Path

FILES = ["test_rms_norm.py", "test_glu.py", "test_softmax.py", "test_rope.py"]


def test_triton_kernels_in_the_interpreter() -> None:
    here = Path(__file__).parent
    # The interpreter computes with numpy, which warns where exp overflows to the infinity that the kernels rely on.
    command = [sys.executable, "-m", "pytest", "-k", "triton", "-p", "no:cacheprovider",
               "-W", "ignore:overflow encountered:RuntimeWarning",
               "-W", "ignore:invalid value encountered:RuntimeWarning", *(str(here / f) for f in FILES)]  # fmt: skip
    done = subprocess.run(
        command, cwd=here.parents[2], env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) > 60, "the selection has lost its tests"
    assert "skipped" not in done.stdout
