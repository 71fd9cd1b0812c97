"""The committed cases are those that the walk of the registered configurations gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastkernels import registry
from fastkernels.layout import data_dir
from fastkernels.loader.inputs import draw, trial_specs
from fastkernels.loader.materialize import bind, build_module
from fastkernels.loader.overlay import Overlay
from fastkernels.records import Case, TensorSpec, View
from fastkernels.registry.build import build
from fastkernels.registry.case_files import read_cases
from fastkernels.registry.case_lines import render
from tests.budget import some

BASELINE = Overlay.over_baseline()


def test_committed_cases_are_current() -> None:
    built = build(BASELINE.load)
    expected = {task: render(registry.task(task), cases) for task, cases in built.items()}
    folder = data_dir("registry") / "cases"
    found = {
        path.relative_to(folder).with_suffix("").as_posix(): path.read_text()
        for path in folder.rglob("*.jsonl")
    }
    assert set(found) == set(expected)
    stale = [task for task in expected if found[task] != expected[task]]
    assert not stale, f"run scripts/build_cases.py: {stale} changed"
    for task, cases in built.items():  # as JSON, where 1 is not true and arguments have an order
        again = read_cases(folder / f"{task}.jsonl")
        assert [case.model_dump_json() for case in again] == [case.model_dump_json() for case in cases]


def test_the_walk_leaves_no_trace_on_the_task_classes() -> None:
    norm = BASELINE.load("L1.rms_norm").RMSNorm
    assert norm.__init__.__qualname__ == "RMSNorm.__init__"
    assert "__init__" not in vars(BASELINE.load("L1.softmax").Softmax)
    assert torch.get_default_dtype() == torch.float32


TINY = [case for entry in registry.tasks() for case in registry.cases(entry, size="tiny")]


@pytest.mark.parametrize("case", TINY, ids=lambda case: f"{case.task}:{case.id}")
def test_every_tiny_case_can_be_built_and_called(case: Case) -> None:
    module = build_module(BASELINE, case, "cpu")
    call = bind(module, case, draw(trial_specs(case, module), case, seed=1))
    outputs = call.invoke()
    assert outputs
    for name, value in outputs.items():
        assert value.is_floating_point() <= bool(torch.isfinite(value).all()), name


FULL = [case for entry in registry.tasks() for case in registry.cases(entry, size="full")]


def test_every_full_case_can_be_built_and_called_on_the_meta_device(pytestconfig: pytest.Config) -> None:
    """Shapes fit together; block tables, which are drawn for real, are checked for the smaller batches."""
    for case in some(FULL, pytestconfig):
        module = build_module(BASELINE, case, "meta")
        specs = trial_specs(case, module)
        tensors = {
            name: torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="meta")
            for name, spec in specs.items()
        }
        bind(module, case, tensors).invoke()
        steps = {name: spec for name, spec in specs.items() if spec.draw.startswith("step.")}
        if case.batch and sum(case.batch.seq_lens) < 20_000:
            draw(steps, case, seed=1)


def test_a_case_has_the_dtype_of_its_parameters_and_not_of_what_comes_first() -> None:
    """A timestep is float32 in a model of bfloat16."""
    found = [case for case in FULL if case.id.startswith("combined-flux-dev")]
    assert found
    for case in found:
        timestep, pooled = (case.inputs[name] for name in ("timestep", "pooled_projection"))
        assert isinstance(timestep, TensorSpec)
        assert isinstance(pooled, TensorSpec)
        assert (timestep.dtype, pooled.dtype, case.dtype) == ("float32", "bfloat16", "bfloat16")


def test_a_case_knows_how_its_model_hands_inputs_over() -> None:
    """Queries, keys and values are parts of one product; keys are rotated copies where they are stored."""
    inputs = {
        task: next(c for c in registry.cases(task) if c.id.startswith(f"llama-8b-T512-{rest}")).inputs
        for task, rest in (("L1/rope", "K128"), ("L1/kv_cache", "JK8x128"), ("L1/rms_norm", "D4096-bf16"))
    }
    qkv = {"size": 512 * 6144, "strides": (6144, 1)}
    assert views_of(inputs["L1/rope"]) == {
        "query": View(storage="query", offset=0, **qkv),
        "key": View(storage="query", offset=4096, **qkv),
    }
    heads = qkv | {"strides": (6144, 128, 1)}
    assert views_of(inputs["L1/kv_cache"]) == {"value": View(storage="value", offset=5120, **heads)}
    assert views_of(inputs["L1/rms_norm"]) == {}, "hidden states are packed"


def test_a_case_has_the_views_of_another_model_whose_equal_call_hands_them_over() -> None:
    """Llama's queries are rotated copies; Jamba's, of the same shape, are parts of a product."""
    case = next(c for c in registry.cases("L1/prefill_attention") if c.id == "llama-8b-prefill-1x512-bf16")
    (view,) = views_of(case.inputs).values()
    assert view.strides == (6144, 128, 1)


def test_no_pool_and_nothing_that_a_call_writes_is_a_view() -> None:
    of_views = {
        spec.draw
        for entry in registry.tasks()
        for case in registry.cases(entry)
        for name, spec in case.inputs.items()
        if isinstance(spec, TensorSpec) and spec.view and name not in entry.mutates
    }
    assert of_views == {"normal", "attended", "normed"}


def views_of(inputs: dict[str, Any]) -> dict[str, View]:
    return {name: spec.view for name, spec in inputs.items() if isinstance(spec, TensorSpec) and spec.view}


def test_a_store_has_no_more_context_than_its_places_need() -> None:
    """Nobody reads the context, and pools of gigabytes leave no room for a chain."""
    for case in registry.cases("L1/kv_cache"):
        assert case.batch is not None
        full = [r for c in registry.cases("L1/decode_attention") if c.batch for r in c.batch.rows]
        assert max(seq - query for _, query, seq in case.batch.rows) <= case.batch.block_size
        assert max(seq for _, _, seq in full) > case.batch.block_size
