"""The step loop: requests that come and go, streams, refusals and aborts in every state."""

from __future__ import annotations

import dataclasses

import pytest

from fastkernels import LLM, SamplingParams
from fastkernels.errors import RequestError, UsageError
from tests.unit.engine.test_llm import ids, make, tokenizer

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)


def finish(llm: LLM) -> dict[str, list]:
    """Step to the end; all outputs of each request."""
    outputs: dict[str, list] = {}
    while llm.has_unfinished_requests():
        for output in llm.step():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def assert_nothing_is_held(llm: LLM) -> None:
    stats, ledger = llm.stats(), llm._scheduler.ledger
    assert stats["free_cache_blocks"] == [blocks - 1 for blocks in stats["cache_blocks"]]
    assert sorted(ledger.free_rows) == list(range(1, len(ledger.serial_R)))
    assert ledger.is_idle
    assert not ledger.away


@pytest.fixture(scope="module")
def llm() -> LLM:
    return make()


def test_requests_added_between_steps_have_the_text_of_a_lone_run(llm):
    prompts = [[i, i + 1] for i in range(3, 13)]
    alone = ids(llm.generate(prompts, GREEDY))
    added, found = [], {}
    while len(found) < 10:
        if len(added) < 10:
            added.append(llm.add_request(prompts[len(added)], GREEDY))
        found |= {output.request_id: output for output in llm.step()}
    assert [found[name].outputs[0].token_ids for name in added] == alone
    assert all(output.finished and output.outputs[0].finish_reason == "length" for output in found.values())
    assert llm.step() == []
    assert_nothing_is_held(llm)


@pytest.mark.parametrize("blocks", [None, 14], ids=["roomy", "preempted"])
@pytest.mark.parametrize("stop", [None, "w4", "w1 w"], ids=str)
@pytest.mark.usefixtures("nobody_grows")
def test_pieces_of_a_stream_make_up_the_whole(blocks, stop):
    llm = make(tokenizer=tokenizer(), num_kv_cache_blocks=blocks, block_size=4)
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=40, ignore_eos=True, stop=stop, logprobs=1)
    prompts = ["w3 w4", "w5 w6 w7", "w8", "w9 w11 w12 w13"]
    whole = llm.generate(prompts, params)
    names = [llm.add_request(prompt, params, stream=True) for prompt in prompts]
    pieces = finish(llm)
    assert set(pieces) == set(names)
    for name, prompt, want in zip(names, prompts, whole):
        parts = pieces[name]
        assert [part.finished for part in parts] == [False] * (len(parts) - 1) + [True]
        assert {part.prompt for part in parts} == {prompt}
        assert all(part.outputs[0].token_ids for part in parts)
        assert [t for part in parts for t in part.outputs[0].token_ids] == want.outputs[0].token_ids
        assert [p for part in parts for p in part.outputs[0].logprobs] == want.outputs[0].logprobs
        assert "".join(part.outputs[0].text for part in parts) == want.outputs[0].text
        assert parts[-1].outputs[0].finish_reason == want.outputs[0].finish_reason
        assert parts[-1].outputs[0].stop_reason == want.outputs[0].stop_reason
    if stop is not None:
        assert {output.outputs[0].stop_reason for output in whole} >= {stop}
        assert not any(stop in output.outputs[0].text for output in whole)
    assert (llm.stats()["preemptions"] > 0) == (blocks is not None)
    assert_nothing_is_held(llm)


