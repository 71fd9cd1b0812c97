"""`ImageRequest`: what a prompt is to become, and whether it can be served.

A prompt has two sides, each with an encoder of its own that the model names (`readers`: nn/prompts.py). Its
text: features of each token [S, J], or ids [S] from which they are made. Pooled: features of the whole [P],
or ids [S']. A str is tokenised for both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fastkernels.engine.core.checks import IS_SEED, is_integer, is_seed, is_within
from fastkernels.engine.media.text import load_tokenizer, tokenizing
from fastkernels.errors import RequestError
from fastkernels.nn.batching import require_values
from fastkernels.nn.flow_matching import TIMESTEPS
from fastkernels.nn.latents import TOKEN_PIXELS
from fastkernels.nn.prompts import Reader

MOST_SIDE = 4096  # of a side: an image 16 times as large as the largest that models are trained for
MOST_GUIDANCE = 65  # models embed it times 1000, and float16 ends at 65,504


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """text and pooled: the prompt as token ids int64 [S] and [S'] for the model's encoders (FLUX.1: T5 and
    CLIP), or as the features [S, J] and [P] that they make of it; or the prompt itself and None, where the
    model has tokenizers. height and width in pixels, multiples of 16. steps and guidance: None: the model's
    own. output: `image`, or `latent` before it is decoded; None: an image where the model has a decoder."""

    text: Tensor | str
    pooled: Tensor | None
    height: int
    width: int
    steps: int | None = None
    guidance: float | None = None
    seed: int = 0
    output: Literal["image", "latent"] | None = None


def checked(request: Any) -> ImageRequest:
    """The request, its numbers as Python's; a RequestError names the one that cannot be served."""
    if not isinstance(request, ImageRequest):
        raise RequestError(f"a request must be an ImageRequest, not {request!r:.60}")
    height, width = checked_sides(request.height, request.width)
    # A model tells so many timesteps apart.
    steps, guidance = request.steps, request.guidance
    is_steps = steps is None or (is_integer(steps) and 1 <= steps <= TIMESTEPS)
    _require("steps", steps, is_steps, f"an integer from 1 to {TIMESTEPS}")
    is_guidance = guidance is None or is_within(guidance, 0, MOST_GUIDANCE)
    _require("guidance", request.guidance, is_guidance, f"a number from 0 to {MOST_GUIDANCE}")
    _require("seed", request.seed, is_seed(request.seed), IS_SEED)
    is_output = request.output is None or str(request.output) in ("image", "latent")
    _require("output", request.output, is_output, "'image' or 'latent'")
    steps, guidance = (
        steps if steps is None else int(steps),
        guidance if guidance is None else float(guidance),
    )
    numbers = {"steps": steps, "guidance": guidance, "seed": int(request.seed)}
    return replace(request, height=height, width=width, **numbers)


def checked_sides(height: Any, width: Any) -> tuple[int, int]:
    """Sides of an image that tokens fill."""
    for name, side in (("height", height), ("width", width)):
        is_side = is_integer(side) and 0 < side <= MOST_SIDE and side % TOKEN_PIXELS == 0
        _require(name, side, is_side, f"a multiple of {TOKEN_PIXELS} pixels, up to {MOST_SIDE}")
    return int(height), int(width)


def _require(name: str, value: Any, is_met: bool, rule: str) -> None:
    if not is_met:
        raise RequestError(f"{name}={value!r:.60}: must be {rule}")


MOST_FEATURE = 65504.0  # the largest of float16: finite in every dtype of a model
_IDS = (
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)
_FEATURES = (
    *(torch.float64, torch.float32, torch.bfloat16, torch.float16),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
)


class Prompts:
    """What `model` takes; `folder`: of its tokenizers, if there are any."""

    def __init__(self, model: Any, name: str, folder: Path | None) -> None:
        self.model, self.name, self.folder = model, name, folder
        self._tokenizers: dict[str, Any] = {}

    def checked(self, text: Tensor | str, pooled: Tensor | None) -> tuple[Tensor, Tensor]:
        """Both sides of a prompt as tensors; a RequestError for what the model cannot take."""
        if isinstance(text, str):
            if pooled is not None:
                raise RequestError("a prompt in words has no `pooled` beside it: it is made of the text")
            words = text
            text, pooled = (self._ids(reader, words) for reader in self._readers())
        if not isinstance(text, Tensor) or not isinstance(pooled, Tensor):
            raise RequestError("a prompt is a str, or two tensors of features or of token ids")
        for name, side in (("text", text), ("pooled", pooled)):
            require_values(name, side)
            if side.dtype not in (*_IDS, *_FEATURES):
                dtype = str(side.dtype).removeprefix("torch.")
                raise RequestError(f"{name} is {dtype}: token ids are integers, features are floats")
        text, pooled = text.detach(), pooled.detach()  # a caller's gradients end here
        model = self.model
        readers: tuple[Reader, Reader] | None = model.readers
        if readers is None and (is_ids(text) or is_ids(pooled)):
            raise RequestError(
                f"{self.name} has no text encoders, because there are none beside its denoiser: give the "
                "prompt's features, or load the whole folder of the pipeline"
            )
        if is_ids(text) and readers:
            _require_ids(text, readers[0])
        elif text.dim() != 2 or not len(text) or text.shape[1] != model.text_features:
            raise RequestError(f"text {list(text.shape)}: expected [tokens, {model.text_features}]")
        else:
            _require_finite("text", text)
        if is_ids(pooled) and readers:
            _require_ids(pooled, readers[1])
        elif tuple(pooled.shape) != (model.pooled_features,):
            raise RequestError(f"pooled {list(pooled.shape)}: expected [{model.pooled_features}]")
        else:
            _require_finite("pooled", pooled)
        return text, pooled

    def _readers(self) -> tuple[Reader, Reader]:
        if self.model.readers is None:
            raise RequestError(self._lacks())
        return self.model.readers

    def _ids(self, reader: Reader, text: str) -> Tensor:
        """int64 [S], padded to the length that the encoder was trained with."""
        tokenizer, most = self._tokenizer(reader.tokenizer), reader.tokens
        with tokenizing(text):
            made = tokenizer(text, padding="max_length", max_length=most, truncation=reader.cuts)
        ids = made["input_ids"]
        if len(ids) > most:
            raise RequestError(f"a prompt of {len(ids)} tokens: {reader.name} reads {most}. Shorten it")
        return torch.tensor(ids)

    def _tokenizer(self, name: str) -> Any:
        if name not in self._tokenizers:
            folder = None if self.folder is None else self.folder / name
            if folder is None or not folder.is_dir():
                raise RequestError(self._lacks())
            self._tokenizers[name] = load_tokenizer(folder)
        return self._tokenizers[name]

    def _lacks(self) -> str:
        return (
            "a prompt in words needs text encoders, tokenizer and tokenizer_2; "
            f"{self.name} lacks some of them: give token ids or features"
        )


def is_ids(side: Tensor) -> bool:
    return not side.is_floating_point()


def _require_finite(name: str, features: Tensor) -> None:
    """A single NaN would make a whole image of them. On CUDA the host waits for the answer."""
    largest = float(features.float().abs().amax())  # narrower ones have no abs
    if not largest <= MOST_FEATURE:
        raise RequestError(f"{name} holds {largest:.3g}: features are finite, {MOST_FEATURE:.0f} at most")


def _require_ids(ids_S: Tensor, reader: Reader) -> None:
    if ids_S.dim() != 1 or not 1 <= len(ids_S) <= reader.tokens:
        found = f"ids {list(ids_S.shape)} for {reader.name}"
        raise RequestError(f"{found}: expected 1 to {reader.tokens} of one prompt")
    low, high = (int(bound) for bound in ids_S.long().aminmax())
    if low < 0 or high >= reader.vocab_size:
        found = f"id {low if low < 0 else high} for {reader.name}"
        raise RequestError(f"{found}: its vocabulary has {reader.vocab_size}")
