"""Models that listen, on a GPU: graphs of the encoder and of decode steps against eager runs, both devices,
and 16-bit dtypes against float32 on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fastkernels import LLM, SamplingParams
from fastkernels.errors import RequestError
from fastkernels.nn.weights import export_weights, load_weights

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

SAMPLES, PROMPT, OUTPUT_LEN = 16_000, [91, 92, 93, 94], 24
CLIPS = 6
# Of states and log-probabilities; another clip's states, or stale ones, are wrong by about 1.
TOLERANCES = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.3}


def clips(seed: int, count: int = CLIPS) -> list[Tensor]:
    """Noise of a length of its own."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1000, SAMPLES, (count,), generator=generator).tolist()
    return [torch.randn(length, generator=generator) * 0.2 for length in lengths]


def padded(audio: list[Tensor]) -> Tensor:
    return torch.stack([torch.nn.functional.pad(clip, (0, SAMPLES - len(clip))) for clip in audio])


def engine(device: str, dtype: str, **options: object) -> LLM:
    llm = LLM("whisper", config="tiny", device=device, dtype=dtype, max_num_seqs=8, **options)  # type: ignore[arg-type]
    assert llm.beside is not None
    return llm


@torch.inference_mode()
def states(llm: LLM, audio: list[Tensor]) -> Tensor:
    return llm.beside.graphs["encoder"](padded(audio).to(llm.device)).float().cpu()


def logprobs(llm: LLM, audio: list[Tensor], forced: list[list[int]]) -> Tensor:
    """[clips, positions] of the forced tokens, which go through the normal decode steps."""
    prompts = [{"prompt_token_ids": PROMPT, "multi_modal_data": {"audio": clip}} for clip in audio]
    most = SamplingParams(temperature=0.0, logprobs=1024)
    outputs = llm.generate(prompts, most, forced=forced)
    return torch.tensor(
        [
            [
                position[i].logprob if i in position else -20.0
                for i, position in zip(ids, output.outputs[0].logprobs, strict=True)
            ]
            for ids, output in zip(forced, outputs, strict=True)
        ]
    )


def greedy(llm: LLM, audio: list[Tensor]) -> list[list[int]]:
    prompts = [{"prompt_token_ids": PROMPT, "multi_modal_data": {"audio": clip}} for clip in audio]
    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT_LEN, ignore_eos=True)
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_replayed_encoder_passes_equal_eager_ones(dtype: str):
    """The same shapes three times: eager, captured, replayed, with other clips each time."""
    graphed, eager = engine("cuda", dtype), engine("cuda", dtype, enforce_eager=True)
    for seed in range(4):
        found, expected = states(graphed, clips(seed)), states(eager, clips(seed))
        torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCES[dtype])
    counts = graphed.beside.graphs["encoder"].stats()
    assert (counts["graphs"], counts["graph_replays"]) == (1, 3), counts
    assert set(counts["eager_calls"]) <= {"first call of its shapes"}


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_replayed_decode_steps_equal_eager_ones(dtype: str):
    """Twice, so that rows and their keys and values of a source are taken again by other clips."""
    graphed, eager = engine("cuda", dtype), engine("cuda", dtype, enforce_eager=True)
    for seed in range(2):
        forced = greedy(eager, clips(seed))
        found, expected = (logprobs(llm, clips(seed), forced) for llm in (graphed, eager))
        torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCES[dtype])
    stats = graphed.stats()
    assert stats["graph_replays"] > 0, stats["eager_steps"]
    assert not any(reason.startswith("capture failed") for reason in stats["eager_steps"]), stats


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_cuda_agrees_with_float32_on_the_cpu(dtype: str):
    here, there = engine("cpu", "float32"), engine("cuda", dtype)
    load_weights(there.model, export_weights(here.model))  # rounded from the same numbers
    audio = clips(7)
    torch.testing.assert_close(states(there, audio), states(here, audio), rtol=0, atol=TOLERANCES[dtype])
    forced = greedy(here, audio)
    found, expected = logprobs(there, audio, forced), logprobs(here, audio, forced)
    assert expected.std() > 1e-3
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCES[dtype])


def test_clips_of_other_lengths_and_ages_share_steps():
    """More requests than rows: some wait for a row, and find no other's keys and values there."""
    llm = engine("cuda", "float32")
    audio = clips(3, count=20)
    together = greedy(llm, audio)
    alone = [greedy(llm, [clip])[0] for clip in audio]
    assert len({tuple(ids) for ids in together}) > 10, "the answers do not depend on the clips"
    assert sum(a == b for a, b in zip(together, alone)) >= 18  # near-ties may fall either way


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1e18])
def test_samples_on_the_device_are_checked_too(wrong: float):
    llm = engine("cuda", "float32")
    audio = torch.zeros(1, 2000, device="cuda")
    audio[0, 7] = wrong
    with pytest.raises(RequestError, match="between -1 and 1"):
        llm.add_request({"prompt_token_ids": [91], "multi_modal_data": {"audio": audio}})
    assert not llm.has_unfinished_requests()
