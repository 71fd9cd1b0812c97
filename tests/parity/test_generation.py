"""Greedy text of the engine against transformers' generate: batched, chunked, preempted, run-ahead on.

Float32 on the CPU, tiny models with randomised weights, saved by transformers and loaded from the folder.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from fastkernels import LLM, SamplingParams
from fastkernels.nn.random_weights import random_weights
from tests.parity import test_gemma4, test_llama, test_mixtral

LENGTHS = (5, 17, 33, 2, 64, 1, 9, 40)
GREEDY = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
RELATIVES = ("tied", "qwen2", "qwen2-window", "qwen3", "mistral", "yarn", "mixtral")
RELATIVES += ("attention-bias", "qwen2-some-windows", "qwen3-layer-types", "gemma4")
OTHERS = {"mixtral": test_mixtral.reference, "gemma4": test_gemma4.reference}


def reference(name: str):
    return OTHERS[name]() if name in OTHERS else test_llama.reference(name)


def prompts(lengths=LENGTHS) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, 256, (n,), generator=generator).tolist() for n in lengths]


@lru_cache
def expected(name: str, max_tokens: int, lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    """transformers' greedy continuation of each prompt alone."""
    model = reference(name)
    texts = []
    for ids in prompts(lengths):
        with torch.inference_mode():
            out = model.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                do_sample=False,
                max_new_tokens=max_tokens,
                min_new_tokens=max_tokens,
                eos_token_id=None,
                pad_token_id=0,
            )
        texts.append(out[0, len(ids) :].tolist())
    return texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """folder(name): the model as transformers saves it."""

    @lru_cache
    def save(name: str) -> Path:
        path = tmp_path_factory.mktemp(name)
        reference(name).save_pretrained(path)
        return path

    return save


def generate(llm: LLM, ids: list[list[int]], params=GREEDY, **kwargs) -> list[list[int]]:
    return [out.outputs[0].token_ids for out in llm.generate(ids, params, **kwargs)]


def assert_nothing_is_held(llm: LLM) -> None:
    stats = llm.stats()
    assert stats["free_cache_blocks"] == [blocks - 1 for blocks in stats["cache_blocks"]]


@pytest.mark.parametrize(
    "engine",
    [
        {},
        {"max_num_batched_tokens": 16},
        {"num_kv_cache_blocks": 40, "block_size": 4, "max_num_batched_tokens": 24},
        {"max_num_seqs": 3},
        {"block_size": 1},
    ],
    ids=["batched", "chunked", "preempted", "three-rows", "block-of-one"],
)
@pytest.mark.usefixtures("nobody_grows")
def test_greedy_text_is_that_of_transformers(folder, engine):
    llm = LLM(folder("llama3"), device="cpu", **engine)
    assert generate(llm, prompts()) == expected("llama3", 64)
    assert (llm.stats()["preemptions"] > 0) == ("num_kv_cache_blocks" in engine)
    assert_nothing_is_held(llm)


@pytest.mark.parametrize("name", RELATIVES)
@pytest.mark.parametrize("blocks", [None, 26], ids=["roomy", "tight"])
def test_relatives_continue_as_in_transformers(folder, name, blocks):
    llm = LLM(folder(name), device="cpu", num_kv_cache_blocks=blocks, block_size=4, max_num_batched_tokens=20)
    lengths = (5, 17, 33, 2)
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    assert generate(llm, prompts(lengths), params) == expected(name, 24, lengths)
    assert_nothing_is_held(llm)


def test_stop_token_ends_a_request_and_only_that_one(folder):
    llm = LLM(folder("llama3"), device="cpu")
    texts = expected("llama3", 64)
    stop = texts[2][20]
    assert stop not in texts[2][:20], "choose another position"
    params = [
        SamplingParams(
            temperature=0.0, max_tokens=64, ignore_eos=True, stop_token_ids=[stop] if i == 2 else None
        )
        for i in range(len(LENGTHS))
    ]
    outputs = llm.generate(prompts(), params)
    assert outputs[2].outputs[0].token_ids == texts[2][:21]
    assert outputs[2].outputs[0].finish_reason == "stop"
    others = [out.outputs[0] for i, out in enumerate(outputs) if i != 2]
    assert [o.token_ids for o in others] == texts[:2] + texts[3:]
    assert {o.finish_reason for o in others} == {"length"}


