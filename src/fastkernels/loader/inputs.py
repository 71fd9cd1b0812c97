"""What tensors a trial needs and how the judge draws them, each once, for both sides.

    arg.NAME              a tensor argument of forward
    param.NAME            a parameter or persistent buffer of the baseline module
    cache.G.I.k_cache     K (and v_cache: V, or kv_cache: latents) pool of the module's I-th owner of a Paged
                          cache, in group G
    state.I.NAME          a pool of the module's I-th owner of a State
    step.query_starts     ambient step, for modules that own caches: query_starts, seq_lens, rows,
    step.slots.G          and for each cache group block_tables.G and slots.G; begun where requests that have
                          a source begin
    peer.P.arg.NAME       the same argument of another rank (ranks.py)

A worker gets the tensors and never the seed. Every tensor depends on (seed, its name) alone, so any part of a
trial can be drawn by itself; the block tables, slots, caches, rows and states of one seed agree with each
other, as do the tensors that say or decide which experts the tokens choose.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import get_args

import torch
from torch import Generator, Tensor, nn

from fastkernels.loader import clouds, distributions, ranks, rays, routing, splats
from fastkernels.loader.batches import Layout, PackedKeys, case_pool_blocks, layout, pool_rows, varied
from fastkernels.loader.materialize import parameters
from fastkernels.nn.cache import cache_groups, has_source, paged_owners, state_owners
from fastkernels.nn.filters import is_filters
from fastkernels.nn.occupancy import is_occupancy, random_grid
from fastkernels.nn.radiance import table_range
from fastkernels.nn.random_weights import (
    SINKS,
    UNSCALED_FAN_IN,
    branch_fan_in,
    is_decay_rate,
    is_packed,
    is_share,
    is_sink,
    is_table,
    is_time_step,
    is_unscaled,
    scale_exponents,
    unscaled_gain,
)
from fastkernels.nn.splats import splat_range
from fastkernels.nn.ternary_weights import BYTES, is_ternary, packed_digits, usual_scale
from fastkernels.records import Case, DType, TensorSpec

DISTRIBUTIONS = distributions.DISTRIBUTIONS
_TOGETHER = {"splats": splats, "clouds": clouds, "rays": rays}  # draw arguments that fit each other
_OF_KEYS = ("key_starts", "places")  # of rows whose keys are packed
_POSITIONS_ALONE = "step.positions_alone"  # nothing else says to which requests the tokens belong
_DTYPE_NAMES = {getattr(torch, name): name for name in get_args(DType)}
_LIMITS = {
    "normal": distributions.ORDINARY,
    "normed": distributions.NORMED,
    "attended": distributions.ATTENTION,
    "routed": distributions.ORDINARY,
    "routed.attended": distributions.ATTENTION,
    "routed.recurrent": distributions.ATTENTION,
    "routed.media": distributions.ATTENTION,
    "cache": distributions.ATTENTION,
    "state": distributions.ATTENTION,
    "kept": distributions.ATTENTION,
    "by_place": distributions.ATTENTION,
    "signed": distributions.ATTENTION,
    "unit": distributions.ATTENTION,
    "log_decay": distributions.ORDINARY,
}
# What a kernel must not read (unused blocks, the end of a last block, states of nobody) is larger than what
# it must read.
_GARBAGE_SCALE = 8
# As a trained gate: the log-sigmoid of an activation, divided so that most channels remember tens of tokens.
_DECAY_DIVISOR = 16
# SiLU hands on 0.36 of a variance: without a gain the maps of a backbone are what biases make of them after a
# dozen layers, the image hardly moves them, and attention over them is a mean.
_FILTER_GAIN = 2**0.5
# As trained, and as the arguments of a scan are drawn (registry/tasks): before softplus; logarithms.
# States forget within a few tokens beside those that keep hundreds.
_TIME_STEPS, _DECAY_RATES = (-5.0, 0.0), (-3.0, 2.0)
_SHARES = (0.0, 1.0)  # of the token before in a shifted one
# Of filters over time, [output, input, taps]; matrices of experts have three dimensions too and are wider.
_MOST_TAPS = 7


def trial_specs(case: Case, baseline: nn.Module) -> dict[str, TensorSpec]:
    """Every tensor of a trial by name, of peers as well (ranks.py). `baseline` is the case's baseline module
    (meta will do)."""
    return ranks.with_peers(_specs(case, baseline), case.ranks)


def _specs(case: Case, baseline: nn.Module) -> dict[str, TensorSpec]:
    arguments = {name: spec for name, spec in case.inputs.items() if isinstance(spec, TensorSpec)}
    owners, groups, states = paged_owners(baseline), cache_groups(baseline), state_owners(baseline)
    if owners or states or _attends({spec.draw for spec in arguments.values()}):
        own = (paged.shape for name, _, paged in owners if not name)
        by_head = next((shape[-1] for shape in own if len(shape) > 1), None)  # a latent is no head
        arguments = {name: _attended(spec, by_head) for name, spec in arguments.items()}
    specs = {f"arg.{name}": spec for name, spec in arguments.items()}
    have = parameters(baseline)
    specs |= {f"param.{name}": _parameter_spec(name, value, have) for name, value in have.items()}
    specs |= routing.routed(specs, baseline)
    if not owners and not states:
        return specs
    assert case.batch is not None, f"{case.task} {case.id}: a module with caches needs a batch"
    batch, blocks = case.batch, case_pool_blocks(case)
    for index, (_, _, paged) in enumerate(owners):
        shape = (blocks, batch.block_size, *paged.shape)
        for name in paged.pools:
            name = f"cache.{groups.index(paged)}.{index}.{name}"
            specs[name] = TensorSpec(shape=shape, dtype=case.dtype, draw="cache")
    for index, (_, _, state) in enumerate(states):
        wide = _DTYPE_NAMES[state.dtype(getattr(torch, case.dtype))]
        for name, shape in state.tensors:
            shape = (pool_rows(batch), *shape)
            specs[f"state.{index}.{name}"] = TensorSpec(shape=shape, dtype=wide, draw="state")
    rows, width = len(batch.seq_lens), -(-max(batch.seq_lens) // batch.block_size)
    specs["step.query_starts"] = TensorSpec(shape=(rows + 1,), dtype="int32", draw="step.query_starts")
    specs["step.seq_lens"] = TensorSpec(shape=(rows,), dtype="int32", draw="step.seq_lens")
    specs["step.rows"] = TensorSpec(shape=(rows,), dtype="int64", draw="step.rows")
    begun = sum(query == seq for query, seq in zip(batch.query_lens, batch.seq_lens))
    if begun and has_source(baseline):
        specs["step.begun"] = TensorSpec(shape=(begun,), dtype="int64", draw="step.begun")
    for group in range(len(groups)):
        specs[f"step.block_tables.{group}"] = TensorSpec(
            shape=(rows, width), dtype="int32", draw="step.block_tables"
        )
        specs[f"step.slots.{group}"] = TensorSpec(shape=(batch.num_tokens,), dtype="int64", draw="step.slots")
    return specs


def draw(
    specs: Mapping[str, TensorSpec],
    case: Case,
    seed: int,
    distribution: str = "normal",
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """Draw the named tensors on `device`; activations and caches follow `distribution` (of DISTRIBUTIONS)."""
    return {
        name: value[0]
        for name, value in draw_links(specs, case, seed, lambda name: 1, distribution, device).items()
    }


def draw_links(
    specs: Mapping[str, TensorSpec],
    case: Case,
    seed: int,
    links_of: Callable[[str], int],
    distribution: str = "normal",
    device: torch.device | str = "cpu",
    other_lengths: bool = False,
) -> dict[str, Tensor]:
    """[links_of(name), *shape]: as many trials as a chain has links, with one layout of requests for all.
    What the links share is drawn once. `other_lengths`: of requests, than those of the case's batch."""
    drawn: dict[str, Tensor] = {}
    laid = partial(_layout, case, seed, other_lengths)
    for name, spec in specs.items():
        links = links_of(name)
        if spec.draw.startswith("step."):
            value = _from_layout(name, spec, case, laid)
            if other_lengths and spec.draw == _POSITIONS_ALONE:
                value = _shorter(value, _seed(seed, name))
            value = value.to(device)
            drawn[name] = value.expand(links, *value.shape)
            continue
        if spec.draw.startswith("routing."):
            if case.ranks == 1:
                value = routing.from_plan(spec, case, _seed(seed, "routing")).to(device)
                drawn[name] = value.expand(links, *value.shape)
            else:
                seeds = _routing_seeds(seed, case, name, links)
                drawn[name] = torch.stack([routing.from_plan(spec, case, own) for own in seeds]).to(device)
            continue
        kind = spec.draw.partition(".")[0]
        if kind in _TOGETHER:
            value = _TOGETHER[kind].drawn(spec, case, _seed(seed, kind), device)
            drawn[name] = value.expand(links, *value.shape)
            continue
        if spec.draw == "replicated":
            own, as_normal = ranks.own_name(name), spec.model_copy(update={"draw": "normal"})
            value = draw_links({own: as_normal}, case, seed, lambda _: 1, distribution, device)[own]
            drawn[name] = value.expand(links, *spec.shape)
            continue
        if spec.draw == "occupancy":
            value = random_grid(spec.shape, _seed(seed, name)).to(device)
            drawn[name] = value.expand(links, *value.shape)
            continue
        generator = Generator(device).manual_seed(_seed(seed, name))
        value = torch.empty((links, *spec.shape), dtype=getattr(torch, spec.dtype), device=device)
        if spec.draw == "ids":
            _fill_ids(value, spec, generator)
        elif spec.draw.startswith("starts."):
            _fill_starts(value, spec.high, case.inputs[spec.draw.removeprefix("starts.")], generator)
        elif spec.draw == "integers":
            value.random_(int(spec.low), int(spec.high), generator=generator)
        elif spec.draw == "uniform":
            value.uniform_(spec.low, spec.high, generator=generator)
        elif spec.draw == "ternary":
            numbers = torch.empty(value.shape, dtype=torch.int32, device=device)
            value.copy_(packed_digits(numbers.random_(BYTES, generator=generator)))
        elif spec.draw == "router":
            routing.fill_gate(value, generator)
        elif name.startswith("param.") or spec.draw == "matrix":
            gain = _FILTER_GAIN if is_filters(value[0]) else 1
            value.normal_(0, gain * (spec.row or spec.shape[-1]) ** -0.5, generator=generator)
        elif spec.draw in _LIMITS:
            rows = value if spec.row is None else value.view(-1, spec.row)
            distributions.fill(rows, distribution, generator, _LIMITS[spec.draw])
        elif spec.draw == "map":
            distributions.fill_map(value, distribution, generator)
        else:
            raise ValueError(f"{case.task} {case.id}: {name} has unknown draw '{spec.draw}'")
        if spec.draw.startswith("routed"):
            routing.plant(value, spec, case, _routing_seeds(seed, case, name, links))
        if spec.draw == "cache":
            _spoil_unheld(name, value, laid)
        elif spec.draw in ("state", "kept"):
            _settle_states(value, case, laid, is_kept=spec.draw == "kept")
        elif spec.draw == "signed":
            rows = value.view(-1, spec.row or spec.shape[-1])
            rows.mul_(torch.randint(2, (len(rows), 1), generator=generator, device=device).mul_(2).sub_(1))
        elif spec.draw == "unit":
            value.copy_(nn.functional.normalize(value.float(), dim=-1))
        elif spec.draw == "log_decay":
            value.copy_(nn.functional.logsigmoid(value).div_(_DECAY_DIVISOR))
        drawn[name] = value
    return drawn


