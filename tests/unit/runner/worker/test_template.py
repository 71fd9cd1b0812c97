"""Forked workers: each is the judge's own child and has nothing of another; templates come and go."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fastkernels.errors import MachineError
from fastkernels.runner.inside import compile_tracer
from fastkernels.runner.worker import template
from fastkernels.runner.worker.pool import Worker
from tests.unit.runner.worker.test_pool import MODULES, SIDE, gone, state

pytestmark = pytest.mark.skipif(not template.available(), reason="this system cannot fork workers")

DESCRIPTORS = (
    "import os; found = {n: os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')[:-1]}"
)
TEMPORARY = "import tempfile, pathlib; found = [tempfile.gettempdir(), str(pathlib.Path.home())]"
KERNEL_CACHES = """
import triton
from torch._inductor.runtime.cache_dir_utils import cache_dir
found = [triton.knobs.cache.dir, cache_dir()]
"""
DYNAMO = """
import sys
assert "torch._dynamo" in sys.modules
from torch._dynamo import config
from triton.knobs import cache
home_dir = cache.home_dir
"""
COMPILED = """
import operator, torch
from torch._inductor.compile_worker.subproc_pool import SubprocPool
pool = SubprocPool(1)  # its processes have locks in /dev/shm
compiled = torch.compile(lambda x: (2 * x).sum())
found = [float(compiled(torch.ones(3))), pool.submit(operator.neg, 3).result(60)]
pool.shutdown()
"""


@pytest.fixture(autouse=True)
def importable(monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", MODULES)


@pytest.fixture(autouse=True, scope="module")
def no_template_stays():
    """The kinds of these tests are nobody else's."""
    yield
    template._close_all()
    assert not template._templates


def started(**options) -> Worker:
    worker = Worker("w", threads=options.pop("threads", 1), **options)
    worker.start(SIDE)
    return worker


def found(worker: Worker, code: str):
    return worker.call("look", code=code)["found"]


def current() -> template.Template:
    """The newest."""
    return list(template._templates.values())[-1]


@pytest.fixture
def apart(monkeypatch) -> template.Template:
    """A template that no other test has, as it will be changed."""
    monkeypatch.setenv("TORCH_OF_THIS_TEST", str(time.monotonic_ns()))
    started().close()
    return current()


def children() -> list[int]:
    """Processes that are ours and still to be collected, less the templates."""
    mine = {
        int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat") if parent(stat) == os.getpid()
    }
    return sorted(mine - {t.process.pid for t in template._templates.values()})


def parent(stat: Path) -> int | None:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None  # it has ended


def test_a_worker_is_our_child_and_leads_its_session() -> None:
    with started() as worker:
        assert found(worker, "import os; found = [os.getppid(), os.getsid(0), os.getpgid(0)]") == [
            os.getpid(),
            worker.pid,
            worker.pid,
        ]


def test_its_environment_is_exactly_what_was_asked_for() -> None:
    with started() as worker:
        asked = worker.scratch.environment(1)
        assert worker.call("environment")["variables"] == asked
        listed = "import subprocess; found = subprocess.check_output(['env', '-0'], text=True)"
        assert set(found(worker, listed).split("\0")) - {""} == {f"{k}={v}" for k, v in asked.items()}


def test_it_has_its_own_descriptors_and_no_other() -> None:
    with started() as first, started() as second:
        for worker in (first, second):
            places = found(worker, DESCRIPTORS)
            output = str(worker.scratch.output)
            assert [places.pop(n) for n in "012"] == ["/dev/null", output, output]
            (channel,) = places.values()
            assert channel.startswith("socket:")


@pytest.mark.parametrize("libraries", [(), compile_tracer.LIBRARIES], ids=["torch", "with dynamo"])
def test_temporary_files_home_and_caches_are_its_own(libraries: tuple[str, ...]) -> None:
    """Nothing that was imported before the fork remembers a folder."""
    for code, folders in ((TEMPORARY, ["tmp", "home"]), (KERNEL_CACHES, ["cache/triton", "cache/inductor"])):
        with started(libraries=libraries) as worker:
            assert found(worker, code) == [str(worker.scratch.root / folder) for folder in folders]


@pytest.mark.whole
def test_a_compiled_function_and_compilers_processes_have_their_files_in_the_workers_folder() -> None:
    """The template has imported what looks for a temporary folder as it is imported."""
    with started(libraries=compile_tracer.LIBRARIES, namespaces=True, on_cpu=True) as worker:
        places = found(worker, f"{DYNAMO}\n{TEMPORARY}; found += [config.debug_dir_root, home_dir]")
        own = ["tmp", "home", "tmp/torch_compile_debug", "home"]
        assert places == [str(worker.scratch.root / folder) for folder in own]
        assert found(worker, COMPILED) == [6.0, -3]


