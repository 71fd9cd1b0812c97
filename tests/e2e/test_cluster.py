"""`fk kernels --cluster` and `fk eval --cluster` on a Ray cluster of three nodes on this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fastkernels.runner.kernel_trial.request import KernelsRequest, plan
from tests.e2e.program import settings, started

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "candidates"
NODES = 3

pytestmark = [
    pytest.mark.whole,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="needs Ray: pip install -e '.[cluster]'"
    ),
]


@dataclass
class Cluster:
    address: str
    process: subprocess.Popen[str]
    mark: str  # in the environment of every process of it

    def kill_a_node(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("kill\n")
        self.process.stdin.flush()

    def judges(self) -> list[int]:
        """Processes that judge for it now."""
        return [
            int(place.name) for place in Path("/proc").iterdir() if place.name.isdecimal() and self._is(place)
        ]

    def _is(self, place: Path) -> bool:
        try:
            command = (place / "cmdline").read_bytes()
            return (
                b"fastkernels.cluster.judge" in command
                and self.mark.encode() in (place / "environ").read_bytes()
            )
        except OSError:  # ended
            return False


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="fk-ray-", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-m", "tests.e2e.ray_cluster", str(NODES)]
        pipe = subprocess.PIPE
        own = {"FK_TEST_MARK": mark, "RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0"}
        with (
            open(f"{folder}/stderr", "wb") as printed,
            subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=pipe,
                stdout=pipe,
                stderr=printed,
                text=True,
                env={**os.environ, **own},
            ) as process,
        ):
            assert process.stdin is not None
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address, Path(printed.name).read_text()
            yield Cluster(address, process, mark)
            process.stdin.close()


def begun(cluster: Cluster, folder: Path, verb: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fastkernels", verb, "--cluster", cluster.address]
    command += ["--json", str(folder / "report.json"), *arguments]
    environment = {**os.environ, **settings(folder)}
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        return subprocess.Popen(command, stdout=out, stderr=err, env=environment, cwd=ROOT)


def until_judged(cluster: Cluster, process: subprocess.Popen[bytes], folder: Path, parts: int) -> None:
    """Until the nodes have been looked at, and so many parts are judged at once."""
    while "] 0/" not in (folder / "stderr").read_text() or len(cluster.judges()) < parts:
        assert process.poll() is None, (folder / "stderr").read_text()
        time.sleep(0.2)


def test_a_node_that_dies_in_the_middle_costs_no_row_and_gives_none_twice(cluster, tmp_path) -> None:
    flags = ("--target", "rms_norm", "--architecture", "llama", "--candidates", str(EXAMPLES))
    process = begun(cluster, tmp_path, "kernels", *flags, "--no-compile-check", "--budget", "0.3")
    until_judged(cluster, process, tmp_path, NODES)
    cluster.kill_a_node()
    status = process.wait(600)
    told = (tmp_path / "stderr").read_text()
    assert "died; it begins again" in told
    assert "Traceback" not in told
    assert "raylet" not in told + (tmp_path / "stdout").read_text()
    report = json.loads((tmp_path / "report.json").read_text())
    keys = [(row["candidate"], row["task"], row["variant"], row["case"]) for row in report["rows"]]
    request = KernelsRequest(
        targets=("rms_norm",),
        architecture="llama",
        candidates=(str(EXAMPLES),),
        size="tiny",
        device="cpu",
    ).resolved()
    assert keys == [
        (job.name, work.entry.id, work.case.variant, work.case.id)
        for job in plan(request)
        for work in job.works
    ]
    assert report["complete"]
    assert {row["verdict"] for row in report["rows"] if row["candidate"] == "wrong"} == {"WRONG(value)"}
    right = {row["verdict"] for row in report["rows"] if row["candidate"] != "wrong"}
    assert right <= {"PASSED", "UNSTABLE"}, right
    assert status == 1
    assert sum(use["trials"] for use in report["nodes"]) == len(keys)
    assert len(report["nodes"]) in (NODES - 1, NODES)
    assert not cluster.judges()


def test_a_port_on_which_something_else_listens(tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        done = started(tmp_path, "kernels", "--self-test", "--cluster", address)
    assert done.returncode == 3
    told = f"error: --cluster {address}: what listens there does not answer as a Ray cluster does"
    assert done.stderr.splitlines()[-1].startswith(told)


def test_models_are_evaluated_over_nodes_and_ctrl_c_ends_all(cluster, tmp_path) -> None:
    flags = ("--size", "tiny", "--self-test", "--rounds", "2", "--workload", "single-request", "--seed", "3")
    models = ("--model", "llama", "--model", "mamba")
    status = begun(cluster, tmp_path, "eval", *models, *flags).wait(600)
    assert status in (0, 3), (tmp_path / "stderr").read_text()
    report = json.loads((tmp_path / "report.json").read_text())
    assert [model["model"] for model in report["models"]] == ["llama", "mamba"]
    assert all(model["valid"] for model in report["models"])
    assert report["macroeval"]["correctness"] == pytest.approx(1, abs=0.01)
    assert sum(use["trials"] for use in report["nodes"]) == 2
    process = begun(cluster, tmp_path, "eval", *models, *flags)
    until_judged(cluster, process, tmp_path, 2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130
    assert not cluster.judges()
    assert not json.loads((tmp_path / "report.json").read_text())["complete"]
