"""Models that see and hear: clips in prompts, beside images and requests of text, and what is refused."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

from fastkernels.engine.llm import LLM, SamplingParams
from fastkernels.errors import RequestError, UsageError
from fastkernels.nn import recordings
from fastkernels.nn.program import Place
from fastkernels.nn.recordings import Chunks, Recordings, longest

SEE, IMAGE, SEEN, HEAR, AUDIO, HEARD = 252, 250, 253, 254, 249, 255
LISTEN, LOOK = [HEAR, AUDIO, HEARD, 5, 6, 7], [SEE, IMAGE, SEEN]
RATE = 16000
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=1)


def sound(seed: int, samples: int = 6400) -> np.ndarray:
    generator = np.random.default_rng(seed)
    wave = np.sin(np.arange(samples) * generator.uniform(0.02, 1.5))
    return (0.4 * wave + 0.02 * generator.normal(size=samples)).astype(np.float32)


def picture(seed: int, height: int = 112, width: int = 140) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def engine(**options: Any) -> LLM:
    return LLM("qwen2_5_omni", size="tiny", device="cpu", **{"max_num_seqs": 8, **options})


@lru_cache
def shared() -> LLM:
    return engine()


def asked(ids: list[int], **media: Any) -> dict[str, Any]:
    return {"prompt_token_ids": ids, "multi_modal_data": media}


def answers(llm: LLM, prompts: list[Any]) -> list[tuple[list[int], list[float]]]:
    told = [output.outputs[0] for output in llm.generate(prompts, GREEDY, use_tqdm=False)]
    return [
        (one.token_ids, [at[i].logprob for i, at in zip(one.token_ids, one.logprobs, strict=True)])
        for one in told
    ]


def same(found: Any, wanted: Any) -> None:
    for (ids, logprobs), (wanted_ids, wanted_logprobs) in zip(found, wanted, strict=True):
        assert ids == wanted_ids
        np.testing.assert_allclose(logprobs, wanted_logprobs, atol=2e-5)


PROMPTS: list[Any] = [
    asked(LISTEN, audio=sound(0)),
    [1, 2, 3],
    asked([*LISTEN, *LOOK, *LISTEN], audio=[sound(1, 12801), (sound(0), RATE)], image=picture(0)),
    asked([*LOOK, *LISTEN], audio=(sound(2, 321), RATE), image=[picture(1, 56, 84)]),
    asked(LISTEN, audio=[sound(3, 20000)[None]]),
]


@lru_cache
def alone() -> list[Any]:
    """Each request by itself, in an engine that keeps nothing of the others."""
    found = [answers(engine(max_num_seqs=1), [one])[0] for one in PROMPTS]
    assert len({tuple(ids[:3]) for ids, _ in found}) > 3, "the answers do not depend on the media"
    return found


@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 7}], ids=["together", "chunks"])
def test_requests_together_equal_each_alone(options: dict[str, Any]):
    llm = engine(**options)
    for order in (1, -1):
        same(answers(llm, PROMPTS[::order]), alone()[::order])
    counts = {name: llm.stats()[name] for name in ("encode", "listen")}
    assert (counts["encode"]["asked"], counts["encode"]["found"]) == (4, 2)
    assert (counts["listen"]["asked"], counts["listen"]["found"]) == (10, 6)  # four different clips


REFUSED: dict[str, tuple[Any, str]] = {
    "another rate": (asked(LISTEN, audio=(sound(0), 44100)), "44100 samples a second: the model takes 16000"),
    "no number": (asked(LISTEN, audio=[(sound(0), "16k")]), "'16k' samples a second"),
    "not a rate": (asked(LISTEN, audio=(sound(0), {"fps": 2})), "the rate a number"),
    "empty": (asked(LISTEN, audio=sound(0, 0)), "audio 0: audio is empty"),
    "too short": (asked(LISTEN, audio=sound(0, 320)), "takes at least 321"),
    "too long": (asked(LISTEN, audio=np.zeros(4800001, np.float32)), "takes up to 4800000, 300 s"),
    "integers": (asked(LISTEN, audio=np.zeros(6400, np.int16)), "divide by 32768"),
    "doubles": (asked(LISTEN, audio=np.zeros(6400)), "audio is float64: the model takes float32"),
    "two channels": (asked(LISTEN, audio=np.zeros((2, 6400), np.float32)), "Average its channels"),
    "not finite": (asked(LISTEN, audio=np.full(6400, np.nan, np.float32)), "not finite"),
    "numbers": (asked(LISTEN, audio=[0.1, 0.2]), "audio 0: audio must be a float32 tensor or array"),
    "more clips": (asked(LISTEN, audio=[sound(0), sound(1)]), "2 of audio in multi_modal_data, and 1 place"),
    "fewer clips": (
        asked(LISTEN * 2, audio=[sound(0)]),
        "1 of audio in multi_modal_data, and 2 placeholders",
    ),
    "no clip": (asked(LISTEN, image=[]), "0 of audio in multi_modal_data, and 1 placeholders"),
    "an image said to be audio": (asked(LISTEN, audio=picture(0)), "audio 0: audio is uint8"),
    "a kind that is not there": (asked(LISTEN, sound=sound(0)), "must be {'image': \\[...\\], 'video'"),
    "an image without pixels": (asked(LOOK, image=picture(0, 0, 5)), "is empty"),
    "a wide image": (asked(LOOK, image=picture(0, 4, 10000)), "one side may be 200 times the other"),
    "a pace that is none": (asked([251], video=(picture(0)[None], {"fps": 0})), "frames of a second"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused_harms_no_other_request(kind: str):
    prompt, says = REFUSED[kind]
    outputs = shared().generate([PROMPTS[0], prompt, PROMPTS[1]], GREEDY, use_tqdm=False, errors="return")
    assert isinstance(outputs[1], RequestError)
    with pytest.raises(RequestError, match=says):
        raise outputs[1]
    assert [outputs[0].outputs[0].token_ids, outputs[2].outputs[0].token_ids] == [
        ids for ids, _ in alone()[:2]
    ]


def test_images_in_other_colours_and_of_one_pixel_are_served():
    """Grey, with alpha, and far too small: as the image that they stand for."""
    grey = picture(0)[..., :1]
    alpha = np.concatenate([picture(1), picture(2)[..., :1]], axis=-1)
    given = [grey, np.repeat(grey, 3, axis=-1), alpha, picture(1), picture(3, 1, 1)]
    found = answers(shared(), [asked([*LOOK, 5, 6], image=image) for image in given])
    same(found[:4:2], found[1:4:2])
    assert len(found[4][0]) == 6


def test_launches_take_as_many_frames_as_fit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recordings, "MOST_FRAMES", 100)
    medium = Recordings(AUDIO, "listen", 48000)
    calls = [medium.item(torch.from_numpy(sound(n, 160 * n))).call.args for n in (30, 50, 20, 200)]
    chunks = Chunks(20, Place(torch.device("cpu"), torch.float32))
    assert [chunks.fitting(calls[begin:]) for begin in range(4)] == [2, 2, 1, 1]


def test_features_of_another_kind_are_refused():
    assert longest({}) == 4800000
    assert longest({"n_samples": 480000}) == 480000
    with pytest.raises(UsageError, match="hop_length: must be 160, not 320"):
        longest({"hop_length": 320})
