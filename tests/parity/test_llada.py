"""Our LLaDA against transformers' Llama without its mask, float32 on the CPU, a tiny model with randomised
weights; its caches against whole forwards; its sampler against a naive loop in float64.
"""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from fastkernels.baseline.L4.llada import LLaDAModelLM
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from fastkernels import Model, kernels, registry
from fastkernels.errors import RequestError, UsageError, WeightsError
from fastkernels.nn.block_filling import chosen, filling
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.weights import destinations, export_weights, load_weights

TOLERANCE = 1e-5  # the architecture's fact sheet observed 1.1e-6
ENTRY = registry.architecture("llada")
TINY, REAL = (dict(ENTRY.configs[name].config) for name in ("tiny", "8b"))
MASK = TINY["mask_token_id"]
LENGTHS = (23, 7, 12)
LLAMA = {  # theirs: ours
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "q_proj",
    "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj",
    "self_attn.o_proj": "attn_out",
    "post_attention_layernorm": "ff_norm",
    "mlp.gate_proj": "ff_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "ff_out",
}


@lru_cache
def ours(dtype: torch.dtype = torch.float32) -> LLaDAModelLM:
    model = LLaDAModelLM(TINY)
    random_weights(model, seed=0)
    return model.eval().to(dtype)


@lru_cache
def reference() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=160,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        rms_norm_eps=1e-5,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).eval()
    weights = dict(export_weights(ours()))
    top = "model.transformer."
    renamed = {
        "model.embed_tokens.weight": weights[top + "wte.weight"],
        "model.norm.weight": weights[top + "ln_f.weight"],
        "lm_head.weight": weights[top + "ff_out.weight"],
    }
    for layer in range(2):
        for theirs, mine in LLAMA.items():
            renamed[f"model.layers.{layer}.{theirs}.weight"] = weights[f"{top}blocks.{layer}.{mine}.weight"]
    model.load_state_dict(renamed, strict=True)
    return model


def texts(lengths: tuple[int, ...] = LENGTHS, masks: int = 0) -> list[Tensor]:
    """The last `masks` tokens of each are masks."""
    generator = torch.Generator().manual_seed(1)
    made = [torch.randint(0, 149, (length,), generator=generator) for length in lengths]
    for ids in made:
        ids[len(ids) - masks :] = MASK
    return made


@torch.inference_mode()
def theirs(ids: Tensor, causal: bool = False, first: int = 0) -> Tensor:
    """[T, V] of one text."""
    count = len(ids)
    mask = torch.zeros(1, 1, count, count)
    if causal:
        mask.masked_fill_(torch.ones(count, count, dtype=torch.bool).triu(1), -torch.inf)
    positions = torch.arange(first, first + count)[None]
    return reference()(ids[None], attention_mask=mask, position_ids=positions).logits[0]


@torch.inference_mode()
def run(model: LLaDAModelLM, given: list[Tensor]) -> Tensor:
    """One packed pass."""
    lengths = [len(ids) for ids in given]
    starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    positions = torch.cat([torch.arange(length) for length in lengths])
    return model(torch.cat(given), positions, starts, max(lengths))


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max())


@pytest.mark.parametrize("implementation", ["reference", "torch"])
def test_a_packed_pass_equals_llama_without_a_mask(implementation: str):
    with kernels.use(implementation):
        found = run(ours(), texts(masks=3))
    assert found.dtype == torch.float32
    assert error(found, torch.cat([theirs(ids) for ids in texts(masks=3)])) < TOLERANCE


def test_causal_attention_wrong_positions_and_padding_would_be_noticed():
    (ids,) = texts((23,), masks=3)
    found = run(ours(), [ids])
    assert error(found, theirs(ids, causal=True)) > 10 * TOLERANCE
    turned = ids.clone()
    turned[:2] = ids[:2].flip(0)
    assert error(found[5:], run(ours(), [turned])[5:]) > 10 * TOLERANCE, "positions count"
    padded = torch.cat((torch.full((4,), 149), ids))
    assert error(run(ours(), [padded])[4:], theirs(padded)[4:]) < TOLERANCE, "padding takes part upstream"
    assert error(run(ours(), [padded])[4:], found) > 10 * TOLERANCE