def cast(
    tensors: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device | str | None = None
) -> dict[str, Tensor]:
    """The same trial for the oracle: floating-point tensors in `dtype`, integers as they are."""
    return {
        name: value.to(device=device, dtype=dtype if value.is_floating_point() else value.dtype)
        for name, value in tensors.items()
    }


def _seed(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "big") >> 1


def _routing_seeds(seed: int, case: Case, name: str, links: int) -> list[int]:
    """Of each link: calls in a row have one routing, ranks one each."""
    if case.ranks == 1:
        return [_seed(seed, "routing")] * links
    return [_seed(seed, f"routing.{ranks.place(name) + link}") for link in range(links)]


def _layout(case: Case, seed: int, other_lengths: bool, group: int) -> Layout:
    assert case.batch is not None, f"{case.task} {case.id}: its inputs are of a batch, and it has none"
    batch = varied(case.batch, _seed(seed, "lengths")) if other_lengths else case.batch
    return layout(batch, case_pool_blocks(case), _seed(seed, f"layout.{group}"))


def _attends(draws: set[str]) -> bool:
    """Whether these arguments are of softmax attention, over a cache or over packed rows. Linear attention
    has packed rows too, and a state."""
    return bool(draws & {"cache", "kept"}) or ("step.query_starts" in draws and "state" not in draws)


