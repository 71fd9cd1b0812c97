"""Models that see, on a GPU: graphs of the tower and of decode steps against eager runs, both devices, and
16-bit dtypes against float32 on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fastkernels import LLM, SamplingParams
from fastkernels.nn.weights import export_weights, load_weights

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

LOOK = [252, 250, 253, 5, 6, 7]
SIZES = [(56, 84), (112, 112), (30, 200), (140, 56), (61, 77)]
# Of rows and log-probabilities; another image's rows, or wrong positions, are off by about 1.
TOLERANCES = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.3}
BLOCKS = {
    "qwen2_vl": 30,
    "qwen2_5_omni": 30,
    "qwen3_vl": 80,
    "qwen3_vl_moe": 80,
}  # too few for all requests, enough for the longest
KINDS = [
    *(("qwen2_vl", dtype) for dtype in TOLERANCES),
    *((model, dtype) for model in BLOCKS if model != "qwen2_vl" for dtype in ("float32", "bfloat16")),
]
each = pytest.mark.parametrize(("model", "dtype"), KINDS)
MOST = SamplingParams(temperature=0.0, logprobs=256)


def picture(seed: int, size: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)


def prompts(seed: int) -> list[Any]:
    """An image of each size, two in a prompt, and text alone."""
    seen = [{"image": [picture(seed + n, size)]} for n, size in enumerate(SIZES)]
    seen.append({"image": [picture(seed + 50, SIZES[0]), picture(seed + 51, SIZES[1])]})
    asked = [{"prompt_token_ids": LOOK * len(media["image"]), "multi_modal_data": media} for media in seen]
    return [*asked, {"prompt_token_ids": [3, 1, 4, 1, 5]}]


def engine(model: str, device: str, dtype: str, **options: Any) -> LLM:
    return LLM(model, config="tiny", device=device, dtype=dtype, **{"max_num_seqs": 8, **options})


def greedy(llm: LLM, asked: list[Any], length: int = 24) -> list[list[int]]:
    params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
    return [output.outputs[0].token_ids for output in llm.generate(asked, params, use_tqdm=False)]


def logprobs(llm: LLM, asked: list[Any], forced: list[list[int]]) -> Tensor:
    """[requests, positions, vocabulary], along forced tokens through the normal decode steps."""
    outputs = llm.generate(asked, MOST, forced=forced, use_tqdm=False)
    return torch.tensor(
        [[[at[i].logprob for i in range(256)] for at in output.outputs[0].logprobs] for output in outputs]
    )


@torch.inference_mode()
def rows(llm: LLM, seed: int) -> Tensor:
    assert llm.beside is not None
    batching = llm.model.stages()["encode"].batching
    medium = llm.model.media({})["image"]
    calls = [medium.item(torch.from_numpy(picture(seed + n, size))).call.args for n, size in enumerate(SIZES)]
    return llm.beside.graphs["encode"](*batching.join(calls)).float().cpu()


@each
def test_replayed_towers_equal_eager_ones(model: str, dtype: str):
    """The same sizes four times: eager, captured, replayed, with other images each time."""
    graphed, eager = engine(model, "cuda", dtype), engine(model, "cuda", dtype, enforce_eager=True)
    for seed in range(0, 400, 100):
        torch.testing.assert_close(rows(graphed, seed), rows(eager, seed), rtol=0, atol=TOLERANCES[dtype])
    counts = graphed.beside.graphs["encode"].stats()
    assert (counts["graphs"], counts["graph_replays"]) == (1, 3), counts
    assert set(counts["eager_calls"]) <= {"first call of its shapes"}


@each
def test_replayed_steps_equal_eager_ones(model: str, dtype: str):
    """Twice, so that rows and their shifts of positions are taken again by other images."""
    graphed, eager = engine(model, "cuda", dtype), engine(model, "cuda", dtype, enforce_eager=True)
    for seed in (0, 100):
        asked = prompts(seed)
        forced = greedy(eager, asked)
        found, wanted = (logprobs(llm, asked, forced) for llm in (graphed, eager))
        torch.testing.assert_close(found.exp(), wanted.exp(), rtol=0, atol=TOLERANCES[dtype])
    stats = graphed.stats()
    assert stats["graph_replays"] > 0, stats["eager_steps"]
    assert not any(reason.startswith("capture failed") for reason in stats["eager_steps"]), stats


@each
def test_cuda_agrees_with_float32_on_the_cpu(model: str, dtype: str):
    here, there = engine(model, "cpu", "float32"), engine(model, "cuda", dtype)
    load_weights(there.model, export_weights(here.model))  # rounded from the same numbers
    torch.testing.assert_close(rows(there, 7), rows(here, 7), rtol=0, atol=TOLERANCES[dtype])
    asked = prompts(7)
    forced = greedy(here, asked)
    found, wanted = logprobs(there, asked, forced), logprobs(here, asked, forced)
    assert wanted.std() > 0.5
    torch.testing.assert_close(found.exp(), wanted.exp(), rtol=0, atol=TOLERANCES[dtype])


@pytest.mark.parametrize(
    "options",
    [{"max_num_batched_tokens": 16}, {"block_size": 4}, {"max_num_seqs": 2}],
    ids=["chunks", "preempted", "few rows"],
)
@pytest.mark.parametrize("model", BLOCKS)
def test_chunks_and_company_change_nothing(model: str, options: dict[str, int]):
    if "block_size" in options:
        options = {**options, "num_kv_cache_blocks": BLOCKS[model]}
    plain, pressed = engine(model, "cuda", "float32"), engine(model, "cuda", "float32", **options)
    asked = prompts(3) * 2
    forced = greedy(plain, asked)
    found, wanted = (logprobs(llm, asked, forced) for llm in (pressed, plain))
    torch.testing.assert_close(found.exp(), wanted.exp(), rtol=0, atol=TOLERANCES["float32"])
