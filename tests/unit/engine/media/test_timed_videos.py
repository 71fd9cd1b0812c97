"""Videos whose steps stand in a prompt one by one, behind their times; rows of several levels."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from fastkernels.engine.llm import LLM, SamplingParams
from fastkernels.errors import RequestError
from fastkernels.nn.merged_patches import Patching
from fastkernels.nn.timed_frames import TimedFrames, times_of

START, IMAGE, VIDEO, END = 252, 250, 251, 253
ROWS = 6 * 7
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=1)


def picture(seed: int, height: int = 256, width: int = 256) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def video(seed: int, frames: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (frames, 192, 224, 3), dtype=np.uint8)


def tokenizer() -> PreTrainedTokenizerFast:
    """A token for each character of a time."""
    words = {letter: 100 + number for number, letter in enumerate("<>.0123456789 second")}
    made = Tokenizer(models.WordLevel({**words, "?": 90}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split(pattern="", behavior="isolated")
    return PreTrainedTokenizerFast(tokenizer_object=made)


def engine(**options: Any) -> LLM:
    given = {"max_num_seqs": 8, "tokenizer": tokenizer(), **options}
    return LLM("qwen3_vl", size="tiny", device="cpu", **given)


@lru_cache
def shared() -> LLM:
    return engine()


def spelled(*texts: str) -> list[int]:
    """What a video becomes, with these texts ahead of its steps."""
    steps = [[*tokenizer().encode(text), START, *[VIDEO] * ROWS, END] for text in texts]
    return [id for step in steps for id in step]


def timed(given: Any, ids: list[int] | None = None, **about: Any) -> dict[str, Any]:
    data = (given, {"fps": 2.0, **about}) if about is not None else given
    return {"prompt_token_ids": ids or [7, START, VIDEO, END, 5, 6], "multi_modal_data": {"video": [data]}}


def told(output: Any) -> tuple[list[int], list[float]]:
    (one,) = output.outputs
    return one.token_ids, [at[i].logprob for i, at in zip(one.token_ids, one.logprobs, strict=True)]


def answers(llm: LLM, prompts: list[Any]) -> list[tuple[list[int], list[float]]]:
    return [told(output) for output in llm.generate(prompts, GREEDY, use_tqdm=False)]


def same(found: Any, wanted: Any) -> None:
    for (ids, logprobs), (wanted_ids, wanted_logprobs) in zip(found, wanted, strict=True):
        assert ids == wanted_ids
        np.testing.assert_allclose(logprobs, wanted_logprobs, atol=2e-5)


def test_a_placeholder_becomes_steps_with_their_times():
    """With the ids of start and end around it, which the steps have, or without; and one for each row."""
    frames, whole = video(0), [7, *spelled("<0.2 seconds>", "<1.2 seconds>", "<2.0 seconds>"), 5, 6]
    rows = {"prompt_token_ids": whole, "multi_modal_data": {"video": [frames]}}
    prompts = [timed(frames), timed(frames, [7, VIDEO, 5, 6]), rows]
    outputs = shared().generate(prompts, GREEDY, use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == [whole] * 3
    same([told(output) for output in outputs], [told(outputs[0])] * 3)
    later = shared().generate([timed(frames, frames_indices=[0, 10, 20, 30, 40])], GREEDY, use_tqdm=False)[0]
    assert later.prompt_token_ids == [7, *spelled("<2.5 seconds>", "<12.5 seconds>", "<20.0 seconds>"), 5, 6]


def test_times_and_sides_are_those_of_the_processor():
    from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

    reference = pytest.importorskip("transformers.models.qwen3_vl.video_processing_qwen3_vl")
    rng, timer = np.random.default_rng(0), Qwen3VLProcessor._calculate_timestamps
    medium = TimedFrames(VIDEO, "encode", Patching(16, 2, 2), 128 * 32 * 32, 768 * 32 * 32, (START, END))
    for _ in range(300):
        count, fps = int(rng.integers(2, 40)), float(rng.uniform(0.5, 60))
        numbers = sorted(rng.integers(0, 999, count).tolist())
        wanted = timer(None, list(numbers), fps, 2)  # pyright: ignore[reportArgumentType]
        assert times_of({"fps": fps, "frames_indices": numbers}, count, 2) == wanted
        height, width = (int(side) for side in rng.integers(20, 1500, 2))
        sides = reference.smart_resize(count, height, width, 2, 32, 128 * 32 * 32, 768 * 32 * 32)
        assert medium.sides(count, height, width) == sides


PROMPTS: list[Any] = [
    timed(video(0)),
    [1, 2, 3],
    {"prompt_token_ids": [START, IMAGE, END, 5], "multi_modal_data": {"image": [picture(1)]}},
    {
        "prompt_token_ids": [START, IMAGE, END, START, VIDEO, END, 9],
        "multi_modal_data": {"image": [picture(2)], "video": [(video(3, 4), {"fps": 1})]},
    },
]


@lru_cache
def alone() -> list[Any]:
    found = [answers(engine(max_num_seqs=1), [one])[0] for one in PROMPTS]
    assert len({tuple(ids[:3]) for ids, _ in found}) > 2, "the answers do not depend on the media"
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"num_kv_cache_blocks": 110, "block_size": 4},
        {"enable_prefix_caching": True, "block_size": 4, "max_num_batched_tokens": 90},
    ],
    ids=["preempted", "prefixes"],
)
@pytest.mark.usefixtures("nobody_grows")
def test_requests_together_equal_each_alone(options: dict[str, Any]):
    llm = engine(**options)
    same(answers(llm, PROMPTS), alone())
    assert (llm.stats()["preemptions"] > 0) == ("num_kv_cache_blocks" in options)
    outputs = llm.generate(PROMPTS[::-1], GREEDY, use_tqdm=False)
    same([told(output) for output in outputs], alone()[::-1])
    assert ("enable_prefix_caching" in options) == any(output.num_cached_tokens for output in outputs)


def test_steps_of_a_video_share_no_blocks():
    """The same ids, ahead of them the same text, and other frames."""
    llm, turned = engine(enable_prefix_caching=True, block_size=4), video(0, 4)
    ids = [START, *[VIDEO] * ROWS, END, START, *[VIDEO] * ROWS, END, 4]

    def asked(frames: np.ndarray) -> Any:
        return {"prompt_token_ids": ids, "multi_modal_data": {"video": [frames]}}

    first, other, again = (
        llm.generate([asked(one)], GREEDY, use_tqdm=False)[0] for one in (turned, turned[::-1], turned)
    )
    assert (other.num_cached_tokens, again.num_cached_tokens) == (0, 88)
    same([told(again)], [told(first)])
    same([told(other)], answers(engine(), [asked(turned[::-1])]))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (timed(video(0), fps=0), "video 0: fps of a video must be a positive number, not 0"),
        (timed(video(0), frames_indices=[1, 2]), "frames_indices must be 5 whole numbers, one for each"),
        (timed(video(0), frames_indices=[0.5] * 5), "frames_indices must be 5 whole numbers"),
        (timed(video(0), frames_indices=7), "frames_indices must be 5 whole numbers"),
        (timed(video(0), fps="2"), "fps of a video must be a positive number"),
        (timed(video(0)[:1]), "a video of 1 frames: the model takes at least 2. Give an image"),
        (timed(video(0)[0]), r"\[frames, height, width, 3\]"),
        (
            {"prompt_token_ids": [VIDEO], "multi_modal_data": {"video": [video(0)]}},
            "video 0: nothing says when its frames were taken. Give",
        ),
        (
            {"prompt_token_ids": [IMAGE], "multi_modal_data": {"image": [(picture(0), {"fps": 1})]}},
            "image 0: nothing is said beside an image",
        ),
        (
            {
                "prompt_token_ids": [*[VIDEO] * ROWS, IMAGE, *[VIDEO] * ROWS, 3],
                "multi_modal_data": {"video": [video(0, 4)], "image": [picture(0)]},
            },
            "other media stand between the placeholders",
        ),
    ],
)
def test_what_is_refused_leaves_others_alone(given: Any, says: str):
    found = shared().generate([PROMPTS[0], given], GREEDY, use_tqdm=False, errors="return")
    assert isinstance(found[1], RequestError)
    with pytest.raises(RequestError, match=says):
        raise found[1]
    same([told(found[0])], alone()[:1])


def test_times_need_a_tokenizer():
    with pytest.raises(RequestError, match="the text beside a medium needs a tokenizer"):
        engine(tokenizer=None).generate([timed(video(0))], GREEDY)


def test_rows_of_text_alone_bring_no_levels():
    """A step without media calls the model without rows: there is nothing that could reach it."""
    llm, given = shared(), []
    forward = llm.model.forward

    def watched(*args: torch.Tensor) -> torch.Tensor:
        given.append(len(args))
        return forward(*args)

    llm.model.forward = watched
    try:
        llm.generate([[1, 2, 3]], GREEDY, use_tqdm=False)
        assert set(given) == {2}
        llm.generate([PROMPTS[2], [1, 2, 3]], GREEDY, use_tqdm=False)
    finally:
        llm.model.forward = forward
    assert given.count(4) == 1