def _attended(spec: TensorSpec, head: int | None) -> TensorSpec:
    """The same argument of a module that mixes tokens: its values become logits of a softmax, or products
    with a state that tokens of other scales drown, so limited.

    `head`: its size, where the arguments are queries, keys and values by heads, side by side. A row is one
    head of a token then. Were it all of them, constant rows would give every head the same output, which
    cancels to almost nothing in some of thousands of tokens: no kernel has a correct digit there.
    """
    if spec.draw != "normal":
        return spec
    return spec.model_copy(update={"draw": "attended", "row": head or spec.row})


def _spoil_unheld(name: str, pool: Tensor, laid: Callable[[int], Layout]) -> None:
    """Make entries of [links, N, P, ...] that hold no token large. A module's own pool does not hold this
    step's tokens yet."""
    is_argument = name.startswith("arg.")
    layout = laid(0 if is_argument else int(name.split(".")[1]))
    scale_NP = torch.where(layout.held(with_queries=is_argument), 1, _GARBAGE_SCALE)
    pool.mul_(scale_NP.to(pool.device, pool.dtype).view(1, *pool.shape[1:3], *[1] * (pool.dim() - 3)))


def _settle_states(pool: Tensor, case: Case, laid: Callable[[int], Layout], is_kept: bool) -> None:
    """States [links, R, ...] as an engine gives them: zero for requests that begin, unless a layer has stored
    theirs already (`is_kept`); nobody's are large."""
    is_owned, is_new = laid(0).state_kinds
    if len(is_owned) != pool.shape[1]:
        raise ValueError(
            f"{case.task} {case.id}: {pool.shape[1]} rows of states, its batch has {len(is_owned)}"
        )
    scale_R = torch.where(is_new & (not is_kept), 0, torch.where(is_owned, 1, _GARBAGE_SCALE))
    pool.mul_(scale_R.to(pool.device, pool.dtype).view(1, -1, *[1] * (pool.dim() - 2)))


