"""What is found out of a cluster before anything is judged. With Ray itself: tests/e2e/test_cluster.py."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from fastkernels.cli import main
from fastkernels.cluster import nodes
from fastkernels.cluster.facts import code, require_alike
from fastkernels.cluster.facts import facts as facts_of
from fastkernels.cluster.schedule import Answered
from fastkernels.errors import MachineError
from fastkernels.judge.summary import summarize
from fastkernels.records import KernelReport
from fastkernels.runner.models.eval_request import EvalRequest


@pytest.fixture(scope="module")
def facts():
    return facts_of("cpu")


def changed(facts, **environment):
    return replace(facts, environment=facts.environment.model_copy(update=environment))


def test_equal_nodes_may_judge_parts_of_one_run(facts) -> None:
    require_alike({"a": facts, "b": changed(facts, started_at="later", memory_gib=1.0)})


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"device": "NVIDIA H100"}, "device "),
        ({"python": "3.9.1"}, "python "),
        ({"torch": "2.1.0"}, "torch "),
        ({"cores": 512}, "cores "),
    ],
)
def test_unlike_nodes_may_not(facts, other, told) -> None:
    with pytest.raises(MachineError, match=f"nodes a and b differ: {told}.*equal ones"):
        require_alike({"a": facts, "b": changed(facts, **other)})


def test_nor_those_with_another_ray_or_unlike_gpus(facts) -> None:
    with pytest.raises(MachineError, match=r"ray .* and 0\.1"):
        require_alike({"a": facts, "b": replace(facts, ray="0.1")})
    with pytest.raises(MachineError, match=r"node a has unlike GPUs: NVIDIA A100, NVIDIA H100"):
        require_alike({"a": replace(facts, devices=("NVIDIA H100", "NVIDIA A100"))})


def test_a_node_without_our_revision_is_named_with_both(facts) -> None:
    old = replace(changed(facts, git_revision="0ld"), code="other")
    with pytest.raises(MachineError, match=r"node b has other files of fastkernels.*revision 0ld there"):
        require_alike({"a": facts, "b": old})
    assert facts.code == code()


def test_a_commit_during_a_run_is_not_another_machine(facts, monkeypatch) -> None:
    blank = KernelReport(
        schema=1,
        environment=changed(facts, git_revision="n3w", memory_gib=1.0).environment,
        request={},
        rows=(),
        summary=summarize([], 0.0),
    )
    cluster = nodes.Cluster({"a": nodes._Node("1", 1, 0)}, {"a": facts})
    monkeypatch.setattr(nodes.schedule, "answers", lambda *_: iter([("one", Answered("a", blank))]))
    monkeypatch.setattr(cluster, "_pool", lambda _: None)
    [(_, found)] = cluster.answers([], {}, print, print)
    assert found.answer.environment.git_revision == facts.environment.git_revision
    assert found.answer.environment.memory_gib == 1.0


def test_a_trial_has_its_gpus_share_of_the_cores() -> None:
    cores = range(10, 26)
    shares = [nodes.share_of_cores(cores, [str(gpu)], 4) for gpu in range(4)]
    assert sorted(core for share in shares for core in share or ()) == list(cores)
    assert nodes.share_of_cores(cores, ["0", "1"], 4) == tuple(range(10, 18))
    assert nodes.share_of_cores(cores, ["6"], 2) == (22, 23)  # of two that others do not see
    assert nodes.share_of_cores([1, 2], ["0"], 4) is None
    assert nodes.share_of_cores(cores, ["GPU-5f3c"], 4) is None


def fk(*arguments: str):
    return CliRunner().invoke(main, arguments, prog_name="fk")


@pytest.mark.parametrize("address", ["nonsense", "host:", ":6379", "host:99999", "ray://host:10001"])
@pytest.mark.parametrize("verb", [("kernels",), ("eval", "--model", "llama")])
def test_an_address_of_another_form(verb, address) -> None:
    done = fk(*verb, "--self-test", "--cluster", address)
    assert done.exit_code == 2
    assert f"--cluster {address}: give HOST:PORT" in done.stderr


def test_without_ray_the_install_line(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = fk("kernels", "--self-test", "--cluster", "127.0.0.1:6379")
    assert done.exit_code == 3
    assert "--cluster needs Ray. Install it: pip install -e '.[cluster]'" in done.stderr


def test_an_address_where_nothing_answers(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    done = fk("kernels", "--self-test", "--cluster", "127.0.0.1:1")
    assert done.exit_code == 3
    assert "nothing answers there: Connection refused" in done.stderr


def test_auto_where_the_cluster_of_this_machine_is_gone(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    done = fk("kernels", "--self-test", "--cluster", "auto")
    assert done.exit_code == 3
    assert "--cluster 127.0.0.1:1: nothing answers there" in done.stderr


def test_what_one_machine_answers_is_not_asked_of_a_cluster(tmp_path) -> None:
    for flags in (["--providers"], ["--sanitize"], ["--reproduce", str(tmp_path / "failures")]):
        done = fk("kernels", "--cluster", "127.0.0.1:1", *flags)
        assert done.exit_code == 2
        assert flags[0] in done.stderr


def test_more_ranks_than_a_node_has_gpus() -> None:
    from fastkernels.cluster.models import run_eval_on

    request = EvalRequest.parse(models=["llama"], self_test=True, tp=8, there="cuda")
    with pytest.raises(MachineError, match=r"--tp 8: .* no node of the cluster has more than 4 GPUs"):
        run_eval_on(SimpleNamespace(most_gpus=4), request)


def test_no_run_imports_ray_unless_it_is_asked_for_a_cluster() -> None:
    probe = (
        "import sys; import fastkernels.cli.kernels, fastkernels.cluster.nodes; print('ray' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
