"""A part that is replaced, wrapped or hooked after its module was made runs, in every module that fuses."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from fastkernels import registry
from fastkernels.loader.inputs import draw, trial_specs
from fastkernels.loader.materialize import Call, bind, build_module, task_class
from fastkernels.loader.overlay import Overlay
from fastkernels.nn.fusion import apart
from fastkernels.records import Case

BASELINE = Overlay.over_baseline()
# Every module of the baseline that fuses, and every part that its fused kernel does not call.
PARTS = {
    "L2/mlp": ["fc1", "fc1.linear", "activation_fn"],
    "L2/gated_mlp": ["gate_up_proj", "gate_up_proj.linear", "act_fn"],
    "L2/conv_norm_act": ["conv"],
    "L2/squeeze_excite": ["conv_reduce", "act1", "conv_expand", "gate"],
    "L2/inverted_residual": ["conv_pwl", "conv_pwl.conv"],
    "L2/parallel_embedding": ["linear"],
    "L2/moe": ["gate", "topk"],
    "L2/quantized_experts": ["align", "w13", "act_fn", "w2", "sum"],
    "L2/summed_embedding": ["word_embeddings", "position_embeddings", "layer_norm"],
    "L2/causal_attention": ["rotary_emb", "attn", "attn.store"],
    "L2/patch_merging": ["fc1", "activation_fn"],
    "L2/gated_attention": ["rotary_emb", "attn", "attn.store"],
    "L2/fused_experts": ["w13", "act_fn"],
    "L2/normed_attention": [
        "unscaled_q_norm", "unscaled_k_norm", "v_norm", "rotary_emb", "attn", "attn.store",
    ],
    "L2/graph_propagation": ["propagate"],
    "L2/convnext_block": ["dwconv", "layernorm", "pwconv1", "act", "grn", "pwconv2"],
    "L3/swin_block": ["norm1", "norm2"],
    "L3/dual_branch_decoder_layer": [
        "post_attention_layernorm", "pre_feedforward_layernorm", "router", "router.norm",
        "pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2",
        "post_feedforward_layernorm",
    ],
    "L3/vision_block": ["layer_norm2"],
    "L2/csp_block": ["conv2"],
    "L3/diffusion_block": ["norm2", "norm3"],
    "L3/detr": ["self_attn_layer_norm", "final_layer_norm"],
    "L3/point_block": ["norm1", "norm2"],
    "L3/encoder_layer": ["final_layer_norm"],
    "L3/cross_decoder_layer": ["encoder_attn_layer_norm", "final_layer_norm"],
    "L2/rwkv7_mixer": ["tanh", "sigmoid", "w_lora", "l2_norm", "g_norm"],
    "L3/rwkv7_decoder_layer": ["attn_norm", "ffn_norm"],
    "L4/rwkv7": ["norm"],
    "L2/all_reduce_norm": ["all_reduce", "norm"],
    "L2/gemm_all_reduce": ["all_reduce"],
    "L2/gemm_reduce_scatter": ["reduce_scatter"],
    "L2/all_gather_gemm": ["all_gather"],
    "L2/expert_parallel_moe": ["dispatch", "combine"],
}  # fmt: skip
# Modules around others that fuse, whose fused kernels round otherwise than the parts one by one.
AROUND = {"L3/rwkv7_decoder_layer", "L4/rwkv7"}
each_part = pytest.mark.parametrize(
    ("task", "part"), [(task, part) for task in PARTS for part in PARTS[task]]
)


def fusing(task: str) -> Case:
    """A tiny case of the task whose module fuses."""
    cases = registry.cases(task, "tiny")
    return next(case for case in cases if getattr(build_module(BASELINE, case, "cpu"), "fuses", None))


def built(task: str) -> tuple[nn.Module, Call]:
    case = fusing(task)
    module = build_module(BASELINE, case, "cpu")
    specs = trial_specs(case, build_module(BASELINE, case, "meta"))
    return module, bind(module, case, draw(specs, case, 0))


def answers(call: Call) -> dict[str, torch.Tensor]:
    """What the call gives; its states are then as they were."""
    before = {name: tensor.clone() for name, tensor in call.mutable.items()}
    found = {name: tensor.clone() for name, tensor in call.invoke().items()}
    for name, tensor in before.items():
        call.mutable[name].copy_(tensor)
    return found


class Replaced(nn.Module):
    def __init__(self, inner: nn.Module, ran: list[int]) -> None:
        super().__init__()
        self.inner, self.ran = inner, ran

    def forward(self, *args: Any) -> Any:
        self.ran.append(1)
        return self.inner(*args)


@contextmanager
def replaced(owner: nn.Module, key: str, ran: list[int]) -> Iterator[None]:
    part = getattr(owner, key)
    setattr(owner, key, Replaced(part, ran))
    yield
    setattr(owner, key, part)


@contextmanager
def own_forward(owner: nn.Module, key: str, ran: list[int]) -> Iterator[None]:
    part = getattr(owner, key)
    right = part.forward
    part.forward = lambda *args: ran.append(1) or right(*args)
    yield
    del part.forward


@contextmanager
def patched_class(owner: nn.Module, key: str, ran: list[int]) -> Iterator[None]:
    part = getattr(owner, key)
    cls, right = type(part), type(part).forward
    cls.forward = lambda self, *args: (ran.append(1) if self is part else None) or right(self, *args)
    yield
    cls.forward = right


@contextmanager
def hooked(owner: nn.Module, key: str, ran: list[int]) -> Iterator[None]:
    with getattr(owner, key).register_forward_hook(lambda *_: ran.append(1)):
        yield


@contextmanager
def hooked_before(owner: nn.Module, key: str, ran: list[int]) -> Iterator[None]:
    with getattr(owner, key).register_forward_pre_hook(lambda *_: ran.append(1)):
        yield


WAYS = (replaced, own_forward, patched_class, hooked, hooked_before)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@each_part
def test_what_was_changed_runs(task: str, part: str, way: Callable) -> None:
    module, call = built(task)
    with apart(module):
        wanted = answers(call)
    holder, _, key = part.rpartition(".")
    ran: list[int] = []
    with way(module.get_submodule(holder), key, ran):
        assert not module.fuses
        found = answers(call)
        assert ran
    assert module.fuses, "as it was made"
    times = len(ran)
    call.invoke()
    assert len(ran) == times
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        within = 1e-5 if task in AROUND else 0.0
        torch.testing.assert_close(found[name], value, rtol=within, atol=within, msg="nothing was fused")


@each_part
def test_a_subclass_that_replaces_a_part_when_it_is_made(task: str, part: str) -> None:
    case = fusing(task)

    class Candidate(task_class(BASELINE, case)):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            holder, _, key = part.rpartition(".")
            owner = self.get_submodule(holder)
            setattr(owner, key, Replaced(getattr(owner, key), []))

    assert not Candidate(**case.init).fuses


def test_a_subclass_whose_method_has_the_place_of_a_part() -> None:
    class Candidate(BASELINE.load("L2.mlp").MLP):
        def activation_fn(self, x: torch.Tensor) -> torch.Tensor:
            return x * 0

    assert not Candidate(8, 24, "gelu").fuses


def test_a_class_that_was_patched_before_the_module_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BASELINE.load("L1.activation").GELU, "forward", lambda self, x: x * 0)
    assert not BASELINE.load("L2.mlp").MLP(8, 24, "gelu").fuses


def test_a_hook_that_replaces_a_part_in_the_same_call() -> None:
    module, call = built("L2/mlp")
    ran: list[int] = []
    part = module.activation_fn
    module.register_forward_pre_hook(lambda *_: setattr(module, "activation_fn", Replaced(part, ran)))
    call.invoke()
    assert ran == [1]


def test_another_part_of_the_baseline_is_not_the_one_that_was_fused() -> None:
    """The fused kernel computes the activation that the module was made for."""
    module, call = built("L2/mlp")
    before = call.invoke()["out.0"]
    module.activation_fn = BASELINE.load("L1.activation").QuickGELU()
    assert not torch.allclose(call.invoke()["out.0"], before)


def test_what_only_is_called_may_be_anything() -> None:
    module, _ = built("L2/causal_attention")
    module.attn.decode = Replaced(module.attn.decode, [])
    module.attn.attend = lambda q_THK: q_THK.flatten(1)
    module.o_proj = nn.Identity()
    assert module.fuses


def test_copies_fuse_their_own_parts() -> None:
    module, _ = built("L2/mlp")
    copied = copy.deepcopy(module)
    assert copied.fuses
    copied.fc1.linear = nn.Linear(1, 1)
    assert module.fuses
    assert not copied.fuses


def test_a_fusion_keeps_no_module_alive() -> None:
    module = BASELINE.load("L2.mlp").MLP(8, 24, "gelu")
    gone = weakref.ref(module)
    gc.disable()
    try:
        del module
        assert gone() is None, "without the garbage collector: weights go at once"
    finally:
        gc.enable()


class Zero(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * 0


@contextmanager
def zero_module(owner: nn.Module, key: str) -> Iterator[None]:
    part = getattr(owner, key)
    setattr(owner, key, Zero(part))
    yield
    setattr(owner, key, part)


@contextmanager
def zero_forward(owner: nn.Module, key: str) -> Iterator[None]:
    part = getattr(owner, key)
    right = part.forward
    part.forward = lambda x: right(x) * 0
    yield
    del part.forward


@pytest.mark.parametrize("way", [zero_module, zero_forward])
@pytest.mark.parametrize("part", ["activation_fn", "fc1", "fc1.linear"])
def test_a_compiled_parent_follows(part: str, way: Callable) -> None:
    """But for hooks: torch guards none that come after torch.compile, fused or not."""
    module, _ = built("L2/mlp")
    parent, graphs = nn.Sequential(module), []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable:
        graphs.append("fastkernels.linear_activation" in {str(node.target) for node in graph.graph.nodes})
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(parent, fullgraph=True, backend=backend)
    weight = module.fc1.linear.weight
    holder, _, key = part.rpartition(".")
    with torch.inference_mode():
        for x in torch.randn(2, 5, weight.shape[1], dtype=weight.dtype):
            torch.testing.assert_close(compiled(x), parent(x))
        assert graphs == [True], "fused, and traced once"
        with way(module.get_submodule(holder), key):
            torch.testing.assert_close(compiled(x), parent(x))
            assert graphs == [True, False]
        with apart(parent):
            compiled(x)
        torch.testing.assert_close(compiled(x), parent(x))
        assert graphs == [True, False, False], "what was traced first is right again"


def test_on_the_meta_device_parts_are_called_and_none_is_forgotten() -> None:
    module = build_module(BASELINE, registry.cases("L2/mlp", "tiny")[0], "meta")
    ran: list[int] = []
    with module.activation_fn.register_forward_hook(lambda *_: ran.append(1)):
        module(torch.empty_like(module.fc1.linear.weight))
    assert ran == [1]
    assert module.to_empty(device="cpu").fuses


def test_every_module_that_fuses_is_listed() -> None:
    files = [file for layer in BASELINE.layers for file in layer.glob("L?/*.py")]
    found = {f"{file.parent.name}/{file.stem}" for file in files if "Fusion(self" in file.read_text()}
    assert found == set(PARTS)
