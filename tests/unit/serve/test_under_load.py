"""What takes long: many streams at once, readers that stop reading, media, servers that cannot start."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys

import httpx
import numpy as np
import openai
import pytest
from click.testing import CliRunner

from fastkernels import LLM, SamplingParams
from fastkernels.cli.e2e import command as e2e_command
from fastkernels.errors import FastKernelsError
from fastkernels.serve import bench
from tests.unit.engine.test_llm import tokenizer
from tests.unit.serve.running import TINY, Server, eventually, serving
from tests.unit.serve.test_media import png, url, wav

pytestmark = pytest.mark.whole
STREAMS, SLOW, LEAVING = 200, 20, 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    flags = ("--model", "llama", "--max-num-seqs", "64")
    with serving(tmp_path_factory.mktemp("server"), *flags) as server:
        yield server


def test_two_hundred_streams_of_poisson_arrivals_some_slow_some_leaving(server: Server) -> None:
    """Each stream that is read to its end has the tokens of a lone run: prompt i is continued greedily."""
    prompts = [[i % 256, (7 * i) % 256, i % 11] for i in range(STREAMS)]
    alone = LLM("llama", config="tiny", device="cpu").generate(
        prompts, SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True), use_tqdm=False
    )

    async def ask(client: httpx.AsyncClient, place: int, at: float) -> list[int] | None:
        await asyncio.sleep(at)
        asked = {
            "prompt": prompts[place],
            "max_tokens": 40,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        ids: list[int] = []
        async with client.stream("POST", "/v1/completions", json=asked) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    ids += json.loads(line[6:])["choices"][0]["token_ids"]
                if place < SLOW:
                    await asyncio.sleep(0.05)
                elif place < SLOW + LEAVING:
                    return None
        return ids

    async def body() -> list[list[int] | None]:
        gaps = bench.gaps_s(STREAMS, 100.0, 1.0, np.random.default_rng(0))
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:
            return await asyncio.gather(*(ask(client, i, at) for i, at in enumerate(np.cumsum(gaps))))

    got = asyncio.run(body())
    read = [i for i in range(STREAMS) if not SLOW <= i < SLOW + LEAVING]
    assert [got[i] for i in read] == [alone[i].outputs[0].token_ids for i in read]
    assert eventually(lambda: server.metric("answers_open") == 0)
    assert server.metric("cache_blocks_free") == server.metric("cache_blocks")


def test_a_reader_that_stops_holds_up_nobody_and_loses_nothing(server: Server) -> None:
    body = json.dumps(
        {"prompt": [1], "max_tokens": 250, "n": 64, "ignore_eos": True, "logprobs": 20, "stream": True,
         "stream_options": {"include_usage": True}}
    ).encode()  # fmt: skip
    host, port = server.url.removeprefix("http://").split(":")
    with socket.socket() as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect((host, int(port)))
        length = f"content-length: {len(body)}"
        head = ("POST /v1/completions HTTP/1.1", "host: x", "connection: close", length)
        before = server.metric('answers_total{how="length"}')
        stalled.sendall("\r\n".join((*head, "", "")).encode() + body)
        ended = eventually(lambda: server.metric('answers_total{how="length"}') == before + 64)
        assert ended, "the engine waits for a reader"
        assert server.metric("cache_blocks_free") == server.metric("cache_blocks")
        answer = httpx.post(f"{server.url}/v1/completions", json={"prompt": [1], "max_tokens": 3}, timeout=30)
        assert answer.json()["usage"]["completion_tokens"] == 3
        stalled.settimeout(60)
        content = b"".join(iter(lambda: stalled.recv(1 << 16), b""))
    assert b'"completion_tokens": 16000' in content
    events = [line for line in content.split(b"\n") if line.startswith(b"data: {")]
    tokens = [len(c["token_ids"]) for event in events for c in json.loads(event[6:])["choices"]]
    assert sum(tokens) == 64 * 250
    assert max(tokens) > 20, "what came while the reader slept is one piece"


def test_images_and_clips_reach_the_model(tmp_path) -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(256, size=(56, 84, 3), dtype=np.uint8)
    samples = rng.integers(-9000, 9000, size=8000)
    for model, ids, given, media in (
        ("qwen2_vl", [252, 250, 253, 5], {"image": image}, {"image": [png(image)]}),
        (
            "whisper",
            [1, 2],
            {"audio": samples.astype(np.float32) / 32768},
            {"audio": [url("audio/wav", wav(samples))]},
        ),
    ):
        llm = LLM(model, size="tiny", device="cpu")
        (want,) = llm.generate(
            {"prompt_token_ids": ids, "multi_modal_data": given},
            SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True),
            use_tqdm=False,
        )
        asked = {
            "prompt": ids,
            "multi_modal_data": media,
            "max_tokens": 8,
            "temperature": 0,
            "ignore_eos": True,
        }
        with serving(tmp_path, "--model", model) as server:
            got = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=60).json()
            assert got["choices"][0]["token_ids"] == want.outputs[0].token_ids
            assert got["usage"]["prompt_tokens"] == len(want.prompt_token_ids)
            wrong = httpx.post(
                f"{server.url}/v1/completions", json={**asked, "multi_modal_data": {"smell": []}}
            )
            assert wrong.status_code == 400, wrong.text


def test_images_stand_where_the_chat_template_puts_them(tmp_path) -> None:
    image = np.random.default_rng(0).integers(256, size=(56, 84, 3), dtype=np.uint8)
    words = tokenizer()
    words.chat_template = (
        "{% for part in messages[0]['content'] %}"
        "{{ 'w252 w250 w253 ' if part['type'] == 'image' else part['text'] }}{% endfor %}"
    )
    words.save_pretrained(tmp_path)
    prompt = {"prompt_token_ids": [5, 252, 250, 253, 6], "multi_modal_data": {"image": image}}
    (want,) = LLM("qwen2_vl", size="tiny", device="cpu", tokenizer=words).generate(
        prompt, SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True), use_tqdm=False
    )
    parts = [
        {"type": "text", "text": "w5 "},
        {"type": "image_url", "image_url": {"url": png(image)}},
        {"type": "text", "text": "w6"},
    ]
    with (
        serving(tmp_path, "--model", "qwen2_vl", "--tokenizer", str(tmp_path)) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        got = client.chat.completions.create(
            model="qwen2_vl",
            messages=[{"role": "user", "content": parts}],
            temperature=0,
            max_tokens=8,
            extra_body={"ignore_eos": True},
        )
    assert got.choices[0].message.content == want.outputs[0].text
    assert got.usage.prompt_tokens == len(want.prompt_token_ids)


def test_a_load_starts_its_own_server() -> None:
    flags = ["--num-prompts", "4", "--input-len", "8", "--output-len", "4", "--model", "llama", *TINY]
    done = CliRunner().invoke(e2e_command, ["serve", *flags, "--json", "-"], catch_exceptions=False)
    found = json.loads(done.stdout)
    assert found["results"][0]["completed"] == 4
    assert found["environment"]["device_type"] == "cpu"
    with pytest.raises(FastKernelsError, match="nosuch"):
        CliRunner().invoke(e2e_command, ["serve", "--model", "nosuch", *TINY], catch_exceptions=False)


def test_a_server_that_cannot_start_says_why(tmp_path) -> None:
    (tmp_path / "L1").mkdir()
    (tmp_path / "L1" / "rms_norm.py").write_text("raise RuntimeError('this candidate was imported')")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for flags, code, says in (
            (("--model", "nosuch"), 2, "nosuch"),
            (("--model", "siglip2"), 2, "fk serve serves models that answer with tokens"),
            (("--model", "llama", "--candidates", str(tmp_path)), 1, "this candidate was imported"),
            (("--model", "llama", "--port", str(taken.getsockname()[1])), 2, "Address already in use"),
        ):
            command = [sys.executable, "-m", "fastkernels", "serve", *TINY, "--port", "0", *flags]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == code, done.stderr
            assert says in done.stderr
            assert "Traceback" not in done.stderr
