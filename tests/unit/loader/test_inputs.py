"""Specs and draws of whole trials: agreement between tables, slots and caches; independence of parts."""

from __future__ import annotations

import pytest
import torch

from fastkernels import kernels, registry
from fastkernels.loader.batches import pool_blocks, pool_rows
from fastkernels.loader.inputs import DISTRIBUTIONS, cast, draw, draw_links, trial_specs
from fastkernels.loader.materialize import build_module
from fastkernels.loader.overlay import Overlay
from fastkernels.records import Batch, Case, Provenance, TensorSpec

BASELINE = Overlay.over_baseline()
BATCH = Batch(rows=((3, 1, 40), (1, 5, 5), (1, 17, 33)))
TOKENS, BLOCKS = BATCH.num_tokens, pool_blocks(BATCH)


def case(task: str, init: dict, inputs: dict, batch: Batch | None = BATCH, dtype: str = "float32") -> Case:
    given = {name: TensorSpec(**spec) if isinstance(spec, dict) else spec for name, spec in inputs.items()}
    provenance = Provenance(architecture="none", config="none", phase="mixed")
    return Case(
        id="test",
        task=task,
        size="tiny",
        dtype=dtype,
        init=init,
        inputs=given,
        batch=batch,
        provenance=provenance,
    )


POOL = {"shape": (BLOCKS, 16, 2, 8), "dtype": "float32", "draw": "cache"}
KEYS = {"shape": (TOKENS, 2, 8), "dtype": "float32"}
STORE = case(
    "L1/kv_cache",
    {},
    {
        "key": KEYS,
        "value": KEYS,
        "key_cache": POOL,
        "value_cache": POOL,
        "slot_mapping": {"shape": (TOKENS,), "dtype": "int64", "draw": "step.slots"},
    },
)
ATTEND = case(
    "L2/paged_attention",
    {"num_heads": 4, "head_size": 8, "scale": 0.3, "num_kv_heads": 2},
    {
        "query": {"shape": (TOKENS, 32), "dtype": "float32"},
        "key": {"shape": (TOKENS, 16), "dtype": "float32"},
        "value": {"shape": (TOKENS, 16), "dtype": "float32"},
    },
)


def specs_of(of: Case) -> dict[str, TensorSpec]:
    return trial_specs(of, build_module(BASELINE, of, "meta"))


def test_names_and_shapes_of_a_module_with_caches():
    specs = specs_of(ATTEND)
    assert list(specs) == [
        "arg.query",
        "arg.key",
        "arg.value",
        "cache.0.0.k_cache",
        "cache.0.0.v_cache",
        "step.query_starts",
        "step.seq_lens",
        "step.rows",
        "step.block_tables.0",
        "step.slots.0",
    ]
    assert specs["cache.0.0.k_cache"].shape == (BLOCKS, 16, 2, 8)
    assert specs["step.block_tables.0"].shape == (5, 3)


def test_a_row_of_queries_that_lie_side_by_side_is_one_head():
    """Were every head the same, some outputs would cancel to nothing."""
    query = draw(specs_of(ATTEND), ATTEND, 1, "constant_rows")["arg.query"].view(TOKENS, 4, 8)
    assert (query == query[..., :1]).all()
    assert (query[:, 0, 0] != query[:, 1, 0]).all()


def test_a_module_without_caches_has_no_step():
    linear = case(
        "L1/linear",
        {"input_size": 8, "output_size": 4, "bias": True},
        {"x": {"shape": (3, 8), "dtype": "bfloat16"}},
        None,
        "bfloat16",
    )
    specs = specs_of(linear)
    assert {name: (spec.shape, spec.dtype) for name, spec in specs.items()} == {
        "arg.x": ((3, 8), "bfloat16"),
        "param.weight": ((4, 8), "bfloat16"),
        "param.bias": ((4,), "bfloat16"),
    }
    drawn = draw(specs, linear, seed=1)
    assert drawn["param.bias"].abs().max() <= 0.5
    assert drawn["param.weight"].dtype == torch.bfloat16


