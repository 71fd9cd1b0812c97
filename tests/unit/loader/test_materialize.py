"""From tensors to a call: binding, strict parameters, caches by order, the step, the float64 oracle."""

from __future__ import annotations

import pytest
import torch

from fastkernels import kernels, registry
from fastkernels.loader.inputs import cast, draw, trial_specs
from fastkernels.loader.materialize import SignatureMismatch, bind, build_module, mutable_names
from fastkernels.loader.overlay import Overlay
from fastkernels.nn.context import step

BASELINE = Overlay.over_baseline()


def tiny(task: str, part: str = "", variant: str = "default"):
    return next(
        case for case in registry.cases(task, size="tiny") if part in case.id and case.variant == variant
    )


def trial(case, seed=1, distribution="normal"):
    return draw(trial_specs(case, build_module(BASELINE, case, "meta")), case, seed, distribution)


def over(tree, source: str, task: str = "L1/rms_norm") -> Overlay:
    return Overlay.over_baseline([tree("candidate", {f"{task}.py": source})])


@pytest.mark.parametrize("entry", registry.tasks(), ids=lambda entry: entry.id)
def test_every_task_runs_and_agrees_with_its_oracle(entry):
    for variant in entry.variants:
        case = min(
            (c for c in registry.cases(entry, size="tiny") if (c.variant, c.dtype) == (variant, "float32")),
            key=lambda c: sum(len(str(v)) for v in c.inputs.values()),
        )
        tensors = trial(case)
        with kernels.use("reference"):
            wide = bind(
                build_module(BASELINE, case, "cpu", torch.float64), case, cast(tensors, torch.float64)
            ).invoke()
        plain = bind(build_module(BASELINE, case, "cpu"), case, tensors).invoke()
        assert plain.keys() == wide.keys() != set()
        for name, value in plain.items():
            if value.is_floating_point() and entry.rule != "sampler":
                assert wide[name].dtype == torch.float64
                error = (value.double() - wide[name]).norm() / wide[name].norm()
                assert error < 1e-4, (case.id, name, error)


def test_mutated_arguments_are_outputs():
    case = tiny("L1/kv_cache")
    tensors = trial(case)
    before = tensors["arg.key_cache"].clone()
    call = bind(build_module(BASELINE, case, "cpu"), case, tensors)
    outputs = call.invoke()
    assert outputs.keys() == call.mutable.keys() == {"arg.key_cache", "arg.value_cache"}
    assert outputs["arg.key_cache"] is tensors["arg.key_cache"]
    assert not torch.equal(before, outputs["arg.key_cache"])
    assert mutable_names(["key_cache"], tensors) == {"arg.key_cache"}


def test_step_of_a_mixed_batch():
    case = next(
        c
        for c in registry.cases("L2/paged_attention", size="tiny")
        if c.batch.num_decodes > 0 and max(c.batch.query_lens) > 1
    )
    call = bind(build_module(BASELINE, case, "cpu"), case, trial(case))
    with call.ambient():
        now = step()
        assert now.num_decodes == case.batch.num_decodes
        assert now.max_query_len == max(case.batch.query_lens)
        assert now.max_seq_len == max(case.batch.seq_lens)
        assert now.seq_lens_B.tolist() == case.batch.seq_lens
    assert call.invoke().keys() == {"out.0", "cache.0.0.k_cache", "cache.0.0.v_cache"}


def test_a_decode_batch_has_no_prefill_queries():
    case = next(
        c
        for c in registry.cases("L2/paged_attention", size="tiny")
        if c.batch.num_decodes == len(c.batch.seq_lens)
    )
    assert bind(build_module(BASELINE, case, "cpu"), case, trial(case)).step.max_query_len == 0


def test_candidate_is_built_and_default_dtype_restored(tree):
    case = tiny("L1/rms_norm")
    overlay = over(
        tree, "from fastkernels.baseline.L1.rms_norm import RMSNorm as B\nclass RMSNorm(B):\n    mine = 1\n"
    )
    module = build_module(overlay, case, "cpu", torch.float64)
    assert module.mine == 1
    assert not module.training
    assert {p.dtype for p in module.parameters()} == {torch.float64}
    assert torch.get_default_dtype() == torch.float32


def test_default_dtype_is_restored_after_a_failure(tree):
    overlay = over(
        tree,
        "from torch import nn\nclass RMSNorm(nn.Module):\n"
        "    def __init__(self, hidden_size, eps=1e-6):\n        raise RuntimeError('no')\n",
    )
    case = tiny("L1/rms_norm").model_copy(update={"dtype": "bfloat16"})
    with pytest.raises(RuntimeError, match="no"):
        build_module(overlay, case, "cpu")
    assert torch.get_default_dtype() == torch.float32


