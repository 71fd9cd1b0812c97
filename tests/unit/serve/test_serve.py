"""A server in processes of its own, asked by the official client and by worse ones."""

from __future__ import annotations

import json
import os
import signal

import httpx
import openai
import pytest
from click.testing import CliRunner

from fastkernels import LLM, SamplingParams
from fastkernels.cli.e2e import command as e2e_command
from tests.unit.engine.test_llm import make, tokenizer
from tests.unit.serve.running import Server, eventually, serving

KEY = "a-key"
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] == 'user' and 'w1' or 'w2' }} "
    "{{ message['content'] }} {% endfor %}"
)
LONG = {"prompt": [1, 2, 3], "max_tokens": 250, "n": 64, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    """Of a tokenizer with a chat template."""
    folder = tmp_path_factory.mktemp("tokenizer")
    words = tokenizer()
    words.chat_template = TEMPLATE
    words.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory: pytest.TempPathFactory):
    flags = ("--model", "llama", "--tokenizer", str(folder), "--api-key", KEY, "--max-body-mb", "1")
    with serving(tmp_path_factory.mktemp("server"), *flags) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def llm() -> LLM:
    """The same model here."""
    words = tokenizer()
    words.chat_template = TEMPLATE
    return make(tokenizer=words)


def post(server: Server, path: str, **given) -> httpx.Response:
    headers = {"authorization": f"Bearer {KEY}"}
    return httpx.post(f"{server.url}/v1/{path}", headers=headers, timeout=60, **given)


def test_completions_are_those_of_the_engine(client: openai.OpenAI, llm: LLM) -> None:
    prompts = ["w3 w4", "w5 w6 w7"]
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=30, n=2, stop="9", logprobs=2)
    want = [answer for output in llm.generate(prompts, params) for answer in output.outputs]
    asked = {
        "model": "llama", "prompt": prompts, "temperature": 1.0, "seed": 4, "max_tokens": 30, "n": 2,
        "stop": ["9"], "logprobs": 2,
    }  # fmt: skip
    got = client.completions.create(**asked)
    assert [choice.text for choice in got.choices] == [answer.text for answer in want]
    assert [choice.finish_reason for choice in got.choices] == [answer.finish_reason for answer in want]
    assert {choice.finish_reason for choice in got.choices} >= {"stop"}
    assert got.usage.completion_tokens == sum(len(answer.token_ids) for answer in want)
    assert got.usage.prompt_tokens == 5
    for choice, answer in zip(got.choices, want):
        chosen = [at[token].logprob for token, at in zip(answer.token_ids, answer.logprobs)]
        assert choice.logprobs.token_logprobs == pytest.approx(chosen, abs=1e-5)
        assert all(token in best for token, best in zip(choice.logprobs.tokens, choice.logprobs.top_logprobs))
    texts, tokens, usage, ended = [""] * 4, [0] * 4, None, {}
    for chunk in client.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            tokens[choice.index] += len(choice.logprobs.tokens)
            if choice.finish_reason is not None:
                ended[choice.index] = choice.finish_reason
        usage = chunk.usage or usage
    assert texts == [answer.text for answer in want]
    assert tokens == [len(answer.token_ids) for answer in want]
    assert ended == {index: answer.finish_reason for index, answer in enumerate(want)}
    assert usage == got.usage


def test_chats_are_those_of_the_engine(client: openai.OpenAI, llm: LLM) -> None:
    messages = [{"role": "user", "content": "w9 w10"}, {"role": "assistant", "content": "w11"}]
    (want,) = llm.chat(messages, SamplingParams(temperature=0.0, max_tokens=12, logprobs=3), use_tqdm=False)
    answer = want.outputs[0]
    parts = [{"role": "user", "content": [{"type": "text", "text": "w9 w10"}]}, messages[1]]
    asked = {
        "model": "llama", "messages": parts, "temperature": 0, "max_completion_tokens": 12,
        "logprobs": True, "top_logprobs": 3,
    }  # fmt: skip
    got = client.chat.completions.create(**asked)
    assert got.choices[0].message.content == answer.text
    assert got.usage.prompt_tokens == len(want.prompt_token_ids)
    scored = got.choices[0].logprobs.content
    assert [len(at.top_logprobs) for at in scored] == [3] * 12
    assert [at.logprob for at in scored] == pytest.approx(
        [at[token].logprob for token, at in zip(answer.token_ids, answer.logprobs)], abs=1e-5
    )
    chunks = list(client.chat.completions.create(**asked, stream=True))
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == answer.text
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant"] + [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == "length"
    whole = client.chat.completions.create(model="llama", messages=messages, temperature=0)
    assert whole.usage.total_tokens == 256, "a chat goes on to the model's length"


