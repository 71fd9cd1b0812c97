"""A model on two GPUs: captured collectives, the text of the CPU, and an end that leaves nothing.

Float32 and tiny: the tokens of a greedy choice do not depend on the order of a sum.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from fastkernels import LLM, SamplingParams
from fastkernels.errors import MachineError

if torch.cuda.device_count() < 2:
    pytest.skip("needs two GPUs", allow_module_level=True)

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(300)]

LENGTHS = (5, 17, 33, 2, 64, 1, 9, 40)
EACH: dict[str, Any] = {"max_tokens": 32, "ignore_eos": True}
# Decode steps of all are captured by variant: plain, filtered with log-probabilities, penalised.
PARAMS = {
    "greedy": SamplingParams(temperature=0.0, **EACH),
    "drawn": SamplingParams(temperature=0.8, seed=3, **EACH),
    "filtered": SamplingParams(temperature=0.8, seed=3, top_k=20, top_p=0.9, logprobs=2, **EACH),
    "penalised": SamplingParams(temperature=0.0, repetition_penalty=1.3, prompt_logprobs=1, **EACH),
}


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, 256, (n,), generator=generator).tolist() for n in LENGTHS]


def make(size: int, model: str = "llama", **options: Any) -> LLM:
    options = {"dtype": "float32", "config": "tiny", "num_kv_cache_blocks": 400, "max_num_seqs": 8, **options}
    return LLM(model, tensor_parallel_size=size, **options)


def texts(llm: LLM, params: SamplingParams) -> list[list[int]]:
    return [out.outputs[0].token_ids for out in llm.generate(prompts(), params, use_tqdm=False)]


@pytest.mark.parametrize(
    ("model", "options"),
    [("llama", {}), ("mixtral", {}), ("mixtral", {"enable_expert_parallel": True})],
    ids=["llama", "slices of experts", "whole experts"],
)
def test_text_is_that_of_one_gpu(model: str, options: dict[str, Any]) -> None:
    alone, both = make(1, model), make(2, model, **options)
    try:
        for name, params in PARAMS.items():
            assert texts(both, params) == texts(alone, params), name
        stats = both.stats()
        assert stats["graph_replays"] >= 100
        assert stats["piecewise_replays"] > 0
        assert stats["eager_steps"] == {}
        with both.eager():
            eager = texts(both, PARAMS["greedy"])
        assert eager == texts(both, PARAMS["greedy"])
    finally:
        both.shutdown()


def test_caches_are_sized_by_what_both_have_and_16_bits_are_near() -> None:
    """Of the free memory, in bfloat16, forced along the text of one GPU."""
    alone, both = make(1, dtype="bfloat16"), make(2, dtype="bfloat16", num_kv_cache_blocks=None)
    try:
        expected = texts(alone, PARAMS["greedy"])
        found = both.generate(prompts(), PARAMS["greedy"], use_tqdm=False, forced=expected)
        chosen = [one for output in found for one in output.outputs[0].token_ids]
        alike = sum(a == b for a, b in zip(chosen, [one for text in expected for one in text], strict=True))
        assert alike >= 0.85 * len(chosen)
        assert both.stats()["free_cache_blocks"] == [count - 1 for count in both.stats()["cache_blocks"]]
    finally:
        both.shutdown()


KILLED = """
import os, signal
from fastkernels import LLM, SamplingParams
from fastkernels.errors import MachineError
llm = LLM("llama", config="tiny", tensor_parallel_size=2, num_kv_cache_blocks=400, max_num_seqs=8)
params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
llm.generate([[1, 2, 3]], params, use_tqdm=False)
(pid,), seen = llm.ranks.pids, []
def kill(_):
    seen.append(1)
    if len(seen) == 20:
        os.kill(pid, signal.SIGKILL)
try:
    llm.generate([[1, 2, 3]], params, use_tqdm=False, on_token=kill)
except MachineError as error:
    print(error, os.path.exists(f"/proc/{pid}"), flush=True)
"""


def test_a_rank_that_dies_ends_the_model() -> None:
    """The device of rank 0 waits for it in a captured collective. The process goes on, and can end."""
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, timeout=150)
    assert "has ended by signal 9: make a new LLM False" in done.stdout, done.stderr
    assert done.returncode == 0


def test_more_ranks_than_gpus_are_refused() -> None:
    with pytest.raises(MachineError, match=f"this machine has {torch.cuda.device_count()} GPUs"):
        make(16)