def test_scales_of_parameters():
    norm = case("L1/rms_norm", {"hidden_size": 512}, {"x": {"shape": (2, 512), "dtype": "float32"}}, None)
    weight = draw(specs_of(norm), norm, 1, "extreme")["param.weight"]
    assert weight.min() >= 0.5
    assert weight.max() <= 1.5
    linear = case(
        "L1/linear",
        {"input_size": 400, "output_size": 400},
        {"x": {"shape": (2, 400), "dtype": "float32"}},
        None,
    )
    assert draw(specs_of(linear), linear, 1, "extreme")["param.weight"].std().mul(20).sub(1).abs() < 0.05
    # As arguments, those of a gradient's module.
    weight = {"shape": (400, 400), "dtype": "float32", "draw": "matrix"}
    sizes, rows = {"input_size": 400, "output_size": 400}, {"shape": (2, 400), "dtype": "float32"}
    grad = case("L1/linear_grad", sizes, {"grad_output": rows, "weight": weight}, None)
    grad = grad.model_copy(update={"variant": "input"})
    assert draw(specs_of(grad), grad, 1, "extreme")["arg.weight"].std().mul(20).sub(1).abs() < 0.05


def test_filters_over_time_have_the_scale_of_all_they_add_up():
    """Scaled by taps alone they made features of 46 to 200, which positions of 0.03 hardly moved."""
    stem = case(
        "L2/audio_stem",
        {"num_mel_bins": 80, "hidden_size": 64, "max_source_positions": 6},
        {"input_features": {"shape": (1, 80, 12), "dtype": "float32"}},
        None,
    )
    drawn = draw(specs_of(stem), stem, seed=0)
    assert drawn["param.conv1.weight"].std().item() == pytest.approx((80 * 3) ** -0.5, rel=0.03)
    assert drawn["param.conv2.weight"].std().item() == pytest.approx((64 * 3) ** -0.5, rel=0.03)


@pytest.mark.parametrize(
    ("task", "name", "scale"),
    [
        ("L2/patch_embed", "position_embedding", 1),
        ("L2/audio_stem", "embed_positions", 1),
        ("L2/vision_attention", "probe", 1),
        ("L2/vision_attention", "q_proj.weight", 64**-0.5),
        ("L3/text_encoder", "embed_tokens.embedding.weight", 1),
    ],
)
def test_what_is_added_to_activations_is_as_large_as_they_are(task, name, scale):
    made = next(
        case
        for case in registry.cases(task, size="tiny")
        if f"param.{name}" in trial_specs(case, build_module(BASELINE, case, "meta"))
    )
    value = draw(trial_specs(made, build_module(BASELINE, made, "meta")), made, seed=0)[f"param.{name}"]
    assert value.std().item() == pytest.approx(scale, rel=0.2)


@pytest.mark.parametrize("task", ["L2/mamba_mixer", "L3/mamba_decoder_layer", "L4/jamba"])
def test_states_of_a_module_are_kept_as_long_as_those_of_a_scan(task):
    """Time steps around 0.8 forget a state within three tokens: what is carried on would not count."""
    scan = next(iter(registry.cases("L1/selective_scan", size="tiny")))
    made = next(iter(registry.cases(task, size="tiny")))
    specs = trial_specs(made, build_module(BASELINE, made, "meta"))
    for end, argument in (("dt_bias", "delta_bias"), ("A_log", "A_log")):
        spec = next(spec for name, spec in specs.items() if name.endswith(end))
        expected = scan.inputs[argument]
        assert (spec.draw, spec.low, spec.high) == (expected.draw, expected.low, expected.high)


def test_tokens_of_linear_attention_have_several_directions_where_their_values_are_equal():
    """With one, the norm of what a head reads is a sign, which rounding decides where that is nothing."""
    made = next(iter(registry.cases("L3/linear_decoder_layer", size="tiny")))
    module = build_module(BASELINE, made, "meta")
    x_TD = draw(trial_specs(made, module), made, 0, "constant_rows")["arg.hidden_states"]
    parts_TPK = x_TD.view(len(x_TD), -1, made.init["key_dim"])
    assert torch.equal(parts_TPK, parts_TPK[..., :1].expand_as(parts_TPK))
    assert torch.linalg.matrix_rank(parts_TPK[..., 0]) == parts_TPK.shape[1] > 1


@pytest.mark.parametrize("task", ["L2/gated_linear_attention", "L3/linear_decoder_layer"])
def test_tokens_of_linear_attention_have_no_offset_in_common(task):
    """With one, what a head reads is one number of either sign, next to nothing in some tokens."""
    made = next(iter(registry.cases(task, size="tiny")))
    specs = trial_specs(made, build_module(BASELINE, made, "meta"))
    x_TD = draw(specs, made, 0, "uniform_offset")["arg.hidden_states"]
    rows_RK = x_TD.view(-1, made.init["key_dim"])
    assert (rows_RK.abs() >= 2).all()
    assert torch.equal(rows_RK.sign(), rows_RK[:, :1].sign().expand_as(rows_RK))
    assert 0.3 < (rows_RK[:, 0] > 0).float().mean() < 0.7


