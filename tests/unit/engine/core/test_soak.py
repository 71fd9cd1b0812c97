"""A long run with everything at once: random arrivals, aborts, preemptions, stops, streams, prefixes.

In the end every block and every row is free, and each finished greedy request has the text of a lone run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from fastkernels import LLM, SamplingParams
from tests.unit.engine.test_llm import make, tokenizer
from tests.unit.engine.test_loop import assert_nothing_is_held

REQUESTS = 150


@dataclass
class Job:
    prompt: list[int]
    params: SamplingParams
    is_streamed: bool


def draw_jobs(rng: np.random.Generator) -> list[Job]:
    """Prompts of which many begin alike; most are greedy, with stops, penalties and the like mixed in."""
    common = rng.integers(3, 256, 40).tolist()
    jobs = []
    for _ in range(REQUESTS):
        prompt = rng.integers(3, 256, int(rng.integers(1, 50))).tolist()
        if rng.random() < 0.6:
            kept = int(rng.integers(0, min(len(prompt), len(common))))
            prompt[:kept] = common[:kept]
        choice = {"max_tokens": int(rng.integers(1, 30)), "ignore_eos": bool(rng.random() < 0.5)}
        choice["temperature"] = 0.0 if rng.random() < 0.8 else 0.8
        choice["seed"] = int(rng.integers(1000))
        for chance, extra in (
            (0.3, {"stop_token_ids": rng.integers(0, 256, 20).tolist()}),
            (0.2, {"stop": [f"w{int(rng.integers(10, 26))}", "9 w1"]}),
            (0.1, {"presence_penalty": 0.5, "repetition_penalty": 1.2}),
            (0.1, {"min_tokens": 1}),
            (0.1, {"top_k": 20, "min_p": 0.01}),
            (0.1, {"logprobs": int(rng.integers(4))}),
        ):
            choice |= extra if rng.random() < chance else {}
        jobs.append(Job(prompt, SamplingParams(**choice), bool(rng.random() < 0.3)))
    return jobs


def lone_runs(jobs: list[Job], config: str) -> list[tuple[list[int], str, str | None]]:
    """Ids, text and finish reason of each job alone in an engine of one row."""
    llm = make(config=config, max_num_seqs=1, tokenizer=tokenizer())
    outputs = [llm.generate(job.prompt, job.params)[0].outputs[0] for job in jobs]
    return [(output.token_ids, output.text, output.finish_reason) for output in outputs]


def soak(llm: LLM, jobs: list[Job], rng: np.random.Generator) -> tuple[dict[int, list], set[int]]:
    """The outputs of each job, and the jobs that were aborted."""
    outputs: dict[int, list] = {}
    alive, aborted, added = set(), set(), 0
    while added < len(jobs) or llm.has_unfinished_requests():
        while added < len(jobs) and rng.random() < 0.6:
            job = jobs[added]
            llm.add_request(job.prompt, job.params, request_id=str(added), stream=job.is_streamed)
            alive.add(added)
            added += 1
        for output in llm.step():
            number = int(output.request_id)
            assert number in alive, "an output of a request that has ended"
            outputs.setdefault(number, []).append(output.outputs[0])
            alive -= {number} if output.finished else set()
        if alive and rng.random() < 0.1:
            number = int(rng.choice(sorted(alive)))
            assert llm.abort(str(number))
            alive.discard(number)
            aborted.add(number)
    return outputs, aborted


@pytest.mark.whole
@pytest.mark.parametrize(("config", "blocks", "preemptions"), [("tiny", 56, 10), ("tiny-mistral", 24, 1)])
@pytest.mark.usefixtures("nobody_grows")
def test_soak(config, blocks, preemptions):
    jobs = draw_jobs(np.random.default_rng(7))
    expected = lone_runs(jobs, config)
    for shares_prefixes in (False, True):
        llm = make(
            config=config,
            tokenizer=tokenizer(),
            max_num_seqs=8,
            max_num_batched_tokens=48,
            num_kv_cache_blocks=blocks,
            block_size=4,
            enable_prefix_caching=shares_prefixes,
        )
        outputs, aborted = soak(llm, jobs, np.random.default_rng(8))
        assert_nothing_is_held(llm)
        assert len(aborted) > 10
        assert set(outputs) >= set(range(REQUESTS)) - aborted
        found = {
            number: (
                [token for piece in outputs[number] for token in piece.token_ids],
                "".join(piece.text for piece in outputs[number]),
                outputs[number][-1].finish_reason,
            )
            for number in set(range(REQUESTS)) - aborted
        }
        for number, output in found.items():
            assert output == expected[number], f"request {number}"
        stats = llm.stats()
        assert stats["preemptions"] >= preemptions
        assert (stats["prefix_tokens_found"] > 100) == shares_prefixes
        assert {reason for _, _, reason in found.values()} == {"stop", "length"}