def _parameter_spec(name: str, value: Tensor, have: Mapping[str, Tensor]) -> TensorSpec:
    """Matrices of scale 1/sqrt(fan in), filters of more, smaller where random_weights makes them so, gains
    0.5 .. 1.5, biases -0.5 .. 0.5, what is added to activations or stands for one of them 1: each changes
    some output. have: all parameters of the module."""
    shape, dtype = tuple(value.shape), _DTYPE_NAMES[value.dtype]
    if is_ternary(name, value):
        return TensorSpec(shape=shape, dtype=dtype, draw="ternary")
    if (scale := usual_scale(name, have)) is not None:
        return TensorSpec(shape=shape, dtype=dtype, draw="uniform", low=0.5 * scale, high=1.5 * scale)
    if is_occupancy(name):
        return TensorSpec(shape=shape, dtype=dtype, draw="occupancy")
    if is_packed(value):
        low, high = scale_exponents(value) if name.endswith("_scale") else (0, 256)
        return TensorSpec(shape=shape, dtype=dtype, draw="integers", low=low, high=high)
    if (bounds := splat_range(name, value) or table_range(name)) is not None:
        return TensorSpec(shape=shape, dtype=dtype, draw="uniform", low=bounds[0], high=bounds[1])
    uniform = (
        (is_time_step, _TIME_STEPS), (is_decay_rate, _DECAY_RATES), (is_share, _SHARES), (is_sink, SINKS),
    )  # fmt: skip
    for is_one, (low, high) in uniform:
        if is_one(name):
            return TensorSpec(shape=shape, dtype=dtype, draw="uniform", low=low, high=high)
    if value.dim() > 1 and not name.endswith("bias"):
        fan_in = value[0].numel() * branch_fan_in(name) if is_filters(value) or _is_over_time(value) else None
        if is_unscaled(name):
            fan_in = UNSCALED_FAN_IN * shape[-1]
        if is_table(name) or _is_token(value):
            fan_in = 1
        return TensorSpec(shape=shape, dtype=dtype, draw="normal", row=fan_in)
    if is_unscaled(name):
        gain = unscaled_gain(value)
        return TensorSpec(shape=shape, dtype=dtype, draw="uniform", low=0.5 * gain, high=1.5 * gain)
    if name.endswith("correction_bias"):  # decides where the scores of two experts are close, and only there
        return TensorSpec(shape=shape, dtype=dtype, draw="uniform", low=-0.05, high=0.05)
    low = -0.5 if name.endswith(("bias", "running_mean")) else 0.5
    return TensorSpec(shape=shape, dtype=dtype, draw="uniform", low=low, high=low + 1)


