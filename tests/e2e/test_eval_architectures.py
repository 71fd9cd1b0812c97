"""`fk eval` of models with layers that no other test evaluates: experts, states, both, and a decoder that
listens. Each is judged with one of its own layers, rightly and wrongly replaced. (Against itself every model
is judged in `benchmarks/cpu/eval_suite_default.json`, and one of each kind in test_eval.py.)"""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.program import assert_good, evaluate

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Replaced:
    """A layer that hands its arguments to the baseline's, or other ones."""

    task: str
    name: str
    arguments: str
    others: str
    sites: int  # in the tiny model
    workload: str = "balanced"

    def write(self, folder: Path, is_right: bool) -> None:
        file = folder / f"{self.task}.py"
        file.parent.mkdir(parents=True)
        file.write_text(
            f"from fastkernels.baseline.{self.task.replace('/', '.')} import {self.name} as Base\n\n\n"
            f"class {self.name}(Base):\n    def forward(self, {self.arguments}):\n"
            f"        return super().forward({self.arguments if is_right else self.others})\n"
        )


MODELS = {
    # The least probable experts.
    "mixtral": Replaced("L1/moe_routing", "TopKSoftmax", "router_logits", "-router_logits", sites=3),
    # A state that forgets nothing.
    "gla": Replaced(
        "L1/gla",
        "RecurrentGLA",
        "q, k, v, gk, state, rows",
        "q, k, v, 0 * gk, state, rows",
        sites=2,
    ),
    "jamba": Replaced(
        "L1/selective_scan",
        "SelectiveStateUpdate",
        "x, dt, B, C, z, A_log, D, dt_bias, state, state_batch_indices",
        "x, dt, C, B, z, A_log, D, dt_bias, state, state_batch_indices",
        sites=3,
    ),
    # Every moment of the clip is heard alike.
    "whisper": Replaced(
        "L1/cross_attention",
        "CrossAttention",
        "query, key_cache, value_cache, query_start_loc, rows, max_query_len",
        "0 * query, key_cache, value_cache, query_start_loc, rows, max_query_len",
        sites=2,
        workload="clips",
    ),
}
each = pytest.mark.parametrize("model", MODELS)


def tiny(model: str) -> tuple[str, ...]:
    asked = ("--model", model, "--size", "tiny", "--device", "cpu", "--rounds", "2")
    return *asked, "--workload", MODELS[model].workload


@each
@pytest.mark.whole
def test_a_right_layer_is_inside_and_right(tmp_path: Path, model: str) -> None:
    MODELS[model].write(tmp_path / "mine", is_right=True)
    done, report = evaluate(tmp_path, *tiny(model), "--candidates", str(tmp_path / "mine"))
    assert_good(done, report)
    (found,) = report["models"]
    assert found["valid"]
    assert found["correctness"] == 1.0
    assert found["ruin_point"] > 10 * found["noise_floor"]
    assert len(found["workloads"][0]["baseline"]) == 2
    assert "by throughput alone" not in done.stdout
    assert found["swap"]["sites"] == MODELS[model].sites
    assert found["swap"]["calls"] > MODELS[model].sites
    assert found["swap"]["by_task"] == {MODELS[model].task: [found["swap"]["sites"], found["swap"]["calls"]]}
    assert not found["swap"]["unused"]


@each
@pytest.mark.whole
def test_a_wrong_layer_fails(tmp_path: Path, model: str) -> None:
    MODELS[model].write(tmp_path / "mine", is_right=False)
    done, report = evaluate(tmp_path, *tiny(model), "--candidates", str(tmp_path / "mine"))
    assert done.returncode == 1, done.stderr
    (found,) = report["models"]
    assert found["swap"]["sites"] == MODELS[model].sites
    assert found["correctness"] < 0.6
    assert not found["valid"]
    assert found["speedup"] is None
    assert report["macroeval"]["score"] == 0.0
    assert "a category without one counts with speed-up 0.5" in done.stdout