def test_requests_of_vllm_bench_serve_are_answered_as_it_reads_them(server: Server) -> None:
    """Bodies and headers of vLLM 0.26's client, with every sampling option of its command line."""
    sampling = {
        "temperature": 0.0, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "frequency_penalty": 0.1,
        "presence_penalty": 0.1, "repetition_penalty": 1.1,
    }  # fmt: skip
    streamed = {"model": "llama", "stream": True, "stream_options": {"include_usage": True}}
    text = {"prompt": "w3 w4 w5", "repetition_penalty": 1.0, "max_tokens": 16, "logprobs": None}
    content = [{"type": "text", "text": "w3 w4 w5"}]
    chat = {"messages": [{"role": "user", "content": content}], "max_completion_tokens": 16}
    for path, own, prompt_len in (("completions", text, 3), (CHAT, chat, 4)):
        for more in ({}, sampling):
            body = {**streamed, **own, "ignore_eos": True, **more}
            headers = {"authorization": f"Bearer {KEY}", "x-request-id": "bench-1"}
            answer = httpx.post(f"{server.url}/v1/{path}", json=body, headers=headers, timeout=60)
            assert answer.status_code == 200, answer.text
            *events, done = [event.removeprefix("data: ") for event in answer.text.split("\n\n") if event]
            assert done == "[DONE]"
            *pieces, last = [json.loads(event) for event in events]
            assert all(len(piece["choices"]) == 1 for piece in pieces), "each is a token's time"
            assert last["choices"] == [], "or its usage would not be read"
            assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (prompt_len, 16)


def test_what_is_served_is_told_to_those_with_the_key(server: Server, client: openai.OpenAI) -> None:
    (card,) = client.models.list().data
    assert (card.id, card.max_model_len, card.vocab_size) == ("llama", 256, 256)
    for key in ("wrong", "ключ"):
        answer = httpx.get(f"{server.url}/v1/models", headers={"authorization": f"Bearer {key}".encode()})
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"
    assert httpx.get(f"{server.url}/health").status_code == 200
    with pytest.raises(openai.NotFoundError, match="'gpt' is not served here; 'llama' is"):
        client.completions.create(model="gpt", prompt="w1")


WEB = {"image": ["http://127.0.0.1/image.png"]}
CHAT = "chat/completions"


