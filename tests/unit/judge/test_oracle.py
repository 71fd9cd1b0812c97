"""judge/oracle.py on real tasks: float64, references only, inputs untouched; the gate with the baseline and
mutants."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fastkernels import registry
from fastkernels.errors import MachineError
from fastkernels.judge import compare, distance, oracle, rules
from fastkernels.judge.oracle import Oracle
from fastkernels.kernels import base as kernels
from fastkernels.loader.inputs import DISTRIBUTIONS, draw, trial_specs
from fastkernels.loader.materialize import bind, build_module
from fastkernels.loader.overlay import Overlay
from fastkernels.records import Batch, Case, Provenance, TensorSpec

BASELINE = Overlay.over_baseline()
BATCH = Batch(rows=((3, 1, 40), (1, 5, 25)), block_size=16)


def case(task: str, init: dict[str, Any], inputs: dict[str, Any], dtype: Any = "bfloat16") -> Case:
    made_by = Provenance(architecture="llama", config="tiny", phase="mixed")
    return Case(
        id="t", task=task, size="tiny", dtype=dtype, init=init, inputs=inputs, batch=BATCH, provenance=made_by
    )


def tensor(*shape: int, dtype: Any = "bfloat16", draw: str = "normal") -> TensorSpec:
    return TensorSpec(shape=shape, dtype=dtype, draw=draw)


NORM = case("L1/rms_norm", {"hidden_size": 64}, {"x": tensor(37, 64), "residual": tensor(37, 64)})
ATTENTION = case(
    "L2/paged_attention", {"num_heads": 4, "head_size": 16, "scale": 0.25, "num_kv_heads": 2},
    {"query": tensor(8, 64), "key": tensor(8, 32), "value": tensor(8, 32)},
)  # fmt: skip
LINEAR_ATTENTION = case(
    "L2/gated_linear_attention", {"hidden_size": 32, "num_heads": 2, "key_dim": 8, "value_dim": 16},
    {"hidden_states": tensor(8, 32)},
)  # fmt: skip
STORE = case(
    "L1/kv_cache", {},
    {"key": tensor(8, 2, 16), "value": tensor(8, 2, 16), "key_cache": tensor(20, 16, 2, 16, draw="cache"),
     "value_cache": tensor(20, 16, 2, 16, draw="cache"),
     "slot_mapping": tensor(8, dtype="int64", draw="step.slots")},
)  # fmt: skip


def tensors_of(which: Case, distribution: str = "normal") -> dict[str, Tensor]:
    specs = trial_specs(which, build_module(BASELINE, which, "meta"))
    return draw(specs, which, seed=3, distribution=distribution)


def outputs_of(which: Case, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The baseline in the case's dtype, on copies."""
    module = build_module(BASELINE, which, "cpu")
    outputs = bind(module, which, {name: value.clone() for name, value in tensors.items()}).invoke()
    return {name: value.detach() for name, value in outputs.items()}


@pytest.mark.parametrize("which", [NORM, ATTENTION, STORE], ids=lambda c: c.task)
def test_the_oracle_is_float64_and_leaves_its_inputs_alone(which):
    tensors = tensors_of(which)
    before = {name: value.clone() for name, value in tensors.items()}
    truth = Oracle(which, BASELINE, "cpu")(tensors)
    assert truth.keys() == outputs_of(which, tensors).keys()
    assert all(value.dtype == torch.float64 for value in truth.values())
    assert all(torch.equal(tensors[name], before[name]) for name in tensors)


def test_the_oracle_agrees_with_the_formula():
    tensors = tensors_of(NORM)
    truth = Oracle(NORM, BASELINE, "cpu")(tensors)
    x, residual, weight = (tensors[name].double() for name in ("arg.x", "arg.residual", "param.weight"))
    total = x + residual
    expected = total / torch.sqrt(total.square().mean(-1, keepdim=True) + 1e-6) * weight
    assert distance.errors(expected, truth["out.0"]).row < 1e-14
    assert torch.equal(truth["out.1"], total)