@pytest.mark.parametrize(
    "change", [{"rms_norm_eps": 1e-2}, {"rope_theta": 1e4}, {"n_heads": 2, "n_kv_heads": 2}]
)
def test_a_wrong_model_would_be_noticed(change: dict[str, Any]):
    other = LLaDAModelLM(TINY | change)
    load_weights(other, export_weights(ours()))
    assert error(run(other, texts()), torch.cat([theirs(ids) for ids in texts()])) > 10 * TOLERANCE


@torch.inference_mode()
def test_states_of_some_tokens_beside_cached_keys_equal_those_of_all():
    """A block in the middle (dual), and all from it to the end (prefix): with tokens that did not change they
    are those of the whole pass. Keys are stored rotated."""
    model, given = ours(), texts(masks=3)
    starts = torch.tensor([0, *accumulate(LENGTHS)], dtype=torch.int32)
    ids, positions = torch.cat(given), torch.cat([torch.arange(n) for n in LENGTHS])
    caches, slots = model.caches(ids), torch.arange(len(ids))
    whole = model.states(ids, positions, caches, slots, starts, starts, 23, 23)
    kept = [cache.clone() for pair in caches for cache in pair]
    for ends in ((5, 5, 5), LENGTHS):
        at = torch.cat([torch.arange(b + 2, b + end) for b, end in zip(starts.tolist(), ends)])
        counts = torch.tensor([0, *accumulate(end - 2 for end in ends)], dtype=torch.int32)
        part = (ids[at], positions[at], caches, at, counts, starts, int(counts.diff().max()), 23)
        assert error(model.states(*part), whole[at]) < TOLERANCE
        for before, after in zip(kept, (cache for pair in caches for cache in pair)):
            assert error(after, before) < TOLERANCE
        moved = (ids[at], positions[at] + 1, [(k.clone(), v.clone()) for k, v in caches], *part[3:])
        assert error(model.states(*moved), whole[at]) > 10 * TOLERANCE, "offsets of rotated keys"


