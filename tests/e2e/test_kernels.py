"""`fk kernels` as a user runs it: exit codes, what a run reports, Ctrl-C. Verdicts: test_redteam.py."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.e2e.program import Done, Run, called, reported, settings, started

ROOT = Path(__file__).parents[2]
CANDIDATES = ROOT / "tests" / "candidates"
CASE = "llama-tiny-T16-D64-f32"
ENDINGS = ("honest", "exit_zero", "syntax_error", "zeros", "matmul_precision")
# A candidate that hangs must be ended; one that starts slowly on a busy machine must not.
TIMEOUT_S = 10

pytestmark = pytest.mark.slow


def judge(folder: Path, *arguments: str, run: Run = called) -> tuple[Done, dict]:
    return reported(run, folder, "kernels", "--device", "cpu", *arguments)


@pytest.fixture(scope="module")
def judged(tmp_path_factory) -> tuple[Done, dict]:
    """One run over candidates that end in several ways."""
    return judge(
        tmp_path_factory.mktemp("judged"),
        *(argument for name in ENDINGS for argument in ("--candidates", str(CANDIDATES / name))),
        "--case",
        CASE,
        "--timeout",
        str(TIMEOUT_S),
        "--budget",
        "0.3",
        "--no-compile-check",
        run=started,
    )


def rows_of(report: dict, name: str) -> list[dict]:
    return [row for row in report["rows"] if row["candidate"] == name]


def test_bad_candidates_fail_the_command_and_hurt_nobody_else(judged) -> None:
    done, report = judged
    assert done.returncode == 1
    assert report["kind"] == "kernels"
    assert report["complete"]
    assert {row["candidate"] for row in report["rows"]} == set(ENDINGS)
    assert {judged["name"] for judged in report["candidates"]} == set(ENDINGS)
    assert report["summary"]["rows"] == len(report["rows"])
    assert "Traceback" not in done.stderr
    assert {"processes", "home", "environment"} <= set(report["environment"]["isolation"])
    assert isinstance(report["request"]["seed"], int)


def test_a_candidate_is_judged_through_the_block_above_it(tmp_path: Path) -> None:
    done, report = judge(
        tmp_path,
        "--target",
        "L3/decoder_layer",
        "--candidates",
        str(CANDIDATES / "sleeps"),
        "--candidates",
        str(CANDIDATES / "zeros"),
        "--case",
        "llama-tiny-decode-8*-f32",
        "--budget",
        "0.3",
        "--no-compile-check",
    )
    assert done.returncode == 1, done.stderr
    for row in rows_of(report, "zeros"):
        assert row["verdict"] == "WRONG(value)"
    assert rows_of(report, "sleeps")
    for row in rows_of(report, "sleeps"):
        assert row["task"] == "L3/decoder_layer"
        assert row["verdict"] in ("PASSED", "UNSTABLE")
        assert row["speedup"] is None or row["speedup"] < 0.9


def test_the_baseline_equals_itself_and_compiles_as_it_does(tmp_path: Path) -> None:
    done, report = judge(tmp_path, "--target", "rms_norm", "--self-test", "--case", CASE, "--budget", "1")
    (row,) = report["rows"]
    assert done.returncode == (0 if row["verdict"] == "PASSED" else 3)
    assert row["verdict"] in ("PASSED", "UNSTABLE")
    if row["verdict"] == "PASSED":
        assert 0.7 < row["speedup"] < 1.4
    assert "CPU: not a GPU result" in done.stdout
    done, report = judge(
        tmp_path, "--candidates", str(CANDIDATES / "honest"), "--case", CASE, "--budget", "0.1"
    )
    assert [row["compile"] for row in report["rows"]] == ["ok"]


@pytest.mark.parametrize(
    ("arguments", "code", "says", "run"),
    [
        (["--target", "rmsnorm"], 2, "Did you mean", started),
        (
            ["--target", "softmax", "--candidates", str(CANDIDATES / "honest")],
            2,
            "fk stubs --target L1/softmax",
            called,
        ),
        (["--target", "rms_norm", "--candidates", "/nowhere"], 2, "no such folder", called),
        (["--target", "rms_norm", "--self-test", "--contract", "graph"], 2, "needs a CUDA device", called),
        pytest.param(
            ["--target", "rms_norm", "--self-test", "--device", "cuda"],
            3,
            "--device cuda",
            called,
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="has CUDA"),
        ),
    ],
)
def test_requests_that_cannot_be_served(
    tmp_path: Path, arguments: list[str], code: int, says: str, run: Run
) -> None:
    done, report = judge(tmp_path, *arguments, run=run)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert report == {}
    assert "Traceback" not in done.stderr


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def test_an_interrupt_leaves_a_partial_report_and_no_process(tmp_path: Path, interruptible) -> None:
    path = tmp_path / "partial.json"
    arguments = ("--target", "rms_norm", "--self-test", "--budget", "60", "--json", str(path))
    command = [sys.executable, "-m", "fastkernels", "kernels", "--device", "cpu", *arguments]
    process = interruptible(command, {**os.environ, **settings(tmp_path)})
    deadline = time.monotonic() + 60
    workers: set[int] = set()
    while len(workers) < 4 and time.monotonic() < deadline:
        time.sleep(0.2)
        workers |= set(children(process.pid))
    time.sleep(4)  # into the first trial, which would last a minute
    workers |= set(children(process.pid))
    process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert time.monotonic() - begin < 20
    report = json.loads(path.read_text())
    assert report["complete"] is False
    assert "INTERRUPTED" in out
    assert "Traceback" not in err
    assert len(workers) >= 4, "what they are forked from, and three"
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


COMPILED = """
import multiprocessing
import operator
import os
import tempfile