def test_only_references_run(monkeypatch):
    used = []
    run = kernels.Kernel.run

    def watched(self: kernels.Kernel, *args: Any, impl: str | None = None) -> Any:
        used.append(self._forced_name())
        return run(self, *args, impl=impl)

    monkeypatch.setattr(kernels.Kernel, "run", watched)
    Oracle(ATTENTION, BASELINE, "cpu")(tensors_of(ATTENTION))
    assert set(used) == {"reference"}


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("which", [NORM, ATTENTION, LINEAR_ATTENTION], ids=lambda c: c.task)
def test_the_baseline_passes_on_every_distribution(which, distribution):
    tensors = tensors_of(which, distribution)
    baseline, truth = outputs_of(which, tensors), Oracle(which, BASELINE, "cpu")(tensors)
    found = compare.Standard(baseline, truth).compare(baseline)
    assert found.passed, found.verdict.failure
    zeros = {name: torch.zeros_like(value) for name, value in baseline.items()}
    assert compare.Standard(baseline, truth).compare(zeros).verdict.label == "WRONG(value)"


def test_an_empty_store_fails_and_the_baseline_passes():
    tensors = tensors_of(STORE)
    caches = ["arg.key_cache", "arg.value_cache"]
    truth = rules.without_null_block(Oracle(STORE, BASELINE, "cpu")(tensors), caches)
    right = rules.without_null_block(outputs_of(STORE, tensors), caches)
    empty = rules.without_null_block({name: tensors[name] for name in caches}, caches)
    assert rules.exact(right, truth).passed
    assert rules.exact(empty, truth).verdict.label == "WRONG(value)"
    assert compare.Standard(right, truth).compare(empty).verdict.label == "WRONG(value)"


def test_a_cache_that_is_not_written_fails_the_attention_block():
    tensors = tensors_of(ATTENTION)
    baseline, truth = outputs_of(ATTENTION, tensors), Oracle(ATTENTION, BASELINE, "cpu")(tensors)
    name = next(name for name in baseline if name.endswith("k_cache"))
    stale = {**baseline, name: tensors[name]}
    found = compare.Standard(baseline, truth).compare(stale)
    assert found.verdict.label == "WRONG(value)"
    assert found.verdict.failure.message.startswith(name)


def test_a_state_that_is_not_advanced_or_not_kept_apart_fails_the_block():
    tensors = tensors_of(LINEAR_ATTENTION)
    baseline, truth = (
        outputs_of(LINEAR_ATTENTION, tensors),
        Oracle(LINEAR_ATTENTION, BASELINE, "cpu")(tensors),
    )
    name, rows = "state.0.state", tensors["step.rows"]
    assert baseline[name].dtype == torch.float32
    right, strict = (rules.without_null_block(outputs, [name]) for outputs in (baseline, truth))
    assert compare.Standard(right, strict).compare(right).passed
    swapped, touched, padded = (baseline[name].clone() for _ in range(3))
    swapped[rows] = baseline[name][rows.flip(0)]
    nobody = next(row for row in range(1, len(touched)) if row not in rows.tolist())
    touched[nobody] = 0
    for wrong in (tensors[name], swapped, touched):
        theirs = rules.without_null_block({**baseline, name: wrong}, [name])
        found = compare.Standard(right, strict).compare(theirs)
        assert found.verdict.label == "WRONG(value)"
        assert found.verdict.failure.message.startswith(name)
    padded[0] = 0
    assert (
        compare.Standard(right, strict)
        .compare(rules.without_null_block({**baseline, name: padded}, [name]))
        .passed
    )


