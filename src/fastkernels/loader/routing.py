"""Which experts the tokens of a trial choose, and inputs that make a router choose them.

    ids        k distinct experts for each token; exactly `reached` experts have a token
    order      T k slots by expert, and starts, where each expert's begin (L1/moe_permute)
    logits     what a router gave; in cases that replay a golden folder alone (golden.py)

Where a task computes the choice itself, its inputs decide. Random ones would leave some tokens within a
rounding of another choice, where two right implementations give unrelated results; and no skew could be
chosen. So every expert e has a direction u_e, orthogonal to the others:

    gate[e] = (SPREAD noise + GAIN u_e) / sqrt(D)
    x[t]    = noise + scale (LOGIT / (GAIN sqrt(D))) sum of u_e over the token's experts

With noise of scale 1 the chosen experts get logits of about LOGIT, the others about 0, six standard
deviations apart; LOGIT is small enough that the others keep a tenth of the probability, so that leaving out
the renormalisation still shows. T tokens · k experts of a token · E experts · D hidden · L links
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Generator, Tensor, nn

from fastkernels.loader import golden
from fastkernels.nn.cache import state_owners
from fastkernels.nn.routing import routers
from fastkernels.records import Case, Routing, TensorSpec

LOGIT, GAIN, SPREAD = 3.0, 0.25, 0.1
GATE_BIAS = 0.1  # of logits: it changes weights, and no choice
LEAST_SCALE = {"routed": 0.0, "routed.attended": 1.0, "routed.recurrent": 3.0, "routed.embedding": 2.0}
_DIRECTIONS_SEED = 0  # directions are facts, not draws: gate and tokens of any two draws fit each other


def popularity(routing: Routing) -> Tensor:
    """float64 [E], sum 1: how likely a single choice falls on the i-th favourite of drawn routing."""
    rank_E = torch.arange(1, routing.experts + 1, dtype=torch.float64)
    weight_E = torch.ones_like(rank_E) if routing.skew == "uniform" else 1 / rank_E
    return weight_E / weight_E.sum()


def reached(routing: Routing, tokens: int) -> int:
    """Experts that have a token: as many as independent tokens reach on average, rounded; as captured ones
    did where they are replayed.

    For skewed routing the chance that a token has an expert is that of k draws with replacement.
    """
    if not tokens:
        return 0
    if routing.golden is not None:
        return golden.reached(routing.golden, tokens)
    p_E = popularity(routing)
    k = routing.top_k
    one_E = p_E * k if routing.skew == "uniform" else 1 - (1 - p_E) ** k
    return max(k, round(float((1 - (1 - one_E) ** tokens).sum())))


def plan(routing: Routing, tokens: int, generator: Generator) -> Tensor:
    """int64 [T, k], on the CPU; which experts are the favourites is drawn too, if they are not captured."""
    if not tokens:
        return torch.empty(0, routing.top_k, dtype=torch.int64)
    if routing.golden is not None:
        return golden.ids(routing.golden, tokens, generator)
    k, favourites = routing.top_k, reached(routing, tokens)
    uniform_TR = torch.rand(tokens, favourites, generator=generator, dtype=torch.float64)
    # The k largest of log p + Gumbel noise are k draws without replacement.
    keys_TR = popularity(routing)[:favourites].log() - (-uniform_TR.log()).log()
    choice_TK = keys_TR.topk(k, dim=1).indices
    # The first rows go through all of them once; rows are shuffled below.
    covering = -(-favourites // k)
    choice_TK[:covering] = torch.arange(covering * k).view(covering, k) % favourites
    choice_TK = choice_TK[torch.randperm(tokens, generator=generator)]
    return torch.randperm(routing.experts, generator=generator)[choice_TK]


def aligned(ids_TK: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """order [T k] and starts [E+1] of a plan, int64."""
    ids_S, order_S = ids_TK.flatten().sort(stable=True)
    return order_S, torch.searchsorted(ids_S, torch.arange(experts + 1))


@lru_cache(maxsize=8)
def directions(experts: int, dim: int) -> Tensor:
    """float32 [E, D] with rows of root mean square 1; orthogonal where E <= D."""
    generator = Generator().manual_seed(_DIRECTIONS_SEED)
    noise_DE = torch.randn(dim, experts, generator=generator, dtype=torch.float64)
    if experts <= dim:
        noise_DE = torch.linalg.qr(noise_DE).Q
    return (noise_DE / noise_DE.norm(dim=0) * dim**0.5).T.float().contiguous()


def fill_gate(gate_LED: Tensor, generator: Generator) -> None:
    """The weight of a router, in place."""
    experts, dim = gate_LED.shape[-2:]
    gate_LED.normal_(0, SPREAD * dim**-0.5, generator=generator)
    gate_LED += (directions(experts, dim) * (GAIN * dim**-0.5)).to(gate_LED.device, gate_LED.dtype)


# ---------------------------------------------------------------- the tensors of a trial


def routed(specs: Mapping[str, TensorSpec], baseline: nn.Module) -> dict[str, TensorSpec]:
    """The specs that decide the choice in a module with routers: the gates, and the rows that reach them,
    which are activations of their width, or in a model, which has none, the rows of its embedding, and rows
    of media, each of one width or several side by side."""
    found = routers(baseline)
    if not found:
        return {}
    gates = [f"param.{name}.gate.weight" if name else "param.gate.weight" for name, _ in found]
    width = found[0][1].gate_weight.shape[1]
    # What layers with states add to a row before it reaches the router is larger than averages of values.
    mixed = "routed.recurrent" if state_owners(baseline) else "routed.attended"
    draws = {"normal": "routed", "attended": mixed}
    rows = {
        name: draws[spec.draw]
        for name, spec in specs.items()
        if name.startswith("arg.") and spec.draw in draws and spec.shape[-1] == width
    }
    if not rows:
        tables = {name for name in specs if name.startswith("param.") and "embed" in name}
        rows = {name: "routed.embedding" for name in tables if specs[name].shape[1:] == (width,)}
        rows |= {
            name: "routed.media"
            for name, spec in specs.items()
            if name.startswith("arg.") and spec.draw in draws and spec.shape[-1] % width == 0
        }
    changed = dict.fromkeys(gates, "router") | rows
    drawn = {name: specs[name].model_copy(update={"draw": draw}) for name, draw in changed.items()}
    drawn |= {
        name: spec.model_copy(update={"row": width})
        for name, spec in drawn.items()
        if spec.draw == "routed.media"
    }
    biases = (name.removesuffix("weight") + "bias" for name in gates)
    narrow = {"low": -GATE_BIAS, "high": GATE_BIAS}
    return drawn | {name: specs[name].model_copy(update=narrow) for name in biases if name in specs}


def from_plan(spec: TensorSpec, case: Case, seed: int) -> Tensor:
    """ids, order, starts or logits of a case; they agree with each other, and so have one number of
    tokens."""
    if spec.draw == "routing.logits":
        source = _routing(case).golden
        assert source is not None, f"{case.task} {case.id}: only a golden folder has router logits"
        logits_TE = golden.logits(source, spec.shape[0], Generator().manual_seed(seed))
        return logits_TE.to(getattr(torch, spec.dtype))
    ids_TK = plan(_routing(case), _tokens(case), Generator().manual_seed(seed))
    order_S, starts_E1 = aligned(ids_TK, _routing(case).experts)
    values = {"routing.ids": ids_TK, "routing.order": order_S, "routing.starts": starts_E1}
    return values[spec.draw].to(getattr(torch, spec.dtype))


def plant(x_LTD: Tensor, spec: TensorSpec, case: Case, seed_L: Sequence[int]) -> None:
    """Add to each row, in place and at the row's own scale, the directions of the experts that it chooses;
    links with one seed choose alike.

    Behind a norm a row's scale is lost: there the directions must stand out even in a row of zeros, and in
    an embedding against all that the layers before the router add.
    """
    if spec.draw == "routed.media":  # all parts of a row choose the same
        assert spec.row is not None
        parts = x_LTD.unflatten(-1, (-1, spec.row)).unbind(-2)
        for part_LTD in parts:
            plant(part_LTD, spec.model_copy(update={"draw": "routed.embedding"}), case, seed_L)
        return
    experts, dim = _routing(case).experts, x_LTD.shape[-1]
    sums: dict[int, Tensor] = {}
    for seed in set(seed_L):
        ids_TK = plan(_routing(case), x_LTD.shape[1], Generator().manual_seed(seed)).to(x_LTD.device)
        sums[seed] = directions(experts, dim).to(x_LTD.device)[ids_TK].sum(1) * (LOGIT / (GAIN * dim**0.5))
    for x_TD, seed in zip(x_LTD.unbind(0), seed_L, strict=True):
        sums_TD = sums[seed]
        scale_T1 = x_TD.float().square().mean(-1, keepdim=True).sqrt().clamp_min(LEAST_SCALE[spec.draw])
        x_TD += (sums_TD * scale_T1).to(x_TD.dtype)


def _routing(case: Case) -> Routing:
    assert case.routing is not None, (
        f"{case.task} {case.id}: its inputs choose experts, and it has no routing"
    )
    return case.routing


def _tokens(case: Case) -> int:
    """As many as rows of ids, or as the order of their slots says."""
    for spec in case.inputs.values():
        if isinstance(spec, TensorSpec) and spec.draw in ("routing.ids", "routing.order"):
            return spec.shape[0] // (1 if spec.draw == "routing.ids" else _routing(case).top_k)
    raise ValueError(f"{case.task} {case.id}: starts without ids or order say nothing of the tokens")
