"""Plans of routing, and inputs by which a router follows them clearly."""

from __future__ import annotations

import pytest
import torch

from fastkernels import kernels, registry
from fastkernels.loader import inputs, routing
from fastkernels.loader.inputs import DISTRIBUTIONS, cast, draw, trial_specs
from fastkernels.loader.materialize import bind, build_module
from fastkernels.loader.overlay import Overlay
from fastkernels.records import Case, Routing, TensorSpec

BASELINE = Overlay.over_baseline()
UNIFORM, ZIPF = Routing(top_k=2, experts=8), Routing(top_k=2, experts=8, skew="zipf")
# bf16 keeps 8 bits: logits move by 2^-8 of the largest, and by a few times that behind a layer of rounding.
CLEAR = 0.03


def planned(kind: Routing, tokens: int, seed: int = 0) -> torch.Tensor:
    return routing.plan(kind, tokens, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "kind", [UNIFORM, ZIPF, Routing(top_k=4, experts=60), Routing(top_k=1, experts=3)], ids=str
)
@pytest.mark.parametrize("tokens", [1, 2, 3, 8, 37, 1000])
def test_a_plan_has_distinct_experts_and_reaches_as_many_as_promised(kind, tokens):
    for seed in range(5):
        ids_TK = planned(kind, tokens, seed)
        assert ids_TK.shape == (tokens, kind.top_k)
        assert all(len(set(row)) == kind.top_k for row in ids_TK.tolist())
        assert set(ids_TK.flatten().tolist()) <= set(range(kind.experts))
        assert ids_TK.unique().numel() == routing.reached(kind, tokens)


def test_as_many_experts_are_reached_as_independent_tokens_reach():
    """8 (1 - 0.75^B), as the figures of serving say: 2 at one token, 7.2 at eight, all from sixteen on."""
    assert [routing.reached(UNIFORM, tokens) for tokens in (0, 1, 8, 16, 4096)] == [0, 2, 7, 8, 8]
    generator = torch.Generator().manual_seed(0)
    counts = [
        torch.stack([torch.randperm(8, generator=generator)[:2] for _ in range(8)]).unique().numel()
        for _ in range(300)
    ]
    assert abs(sum(counts) / 300 - 8 * (1 - 0.75**8)) < 0.1


def test_skewed_routing_has_favourites_that_change_with_the_seed():
    shares = [torch.bincount(planned(kind, 4000).flatten(), minlength=8) / 8000 for kind in (UNIFORM, ZIPF)]
    assert (shares[0] - 1 / 8).abs().max() < 0.02
    assert shares[1].max() > 0.25
    assert shares[1].min() < 0.07
    favourites = {int(torch.bincount(planned(ZIPF, 4000, seed).flatten()).argmax()) for seed in range(8)}
    assert len(favourites) > 2


def test_plans_depend_on_their_seed_alone():
    assert torch.equal(planned(ZIPF, 50, 3), planned(ZIPF, 50, 3))
    assert not torch.equal(planned(ZIPF, 50, 3), planned(ZIPF, 50, 4))


def case_of(task: str, pattern: str, size: str = "tiny") -> Case:
    return registry.cases(task, size, glob=pattern)[0]


def tensors_of(case: Case, seed: int, distribution: str = "normal") -> dict[str, torch.Tensor]:
    return draw(trial_specs(case, build_module(BASELINE, case, "meta")), case, seed, distribution)