@pytest.mark.parametrize(
    "engine",
    [{}, {"num_kv_cache_blocks": 40, "block_size": 4, "max_num_batched_tokens": 24}],
    ids=["roomy", "preempted"],
)
@pytest.mark.usefixtures("nobody_grows")
def test_forced_decoding_agrees_with_itself_and_records_log_probabilities(folder, engine):
    llm = LLM(folder("llama3"), device="cpu", **engine)
    texts = expected("llama3", 64)
    params = SamplingParams(temperature=0.0, max_tokens=64, logprobs=5, prompt_logprobs=2)
    requests = llm.generate(prompts(), params, forced=texts)
    outputs = [request.outputs[0] for request in requests]
    assert [o.token_ids for o in outputs] == texts
    assert (llm.stats()["preemptions"] > 0) == bool(engine)
    for ids, output, request in zip(prompts(), outputs, requests):
        every = reference("llama3")(torch.tensor([ids + output.token_ids])).logits[0].detach().log_softmax(-1)
        assert request.prompt_logprobs[0] is None
        for here, found, token in zip(every, request.prompt_logprobs[1:], ids[1:]):
            assert {*here.topk(2).indices.tolist(), token} == set(found)
            for one, its in found.items():
                assert its.logprob == pytest.approx(float(here[one]), abs=1e-4)
                assert its.rank == int((here >= here[one]).sum())
        assert len(request.prompt_logprobs) == len(ids)
        best = every[len(ids) - 1 : -1].topk(5)
        assert len(output.logprobs) == 64
        for position, (values, tokens) in enumerate(zip(best.values.tolist(), best.indices.tolist())):
            assert list(output.logprobs[position]) == tokens
            found = output.logprobs[position].values()
            assert [one.logprob for one in found] == pytest.approx(values, abs=1e-4)
            assert [one.rank for one in found] == [1, 2, 3, 4, 5]


def test_forced_decoding_follows_the_forced_ids(folder):
    """Along other ids the choices are those of the model on these ids, position by position."""
    llm = LLM(folder("llama3"), device="cpu", max_num_batched_tokens=32)
    forced = [[(7 * i + 13 * k) % 256 for k in range(30)] for i in range(len(LENGTHS))]
    outputs = generate(llm, prompts(), SamplingParams(temperature=0.0), forced=forced)
    for ids, given, chosen in zip(prompts(), forced, outputs):
        logits = reference("llama3")(torch.tensor([ids + given])).logits[0, len(ids) - 1 : -1]
        assert chosen == logits.argmax(-1).tolist()


def test_seeded_sampling_does_not_depend_on_the_batch(folder):
    params = [
        SamplingParams(temperature=0.8, top_k=40, top_p=0.9, max_tokens=32, seed=i, ignore_eos=True)
        for i in range(len(LENGTHS))
    ]
    together = generate(LLM(folder("llama3"), device="cpu"), prompts(), params)
    tight = LLM(
        folder("llama3"), device="cpu", num_kv_cache_blocks=40, block_size=4, max_num_batched_tokens=24
    )
    assert generate(tight, prompts(), params) == together
    alone = LLM(folder("llama3"), device="cpu", max_num_seqs=1)
    assert [generate(alone, [ids], p)[0] for ids, p in zip(prompts(), params)] == together
    other = [
        SamplingParams(temperature=0.8, top_k=40, top_p=0.9, max_tokens=32, seed=i + 100, ignore_eos=True)
        for i in range(len(LENGTHS))
    ]
    assert generate(alone, prompts(), other) != together


def test_unseeded_sampling_differs_between_requests_and_repeats_with_the_engine_seed(folder):
    params = SamplingParams(temperature=1.0, max_tokens=16, ignore_eos=True)
    twice = [prompts()[0], prompts()[0]]
    first, second = (generate(LLM(folder("llama3"), device="cpu", seed=5), twice, params) for _ in range(2))
    assert first == second
    assert first[0] != first[1]


SHAPED = (
    {"repetition_penalty": 1.4},
    {},
    {"presence_penalty": 1.5, "frequency_penalty": 0.25},
    {"min_tokens": 10},
    {"frequency_penalty": -0.5},
    {"presence_penalty": 2, "repetition_penalty": 0.8, "min_tokens": 30},
    {"min_p": 0.2},
    {},
)


def shaped_text(name: str, prompt: list[int], params: SamplingParams, stops: tuple[int, ...]) -> list[int]:
    """The greedy text under the definition of each parameter, from transformers' logits."""
    output: list[int] = []
    while len(output) < params.max_tokens and not (output and output[-1] in stops):
        with torch.inference_mode():
            logits = reference(name)(torch.tensor([prompt + output])).logits[0, -1]
        logits = logits.clone()
        for token in set(prompt + output):
            factor = params.repetition_penalty
            logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
        for token in set(output):
            logits[token] -= params.presence_penalty + params.frequency_penalty * output.count(token)
        if len(output) < params.min_tokens:
            logits[list(stops)] = -torch.inf
        output.append(int(logits.argmax()))
    return output