def needed_bytes(tensors: dict[str, Tensor]) -> int:
    """Of parameters, one copy in float64 and the largest again, and two in their own dtype; three of what is
    given beside them."""
    parameters = [tensor for name, tensor in tensors.items() if name.startswith("param.")]
    sizes = [tensor.numel() for tensor in parameters]
    arguments = sum(tensor.numel() for tensor in tensors.values()) - sum(sizes)
    wide = sum(sizes) + max(sizes) + 3 * arguments
    return 8 * wide + 2 * sum(tensor.nbytes for tensor in parameters)


def test_float32_where_memory_forbids_and_it_says_so(monkeypatch):
    tensors = tensors_of(NORM)
    needed = needed_bytes(tensors)
    monkeypatch.setattr(oracle, "allocatable_bytes", lambda device: needed * 3 // 4)
    asked = Oracle(NORM, BASELINE, "cpu")
    assert asked(tensors)["out.0"].dtype == torch.float32
    assert "float32" in asked.note
    monkeypatch.setattr(oracle, "allocatable_bytes", lambda device: needed // 4)
    with pytest.raises(MachineError, match="GiB"):
        Oracle(NORM, BASELINE, "cpu")(tensors)


def test_the_first_call_decides_for_all(monkeypatch):
    """What its parameters take is no longer free then; an oracle that changed its dtype would be another."""
    linear = case("L1/linear", {"input_size": 64, "output_size": 512}, {"x": tensor(3, 64)})
    tensors, asked = tensors_of(linear), Oracle(linear, BASELINE, "cpu")
    monkeypatch.setattr(oracle, "allocatable_bytes", lambda device: needed_bytes(tensors))
    assert asked(tensors)["out.0"].dtype == torch.float64
    monkeypatch.setattr(oracle, "allocatable_bytes", lambda device: needed_bytes(tensors) - 1)
    assert asked(tensors)["out.0"].dtype == torch.float64
    fresh = Oracle(linear, BASELINE, "cpu")
    assert fresh(tensors)["out.0"].dtype == torch.float32
    monkeypatch.setattr(oracle, "allocatable_bytes", lambda device: needed_bytes(tensors))
    assert fresh(tensors)["out.0"].dtype == torch.float32


def test_float32_cases_have_no_float32_oracle(monkeypatch):
    wide = NORM.model_copy(update={
        "dtype": "float32", "inputs": {n: tensor(37, 64, dtype="float32") for n in ("x", "residual")}
    })  # fmt: skip
    tensors = tensors_of(wide)
    assert Oracle(wide, BASELINE, "cpu")(tensors)["out.0"].dtype == torch.float64
    needed = needed_bytes(tensors)
    monkeypatch.setattr(oracle, "allocatable_bytes", lambda device: needed * 3 // 4)
    with pytest.raises(MachineError):
        Oracle(wide, BASELINE, "cpu")(tensors)


def test_plain_arithmetic_keeps_states_as_they_are():
    """Rounded to a model's dtype, they would excuse candidates that keep them so."""
    tensors = tensors_of(LINEAR_ATTENTION)
    plain = Oracle(LINEAR_ATTENTION, BASELINE, "cpu").plain(tensors)
    assert {name: value.dtype for name, value in plain.items()} == {
        "out.0": torch.bfloat16,
        "state.0.state": torch.float32,
    }


def test_plain_arithmetic_keeps_the_tables_of_a_16_bit_model_in_float32() -> None:
    """Mel filters beside float32 audio: in float16 they would be no operands of one product."""
    (encoder, *_) = [c for c in registry.cases("L4/whisper", "tiny") if c.id.startswith("encoder")]
    half = encoder.model_copy(update={"dtype": "float16"})
    tensors = tensors_of(half)
    assert tensors["arg.audio"].dtype == torch.float32
    found = Oracle(half, BASELINE, "cpu")
    (plain,), (exact,) = found.plain(tensors).values(), found(tensors).values()
    assert plain.dtype == torch.float16
    assert 0 < distance.errors(plain, exact).whole < 0.01
