"""The public face: prompts in all forms, bad requests, stop strings, refusals with numbers, counters."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

import fastkernels
from fastkernels import LLM, SamplingParams, registry
from fastkernels.engine.core.checks import device_of
from fastkernels.engine.core.memory import require_weights_fit
from fastkernels.engine.core.request import RequestOutput
from fastkernels.errors import FastKernelsError, MachineError, RequestError, UsageError
from fastkernels.nn.weights import export_weights

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def tokenizer() -> PreTrainedTokenizerFast:
    """Token i is the word `w<i>`."""
    model = Tokenizer(WordLevel({f"w{i}": i for i in range(256)}, unk_token="w0"))
    model.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=model, unk_token="w0")


def text_of(ids: list[int]) -> str:
    """Of an answer, behind its prompt."""
    return "".join(f" w{i}" for i in ids)


def make(**kwargs) -> LLM:
    return LLM("llama", **{"config": "tiny", "device": "cpu", "max_num_seqs": 4, **kwargs})


@pytest.fixture(scope="module")
def llm() -> LLM:
    return make()


@pytest.fixture(scope="module")
def talker() -> LLM:
    return make(tokenizer=tokenizer())


def ids(outputs) -> list[list[int]]:
    return [out.outputs[0].token_ids for out in outputs]


def test_package_exports_without_torch():
    code = "import sys, fastkernels; assert 'torch' not in sys.modules; print(dir(fastkernels))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "LLM" in done.stdout
    with pytest.raises(AttributeError, match="no attribute 'LMM'"):
        _ = fastkernels.LMM


def test_prompt_forms(llm):
    one = ids(llm.generate([3, 4, 5], GREEDY))
    assert len(one) == 1
    assert ids(llm.generate([[3, 4, 5]], GREEDY)) == one
    assert ids(llm.generate({"prompt_token_ids": [3, 4, 5]}, GREEDY)) == one
    assert ids(llm.generate([{"prompt_token_ids": [3, 4, 5]}, [3, 4, 5]], [GREEDY, GREEDY])) == one * 2
    assert llm.generate([], GREEDY) == []


def test_outputs_are_in_order_and_complete(llm):
    prompts = [[i, i + 1] for i in range(3, 13)]
    outputs = llm.generate(prompts, GREEDY)
    assert [out.prompt_token_ids for out in outputs] == prompts
    assert [out.request_id for out in outputs] == [str(i) for i in range(10)]
    assert all(out.finished and out.outputs[0].finish_reason == "length" for out in outputs)
    assert ids(outputs) == [ids(llm.generate([p], GREEDY))[0] for p in prompts]


def test_default_parameters_are_vllms(llm):
    assert len(llm.generate([3, 4])[0].outputs[0].token_ids) <= 16
    assert SamplingParams() == SamplingParams(temperature=1.0, top_p=1.0, top_k=0, max_tokens=16)


def test_progress_counts_every_request(llm):
    seen = []
    llm.generate([[3], [4], [5]], GREEDY, on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        ([], "the prompt is empty"),
        (5, "must be integers"),
        ([3, 256], r"ids from 3 to 256; the vocabulary has 0\.\.255"),
        ([-1], "ids from -1"),
        (["a"], "must be integers"),
        ([1.5], "must be integers"),
        ([True], "must be integers"),
        ([[1], [2, 3]], "must be integers"),
        (list(range(256)), "max_model_len is 256"),
        ("text", "needs a tokenizer"),
        ({"prompt": "x"}, "a text prompt needs a tokenizer"),
        ({"prompt": 5}, "must be integers"),
        ({"prompt": None}, r"needs prompt \(text or token ids\) or prompt_token_ids"),
        ({}, r"needs prompt \(text or token ids\) or prompt_token_ids"),
        ({"prompt_token_ids": [3], "cache_salt": "x"}, "takes prompt, .* not 'cache_salt'"),
        (b"w3", "must be integers"),
        (torch.ones(3, dtype=torch.bfloat16), "must be integers"),
        (torch.ones(3, requires_grad=True), "must be integers"),
        (torch.ones(3, dtype=torch.int64, device="meta"), "must be integers"),
        ([torch.ones(1, dtype=torch.bfloat16)], "must be integers"),
    ],
    ids=str,
)
def test_bad_request_is_named_and_the_engine_goes_on(llm, prompt, problem):
    before = llm.stats()["steps"]
    with pytest.raises(RequestError, match=f"^request 1: .*{problem}"):
        llm.generate([[3, 4], prompt, [5]], GREEDY)
    assert llm.stats()["steps"] == before, "something was launched"
    assert len(ids(llm.generate([[3, 4], [5]], GREEDY))) == 2


def test_refused_requests_of_a_call_stand_in_their_places_and_the_others_are_served(llm):
    prompts: list[Any] = [[3, 4], [256], [5], "text"]
    limits = [SamplingParams(temperature=0.0, max_tokens=length) for length in (3, 4, 5, 6)]
    ended, pieces = [], []
    found = llm.generate(
        prompts, limits, errors="return", on_progress=lambda *seen: ended.append(seen), on_token=pieces.append
    )
    assert [type(one) for one in found] == [RequestOutput, RequestError, RequestOutput, RequestError]
    assert str(found[1]).startswith("the prompt has ids from 256")
    assert "needs a tokenizer" in str(found[3])
    assert ids([found[0], found[2]]) == ids(llm.generate(prompts[::2], limits[::2]))
    assert [found[0].request_id, found[2].request_id] == ["0", "2"]
    assert {piece.request_id for piece in pieces} == {"0", "2"}
    assert ended[-1] == (4, 4)
    assert all(isinstance(one, RequestError) for one in llm.generate([[256], []], GREEDY, errors="return"))
    with pytest.raises(UsageError, match="errors='skip': there are 'raise' and 'return'"):
        llm.generate([[3]], GREEDY, errors="skip")


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer_that_cannot_be_loaded_is_told_before_a_step(tmp_path, llm, file):
    weights = {name: tensor.contiguous() for name, tensor in export_weights(llm.model)}
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(llm.source.config))
    (tmp_path / file).write_text("{")
    mute = LLM(tmp_path, device="cpu", max_num_seqs=4)
    for prompt in ("w3", [3, 4]):
        with pytest.raises(RequestError, match=r"^request 0: the tokenizer in .* Copy its files again"):
            mute.generate([prompt], GREEDY)
        with pytest.raises(RequestError, match="cannot be loaded"):
            mute.add_request(prompt, GREEDY)
    ids_only = dataclasses.replace(GREEDY, detokenize=False)
    refused, served = mute.generate(["w3", [3, 4]], [GREEDY, ids_only], errors="return")
    assert isinstance(refused, RequestError)
    assert ids([served]) == ids(llm.generate([[3, 4]], GREEDY))


def test_what_the_tokenizer_refuses_is_named(talker):
    with pytest.raises(RequestError, match=r"^request 1: the tokenizer refuses '\\ud800'"):
        talker.generate(["w3", "\ud800"], GREEDY)


def test_numbers_of_parameters_and_prompts_must_agree(llm):
    with pytest.raises(RequestError, match="1 sampling_params for 2 prompts"):
        llm.generate([[3], [4]], [GREEDY])
    with pytest.raises(RequestError, match="1 forced for 2 prompts"):
        llm.generate([[3], [4]], GREEDY, forced=[[1]])
    with pytest.raises(RequestError, match="request 0: forced is empty"):
        llm.generate([[3]], GREEDY, forced=[[]])
    with pytest.raises(RequestError, match="need a tokenizer"):
        llm.generate([[3]], SamplingParams(stop="x"))
    for nothing in (5, torch.tensor(5)):
        with pytest.raises(RequestError, match="prompts are text or lists"):
            llm.generate(nothing, GREEDY)
    with pytest.raises(RequestError, match=r"request 0: .* must be integers"):
        llm.generate(b"w3", GREEDY)
    with pytest.raises(RequestError, match="sampling_params must be one for each"):
        llm.generate([[3]], {"temperature": 0})
    with pytest.raises(RequestError, match="request 0: sampling_params must be SamplingParams"):
        llm.generate([[3]], ["greedy"])
    with pytest.raises(RequestError, match=r"request 0: .* must be integers"):
        llm.generate([[3]], GREEDY, forced=[["x"]])


def test_generation_ends_at_the_models_length(llm):
    output = llm.generate([list(range(250))], SamplingParams(temperature=0, max_tokens=99, ignore_eos=True))
    assert len(output[0].outputs[0].token_ids) == 6
    assert output[0].outputs[0].finish_reason == "length"


def test_request_that_can_never_fit_the_cache_is_refused_with_numbers():
    small = make(num_kv_cache_blocks=4)
    with pytest.raises(
        RequestError, match="40 prompt tokens and 20 more do not fit the cache of 3 blocks of 16"
    ):
        small.generate([list(range(40))], SamplingParams(max_tokens=20))
    assert len(ids(small.generate([list(range(40))], GREEDY))[0]) == 6


def test_end_of_sequence_stops_unless_ignored(llm):
    prompt = [3, 4, 5]
    free = SamplingParams(temperature=1.0, seed=1, max_tokens=100, ignore_eos=True)
    text = ids(llm.generate(prompt, free))[0]
    while 2 not in text:  # the tiny model's end-of-sequence id
        free = SamplingParams(temperature=1.0, seed=free.seed + 1, max_tokens=100, ignore_eos=True)
        text = ids(llm.generate(prompt, free))[0]
    stopped = llm.generate(prompt, SamplingParams(temperature=1.0, seed=free.seed, max_tokens=100))
    assert stopped[0].outputs[0].token_ids == text[: text.index(2) + 1]
    assert stopped[0].outputs[0].finish_reason == "stop"


def test_text_in_and_out(talker):
    by_text = talker.generate("w3 w4 w5", GREEDY)[0]
    by_ids = talker.generate([3, 4, 5], GREEDY)[0]
    assert by_text.prompt == "w3 w4 w5"
    assert by_text.prompt_token_ids == [3, 4, 5]
    assert by_text.outputs[0].token_ids == by_ids.outputs[0].token_ids
    assert by_text.outputs[0].text == text_of(by_ids.outputs[0].token_ids)
    (by_key,) = talker.generate({"prompt": "w3 w4 w5"}, GREEDY)
    assert by_key == by_text
    (by_key,) = talker.generate({"prompt": [3, 4, 5]}, GREEDY)
    assert by_key == by_ids


@pytest.mark.parametrize("blocks", [None, 20], ids=["roomy", "preempted"])
@pytest.mark.usefixtures("nobody_grows")
def test_stop_string_ends_one_request_and_is_cut(blocks):
    talker = make(tokenizer=tokenizer(), num_kv_cache_blocks=blocks, block_size=4)
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    prompts = [[3, 4, 5], [8, 9], [12], [15, 16]]
    texts = ids(talker.generate(prompts, params))
    stop = f"w{texts[1][5]} w{texts[1][6]}"
    mixed = [
        params,
        SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, stop=["zzz", stop]),
        params,
        params,
    ]
    outputs = talker.generate(prompts, mixed)
    ended = outputs[1].outputs[0]
    assert ended.finish_reason == "stop"
    assert ended.token_ids == texts[1][:7]
    assert ended.text == text_of(texts[1][:5]) + " "
    assert [t for i, t in enumerate(ids(outputs)) if i != 1] == [t for i, t in enumerate(texts) if i != 1]
    assert talker.stats()["free_cache_blocks"] == [talker.stats()["cache_blocks"][0] - 1]
    assert (talker.stats()["preemptions"] > 0) == (blocks is not None)


def test_no_text_where_nobody_wants_it(talker):
    (out,) = talker.generate("w1 w2", SamplingParams(temperature=0.0, max_tokens=4, detokenize=False))
    assert (len(out.outputs[0].token_ids), out.outputs[0].text) == (4, "")
    pieces = []
    talker.generate("w1 w2", SamplingParams(max_tokens=4, detokenize=False), on_token=pieces.append)
    assert [piece.outputs[0].text for piece in pieces] == [""] * 4
    with pytest.raises(RequestError, match=r"detokenize=False: must be .* True with stop strings"):
        SamplingParams(detokenize=False, stop="w1")


def test_stop_token_is_among_the_ids_but_has_no_text(talker):
    free = talker.generate([3, 4, 5], GREEDY)[0].outputs[0]
    stop = free.token_ids[3]
    assert stop not in free.token_ids[:3]
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, stop_token_ids=[255, stop])
    ended = talker.generate([3, 4, 5], params)[0].outputs[0]
    assert ended.token_ids == free.token_ids[:4]
    assert ended.text == text_of(free.token_ids[:3])
    kept = dataclasses.replace(params, include_stop_str_in_output=True)
    assert talker.generate([3, 4, 5], kept)[0].outputs[0].text == text_of(free.token_ids[:4])
    assert (ended.finish_reason, ended.stop_reason) == ("stop", stop)
    assert (free.finish_reason, free.stop_reason) == ("length", None)


def test_tiny_temperature_is_greedy_and_a_large_top_k_is_all(llm):
    tiny = SamplingParams(temperature=1e-30, max_tokens=6, ignore_eos=True)
    assert ids(llm.generate([3, 4, 5], tiny)) == ids(llm.generate([3, 4, 5], GREEDY))
    free, wide = (
        SamplingParams(temperature=0.7, seed=5, max_tokens=6, ignore_eos=True, top_k=k) for k in (0, 2**40)
    )
    assert ids(llm.generate([3, 4, 5], wide)) == ids(llm.generate([3, 4, 5], free))


def test_max_tokens_none_goes_on_to_the_models_length(llm):
    params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    assert len(ids(llm.generate(list(range(240)), params))[0]) == 16


def test_log_probabilities_are_the_models_own_under_penalties(llm):
    plain = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, logprobs=3)
    shaped = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, logprobs=3, repetition_penalty=5)
    first, second = llm.generate([[3, 4, 5]] * 2, [plain, shaped])
    best = list(first.outputs[0].logprobs[0].items())
    assert list(second.outputs[0].logprobs[0].items())[:3] == best


def test_log_probabilities_of_sampled_tokens(llm):
    params = SamplingParams(temperature=1.5, seed=3, max_tokens=8, ignore_eos=True, logprobs=2)
    output = llm.generate([3, 4, 5], params)[0].outputs[0]
    own = [best[token].logprob for token, best in zip(output.token_ids, output.logprobs)]
    assert output.cumulative_logprob == pytest.approx(sum(own))
    for token, best in zip(output.token_ids, output.logprobs, strict=True):
        assert token in best
        assert len(best) in (2, 3)
        first, second, *_ = best.values()
        assert first.logprob > second.logprob
        assert (first.rank, second.rank) == (1, 2)
        assert best[token].logprob < 0
        assert best[token].rank > 2 or len(best) == 2
        assert first.decoded_token is None, "there is no tokenizer"
    assert llm.generate([3], GREEDY)[0].outputs[0].logprobs is None


def test_rank_counts_the_tokens_that_are_as_probable(llm):
    drawn = SamplingParams(temperature=1.5, seed=3, max_tokens=20, ignore_eos=True, logprobs=256)
    every = llm.generate([3, 4, 5], drawn)[0].outputs[0]
    own = llm.generate([3, 4, 5], dataclasses.replace(drawn, logprobs=0))[0].outputs[0]
    assert len({best[token].rank for token, best in zip(every.token_ids, every.logprobs)}) > 5
    for token, best, alone in zip(every.token_ids, every.logprobs, own.logprobs, strict=True):
        assert alone == {token: best[token]}


@pytest.mark.parametrize("engine", [{}, {"max_num_batched_tokens": 7}], ids=["whole", "chunks"])
@pytest.mark.parametrize("prefixes", [False, True])
def test_log_probabilities_of_a_prompt_are_those_of_decoding_along_it(llm, engine, prefixes):
    prompts = [[3, 4, 5, 9, 200, 17] * 6, [8], list(range(3, 30))]
    scorer = make(block_size=4, enable_prefix_caching=prefixes, **engine)
    scorer.generate(prompts, GREEDY)
    params = dataclasses.replace(GREEDY, prompt_logprobs=3)
    outputs = scorer.generate([*prompts, [5, 6]], [params] * 3 + [GREEDY])
    assert ids(outputs) == ids(llm.generate([*prompts, [5, 6]], GREEDY))
    assert outputs[3].prompt_logprobs is None
    assert outputs[1].prompt_logprobs == [None]
    every = dataclasses.replace(GREEDY, logprobs=256)
    for prompt, output in zip(prompts, outputs):
        scores = output.prompt_logprobs
        assert len(scores) == len(prompt)
        assert scores[0] is None
        decoded = llm.generate([prompt[:1]], every, forced=[prompt[1:]]) if prompt[1:] else ()
        for along in decoded:
            for token, found, wanted in zip(prompt[1:], scores[1:], along.outputs[0].logprobs, strict=True):
                assert list(found) == list(dict.fromkeys([*list(wanted)[:3], token]))
                for one, its in found.items():
                    assert its.logprob == pytest.approx(wanted[one].logprob, abs=1e-4)
                    assert its.rank == wanted[one].rank


def test_decoded_tokens_of_an_answer_make_up_its_text(talker):
    params = dataclasses.replace(GREEDY, logprobs=2, prompt_logprobs=0)
    (output,) = talker.generate("w3 w4", params)
    answer = output.outputs[0]
    own = [best[token].decoded_token for token, best in zip(answer.token_ids, answer.logprobs)]
    assert "".join(own) == answer.text
    assert output.prompt_logprobs[1][4].decoded_token == " w4"
    silent = dataclasses.replace(params, detokenize=False)
    assert talker.generate("w3", silent)[0].outputs[0].logprobs[0].popitem()[1].decoded_token is None


def test_answers_of_one_request_are_those_of_seeds_that_count_on(llm):
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=8, ignore_eos=True, n=3, prompt_logprobs=0)
    first, second = llm.generate([[3, 4, 5], [9]], [params, dataclasses.replace(params, n=1)])
    alone = [llm.generate([3, 4, 5], dataclasses.replace(params, n=1, seed=seed)) for seed in (5, 6, 7)]
    assert [answer.index for answer in first.outputs] == [0, 1, 2]
    assert [answer.token_ids for answer in first.outputs] == [ids(one)[0] for one in alone]
    assert len({tuple(answer.token_ids) for answer in first.outputs}) == 3
    for found, wanted in zip(first.prompt_logprobs[1:], alone[0][0].prompt_logprobs[1:], strict=True):
        assert list(found) == list(wanted)
        for one, other in zip(found.values(), wanted.values()):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)  # sums round otherwise in company
    assert len(second.outputs) == 1
    free = dataclasses.replace(params, seed=None)
    assert len({tuple(one.token_ids) for one in llm.generate([3], free)[0].outputs}) == 3


def test_stop_string_stays_in_the_text_where_it_is_asked_for(talker):
    free = talker.generate([3, 4, 5], GREEDY)[0].outputs[0]
    stop = f"{free.token_ids[2]} w"
    params = dataclasses.replace(GREEDY, stop=stop, include_stop_str_in_output=True)
    pieces = []
    (kept,) = talker.generate([3, 4, 5], params, on_token=pieces.append)
    assert kept.outputs[0].text == text_of(free.token_ids[:3]) + " w"
    assert "".join(piece.outputs[0].text for piece in pieces) == kept.outputs[0].text
    assert kept.outputs[0].stop_reason == stop
    cut = talker.generate([3, 4, 5], dataclasses.replace(params, include_stop_str_in_output=False))
    assert cut[0].outputs[0].text == kept.outputs[0].text.removesuffix(stop)


def test_a_bar_counts_requests(llm, capsys):
    class Bar:
        made, count = [], 0

        def __init__(self, **options):
            self.made.append((self, options))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def update(self, count):
            self.count += count

    llm.generate([[3], [4], [256]], GREEDY, use_tqdm=Bar, errors="return")
    ((bar, options),) = Bar.made
    assert (bar.count, options["total"]) == (3, 3)
    capsys.readouterr()
    llm.generate([[3], [4]], GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == ""
    llm.generate([[3], [4]], GREEDY)
    assert "2/2" in capsys.readouterr().err
    with pytest.raises(UsageError, match="use_tqdm='yes'"):
        llm.generate([[3]], GREEDY, use_tqdm="yes")


TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "{{ m.content }} {% endfor %}{% if add_generation_prompt %}w9{% endif %}{{ tail }}"
)


def test_chat_makes_the_prompt_by_the_template(talker):
    hello = [{"role": "user", "content": "w3 w4"}]
    with pytest.raises(RequestError, match="request 0: the tokenizer has no chat template: give one as"):
        talker.chat(hello, GREEDY)
    (one,) = talker.chat(hello, GREEDY, chat_template=TEMPLATE)
    assert (one.prompt, one.prompt_token_ids) == ("w3 w4 w9", [3, 4, 9])
    assert ids([one]) == ids(talker.generate([3, 4, 9], GREEDY))
    own = tokenizer()
    own.chat_template = TEMPLATE
    talker = make(tokenizer=own)
    parts = [{"role": "user", "content": [{"type": "text", "text": "w3"}, {"type": "text", "text": "w4"}]}]
    several = talker.chat([hello, [*hello, {"role": "assistant", "content": "w5"}], parts], GREEDY)
    assert [out.prompt_token_ids for out in several] == [[3, 4, 9], [3, 4, 5, 9], [3, 4, 9]]
    options = {"add_generation_prompt": False, "chat_template_kwargs": {"tail": "w7"}}
    assert talker.chat(hello, GREEDY, **options)[0].prompt_token_ids == [3, 4, 7]
    (going_on,) = talker.chat(hello, GREEDY, add_generation_prompt=False, continue_final_message=True)
    assert going_on.prompt_token_ids == [3, 4]
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]
    for bad, problem in (
        ([{"role": "tool", "content": ""}], "request 0: the tokenizer refuses .* no tools"),
        (image, "the content of a message is text"),
        ("w3", "a message is {'role'"),
        (5, "a message is {'role'"),
        ([hello, 5], "a message is {'role'"),
        ([["w3"]], "a message is {'role'"),
        ([{"content": "w3"}], "a message is {'role'"),
    ):
        with pytest.raises(RequestError, match=problem):
            talker.chat(bad, GREEDY)


def test_the_tokenizer_can_be_had(llm):
    own = tokenizer()
    assert make(tokenizer=own).get_tokenizer() is own
    with pytest.raises(RequestError, match=r"get_tokenizer\(\) needs a tokenizer, and this model has none"):
        llm.get_tokenizer()
    with pytest.raises(RequestError, match="a chat needs a tokenizer"):
        llm.chat([{"role": "user", "content": "w3"}], GREEDY)


def test_failing_step_leaves_a_usable_engine(llm):
    layer = llm.model.get_submodule("layers.1")
    expected = ids(llm.generate([[3, 4], [5]], GREEDY))
    calls = []

    def fails(module, args):
        calls.append(1)
        if len(calls) == 3:
            raise ArithmeticError("a kernel crashed")

    handle = layer.register_forward_pre_hook(fails)
    try:
        with pytest.raises(ArithmeticError):
            llm.generate([[3, 4], [5]], GREEDY)
    finally:
        handle.remove()
    assert ids(llm.generate([[3, 4], [5]], GREEDY)) == expected
    assert llm.stats()["free_cache_blocks"] == [llm.stats()["cache_blocks"][0] - 1]


def test_stats_count_steps_and_say_why_they_were_eager():
    llm = make()
    llm.generate([[3, 4], [5]], GREEDY)
    stats = llm.stats()
    assert stats["steps"] == 6
    assert stats["graph_replays"] == 0
    assert stats["eager_steps"] == {"no graphs on cpu": 6}
    assert stats["weights_bytes"] == 4 * 162_240
    assert stats["cache_bytes"] == stats["cache_blocks"][0] * 16 * 2 * 2 * 16 * 4 * 3
    with llm.eager():
        llm.generate([[3]], GREEDY)
    assert llm.stats()["eager_steps"]["eager()"] == 6
    assert llm.runner.pool.disabled == "no graphs on cpu"


def test_cache_on_cpu_is_what_rows_can_use():
    assert make(max_model_len=64).stats()["cache_blocks"] == [4 * 4 + 1]
    config = dict(registry.architecture("llama").configs["tiny-mistral"].config)
    window = LLM(config, device="cpu", max_num_seqs=4, max_num_batched_tokens=32)
    assert window.stats()["cache_blocks"] == [4 * 3 + 2 + 1]


def test_dtype_and_device():
    llm = make(dtype="bfloat16")
    assert {p.dtype for p in llm.model.parameters()} == {torch.bfloat16}
    assert {pool.dtype for pool in llm._pools} == {torch.bfloat16}
    assert len(ids(llm.generate([[3, 4]], GREEDY))[0]) == 6
    assert make(dtype=torch.float64).generate([[3]], GREEDY)
    assert device_of("auto").type in ("cpu", "cuda")
    assert make(device="cpu:0").device == torch.device("cpu")


def test_seed_chooses_the_weights():
    first, again, other = (dict(export_weights(make(seed=s).model)) for s in (1, 1, 2))
    name = "model.norm.weight"
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])


@pytest.mark.parametrize(
    ("wrong", "error", "problem"),
    [
        ({"max_model_len": 257}, UsageError, "positions end at 256"),
        ({"max_model_len": 1}, UsageError, "at least 2"),
        ({"max_num_seqs": 0}, UsageError, "max_num_seqs=0"),
        ({"max_num_batched_tokens": 0}, UsageError, "max_num_batched_tokens=0"),
        ({"block_size": 0}, UsageError, "block_size=0"),
        ({"dtype": "int8"}, UsageError, "dtype='int8'"),
        ({"dtype": torch.int32}, UsageError, "dtype=torch.int32"),
        ({"dtype": ["float32"]}, UsageError, "expected auto, float32"),
        ({"device": "tpu"}, UsageError, "device='tpu'"),
        ({"device": None}, UsageError, "device=None"),
        ({"config": None, "size": "huge"}, UsageError, "size='huge'"),
        ({"config": 5}, UsageError, "No configuration of llama '5'"),
        ({"max_model_len": "8"}, UsageError, "max_model_len='8': must be an integer"),
        ({"max_num_seqs": "4"}, UsageError, "max_num_seqs='4': must be an integer of at least 1"),
        ({"max_num_batched_tokens": 2.5}, UsageError, "max_num_batched_tokens=2.5"),
        ({"block_size": True}, UsageError, "block_size=True"),
        ({"seed": -1}, UsageError, "seed=-1: must lie between 0 and"),
        ({"seed": "a"}, UsageError, "seed='a': must be an integer of at least 0"),
        ({"seed": 2**70}, UsageError, "must lie between 0 and"),
        ({"gpu_memory_utilization": 2}, UsageError, "gpu_memory_utilization=2: .* at most 1"),
        ({"gpu_memory_utilization": 0}, UsageError, "gpu_memory_utilization=0: .* above 0"),
        ({"gpu_memory_utilization": float("nan")}, UsageError, "gpu_memory_utilization=nan"),
        ({"num_kv_cache_blocks": 2}, MachineError, "2 blocks of 16 tokens"),
        ({"num_kv_cache_blocks": -1}, UsageError, "num_kv_cache_blocks=-1: must be at least 1"),
        ({"max_num_seqs": 10**9}, MachineError, r"tables of as many rows of .* Lower max_num_seqs"),
        ({"num_kv_cache_blocks": 10**9}, MachineError, r"take \d+\.\d GiB and \d+\.\d GiB are free on cpu"),
    ],
    ids=str,
)
def test_wrong_arguments_are_named(wrong, error, problem):
    with pytest.raises(error, match=problem):
        make(**wrong)


@pytest.mark.parametrize(
    ("options", "key"), [({}, "max_position_embeddings"), ({"max_model_len": 8}, "vocab_size")]
)
def test_a_configuration_without_what_it_needs_is_told_its_key(tmp_path, options, key):
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(UsageError, match=key):
        LLM(str(tmp_path), device="cpu", **options)


@pytest.mark.parametrize("model", [None, 5, ["llama"], b"llama"], ids=str)
def test_what_is_no_model_is_named(model):
    with pytest.raises(UsageError, match=r"model=.*: expected an architecture, folder"):
        LLM(model, device="cpu")


def test_weights_that_exceed_the_memory_are_refused_with_numbers():
    with pytest.raises(MachineError, match=r"weights take 1048576\.0 GiB and .* GiB are free on cpu"):
        require_weights_fit(1 << 50, torch.device("cpu"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_without_cuda_is_a_machine_error():
    with pytest.raises(FastKernelsError) as caught:
        make(device="cuda")
    assert caught.value.exit_code == 3