def naive(prompt: Tensor, gen_length: int, block_length: int, steps: int, cached: bool = False) -> list[int]:
    """One text in float64, greedy; a block's first step, or every one, reads all tokens. Cached: what other
    positions have as keys is what they had in the block's first step."""
    model = ours(torch.float64)
    tokens = torch.cat((prompt, torch.full((gen_length,), MASK)))
    count, of_block = len(tokens), steps * block_length // gen_length
    starts, positions = torch.tensor([0, count], dtype=torch.int32), torch.arange(count)
    for begin in range(len(prompt), count, block_length):
        place, caches = torch.arange(begin, begin + block_length), model.caches(tokens)
        for step in range(of_block):
            if step == 0 or not cached:
                hidden = model.states(tokens, positions, caches, positions, starts, starts, count, count)[
                    place
                ]
            else:
                rows = (torch.tensor([0, block_length], dtype=torch.int32), starts, block_length, count)
                hidden = model.states(tokens[place], place, caches, place, *rows)
            logits = model.lm_head(hidden)
            logits[:, MASK] = -torch.inf
            sure, best = logits.softmax(-1).max(-1)
            open_ = [i for i in range(block_length) if tokens[begin + i] == MASK]
            open_.sort(key=lambda i: (-float(sure[i]), i))
            for i in open_[: block_length // of_block + (step < block_length % of_block)]:
                tokens[begin + i] = best[i]
    return tokens[len(prompt) :].tolist()


@pytest.fixture(scope="module")
def model() -> Model:
    model = Model("llada", config="tiny", device="cpu")
    load_weights(model.model, export_weights(ours()))
    return model


def request(ids: Tensor, **options: Any) -> dict[str, Any]:
    return {"input_ids": ids, "gen_length": 16, "block_length": 8, "steps": 8, **options}


@pytest.mark.parametrize(
    ("block_length", "steps", "cached"), [(16, 16, False), (8, 16, False), (8, 6, False), (8, 8, True)]
)
@torch.inference_mode()
def test_filled_texts_are_those_of_a_naive_loop(model: Model, block_length: int, steps: int, cached: bool):
    """Prompts of other lengths in one launch; a step that fills several; the dual cache."""
    options = {"gen_length": 16, "block_length": block_length, "steps": steps}
    found = model.run([request(ids, **options, dual_cache=cached) for ids in texts()])
    wanted = [naive(ids, **options, cached=cached) for ids in texts()]
    assert [one["token_ids"].tolist() for one in found] == wanted
    assert len({tuple(row) for row in wanted}) == 3
    assert not any(MASK in row for row in wanted)


@torch.inference_mode()
def test_wrong_orders_and_the_cache_would_be_noticed():
    """The same prompts in one step for a block, in one block, and with the stale keys of the dual cache."""
    right = [naive(ids, 32, 8, 32) for ids in texts()]
    for other in ((32, 8, 4, False), (32, 32, 32, False), (32, 8, 32, True)):
        assert [naive(ids, *other) for ids in texts()] != right


def test_a_text_does_not_depend_on_its_company(model: Model):
    """With noise, too: it goes by the request's seed, the position and the step."""
    for options in ({}, {"temperature": 1.0, "seed": 5}, {"dual_cache": True, "threshold": 0.05}):
        given = [request(ids, **options) for ids in texts()]
        together = [one["token_ids"].tolist() for one in model.run(given)]
        assert together == [model.run([one])[0]["token_ids"].tolist() for one in given]
    drawn = [model.run([request(texts()[0], temperature=1.0, seed=seed)])[0]["token_ids"] for seed in (5, 6)]
    assert not torch.equal(*drawn)


def test_a_draw_follows_the_softmax(model: Model):
    """Of 4,000 draws of one row of logits, each id's share."""
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    count = 4000
    rows = logits.repeat(count, 1)
    temperature = torch.full((count,), 0.7)
    ids = model.model.sampler(rows, temperature, None, None, torch.full((count,), 3), torch.arange(count))
    shares = torch.bincount(ids, minlength=4) / count
    torch.testing.assert_close(shares, (logits / 0.7).softmax(-1), rtol=0, atol=0.03)


def test_the_schedule_and_the_forced_token():
    for length, steps in ((32, 32), (32, 5), (7, 3), (8, 1)):
        counts = filling(length, length, steps, None, False).counts
        assert (sum(counts), len(counts)) == (length, steps)
        assert max(counts) - min(counts) <= 1
    tokens = torch.tensor([[MASK, 3, MASK, MASK], [5, 5, 5, 5]])
    sure = torch.tensor([[0.2, 0.99, 0.5, 0.5], [0.9, 0.9, 0.9, 0.9]]).log()

    def places(count: int, threshold: float | None) -> list[list[int]]:
        return [row.nonzero()[:, 0].tolist() for row in chosen(tokens, sure, MASK, count, threshold)]

    assert places(1, None) == [[2], []], "equal confidences: the first; nothing where there is no mask"
    assert places(2, None) == [[2, 3], []]
    assert places(1, 0.95) == [[2], []], "none reaches the threshold: the most confident one"
    assert places(1, 0.4) == [[2, 3], []]
    assert places(1, 0.0) == [[0, 2, 3], []]


def test_a_threshold_takes_more_launches_until_no_mask_is_left(model: Model):
    before = len(model.stages["fill"].batch_sizes)
    (one,) = model.run([request(texts()[0], threshold=1.0, steps=4)])
    assert len(model.stages["fill"].batch_sizes) - before == 8, "two blocks of 8, two steps a launch"
    assert MASK not in one["token_ids"].tolist()
    (slow,) = model.run([request(texts()[0], steps=16)])
    assert torch.equal(one["token_ids"], slow["token_ids"]), "one token in each step"


def test_forced_ids_are_filled_in_and_predictions_answered(model: Model):
    (free,) = model.run([request(texts()[0])])
    (same,) = model.run([request(texts()[0], forced=free["token_ids"])])
    assert torch.equal(free["token_ids"], same["token_ids"])
    (other,) = model.run([request(texts()[0], forced=(free["token_ids"] + 1) % 149)])
    assert not torch.equal(free["token_ids"], other["token_ids"])


BAD = [
    ({"gen_length": 20}, "gen_length 20 is no multiple of block_length 8"),
    ({"steps": 7}, "steps 7 do not fit 2 blocks of 8"),
    ({"steps": 32}, "steps 32 do not fit 2 blocks of 8"),
    ({"steps": 0}, "steps must be an integer of at least 1"),
    ({"block_length": 2.5}, "block_length must be an integer"),
    ({"temperature": -1.0}, "temperature must be a number of at least 0"),
    ({"threshold": 1.5}, "threshold must be a number from 0 to 1"),
    ({"seed": -1}, "seed must be an integer"),
    ({"gen_length": 128, "steps": 16}, "7 tokens of a prompt and gen_length 128: the model takes up to 128"),
    ({"input_ids": torch.tensor([3, 160])}, "token id 160: the model's vocabulary is 0 .. 159"),
    ({"input_ids": torch.tensor([3, -1])}, "token id -1"),
    ({"input_ids": torch.tensor([3, MASK])}, "input_ids has the mask, 150"),
    ({"input_ids": torch.tensor([], dtype=torch.int64)}, "at least one"),
    ({"input_ids": torch.tensor([0.5])}, "input_ids must be int64"),
    ({"forced": torch.tensor([1, 2])}, r"forced must be int64 \[16\]"),
    ({"forced": torch.full((16,), MASK)}, "forced has an id that is none of"),
]


def test_bad_requests_are_refused_and_others_served(model: Model):
    good = request(texts()[0])
    (wanted,) = model.run([good])
    given = [good, *(request(texts()[1]) | change for change, _ in BAD), good]
    first, *errors, last = model.run(given, errors="return")
    for found, (change, says) in zip(errors, BAD, strict=True):
        assert isinstance(found, RequestError), change
        with pytest.raises(RequestError, match=says):
            raise found
    assert all(torch.equal(one["token_ids"], wanted["token_ids"]) for one in (first, last))


def test_names_and_counts_of_the_real_checkpoint():
    with torch.device("meta"):
        model = LLaDAModelLM(REAL)
    places, unnamed = destinations(model)
    assert not unnamed
    parts = LLAMA.values()
    top = "model.transformer."
    names = {f"{top}blocks.{i}.{part}.weight" for i in range(32) for part in parts}
    assert places.keys() == names | {f"{top}{part}.weight" for part in ("wte", "ln_f", "ff_out")}
    assert places[f"{top}ff_out.weight"].shape == [126464, 4096]
    assert places[f"{top}blocks.3.ff_out.weight"].shape == [4096, 12288]
    assert sum(p.numel() for p in model.parameters()) == 8_015_581_184
    assert sum(p.numel() for p in ours().parameters()) == 90_432


def test_a_checkpoint_folder(tmp_path: Path):
    weights = {name: tensor.clone().contiguous() for name, tensor in export_weights(ours())}
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    save_file(weights, tmp_path / "model.safetensors")
    loaded = Model(tmp_path, device="cpu")
    assert all(torch.equal(a, b) for a, b in zip(loaded.model.parameters(), ours().parameters(), strict=True))
    save_file({n: t for n, t in weights.items() if "1.up_proj" not in n}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"missing +model\.transformer\.blocks\.1\.up_proj\.weight"):
        Model(tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"block_type": "sequential"}, "block_type: 'sequential'"),
        ({"n_kv_heads": 2}, "n_kv_heads: 2"),
        ({"rope": False}, "rope: must be true"),
        ({"weight_tying": True}, "weight_tying: True is not supported"),
        ({"mask_token_id": 160}, "mask_token_id: 160"),
    ],
)
def test_configurations_that_are_refused(change: dict[str, Any], says: str):
    with pytest.raises(UsageError, match=says):
        LLaDAModelLM(TINY | change)