def test_answers_of_a_streamed_request_come_with_their_index():
    llm = make(tokenizer=tokenizer())
    params = SamplingParams(
        temperature=1.0, seed=4, max_tokens=30, n=3, stop="9", logprobs=0, prompt_logprobs=0
    )
    (whole,) = llm.generate("w3 w4", params)
    assert len({len(answer.token_ids) for answer in whole.outputs}) > 1, "they end in different steps"
    name = llm.add_request("w3 w4", params, stream=True)
    pieces = finish(llm)[name]
    assert [piece.finished for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert [piece.prompt_logprobs for piece in pieces if piece.prompt_logprobs] == [whole.prompt_logprobs]
    for answer in whole.outputs:
        own = [piece.outputs[0] for piece in pieces if piece.outputs[0].index == answer.index]
        assert [token for piece in own for token in piece.token_ids] == answer.token_ids
        assert "".join(piece.text for piece in own) == answer.text
        assert [position for piece in own for position in piece.logprobs] == answer.logprobs
        assert own[-1].finish_reason == answer.finish_reason
    name = llm.add_request("w3 w4", params)
    assert finish(llm)[name] == [dataclasses.replace(whole, request_id=name)]
    llm.add_request("w3 w4", params, request_id="a")
    llm.step()
    assert llm.abort("a")
    assert_nothing_is_held(llm)


def test_generate_streams_by_the_place_of_the_prompt(llm):
    pieces: dict[str, list[int]] = {}

    def read(output):
        pieces.setdefault(output.request_id, []).extend(output.outputs[0].token_ids)

    outputs = llm.generate([[3], [4, 5], [6]], GREEDY, on_token=read)
    assert [pieces[str(i)] for i in range(3)] == ids(outputs)


def test_failing_reader_ends_the_call_and_leaves_a_usable_engine(llm):
    def read(output):
        raise ArithmeticError("reader")

    with pytest.raises(ArithmeticError):
        llm.generate([[3], [4, 5]], GREEDY, on_token=read)
    assert_nothing_is_held(llm)
    assert len(ids(llm.generate([[3], [4, 5]], GREEDY))) == 2


@pytest.mark.parametrize(
    ("prompt", "params", "problem"),
    [
        ([], GREEDY, "the prompt is empty"),
        ([3, 999], GREEDY, "ids from 3 to 999"),
        ([2**70], GREEDY, "must be integers"),
        (list(range(200)) * 2, GREEDY, "max_model_len is 256"),
        ([3] * 100, SamplingParams(max_tokens=100), "do not fit the cache of 10 blocks"),
        (None, GREEDY, "must be integers"),
        ([3], {"temperature": 0}, "must be SamplingParams"),
        ([3], SamplingParams(stop_token_ids=[300]), "stop_token_ids has 300"),
        (
            [3],
            SamplingParams(stop_token_ids=list(range(3, 67)), min_tokens=1),
            "hold back 64 stop tokens, not 65",
        ),
        ([3], SamplingParams(stop="x"), "need a tokenizer"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_request_is_refused_alone(prompt, params, problem):
    llm = make(num_kv_cache_blocks=11)
    llm.add_request([3, 4], GREEDY, request_id="before")
    llm.step()
    with pytest.raises(RequestError, match=problem):
        llm.add_request(prompt, params, request_id="bad")
    llm.add_request([5], GREEDY, request_id="after")
    assert not llm.abort("bad")
    found = finish(llm)
    assert [found[name][0].outputs[0].token_ids for name in ("before", "after")] == ids(
        llm.generate([[3, 4], [5]], GREEDY)
    )
    assert_nothing_is_held(llm)


def test_names_are_unique_while_a_request_lives(llm):
    llm.add_request([3], GREEDY, request_id="0")
    assert llm.add_request([4], GREEDY) != "0"
    with pytest.raises(RequestError, match="request_id='0'"):
        llm.add_request([3], GREEDY, request_id="0")
    with pytest.raises(UsageError, match="step them to their end"):
        llm.generate([[3]], GREEDY)
    finish(llm)
    llm.add_request([3], GREEDY, request_id="0")
    assert llm.abort("0")


def state_of(llm: LLM, serial: int) -> str:
    ledger = llm._scheduler.ledger
    if serial in ledger.serial_R:
        return "running"
    assert serial not in ledger.away, "between steps every preempted request has its sample"
    request = next((one for one in ledger.waiting if one.serial == serial), None)
    return "gone" if request is None else "preempted" if request.output else "waiting"


@pytest.mark.parametrize("prefixes", [False, True])
@pytest.mark.usefixtures("nobody_grows")
def test_abort_in_every_state_frees_everything_and_harms_nobody(prefixes):
    """After ever more steps, abort one of five requests that crowd three rows and few blocks."""
    prompts = [[3, 4, 5], [8] * 9, [12], [15, 16], [17] * 5]
    expected = ids(make().generate(prompts, LONG))
    llm = make(
        max_num_seqs=3, num_kv_cache_blocks=19, block_size=4, max_num_batched_tokens=8,
        enable_prefix_caching=prefixes,
    )  # fmt: skip
    seen = set()
    for steps in range(0, 120, 6):
        victim, first = steps % 5, llm.engine.stages["lm"]._next_serial
        for i, prompt in enumerate(prompts):
            llm.add_request(prompt, LONG, request_id=str(i))
        outputs = {}
        for _ in range(steps):
            outputs |= {output.request_id: output for output in llm.step()}
        state = state_of(llm, first + victim)
        seen.add(state)
        assert llm.abort(str(victim)) == (state != "gone")
        outputs |= {name: found[0] for name, found in finish(llm).items()}
        assert (str(victim) in outputs) == (state == "gone")
        for name, output in outputs.items():
            assert output.outputs[0].token_ids == expected[int(name)]
        assert len(outputs) == 5 - (state != "gone")
        assert_nothing_is_held(llm)
    assert seen == {"waiting", "running", "preempted", "gone"}


def test_reader_may_abort_itself_and_others(llm):
    victims = {"a": "a", "b": "c"}
    texts = {name: [] for name in "abcd"}

    for name in "abcd":
        llm.add_request([ord(name)], GREEDY, request_id=name, stream=True)
    while llm.has_unfinished_requests():
        for output in llm.step():
            texts[output.request_id] += output.outputs[0].token_ids
            if len(texts[output.request_id]) == 3 and output.request_id in victims:
                llm.abort(victims[output.request_id])
    assert [len(texts[name]) for name in "bd"] == [6, 6]
    assert len(texts["a"]) == 3
    assert len(texts["c"]) <= 3
    assert_nothing_is_held(llm)


def test_failing_step_ends_all_requests_and_leaves_a_usable_loop(llm):
    def fails(module, args):
        raise ArithmeticError("a kernel crashed")

    llm.add_request([3], GREEDY, stream=True)
    llm.step()
    handle = llm.model.get_submodule("layers.1").register_forward_pre_hook(fails)
    try:
        with pytest.raises(ArithmeticError):
            llm.step()
    finally:
        handle.remove()
    assert not llm.has_unfinished_requests()
    assert_nothing_is_held(llm)
    assert len(ids(llm.generate([[3]], GREEDY))[0]) == 6


def test_failing_tokenizer_ends_all_requests_and_leaves_a_usable_loop():
    """The text of a request that nobody watches is made when it has ended."""

    class Fails:
        def get_vocab(self):
            return {}

        def decode(self, ids, **options):
            raise ArithmeticError("no text")

    llm = make(tokenizer=Fails())
    for token in (3, 4, 5):
        llm.add_request([token], GREEDY)
    with pytest.raises(ArithmeticError):
        finish(llm)
    assert not llm.has_unfinished_requests()
    assert_nothing_is_held(llm)
    silent = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, detokenize=False)
    assert len(ids(llm.generate([[3]], silent))[0]) == 6


@pytest.mark.parametrize("call", ["add_request", "generate"])
def test_reader_of_generate_starts_nothing_else(llm, call):
    with pytest.raises(UsageError, match=r"of generate\(\)|of another generate\(\)"):
        llm.generate([[3], [4]], GREEDY, on_token=lambda output: getattr(llm, call)([5], GREEDY))
    assert not llm.has_unfinished_requests()
    assert_nothing_is_held(llm)
    pieces = []
    alone = ids(llm.generate([[3], [4]], GREEDY))
    assert ids(llm.generate([[3], [4]], GREEDY, on_token=lambda _: pieces.extend(llm.step()))) == alone
    assert pieces == []


@pytest.mark.whole
def test_ten_thousand_requests_queue_up():
    llm = make(max_num_seqs=256, num_kv_cache_blocks=600, max_model_len=64)
    short = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    for i in range(10_000):
        llm.add_request([i % 250, i % 7], short, request_id=str(i))
    with pytest.raises(RequestError, match="empty"):
        llm.add_request([], short)
    for i in range(0, 10_000, 10):
        assert llm.abort(str(i))
    found = finish(llm)
    assert len(found) == 9000
    some = [1, 4999, 9999]
    lone = ids(llm.generate([[i % 250, i % 7] for i in some], short))
    assert [found[str(i)][0].outputs[0].token_ids for i in some] == lone
    assert_nothing_is_held(llm)
