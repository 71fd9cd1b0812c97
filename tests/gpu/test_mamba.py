"""Mamba and Mamba 2 on a GPU: replayed steps against eager ones, 16 bits against float32 along its tokens.

That float32 agrees with the CPU, in graphs and with chunks, is in test_engine.py.
"""

from __future__ import annotations

import statistics

import pytest
import torch

from fastkernels import LLM, SamplingParams

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

LENGTHS = (5, 17, 33, 2, 64, 1, 9, 40)
GREEDY = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
MODELS = ("mamba", "mamba2")


def make(model: str, dtype: str, **options) -> LLM:
    return LLM(model, config="tiny", device="cuda", dtype=dtype, max_num_seqs=16, **options)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, 256, (n,), generator=generator).tolist() for n in LENGTHS]


def texts(llm: LLM, params: SamplingParams = GREEDY, **options) -> list[list[int]]:
    return [out.outputs[0].token_ids for out in llm.generate(prompts(), params, **options)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", MODELS)
def test_replayed_steps_are_eager_ones(model: str, dtype: str):
    replayed, eager = make(model, dtype), make(model, dtype, enforce_eager=True)
    assert texts(replayed) == texts(eager)
    assert replayed.stats()["graph_replays"] > 0
    assert eager.stats()["graph_replays"] == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("model", MODELS)
def test_16_bits_choose_the_tokens_of_float32(model: str, dtype: str):
    """On a CPU 0.99 of them in bfloat16, and all in float16."""
    forced = texts(make(model, "float32"))
    found = texts(make(model, dtype), SamplingParams(temperature=0.0), forced=forced)
    shares = [statistics.fmean(map(int.__eq__, a, b)) for a, b in zip(found, forced, strict=True)]
    assert statistics.fmean(shares) > 0.95