import torch
from torch import nn
from torch._inductor.compile_worker.subproc_pool import SubprocPool

compilers = SubprocPool(2)  # Inductor's own, where the process has several cores; they stay
assert compilers.submit(operator.neg, 3).result(60) == -3
lock = multiprocessing.Lock()
with tempfile.NamedTemporaryFile() as file:
    assert file.name.startswith(os.environ["TMPDIR"])


@torch.compile
def fast(x):
    return torch.softmax(x, -1)


class Softmax(nn.Module):
    def forward(self, x):
        with lock, tempfile.TemporaryFile() as file:
            file.write(b"what a cache does")
        return fast(x)
"""


def test_a_candidate_may_compile_and_keep_temporary_files(tmp_path) -> None:
    """torch.compile keeps its code in files, and locks lie in /dev/shm; imports of our own must not have
    settled where."""
    file = tmp_path / "compiled" / "L1" / "softmax.py"
    file.parent.mkdir(parents=True)
    file.write_text(COMPILED)
    _, report = judge(
        tmp_path, "--target", "softmax", "--case", "llama-tiny-T8-V256-f32", "--budget", "0.1",
        "--candidates", str(tmp_path / "compiled"),
    )  # fmt: skip
    (row,) = report["rows"]
    assert row["verdict"] in ("PASSED", "UNSTABLE"), row["failure"]
    assert row["iterations_checked"] > 0
    assert report["summary"]["compiling_share"] > 0


# What libraries that production uses do as they are imported.
LIBRARIES = {
    "vllm_like": "import torch; torch.backends.cuda.enable_cudnn_sdp(False)",
    "sgl_like": "import torch; torch.set_float32_matmul_precision('high')",
    "flashinfer_like": "import os; os.environ['FLASHINFER_LIKE_CACHE'] = '/nowhere'",
    "fla_like": "import logging, warnings; logging.basicConfig(level=10); warnings.simplefilter('ignore')",
    "transformer_engine_like": (
        "import torch; torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False\n"
        "torch.library.define('transformer_engine_like::op', '(Tensor x) -> Tensor')"
    ),
}
IMPORTS = """
import torch
from torch import nn
{above}


class Softmax(nn.Module):
    def forward(self, x):
        {inside}
        return torch.softmax(x, -1)
"""


@pytest.mark.parametrize("place", ["above", "inside"])
def test_what_a_librarys_import_sets_is_put_back_and_noted(tmp_path, monkeypatch, place: str) -> None:
    installed, file = tmp_path / "installed", tmp_path / "imports" / "L1" / "softmax.py"
    for name, code in LIBRARIES.items():
        (installed / name).mkdir(parents=True)
        (installed / name / "__init__.py").write_text(code)
    file.parent.mkdir(parents=True)
    imports = {"above": "", "inside": ""} | {place: "import " + ", ".join(LIBRARIES)}
    file.write_text(IMPORTS.format(**imports))
    monkeypatch.setenv("PYTHONPATH", str(installed))
    _, report = judge(
        tmp_path, "--target", "softmax", "--case", "llama-tiny-T8-V256-f32", "--budget", "0.1",
        "--no-compile-check", "--candidates", str(tmp_path / "imports"),
    )  # fmt: skip
    (row,) = report["rows"]
    assert row["verdict"] in ("PASSED", "UNSTABLE"), row["failure"]
    (note,) = [note for note in report["notes"] if "were put back" in note]
    for setting in (
        "cudnn attention enabled",
        "float32 matmul precision",
        "bf16 reduced",
    ):
        assert setting in note