@pytest.mark.parametrize("task", ["L2/mamba_mixer", "L3/mamba_decoder_layer", "L2/gated_linear_attention"])
def test_values_of_a_module_that_keeps_states_are_as_those_of_attention(task):
    """Beside a token 10,000 times as large, what a state holds is lost."""
    made = next(iter(registry.cases(task, size="tiny")))
    specs = trial_specs(made, build_module(BASELINE, made, "meta"))
    x_TD = draw(specs, made, 0, "extreme")["arg.hidden_states"]
    assert 1 < x_TD.abs().max() < 20


def test_queries_and_keys_of_scores_that_are_not_scaled_are_small():
    inputs = {"hidden_states": {"shape": (5, 64), "dtype": "float32"}}
    for scaled, name, fan_in in ((True, "qkv_proj", 64), (False, "unscaled_qkv_proj", 8 * 64)):
        init = {"hidden_size": 64, "num_heads": 4, "bias": False, "scaled": scaled}
        made = case("L2/encoder_attention", init, inputs)
        specs = trial_specs(made, build_module(BASELINE, made, "meta"))
        weight = draw(specs, made, seed=0)[f"param.{name}.linear.weight"]
        assert weight.std().item() == pytest.approx(fan_in**-0.5, rel=0.03)


def test_norms_of_scores_that_are_not_scaled_are_small():
    made = next(iter(registry.cases("L2/normed_attention", size="tiny")))
    specs = trial_specs(made, build_module(BASELINE, made, "meta"))
    size = made.init["head_dim"]
    for name in ("unscaled_q_norm", "unscaled_k_norm"):
        weight = draw(specs, made, 0)[f"param.{name}.weight"]
        assert 0.5 <= weight.min() * size**0.25 <= weight.max() * size**0.25 <= 1.5


def test_what_must_not_be_read_is_large():
    """Entries that hold tokens have scale 1; unused blocks, the null block and ends of blocks more."""
    drawn = draw(specs_of(STORE), STORE, seed=5)
    slots, pool = drawn["arg.slot_mapping"], drawn["arg.key_cache"].view(-1, 16)
    assert slots.unique().numel() == TOKENS
    held = torch.zeros(len(pool), dtype=torch.bool)
    held[slots] = True
    assert pool[held].std() < 1.2
    assert pool[:16].std() > 4, "the null block holds garbage"
    assert (pool != 0).all()


def test_caches_of_a_module_agree_with_its_step():
    drawn = draw(specs_of(ATTEND), ATTEND, seed=5)
    pool, slots = drawn["cache.0.0.k_cache"].view(-1, 16), drawn["step.slots.0"]
    assert pool[slots].std() > 4, "this step's entries are not there before the module stores them"
    decode_row = drawn["step.block_tables.0"][0, :2].long()
    assert drawn["cache.0.0.k_cache"][decode_row].std() < 1.2


@pytest.mark.parametrize("of", [STORE, ATTEND], ids=["arguments", "owned"])
def test_other_lengths_agree_as_well(of):
    specs = specs_of(of)
    usual = draw(specs, of, 5)
    other = {
        name: value[0] for name, value in draw_links(specs, of, 5, lambda name: 1, other_lengths=True).items()
    }
    assert {name: value.shape for name, value in other.items()} == {n: v.shape for n, v in usual.items()}
    slots, pool = (
        ("arg.slot_mapping", "arg.key_cache") if of is STORE else ("step.slots.0", "cache.0.0.k_cache")
    )
    assert not torch.equal(other[slots], usual[slots])
    stored = other[pool].view(-1, 16)[other[slots]]
    assert stored.std() < 1.2 if of is STORE else stored.std() > 4
    if of is ATTEND:
        assert (other["step.seq_lens"] < usual["step.seq_lens"]).any()


def test_a_lone_prompt_has_other_positions_where_nothing_else_tells_its_length():
    (of,) = registry.cases(registry.task("L1/rope"), size="tiny", glob="llama-tiny-T128-K16-f32")
    specs = specs_of(of)
    usual = draw(specs, of, 5)["arg.positions"]
    assert usual.tolist() == list(range(128))
    found = [
        draw_links(specs, of, seed, lambda name: 1, other_lengths=True)["arg.positions"][0]
        for seed in range(9)
    ]
    assert all(not torch.equal(positions, usual) and positions.max() < 127 for positions in found)
    assert len({tuple(positions.tolist()) for positions in found}) > 5