def _is_over_time(value: Tensor) -> bool:
    return value.dim() == 3 and value.shape[-1] <= _MOST_TAPS


def _is_token(value: Tensor) -> bool:
    """A learnt row among a batch of rows, [1, 1, D]."""
    return value.dim() > 2 and value.numel() == value.shape[-1]


def _fill_ids(value: Tensor, spec: TensorSpec, generator: Generator) -> None:
    """Uniform in [low, high); in each link the first and the last id always occur."""
    value.random_(int(spec.low), int(spec.high), generator=generator)
    ids_LN = value.flatten(1)
    if ids_LN.shape[1] > 1:
        ids_LN[:, 0], ids_LN[:, -1] = int(spec.high) - 1, int(spec.low)


def _fill_starts(value: Tensor, spread: float, of: object, generator: Generator) -> None:
    """In each link 0, and where each length ends: log-normal ones, cut to whole numbers, that add up."""
    assert isinstance(of, TensorSpec), "starts are of an argument that is a tensor"
    (count,) = of.shape
    lengths_LS = torch.empty_like(value[:, 1:], dtype=torch.float64).normal_(generator=generator)
    ends_LS = lengths_LS.mul_(spread).exp_().cumsum(-1)
    value[:, 0] = 0
    value[:, 1:] = (ends_LS / ends_LS[:, -1:] * count).floor_()
    value[:, -1] = count


def _shorter(positions_T: Tensor, seed: int) -> Tensor:
    """Positions of as many tokens in requests that end earlier: also a lone prompt's are others then."""
    last = int(positions_T.max())
    return positions_T % random.Random(seed).randint(max(1, last // 2), max(1, last))


def _from_layout(name: str, spec: TensorSpec, case: Case, laid: Callable[[int], Layout]) -> Tensor:
    field = "positions" if spec.draw == _POSITIONS_ALONE else spec.draw.removeprefix("step.")
    group = int(name.rpartition(".")[2]) if name.startswith(("step.block_tables.", "step.slots.")) else 0
    found = laid(group)
    if field in _OF_KEYS:
        assert case.batch is not None
        value: Tensor = getattr(PackedKeys(found.batch, case.batch), field)
    else:
        value = getattr(found, field)
    if field == "block_tables" and spec.shape[1] > value.shape[1]:
        value = nn.functional.pad(value, (0, spec.shape[1] - value.shape[1]))
    if field == "positions" and len(spec.shape) == 2:
        # On several axes, as behind media: each of its own pace, none ahead of the tokens.
        value = torch.stack([value // (axis + 1) for axis in range(spec.shape[0])])
    if tuple(value.shape) != spec.shape:
        raise ValueError(
            f"{case.task} {case.id}: {name} is declared {spec.shape}, its batch gives {tuple(value.shape)}"
        )
    return value.to(getattr(torch, spec.dtype))