HEAD = (
    "import torch\nfrom torch import nn\nclass RMSNorm(nn.Module):\n"
    "    def __init__(self, hidden_size, eps=1e-6):\n"
    "        super().__init__()\n"
)
MISMATCHES = {
    "lacks weight": HEAD + "    def forward(self, x, residual=None): return x\n",
    "has scale .*baseline has not": HEAD + "        self.weight = nn.Parameter(torch.empty(hidden_size))\n"
    "        self.scale = nn.Parameter(torch.empty(1))\n"
    "    def forward(self, x, residual=None): return x\n",
    r"weight is \(3,\)": HEAD + "        self.weight = nn.Parameter(torch.empty(3))\n"
    "    def forward(self, x, residual=None): return x\n",
    "forward does not take": HEAD + "        self.weight = nn.Parameter(torch.empty(hidden_size))\n"
    "    def forward(self, x, more): return x\n",
    "__init__ does not take": "from torch import nn\nclass RMSNorm(nn.Module):\n"
    "    def __init__(self, size): pass\n",
    "declares 1 paged caches": "import torch\nfrom torch import nn\n"
    "from fastkernels.nn.cache import CacheOwner, Paged\n"
    "class RMSNorm(CacheOwner):\n    cache = Paged((2, 8))\n    def __init__(self, hidden_size, eps=1e-6):\n"
    "        super().__init__()\n        self.weight = nn.Parameter(torch.empty(hidden_size))\n",
    "must be a class": "def RMSNorm(hidden_size, eps=1e-6): return None\n",
}


@pytest.mark.parametrize(("message", "source"), MISMATCHES.items(), ids=list(MISMATCHES))
def test_what_cannot_stand_in_for_the_baseline(tree, message, source):
    case = tiny("L1/rms_norm")
    with pytest.raises(SignatureMismatch, match=message):
        bind(build_module(over(tree, source), case, "cpu"), case, trial(case))


def test_prepare_runs_after_every_load(tree):
    overlay = over(
        tree,
        "from fastkernels.baseline.L1.rms_norm import RMSNorm as B\nclass RMSNorm(B):\n"
        "    def prepare(self):\n        self.packed = self.weight * 2\n",
    )
    case = tiny("L1/rms_norm")
    module = build_module(overlay, case, "cpu")
    for seed in (1, 2):
        tensors = trial(case, seed)
        bind(module, case, tensors)
        assert torch.equal(module.packed, tensors["param.weight"] * 2)
        assert torch.equal(module.weight, tensors["param.weight"])
    bind(module, case, trial(case, 3), load=False)
    assert torch.equal(module.weight, tensors["param.weight"])


def test_tied_parameters_are_drawn_once():
    case = next(
        (c for c in registry.cases("L4/llama", size="tiny") if c.init["config"].get("tie_word_embeddings")),
        None,
    )
    if case is None:
        case = tiny("L4/llama")
        config = {**case.init["config"], "tie_word_embeddings": True}
        case = case.model_copy(update={"init": {"config": config}})
    tensors = trial(case)
    module = build_module(BASELINE, case, "cpu")
    assert sum(name.startswith("param.") for name in tensors) == len(list(module.parameters()))
    assert all(value.isfinite().all() for value in bind(module, case, tensors).invoke().values())


def test_results_are_handed_on_as_they_are():
    case = tiny("L1/rms_norm")
    call = bind(build_module(BASELINE, case, "cpu"), case, trial(case))
    x = torch.ones(1)
    assert call.outputs(None) == {}
    assert call.outputs((x, None, "text")) == {"out.0": x, "out.1": None, "out.2": "text"}
    for around in ((), (x,), [x], [x, x]):
        assert call.outputs(around) == {"out.0": around}


OTHER_STATE = (
    "from fastkernels.baseline.L2.gated_linear_attention import GatedLinearAttention as B\n"
    "from fastkernels.nn.cache import State\n"
    "class GatedLinearAttention(B):\n    def __init__(self, *args, **kwargs):\n"
    "        super().__init__(*args, **kwargs)\n        self.cache = State({tensors})\n"
)


def test_a_state_is_bound_by_order_and_is_an_output():
    case = tiny("L2/gated_linear_attention")
    tensors = trial(case)
    before = tensors["state.0.state"].clone()
    call = bind(build_module(BASELINE, case, "cpu"), case, tensors)
    assert call.module.state is tensors["state.0.state"]
    assert call.step.rows_B is tensors["step.rows"]
    outputs = call.invoke()
    assert outputs.keys() == {"out.0", "state.0.state"}
    changed = (outputs["state.0.state"] != before).flatten(1).any(1).nonzero().flatten().tolist()
    assert sorted(tensors["step.rows"].tolist()) == changed


@pytest.mark.parametrize("tensors", ["(('state', (1, 2, 3)),)", "(('other', (2, 16, 32)),)"])
def test_another_state_cannot_stand_in(tmp_path, tensors):
    file = tmp_path / "mine" / "L2" / "gated_linear_attention.py"
    file.parent.mkdir(parents=True)
    file.write_text(OTHER_STATE.format(tensors=tensors))
    case = tiny("L2/gated_linear_attention")
    with pytest.raises(SignatureMismatch, match="declares the state"):
        bind(build_module(Overlay.over_baseline([tmp_path / "mine"]), case, "cpu"), case, trial(case))
