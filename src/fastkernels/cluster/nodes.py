"""The nodes of a Ray cluster: found, looked at, and given parts to judge. Ray is imported here alone.

with connected("10.0.0.1:6379") as cluster:
    cluster.device(None)                      "cuda" where a node has a GPU
    cluster.answers(parts, candidates, say)
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastkernels import interrupts
from fastkernels.cluster import schedule
from fastkernels.cluster.facts import Facts, Look, code, require_alike
from fastkernels.cluster.judge import INTERRUPTED, Task
from fastkernels.cluster.schedule import Answered, Lost, Part, Problem
from fastkernels.errors import MachineError, MissingExtraError, UsageError
from fastkernels.layout import install_line
from fastkernels.settings import resolve

if TYPE_CHECKING:
    from fastkernels.cluster.sent import Sent
    from fastkernels.records import Device, Environment

_ANSWER_S = 10  # for a port to answer, and for Ray behind it
_LOOK_S = 180  # a node imports PyTorch, from a cold disk
_WAIT_S = 1.0
_TIDY_S = 20  # for judges that are not wanted any more
_MOST_PRINTED = 2000  # characters of what a judge printed before it ended


def _ray() -> Any:
    """Not before --cluster is given: it is an extra, and takes half a second."""
    return importlib.import_module("ray")


# ---------------------------------------------------------------- in a process of Ray's, on a node


def judge_there(
    body: bytes, candidate: bytes | None, of_gpus: int, its_code: str | None
) -> tuple[int, bytes, str]:
    """Judge a part in a process of its own. Exit status, answer, and the end of what it printed.

    A trial on a GPU has the GPU's share of the node's cores: `of_gpus` are its GPUs in all. `its_code`: see
    judge.Task.
    """
    context = _ray().get_runtime_context()
    variables = dict(os.environ)
    variables.pop("OMP_NUM_THREADS", None)  # Ray's, for a task of one core; the judge counts its cores itself
    cores = None
    if gpus := context.get_accelerator_ids().get("GPU"):
        cores = share_of_cores(sorted(os.sched_getaffinity(0)), gpus, of_gpus)
    else:  # a look names all GPUs, which Ray hides from whoever asks for none
        variables.pop("CUDA_VISIBLE_DEVICES", None)
    task = pickle.dumps(Task(body, candidate, cores, os.getpid(), its_code))
    command = [sys.executable, "-m", "fastkernels.cluster.judge"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=variables) as process:
        answer, printed = _communicated(process, task)
    return process.returncode, answer, printed.decode(errors="replace")[-_MOST_PRINTED:]


def _communicated(process: subprocess.Popen, task: bytes | None) -> tuple[bytes, bytes]:
    """Ray is heard between two waits: where it cancels the attempt, the judge has time to tidy up."""
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.communicate(task, timeout=_WAIT_S)
            task = None  # sent
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_TIDY_S)
            process.kill()


def share_of_cores(cores: Sequence[int], gpus: Sequence[str], of_gpus: int) -> tuple[int, ...] | None:
    """The cores that belong to these GPUs where each has as many. None where there are too few to share, or
    GPUs have no numbers."""
    if not all(gpu.isdecimal() for gpu in gpus):
        return None
    numbers = [int(gpu) for gpu in gpus]
    each = len(cores) // max(of_gpus, max(numbers) + 1)
    return tuple(core for n in numbers for core in cores[n * each : (n + 1) * each]) if each else None


# ---------------------------------------------------------------- here


@contextlib.contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """`HOST:PORT` of the cluster's head, or `auto`. UsageError for another form. MachineError where Ray is
    not installed, nothing or something else answers, or Python and Ray are of other versions there."""
    _require_form(address)
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError("Ray", install_line("cluster"), "--cluster")
    if (place := _of_this_machine() if address == "auto" else address) is not None:
        _require_ray(place)
    ray = _ray()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=True)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        raise MachineError(f"--cluster {address}: {error}") from None
    finally:
        for number, handler in handlers.items():  # Ray would exit by SIGTERM without a report
            signal.signal(number, handler)
    # log_to_driver does not cover what Ray knows of a node that has died: pages of its log, on stdout.
    ray._private.worker._worker_logs_enabled = False
    cluster = Cluster()
    try:
        yield cluster
    finally:
        with interrupts.held():
            cluster.stop()
            ray.shutdown()


def _require_form(address: str) -> None:
    host, _, port = address.rpartition(":")
    is_place = host and "/" not in host and port.isdecimal() and 0 < int(port) < 1 << 16
    if address != "auto" and not is_place:
        raise UsageError(
            f"--cluster {address}: give HOST:PORT of the cluster's head, as `ray start --head` prints it, or "
            "`auto`. fk runs on one of the cluster's machines"
        )


def _of_this_machine() -> str | None:
    """The address that `auto` stands for, as Ray notes it; None where Ray says itself that there is none."""
    noted = Path(tempfile.gettempdir()) / "ray" / "ray_current_cluster"
    found = os.environ.get("RAY_ADDRESS") or (noted.read_text().strip() if noted.is_file() else "")
    return found if ":" in found and "/" not in found else None


def _require_ray(address: str) -> None:
    """Before Ray tries for minutes, and prints."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
    except OSError as error:
        why = error.strerror or error
        raise MachineError(f"--cluster {address}: nothing answers there: {why}. See: ray status") from None
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        healthy = subprocess.run(command, capture_output=True, timeout=_ANSWER_S, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        healthy = False
    if not healthy:
        told = "what listens there does not answer as a Ray cluster does"
        raise MachineError(f"--cluster {address}: {told}. See: ray status")


@dataclass(frozen=True)
class _Node:
    id: str
    cpus: float
    gpus: int


@dataclass
class Cluster:
    """Made by `connected`. The nodes that judge are those that `device` has looked at; who joins later is not
    asked. Nodes are called by their address and the first letters of their id."""

    _nodes: dict[str, _Node] = field(default_factory=dict)
    _facts: dict[str, Facts] = field(default_factory=dict)
    _pools: list[_Pool] = field(default_factory=list)

    @property
    def most_gpus(self) -> int:
        return max((node.gpus for node in self._nodes.values()), default=0)

    @property
    def told(self) -> str:
        return f"{len(self._nodes)} node{'s' if len(self._nodes) > 1 else ''}"

    @property
    def environment(self) -> Environment:
        return next(iter(self._facts.values())).environment

    def device(self, asked: Device | None) -> Device:
        """As asked by flag or setting, else CUDA where nodes have GPUs. Looks at the nodes that have it: they
        are to judge. MachineError where none has, or where they differ."""
        every = _living()
        wanted = resolve(device=asked).device_asked
        device = wanted or ("cuda" if any(node.gpus for node in every.values()) else "cpu")
        self._nodes = {
            name: node for name, node in every.items() if (node.gpus if device == "cuda" else node.cpus) >= 1
        }
        if not self._nodes:
            what = "GPU" if device == "cuda" else "CPU"
            raise MachineError(
                f"--device {device}: no node of the cluster has a {what} to give. See: ray status"
            )
        self._facts = self._look(device)
        require_alike(self._facts)
        return device

    def _look(self, device: Device) -> dict[str, Facts]:
        pool = self._pool({}, is_look=True)
        look = Part("look", Look(device))
        for name in self._nodes:
            pool.start(look, name)
        found: dict[str, Facts] = {}
        begin = time.monotonic()
        while silent := self._nodes.keys() - found:
            if time.monotonic() - begin > _LOOK_S:
                raise MachineError(f"node {min(silent)} does not say what it is: no answer in {_LOOK_S} s")
            for _, end in pool.ended():
                if isinstance(end, Lost):
                    raise MachineError(end.why)
                if isinstance(end.answer, Problem):
                    raise MachineError(f"node {end.node}: {end.answer.message}")
                found[end.node] = end.answer
        return {name: found[name] for name in sorted(found)}

    def answers(
        self,
        parts: Sequence[Part],
        candidates: Mapping[str, Sent],
        say: Callable[[str], None],
        show: Callable[[str], None],
    ) -> Iterator[tuple[Part, Answered]]:
        """See schedule.answers. `candidates`: the files of those that parts name."""
        room = {name: node.gpus if self._facts[name].devices else 1 for name, node in self._nodes.items()}
        for part, found in schedule.answers(parts, room, self._pool(candidates), say, show):
            yield part, self._of_one_revision(found)

    def _of_one_revision(self, found: Answered) -> Answered:
        """A commit or a change during the run counts only where it is one of the files that judge, and then
        the answer is a Problem (judge.py)."""
        report = found.answer
        if isinstance(report, Problem):
            return found
        began = {"git_revision": self.environment.git_revision}
        machine = report.environment.model_copy(update=began)
        return Answered(found.node, report.model_copy(update={"environment": machine}))

    def _pool(self, candidates: Mapping[str, Sent], is_look: bool = False) -> _Pool:
        self._pools.append(_Pool(self._nodes, candidates, is_look))
        return self._pools[-1]

    def stop(self) -> None:
        """End what still runs."""
        for pool in self._pools:
            pool.stop()


class _Pool:
    """See schedule.Pool. `is_look`: its attempts take no room, as the nodes may be at work."""

    def __init__(
        self, nodes: Mapping[str, _Node], candidates: Mapping[str, Sent], is_look: bool = False
    ) -> None:
        self._nodes, self._is_look = nodes, is_look
        self._candidates = {name: _ray().put(pickle.dumps(sent)) for name, sent in candidates.items()}
        self._running: dict[Any, tuple[Part, str]] = {}

    def start(self, part: Part, node: str) -> None:
        at = self._nodes[node]
        pinned = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        there = (
            _ray()
            .remote(judge_there)
            .options(
                num_gpus=part.gpus,
                num_cpus=0 if part.gpus or self._is_look else at.cpus,
                max_retries=0,  # schedule.py counts them
                scheduling_strategy=pinned(at.id, soft=False),
            )
        )
        candidate = self._candidates.get(part.candidate) if part.candidate else None
        its_code = None if self._is_look else code()
        self._running[there.remote(pickle.dumps(part.body), candidate, at.gpus, its_code)] = part, node

    def ended(self) -> list[tuple[Part, Answered | Lost]]:
        if not self._running:
            time.sleep(_WAIT_S)
            return []
        done, _ = _ray().wait(list(self._running), num_returns=1, timeout=_WAIT_S)
        return [(part, _end(ref, node)) for ref in done for part, node in [self._running.pop(ref)]]

    def stop(self) -> None:
        refs, self._running = list(self._running), {}
        for ref in refs:
            _ray().cancel(ref)
        if refs:
            _ray().wait(refs, num_returns=len(refs), timeout=_TIDY_S)

    def living(self) -> set[str]:
        return set(_living())


def _living() -> dict[str, _Node]:
    found = {}
    for node in _ray().nodes():
        if node["Alive"]:
            name, has = f"{node['NodeManagerAddress']}/{node['NodeID'][:6]}", node["Resources"]
            found[name] = _Node(node["NodeID"], has.get("CPU", 0), int(has.get("GPU", 0)))
    return found


def _end(ref: Any, node: str) -> Answered | Lost:
    """What became of an attempt."""
    exceptions = _ray().exceptions
    died = (
        exceptions.NodeDiedError,
        exceptions.TaskUnschedulableError,  # it died before the attempt began
        exceptions.LocalRayletDiedError,
        exceptions.ObjectLostError,  # with the answer
    )
    try:
        status, answer, printed = _ray().get(ref)
    except died:
        return Lost(node, f"node {node} died", is_dead=True)
    except exceptions.WorkerCrashedError:
        return Lost(node, f"node {node}: Ray's process that waited for the judge died")
    except exceptions.OutOfMemoryError:
        return Lost(node, f"node {node}: too little memory was left, and Ray ended the judge")
    except exceptions.RayTaskError as error:  # before a judge was started: no such module, no such Python
        return Answered(node, Problem.of(MachineError(str(error).strip().splitlines()[-1])))
    if status == INTERRUPTED or status < 0:
        return Lost(node, f"node {node}: the judge's process was ended from outside")
    if status:
        last = (printed.strip().splitlines() or [f"exit status {status}"])[-1]
        return Answered(node, Problem.of(MachineError(f"the judge failed on node {node}: {last}")))
    return Answered(node, pickle.loads(answer))