@pytest.mark.parametrize("of", [STORE, ATTEND], ids=["arguments", "owned"])
def test_every_part_can_be_drawn_by_itself(of):
    specs = specs_of(of)
    whole = draw(specs, of, 9, "mixed")
    for name, spec in specs.items():
        assert torch.equal(draw({name: spec}, of, 9, "mixed")[name], whole[name])
    other = draw(specs, of, 10, "mixed")
    same = {name for name in specs if torch.equal(other[name], whole[name])}
    assert same <= {"step.query_starts", "step.seq_lens"}


def test_block_tables_of_groups_differ():
    specs = specs_of(ATTEND)
    specs["step.block_tables.1"] = specs["step.block_tables.0"]
    drawn = draw(specs, ATTEND, 2)
    assert not torch.equal(drawn["step.block_tables.0"], drawn["step.block_tables.1"])


def test_seeds_of_two_calls_have_nothing_in_common():
    """The first and the last had: a right sampler drew from one noise in every call, and was condemned."""
    sample = case(
        "L1/sampling",
        {},
        {"seeds": {"shape": (30,), "dtype": "int64", "draw": "integers", "high": 2**31}},
    )
    one, other = (draw({"arg.seeds": sample.inputs["seeds"]}, sample, seed)["arg.seeds"] for seed in (3, 4))
    assert not bool((one == other).any())
    assert int(one.min()) >= 0
    assert int(one.max()) < 2**31


def test_ids_reach_both_ends():
    embed = case(
        "L1/embedding",
        {"num_embeddings": 50, "embedding_dim": 8},
        {"input": {"shape": (30,), "dtype": "int64", "draw": "ids", "high": 50}},
        None,
    )
    ids = draw(specs_of(embed), embed, 3)["arg.input"]
    assert ids.min() == 0
    assert ids.max() == 49


def test_a_cloud_its_cameras_and_its_pairs_fit_each_other():
    cases = {one.variant: one for one in registry.cases(registry.task("L2/gaussian_splat"), size="tiny")}
    drawn = {variant: draw(specs_of(one), one, 5) for variant, one in cases.items()}
    cloud, lists = drawn["projection"], drawn["rasterize"]
    names = ("means", "quats", "scales", "viewmats", "Ks")
    _, means2d, depths, _ = kernels.project_gaussians(*(cloud[f"arg.{name}"] for name in names), None, 40, 33)
    assert bool((depths > 0).all())
    assert torch.equal(lists["arg.means2d"], lists["arg.means2d"].mul(16).round() / 16)
    assert bool(((means2d > -20) & (means2d < 60)).all())
    offsets, ids = lists["arg.isect_offsets"].flatten(), lists["arg.flatten_ids"]
    assert bool((offsets.diff() >= 0).all())
    assert int(offsets[-1]) <= int((ids >= 0).sum()) < len(ids), (
        "there are free places, and only behind all others"
    )
    assert torch.equal(ids[ids >= 0], ids[: int((ids >= 0).sum())])
    again, other = (draw(specs_of(cases["rasterize"]), cases["rasterize"], seed) for seed in (5, 6))
    assert torch.equal(again["arg.flatten_ids"], ids)
    assert not torch.equal(other["arg.flatten_ids"], ids)


def test_starts_share_out_all_ids_among_parts_of_very_different_lengths():
    sparse = case(
        "L1/sparse_mm",
        {},
        {
            "crow_indices": {"shape": (401,), "dtype": "int32", "draw": "starts.col_indices", "high": 2},
            "col_indices": {"shape": (4000,), "dtype": "int32", "draw": "ids", "high": 30},
            "values": {"shape": (4000,), "dtype": "float32"},
            "other": {"shape": (30, 8), "dtype": "float32"},
        },
        None,
    )
    specs = {"arg.crow_indices": specs_of(sparse)["arg.crow_indices"]}
    links = draw_links(specs, sparse, 1, lambda name: 3)["arg.crow_indices"]
    lengths = links.diff(dim=1)
    assert links[:, 0].tolist() == [0, 0, 0]
    assert lengths.sum(1).tolist() == [4000] * 3
    assert int(lengths.min()) == 0
    assert 100 < int(lengths.max()) < 2000, "more than ten times the mean, and not all of them"
    assert int((lengths > 0).sum()) > 300
    assert not torch.equal(links[0], links[1])