@pytest.mark.parametrize(
    "engine",
    [{}, {"num_kv_cache_blocks": 40, "block_size": 4, "max_num_batched_tokens": 24}],
    ids=["roomy", "preempted"],
)
@pytest.mark.usefixtures("nobody_grows")
def test_penalties_and_min_tokens_give_the_text_of_their_definition(folder, engine):
    """Each row has its own; rows that ask for nothing keep their text."""
    llm = LLM(folder("llama3"), device="cpu", **engine)
    texts = expected("llama3", 64)
    stop = texts[3][4]  # early in the text of the row with min_tokens
    params = [
        SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, stop_token_ids=[stop, 2], **shape)
        for shape in SHAPED
    ]
    found = generate(llm, prompts(), params)
    wanted = [shaped_text("llama3", ids, p, (stop, 2)) for ids, p in zip(prompts(), params)]
    assert found == wanted
    assert len(found[3]) > 10, "min_tokens held the stop back"
    plain = [SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, stop_token_ids=[stop, 2])] * len(
        LENGTHS
    )
    unshaped = generate(llm, prompts(), plain)
    assert [a != b for a, b in zip(found, unshaped)] == [True, False, True, True, True, True, False, False]
    assert (llm.stats()["preemptions"] > 0) == bool(engine)
    assert_nothing_is_held(llm)


def test_repetition_penalty_is_that_of_transformers(folder):
    llm = LLM(folder("llama3"), device="cpu")
    params = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True, repetition_penalty=1.7)
    for ids, text in zip(prompts(), generate(llm, prompts(), params)):
        out = reference("llama3").generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            do_sample=False,
            max_new_tokens=32,
            min_new_tokens=32,
            eos_token_id=None,
            pad_token_id=0,
            repetition_penalty=1.7,
        )
        assert text == out[0, len(ids) :].tolist()


def test_seeded_shaped_sampling_does_not_depend_on_the_batch(folder):
    shapes = [{"min_p": 0.1}, {}, {"presence_penalty": 1.0}, {"top_k": 9, "min_p": 0.05, "min_tokens": 20}]
    params = [
        SamplingParams(temperature=0.9, max_tokens=32, seed=i, **shapes[i % 4]) for i in range(len(LENGTHS))
    ]
    together = generate(LLM(folder("llama3"), device="cpu"), prompts(), params)
    alone = LLM(folder("llama3"), device="cpu", max_num_seqs=1)
    assert [generate(alone, [ids], p)[0] for ids, p in zip(prompts(), params)] == together


@pytest.mark.parametrize("name", ["llama3", "mistral"])
@pytest.mark.parametrize("blocks", [None, 60], ids=["roomy", "tight"])
def test_prefix_caching_changes_no_text(folder, name, blocks):
    """Twice the same prompts, then their answers as prompts: hits everywhere, and the text of no cache."""
    engine = {"num_kv_cache_blocks": blocks, "block_size": 4, "max_num_batched_tokens": 24}
    plain, cached = (
        LLM(folder(name), device="cpu", enable_prefix_caching=on, **engine) for on in (False, True)
    )
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    first = generate(cached, prompts(), params)
    assert first == expected(name, 24)
    found = cached.stats()["prefix_tokens_found"]
    assert generate(cached, prompts(), params) == first
    assert cached.stats()["prefix_tokens_found"] > found
    longer = [ids + text for ids, text in zip(prompts(), first)]
    assert generate(cached, longer, params) == generate(plain, longer, params)
    assert plain.stats()["prefix_tokens_found"] == 0
    assert_nothing_is_held(cached)


# Fields that real files leave out; the classes' values differ from those of a neighbour, or from None.
LEFT_OUT = {
    "mistral": (
        "num_key_value_heads",
        "max_position_embeddings",
        "rms_norm_eps",
        "sliding_window",
        "rope_theta",
    ),
    "mixtral": ("num_key_value_heads", "max_position_embeddings", "num_experts_per_tok", "rope_theta"),
    "qwen2": ("max_position_embeddings", "sliding_window", "max_window_layers", "rope_theta", "hidden_act"),
    "llama": ("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings"),
}


@pytest.mark.parametrize("model_type", LEFT_OUT)
def test_what_a_configuration_leaves_out_is_transformers_default(tmp_path, model_type):
    """The folder as transformers reads it, with the same text."""
    small = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 32 if model_type == "qwen2" else 16}
    config = AutoConfig.for_model(model_type, **small, **heads, use_sliding_window=model_type == "qwen2")
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    random_weights(model, seed=0)
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    written = json.loads(file.read_text())
    gone = {*LEFT_OUT[model_type], "rope_parameters", "layer_types"}
    file.write_text(json.dumps({key: value for key, value in written.items() if key not in gone}))

    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    llm = LLM(tmp_path, device="cpu", max_num_seqs=2, max_model_len=128)
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    for ids, text in zip(prompts((5, 33)), generate(llm, prompts((5, 33)), params), strict=True):
        with torch.inference_mode():
            found = theirs.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                do_sample=False,
                max_new_tokens=24,
                min_new_tokens=24,
                eos_token_id=None,
                pad_token_id=0,
            )
        assert text == found[0, len(ids) :].tolist()
