"""Prompts with images and videos for Qwen3-VL, dense and of experts: ours against transformers, float32 on
the CPU, a tiny model with randomised weights.

The reference computes a whole prompt with its answer at once. Ours takes media through the engine: towers,
rows spliced into prompts, prefill in chunks, decoding from the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from fastkernels import LLM, SamplingParams, registry
from fastkernels.nn.weights import export_weights

TOLERANCE = 2e-5  # of rows, and of logits, whose std is about 1: from the fact sheets
START, END, IMAGE, VIDEO = 252, 253, 250, 251
SIZES = [(256, 256), (224, 320), (320, 224), (128, 512)]
FRAME = (192, 224)  # with five of them as many pixels as a video has at least
PROMPTS = {
    "text": ("", 0),
    "image": ("i", 1),
    "video": ("v", 1),
    "images": ("ii", 2),
    "mixed": ("iv", 3),
    "last": ("vi", 1),
}


def picture(height: int, width: int, seed: int = 0, frames: tuple[int, ...] = ()) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (*frames, height, width, 3), dtype=np.uint8)


def hf_patches(images: list[np.ndarray]) -> tuple[Tensor, Tensor]:
    half = [0.5] * 3
    processor = Qwen2VLImageProcessorPil(
        patch_size=16, min_pixels=256 * 256, max_pixels=4096 * 4096, image_mean=half, image_std=half
    )
    made = processor(images, return_tensors="pt")
    return made["pixel_values"], made["image_grid_thw"]


def hf_video_patches(video: np.ndarray) -> tuple[Tensor, Tensor]:
    """By the reference's own patches of single frames, two of which make a step."""
    video = np.concatenate([video, video[-1:]] if len(video) % 2 else [video])
    half = [0.5] * 3
    processor = Qwen2VLImageProcessorPil(patch_size=16, min_pixels=1, image_mean=half, image_std=half)
    made = processor(list(video), return_tensors="pt")
    steps = made["pixel_values"].unflatten(0, (len(video) // 2, 2, -1)).unflatten(-1, (3, 2, -1))
    pairs = torch.stack((steps[:, 0, :, :, 0], steps[:, 1, :, :, 0]), dim=3)
    grid = made["image_grid_thw"][:1].clone()
    grid[:, 0] = len(video) // 2
    return pairs.flatten(2).flatten(0, 1), grid


def request(name: str) -> tuple[list[int], list[np.ndarray], list[np.ndarray]]:
    """An image has one placeholder; a video one for each row, two tokens of text ahead of each step."""
    kinds, seed = PROMPTS[name]
    images = [picture(*SIZES[(seed + n) % 4], seed + n) for n in range(kinds.count("i"))]
    videos = [picture(*FRAME, 50 + n, (5,)) for n in range(kinds.count("v"))]
    ids, rows = [7, 8], FRAME[0] * FRAME[1] // 32**2
    left = iter(images)
    for number, kind in enumerate(kinds):
        if kind == "i":
            height, width = next(left).shape[:2]
            ids += [START, *[IMAGE] * (height * width // 32**2), END]
        else:
            for step in range(3):
                ids += [40 + step, 41, START, *[VIDEO] * rows, END]
        ids += range(20 + number, 24 + 3 * number)
    if name == "last":  # the first token of the answer follows an image
        ids = ids[: len(ids) - ids[::-1].index(IMAGE)]
    return ids, images, videos


def prompt(name: str) -> dict[str, Any]:
    ids, images, videos = request(name)
    return {"prompt_token_ids": ids, "multi_modal_data": {"image": images, "video": videos}}


def answers(llm: LLM, names: list[str]) -> list[Any]:
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=256, prompt_logprobs=0)
    return llm.generate([prompt(name) for name in names], params, use_tqdm=False)


def spoken(output: Any, special: Collection[int]) -> list[int]:
    """The answer up to a special id: the reference takes none of its own."""
    found = output.outputs[0].token_ids
    return found[: min((place for place, token in enumerate(found) if token in special), default=None)]


def farthest(output: Any, answer: list[int], logits_SV: Tensor) -> float:
    """The largest difference of all log-probabilities of the answer, and of the prompt's tokens."""
    ids, one = output.prompt_token_ids, output.outputs[0]
    assert 0.5 < logits_SV.std() < 3
    wanted_SV = logits_SV.log_softmax(-1)
    places = range(len(ids) - 1, len(ids) + len(answer))
    found = [[at[i].logprob for i in range(256)] for at in one.logprobs[: len(places)]]
    said = [
        float(abs(of[token].logprob - wanted_SV[place, token]))
        for place, (token, of) in enumerate(zip(ids[1:], output.prompt_logprobs[1:]))
    ]
    return max(*said, float((torch.tensor(found) - wanted_SV[list(places)[: len(found)]]).abs().max()))


@dataclass
class Seeing:
    """An architecture beside its reference. weights: of our model, as the reference's files name them."""

    architecture: str
    hf_config: Any
    hf_model: Any
    weights: Callable[[torch.nn.Module], Mapping[str, Tensor]] = lambda model: dict(export_weights(model))
    _expected: dict[Any, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        return registry.architecture(self.architecture).configs["tiny"].config

    def engine(self, **options: Any) -> LLM:
        return LLM(self.architecture, size="tiny", device="cpu", **{"max_num_seqs": 8, **options})

    @cached_property
    def llm(self) -> LLM:
        return self.engine()

    @cached_property
    def reference(self) -> Any:
        config = self.hf_config(**self.config)
        model = self.hf_model._from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
        model.load_state_dict(self.weights(self.llm.model), strict=True)
        return model

    @torch.inference_mode()
    def expected(self, name: str, answer: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
        """Logits [S, V] and positions [3, S] of a prompt and its answer."""
        if (name, answer) in self._expected:
            return self._expected[name, answer]
        ids, images, videos = request(name)
        types = torch.tensor([[{IMAGE: 1, VIDEO: 2}.get(i, 0) for i in ids] + [0] * len(answer)])
        inputs: dict[str, Tensor] = {"input_ids": torch.tensor([ids + list(answer)])}
        if images:
            inputs["pixel_values"], inputs["image_grid_thw"] = hf_patches(images)
        if videos:
            parts = [hf_video_patches(video) for video in videos]
            inputs["pixel_values_videos"] = torch.cat([pixels for pixels, _ in parts])
            inputs["video_grid_thw"] = torch.cat([grid for _, grid in parts])
        grids = {key: inputs.get(key) for key in ("image_grid_thw", "video_grid_thw")}
        positions_31S, _ = self.reference.model.get_rope_index(inputs["input_ids"], types, **grids)
        found = self.reference(**inputs, mm_token_type_ids=types).logits[0], positions_31S[:, 0]
        self._expected[name, answer] = found
        return found

    def difference(self, output: Any, name: str) -> float:
        """The largest of all log-probabilities of the answer, and of the prompt's tokens."""
        answer = spoken(output, (IMAGE, VIDEO))
        return farthest(output, answer, self.expected(name, tuple(answer))[0])

    @torch.inference_mode()
    def rows(self, images: list[np.ndarray], video: np.ndarray) -> tuple[Tensor, Tensor]:
        """Of images and a video, of ours and of the reference: the merger's rows with all levels beside
        them."""
        batching, media = self.llm.model.stages()["encode"].batching, self.llm.model.media({})
        calls = [media["image"].item(torch.from_numpy(image)).call.args for image in images]
        calls.append(media["video"].item(torch.from_numpy(video)).call.args)
        parts = [hf_patches(images), hf_video_patches(video)]
        theirs = [self.reference.model.visual(*part) for part in parts]
        wanted = [torch.cat((one.pooler_output, *one.deepstack_features), dim=-1) for one in theirs]
        return self.llm.model.encode(*batching.join(calls)), torch.cat(wanted)
