"""Models that hear, on a GPU: graphs of the audio tower against eager runs, both devices, and 16-bit dtypes
against float32 on the CPU. Their images: test_images_in_prompts."""

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

SCENE = [252, 250, 253, 254, 249, 255, 5, 6, 7]
SAMPLES = [3200, 12801, 321, 20000, 6190]
TOLERANCES = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.3}
each = pytest.mark.parametrize("dtype", TOLERANCES)


def sound(seed: int, samples: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    wave = np.sin(np.arange(samples) * generator.uniform(0.02, 1.5))
    return (0.4 * wave + 0.02 * generator.normal(size=samples)).astype(np.float32)


def prompts(seed: int) -> list[Any]:
    """An image and a clip of each length, and text alone."""
    image = np.random.default_rng(seed).integers(0, 256, (112, 140, 3), dtype=np.uint8)
    clips = [sound(seed + n, samples) for n, samples in enumerate(SAMPLES)]
    scenes = [{"image": [image], "audio": [(one, 16000)]} for one in clips]
    asked = [{"prompt_token_ids": SCENE, "multi_modal_data": scene} for scene in scenes]
    return [*asked, {"prompt_token_ids": [3, 1, 4, 1, 5]}]


def engine(device: str, dtype: str, **options: Any) -> LLM:
    return LLM("qwen2_5_omni", config="tiny", device=device, dtype=dtype, max_num_seqs=8, **options)


def logprobs(llm: LLM, asked: list[Any], forced: list[list[int]]) -> Tensor:
    """[requests, positions, vocabulary], along forced tokens through the normal decode steps."""
    most = SamplingParams(temperature=0.0, logprobs=256)
    outputs = llm.generate(asked, most, forced=forced, use_tqdm=False)
    return torch.tensor(
        [[[at[i].logprob for i in range(256)] for at in output.outputs[0].logprobs] for output in outputs]
    )


def greedy(llm: LLM, asked: list[Any]) -> list[list[int]]:
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    return [output.outputs[0].token_ids for output in llm.generate(asked, params, use_tqdm=False)]


@torch.inference_mode()
def rows(llm: LLM, seed: int) -> Tensor:
    assert llm.beside is not None
    batching, medium = llm.model.stages()["listen"].batching, llm.model.media({})["audio"]
    clips = [torch.from_numpy(sound(seed + n, samples)) for n, samples in enumerate(SAMPLES)]
    calls = [medium.item(one).call.args for one in clips]
    return llm.beside.graphs["listen"](*batching.join(calls)).float().cpu()


@each
def test_replayed_towers_equal_eager_ones(dtype: str):
    """The same lengths four times: eager, captured, replayed, with other clips each time."""
    graphed, eager = engine("cuda", dtype), engine("cuda", dtype, enforce_eager=True)
    for seed in range(0, 400, 100):
        torch.testing.assert_close(rows(graphed, seed), rows(eager, seed), rtol=0, atol=TOLERANCES[dtype])
    counts = graphed.beside.graphs["listen"].stats()
    assert (counts["graphs"], counts["graph_replays"]) == (1, 3), counts
    assert set(counts["eager_calls"]) <= {"first call of its shapes"}


@each
def test_cuda_agrees_with_float32_on_the_cpu(dtype: str):
    here, there = engine("cpu", "float32"), engine("cuda", dtype)
    load_weights(there.model, export_weights(here.model))  # rounded from the same numbers
    torch.testing.assert_close(rows(there, 7), rows(here, 7), rtol=0, atol=TOLERANCES[dtype])
    asked = prompts(7)
    forced = greedy(here, asked)
    found, wanted = logprobs(there, asked, forced), logprobs(here, asked, forced)
    assert wanted.std() > 0.5
    torch.testing.assert_close(found.exp(), wanted.exp(), rtol=0, atol=TOLERANCES[dtype])


def test_the_largest_launches_fit():
    """Of each tower, at the sizes of the tiny model: 65,536 patches, and two clips of 300 s."""
    llm = engine("cuda", "bfloat16")
    assert llm.beside is not None
    _, seen, heard = llm.beside.largest()
    assert len(seen) == 16384
    assert len(heard) == 15000