def test_order_and_starts_of_a_product_fit_each_other():
    case = case_of("L1/grouped_gemm", "*T23-*")
    tensors = tensors_of(case, seed=5)
    order_S, starts_E1 = tensors["arg.sorted_token_ids"], tensors["arg.starts"]
    assert sorted(order_S.tolist()) == list(range(46))
    assert (int(starts_E1[0]), int(starts_E1[-1])) == (0, 46)
    for begin, end in zip(starts_E1.tolist(), starts_E1.tolist()[1:]):
        slots = order_S[begin:end].tolist()
        assert slots == sorted(slots)
        assert len({slot // 2 for slot in slots}) == len(slots), "a token has an expert once"
    assert not torch.equal(order_S, tensors_of(case, seed=6)["arg.sorted_token_ids"])


def choices(case: Case, tensors: dict[str, torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(logits, ids) of every router of the case's module, in float64."""
    found = []
    module = build_module(BASELINE, case, "cpu", torch.float64)
    for part in module.modules():
        if type(part).__name__ == "TopKSoftmax":
            part.register_forward_hook(lambda _, args, result: found.append((args[0], result[1])))
    with kernels.use("reference"):
        bind(module, case, cast(tensors, torch.float64)).invoke()
    return found


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize(
    ("task", "pattern"),
    [
        ("L2/moe", "*T128-*"),
        ("L3/moe_decoder_layer", "*prefill-1x128*"),
        ("L3/moe_mamba_decoder_layer", "*prefill-1x128*"),
        ("L4/mixtral", "*decode-8x200*"),
        ("L4/jamba", "*decode-8x200*"),
        ("L4/jamba", "*prefill-1x128*"),
        ("L4/qwen3_vl_moe", "*prefill-1x128*"),
    ],
)
def test_routers_choose_clearly_and_leave_the_others_a_share(task, pattern, distribution):
    case = case_of(task, pattern)
    for logits_TE, ids_TK in choices(case, tensors_of(case, 1, distribution)):
        sorted_TE = logits_TE.sort(-1, descending=True).values
        margin_T = (sorted_TE[:, 1] - sorted_TE[:, 2]) / sorted_TE.abs().amax(-1).clamp_min(1e-300)
        is_zero_T = (logits_TE == 0).all(-1)  # a row of zeros gives zeros, whichever expert has it
        assert (margin_T[~is_zero_T] > CLEAR).all()
        if distribution == "normal":
            share = logits_TE.softmax(-1).gather(-1, ids_TK.long()).sum(-1).mean()
            assert 0.55 < share < 0.97, "renormalising must matter"


@pytest.mark.parametrize("pattern", ["*T128-E4*f32", "*T128-*zipf-f32"])
def test_the_block_follows_the_plan(pattern):
    case = next(
        c for c in registry.cases("L2/moe", "tiny", glob=pattern) if ("zipf" in c.id) == ("zipf" in pattern)
    )
    ((_, ids_TK),) = choices(case, tensors_of(case, seed=2))
    expected = torch.bincount(routing.plan(case.routing, 128, generator_of(2)).flatten(), minlength=4)
    assert torch.equal(torch.bincount(ids_TK.flatten().long(), minlength=4), expected)


def generator_of(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(inputs._seed(seed, "routing"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_real_widths_choose_clearly_too(dtype):
    """Gate and rows of the scored model, as drawn for it, without its experts."""
    case = case_of("L2/moe", "*T257-*", "full")
    specs = trial_specs(case, build_module(BASELINE, case, "meta"))
    wanted = {name: specs[name] for name in ("arg.hidden_states", "param.gate.weight")}
    assert {spec.draw for spec in wanted.values()} == {"routed", "router"}
    for distribution in DISTRIBUTIONS:
        tensors = draw(wanted, case, 3, distribution)
        x_TD, gate_ED = (tensors[name].to(dtype) for name in wanted)
        logits_TE = kernels.linear(x_TD, gate_ED).double()
        sorted_TE = logits_TE.sort(-1, descending=True).values
        margin_T = (sorted_TE[:, 1] - sorted_TE[:, 2]) / sorted_TE.abs().amax(-1).clamp_min(1e-300)
        assert (margin_T[(logits_TE != 0).any(-1)] > CLEAR).all()


def test_gates_and_tokens_of_different_draws_fit_each_other():
    """Parameters are drawn less often than inputs."""
    case = case_of("L2/moe", "*T128-*")
    first, second = tensors_of(case, seed=1), tensors_of(case, seed=2)
    mixed = {name: (first if name.startswith("param.") else second)[name] for name in first}
    ((_, ids),) = choices(case, mixed)
    ((_, expected),) = choices(case, second)
    assert torch.equal(ids.sort().values, expected.sort().values)
    assert not torch.equal(first["param.gate.weight"], second["param.gate.weight"])


def test_rows_of_zeros_choose_where_a_norm_or_a_layer_follows():
    case = case_of("L2/moe", "*T23-*")
    for draws, follows in (("routed", False), ("routed.attended", True), ("routed.embedding", True)):
        x_LTD = torch.zeros(1, 23, 64)
        spec = TensorSpec(shape=(23, 64), dtype="float32", draw=draws)
        routing.plant(x_LTD, spec, case, [1] * len(x_LTD))
        assert (x_LTD.abs().sum(-1) > 0).all() == follows