def test_what_cannot_be_served_is_refused_in_the_shape_that_clients_read(server: Server) -> None:
    for path, given, status, says in (
        ("completions", {"content": b'{"prompt": "w1"'}, 400, "no JSON"),
        ("completions", {"content": b"[1]"}, 400, "a JSON object, not list"),
        ("completions", {"content": b"[" * 100_000}, 400, "no JSON"),
        ("completions", {"content": b'{"prompt": "w1", "temperature": NaN}'}, 400, "no JSON"),
        ("completions", {"content": b'{"prompt": "w1\xff"}'}, 400, "no JSON"),
        ("completions", {"json": {}}, 400, "prompt: Field required"),
        ("completions", {"json": {"prompt": []}}, 400, "empty"),
        ("completions", {"json": {"prompt": [[]]}}, 400, "empty"),
        ("completions", {"json": {"prompt": [1, True]}}, 400, "prompt"),
        ("completions", {"json": {"prompt": [999]}}, 400, "the vocabulary has 0..255"),
        ("completions", {"json": {"prompt": [1] * 300}}, 400, "256"),
        ("completions", {"json": {"prompt": [1], "stream": True, "temperature": -1}}, 400, "temperature=-1"),
        ("completions", {"json": {"prompt": [1], "logit_bias": {"1": 2}}}, 400, "'logit_bias' is not served"),
        ("completions", {"json": {"prompt": [1], "n": 5000}}, 429, "4096 are the most"),
        ("completions", {"json": {"prompt": [1], "multi_modal_data": WEB}}, 400, "nothing is fetched"),
        ("completions", {"content": b" " * (2 << 20)}, 413, "at most 1048576"),
        ("completions", {"content": (b" " * 65536 for _ in range(32))}, 413, "over 1048576"),
        (CHAT, {"json": {"messages": [{"content": "w1"}]}}, 400, "a message has a role"),
        (CHAT, {"json": {"messages": [], "tools": [{}]}}, 400, "'tools' is not served"),
        (CHAT, {"json": {"messages": [], "top_logprobs": 3}}, 400, "needs logprobs"),
        (CHAT, {"json": {"messages": [{"role": "user", "content": [{"type": "file"}]}]}}, 400, "not 'file'"),
        ("nothing", {"json": {}}, 404, "Not Found"),
    ):  # fmt: skip
        answer = post(server, path, **given)
        assert answer.status_code == status, (given, answer.text)
        error = answer.json()["error"]
        assert says in error["message"], error
        assert {"message", "type", "param", "code"} == set(error)
    idle = {"user": "me", "metadata": {}, "store": False}
    assert post(server, "completions", json={"prompt": [1], **idle}).status_code == 200


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_takes_its_answers_with_it(server: Server, streamed: bool) -> None:
    before = server.metric('answers_total{how="abort"}')
    headers = {"authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=f"{server.url}/v1", headers=headers) as leaving:
        if streamed:
            with leaving.stream("POST", "completions", json={**LONG, "stream": True}) as answer:
                lines = answer.iter_lines()  # dropped, it would close the connection
                assert next(lines).startswith("data: ")
                assert server.metric("cache_blocks_free") < server.metric("cache_blocks")
        else:
            with pytest.raises(httpx.ReadTimeout):
                leaving.post("completions", json=LONG, timeout=0.2)
    assert eventually(lambda: server.metric("answers_open") == 0)
    assert server.metric("cache_blocks_free") == server.metric("cache_blocks")
    assert server.metric('answers_total{how="abort"}') > before, "they ended by themselves before"


def test_a_load_is_measured(server: Server) -> None:
    flags = ["--num-prompts", "12", "--input-len", "8", "--output-len", "10", "--json", "-"]
    rates = ["--request-rate", "50", "--request-rate", "inf", "--burstiness", "0.5"]
    limits = ["--goodput", "ttft:60000", "--goodput", "tpot:60000"]
    there = ["--base-url", f"{server.url}/v1", "--api-key", KEY]
    done = CliRunner().invoke(e2e_command, ["serve", *flags, *rates, *limits, *there], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [result["request_rate"] for result in found["results"]] == [50, "inf"]
    for result in found["results"]:
        assert (result["completed"], result["failed"]) == (12, 0)
        assert (result["total_input_tokens"], result["total_output_tokens"]) == (96, 120)
        assert result["request_goodput"] == pytest.approx(result["request_throughput"])
        assert 0 < result["mean_ttft_ms"] < result["mean_e2el_ms"]
        # What the parts mean: e2el = ttft + 9 gaps of a request.
        assert result["mean_e2el_ms"] == pytest.approx(result["mean_ttft_ms"] + 9 * result["mean_tpot_ms"])
    assert found["results"][0]["duration"] >= 12 / 50, "the last request is sent after 12 / 50 s"
    refused = CliRunner().invoke(e2e_command, ["serve", *flags, *there, "--model", "llama"])
    assert "--model: the server of --base-url runs already" in str(refused.exception)


def test_an_engine_that_dies_is_told_and_ends_the_server(tmp_path) -> None:
    with serving(tmp_path, "--model", "llama") as server:
        asked = {**LONG, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=asked, timeout=60) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            os.kill(server.engine_pid, signal.SIGKILL)
            events = [line.removeprefix("data: ") for line in lines if line]
        assert events[-1] == "[DONE]"
        error = json.loads(events[-2])["error"]
        assert error["type"] == "service_unavailable"
        assert "ended by signal 9" in error["message"]
        assert server.process.wait(20) == 1
        assert "error: the engine process ended by signal 9" in server.said.read_text()


def test_a_server_that_is_told_to_stop_finishes_what_was_asked(tmp_path) -> None:
    with serving(tmp_path, "--model", "llama") as server:
        engine = server.engine_pid
        asked = {**LONG, "n": 16, "stream": True, "stream_options": {"include_usage": True}}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=asked, timeout=60) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            server.process.terminate()
            events = [line.removeprefix("data: ") for line in lines if line]
        assert events[-1] == "[DONE]"
        assert json.loads(events[-2])["usage"]["completion_tokens"] == 16 * 250
        assert server.process.wait(20) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/health")
        assert not os.path.exists(f"/proc/{engine}")
        assert server.said.read_text() == "loading llama\n"