def test_every_side_is_imported_before_the_fork() -> None:
    runner = Path(template.__file__).parents[1]
    sides = {f"fastkernels.runner.{file.parent.name}.{file.stem}" for file in runner.glob("*/*_side.py")}
    built_on = {"fastkernels.runner.models.model_side"}
    assert built_on < sides
    assert set(template.OURS) == sides - built_on


def test_random_numbers_differ_from_worker_to_worker() -> None:
    numbers = "import random, numpy; found = [random.random(), numpy.random.random()]"
    with started() as first, started() as second:
        assert not set(found(first, numbers)) & set(found(second, numbers))


def test_a_template_has_one_thread_and_workers_may_have_more(monkeypatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    product = "import numpy, torch; a = numpy.ones((512, 512)); b = torch.ones(512, 512, dtype=torch.float64)"
    for _ in range(2):
        with started(threads=2) as worker:
            assert (
                found(worker, f"{product}; found = [(a @ a).sum(), float((b @ b).sum())]") == [512.0**3] * 2
            )
            assert len(list(Path(f"/proc/{worker.pid}/task").iterdir())) >= 2
    assert len(list(Path(f"/proc/{current().process.pid}/task").iterdir())) == 1


def test_one_template_for_each_environment(monkeypatch) -> None:
    started().close()
    before = dict(template._templates)
    started().close()
    assert template._templates == before
    monkeypatch.setenv("TORCH_LOGS_FORMAT", "short")
    with started() as worker:
        assert len(template._templates) == len(before) + 1
        assert found(worker, "import os; found = os.environ['TORCH_LOGS_FORMAT']") == "short"


def test_a_closed_worker_leaves_no_child_of_ours() -> None:
    before = children()
    worker = started()
    child = worker.call("spawn")["child"]
    worker.close()
    assert gone(worker.pid)
    assert gone(child)
    assert children() == before


def test_orphans_of_a_worker_that_became_ours_are_collected() -> None:
    before = children()
    worker = started()
    child = worker.call("spawn")["child"]
    with template._adopting():
        os.kill(worker.pid, signal.SIGKILL)
        while not worker._process.exited():
            time.sleep(0.001)
    assert child in children()
    worker.close()
    assert children() == before


def test_orphans_are_not_adopted_at_other_times() -> None:
    worker = started()
    child = worker.call("spawn")["child"]
    os.kill(worker.pid, signal.SIGKILL)
    while not worker._process.exited():
        time.sleep(0.001)
    assert child not in children()
    worker.close()


def test_a_template_that_somebody_harmed_is_replaced(apart: template.Template) -> None:
    """And workers outlive it."""
    harmed, workers = apart, [started()]
    for harm in ("killed", "stopped", "reniced"):
        pid = harmed.process.pid
        if harm == "reniced":
            os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid) + 3)
        else:
            os.kill(pid, signal.SIGKILL if harm == "killed" else signal.SIGSTOP)
            while state(pid) not in "ZT":
                time.sleep(0.001)
        workers.append(started())
        assert current() is not harmed
        assert gone(pid)
        harmed = current()
    for worker in workers:
        assert worker.call("add", a=1, b=1) == {"sum": 2}
        assert worker.standing().nice == os.getpriority(os.PRIO_PROCESS, 0)
        worker.close()


def test_a_template_that_does_not_start_says_why(monkeypatch) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    with pytest.raises(MachineError, match=r"(?s)forked from did not answer 'hello'.*/nowhere"):
        Worker("w", threads=1)


def test_a_candidate_cannot_reach_into_the_template() -> None:
    with started(namespaces=True) as candidate:
        if "namespace" not in candidate.isolation and os.geteuid() == 0:
            pytest.skip("root may read everything where there are no namespaces")
        assert candidate.call("judge_memory", pid=candidate.pid) == {"readable": True}
        assert candidate.call("judge_memory", pid=current().process.pid) == {"readable": False}


def test_templates_end_with_a_judge_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import os, signal; from fastkernels.runner.worker import pool, template\n"
        f"w = pool.Worker('w', 1); w.start({SIDE!r}); (t,) = template._templates.values()\n"
        "print(w.pid, t.process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == -9, done.stderr
    assert all(gone(int(pid)) for pid in done.stdout.split())