def test_declared_shape_against_the_batch():
    wrong = STORE.model_copy(
        update={
            "inputs": {
                **STORE.inputs,
                "slot_mapping": TensorSpec(shape=(TOKENS + 1,), dtype="int64", draw="step.slots"),
            }
        }
    )
    with pytest.raises(ValueError, match=r"arg\.slot_mapping is declared"):
        draw(specs_of(wrong), wrong, 0)
    unknown = STORE.model_copy(
        update={
            "inputs": {
                **STORE.inputs,
                "key": TensorSpec(shape=(TOKENS, 2, 8), dtype="float32", draw="cauchy"),
            }
        }
    )
    with pytest.raises(ValueError, match="cauchy"):
        draw(specs_of(unknown), unknown, 0)


def test_wider_tables_are_padded_with_the_null_block():
    table = {"arg.block_table": TensorSpec(shape=(5, 9), dtype="int32", draw="step.block_tables")}
    assert (draw(table, STORE, 0)["arg.block_table"][:, 3:] == 0).all()


def test_cast_keeps_integers():
    wide = cast(draw(specs_of(ATTEND), ATTEND, 0), torch.float64)
    assert wide["arg.query"].dtype == torch.float64
    assert wide["step.slots.0"].dtype == torch.int64


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_every_registered_tiny_task_can_be_drawn(distribution):
    for entry in registry.tasks():
        tiny = registry.cases(entry, size="tiny")[:1]
        for of in tiny:
            drawn = draw_links(specs_of(of), of, 1, lambda name: 1, distribution, other_lengths=True)
            assert all(value.isfinite().all() for value in drawn.values() if value.is_floating_point())


# ---------------------------------------------------------------- states

ROWS = pool_rows(BATCH)
RECURRENT = case(
    "L2/gated_linear_attention",
    {"hidden_size": 16, "num_heads": 2, "key_dim": 4, "value_dim": 8},
    {"hidden_states": {"shape": (TOKENS, 16), "dtype": "bfloat16"}},
    dtype="bfloat16",
)


def test_names_and_shapes_of_a_module_with_a_state():
    specs = specs_of(RECURRENT)
    assert [name for name in specs if not name.startswith(("arg.", "param."))] == [
        "state.0.state",
        "step.query_starts",
        "step.seq_lens",
        "step.rows",
    ]
    assert specs["state.0.state"].shape == (ROWS, 2, 4, 8)
    assert specs["state.0.state"].dtype == "float32", "whatever the module computes in"


def test_states_are_zero_where_a_request_begins_and_large_where_nobody_is():
    drawn = draw(specs_of(RECURRENT), RECURRENT, seed=5)
    state, rows = drawn["state.0.state"], drawn["step.rows"]
    assert rows.min() > 0, "row 0 is null"
    assert len(set(rows.tolist())) == len(rows) == 5
    begins = torch.tensor(BATCH.query_lens) == torch.tensor(BATCH.seq_lens)
    assert begins.any()
    assert not state[rows[begins]].any()
    assert 0.5 < state[rows[~begins]].std() < 1.5
    nobody = [row for row in range(ROWS) if row not in rows.tolist()]
    assert all(state[row].std() > 4 for row in nobody)


def test_decays_are_logarithms_and_some_forget_all():
    gate = {"shape": (TOKENS, 2, 64), "dtype": "float32", "draw": "log_decay"}
    some = RECURRENT.model_copy(update={"inputs": {"g": TensorSpec(**gate)}})
    specs = {"arg.g": TensorSpec(**gate)}
    values = {name: draw(specs, some, 3, name)["arg.g"] for name in ("normal", "extreme")}
    assert all((gate <= 0).all() for gate in values.values())
    assert -0.2 < values["normal"].mean() < -0.02
    assert values["extreme"].min() < -50


@pytest.mark.parametrize("distribution", ["uniform_offset", "sparse", "extreme"])
def test_units_have_length_one_or_are_zero(distribution):
    spec = TensorSpec(shape=(TOKENS, 2, 64), dtype="float32", draw="unit")
    kk = draw({"arg.kk": spec}, RECURRENT, 3, distribution)["arg.kk"]
    lengths = kk.norm(dim=-1)
    is_zero = lengths == 0
    torch.testing.assert_close(lengths[~is_zero], torch.ones_like(lengths[~is_zero]))
    assert is_zero.any() == (distribution == "sparse")


@pytest.mark.parametrize("of", [RECURRENT], ids=["state"])
def test_states_can_be_drawn_by_themselves(of):
    specs = specs_of(of)
    whole = draw(specs, of, 9, "mixed")
    for name in ("state.0.state", "step.rows"):
        assert torch.equal(draw({name: specs[name]}, of, 9, "mixed")[name], whole[name])
        assert not torch.equal(draw({name: specs[name]}, of, 10, "mixed")[name], whole[name])
