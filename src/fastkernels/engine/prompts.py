"""Prompts of images: a text to the token ids of two text encoders, and what ids and features must be.

A prompt has two sides. Its text: features of each token [S, J], or ids [S] from which T5 makes them. Pooled:
features of the whole [P], or ids [S'] from which CLIP makes them. A str is tokenised for both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastkernels.engine.text import load_tokenizer, tokenizing
from fastkernels.errors import RequestError
from fastkernels.nn.batching import require_values

MOST_FEATURE = 65504.0  # the largest of float16: finite in every dtype of a model
MOST_TOKENS = 512  # of a prompt for T5, which has no positions that end; texts are padded to it
_IDS = (
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)
_FEATURES = (
    *(torch.float64, torch.float32, torch.bfloat16, torch.float16),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
)
_FOLDERS = {"t5": "tokenizer_2", "clip": "tokenizer"}


class Prompts:
    """What `model` takes; `folder`: of its tokenizers, if there are any."""

    def __init__(self, model: Any, name: str, folder: Path | None) -> None:
        self.model, self.name, self.folder = model, name, folder
        self._tokenizers: dict[str, Any] = {}

    def checked(self, text: Tensor | str, pooled: Tensor | None) -> tuple[Tensor, Tensor]:
        """Both sides of a prompt as tensors; a RequestError for what the model cannot take."""
        if isinstance(text, str):
            if pooled is not None:
                raise RequestError("a prompt in words has no `pooled` beside it: CLIP makes it of the text")
            text, pooled = self._ids("t5", text), self._ids("clip", text)
        if not isinstance(text, Tensor) or not isinstance(pooled, Tensor):
            raise RequestError("a prompt is a str, or two tensors of features or of token ids")
        for name, side in (("text", text), ("pooled", pooled)):
            require_values(name, side)
            if side.dtype not in (*_IDS, *_FEATURES):
                dtype = str(side.dtype).removeprefix("torch.")
                raise RequestError(f"{name} is {dtype}: token ids are integers, features are floats")
        text, pooled = text.detach(), pooled.detach()  # a caller's gradients end here
        model = self.model
        if model.text_encoder is None and (is_ids(text) or is_ids(pooled)):
            raise RequestError(
                f"{self.name} has no text encoders, because there are none beside its transformer: give the "
                "prompt's features, or load the whole folder of the pipeline"
            )
        if is_ids(text):
            _require_ids(text, "T5", model.t5_vocab, MOST_TOKENS)
        elif text.dim() != 2 or not len(text) or text.shape[1] != model.text_features:
            raise RequestError(f"text {list(text.shape)}: expected [tokens, {model.text_features}]")
        else:
            _require_finite("text", text)
        if is_ids(pooled):
            _require_ids(pooled, "CLIP", model.clip_vocab, model.clip_length)
        elif tuple(pooled.shape) != (model.pooled_features,):
            raise RequestError(f"pooled {list(pooled.shape)}: expected [{model.pooled_features}]")
        else:
            _require_finite("pooled", pooled)
        return text, pooled

    def _ids(self, encoder: str, text: str) -> Tensor:
        """int64 [S], padded to the length that the encoder was trained with. For CLIP a longer text is cut,
        as the reference library does: T5 reads the rest."""
        tokenizer = self._tokenizer(encoder)
        most = MOST_TOKENS if encoder == "t5" else self.model.clip_length
        with tokenizing(text):
            made = tokenizer(text, padding="max_length", max_length=most, truncation=encoder == "clip")
        ids = made["input_ids"]
        if len(ids) > most:
            raise RequestError(f"a prompt of {len(ids)} tokens: T5 reads {most}. Shorten it")
        return torch.tensor(ids)

    def _tokenizer(self, encoder: str) -> Any:
        if encoder not in self._tokenizers:
            folder = None if self.folder is None else self.folder / _FOLDERS[encoder]
            if self.model.text_encoder is None or folder is None or not folder.is_dir():
                raise RequestError(
                    "a prompt in words needs text encoders, tokenizer and tokenizer_2; "
                    f"{self.name} lacks some of them: give token ids or features"
                )
            self._tokenizers[encoder] = load_tokenizer(folder)
        return self._tokenizers[encoder]


def is_ids(side: Tensor) -> bool:
    return not side.is_floating_point()


def _require_finite(name: str, features: Tensor) -> None:
    """A single NaN would make a whole image of them. On CUDA the host waits for the answer."""
    largest = float(features.float().abs().amax())  # narrower ones have no abs
    if not largest <= MOST_FEATURE:
        raise RequestError(f"{name} holds {largest:.3g}: features are finite, {MOST_FEATURE:.0f} at most")


def _require_ids(ids_S: Tensor, whose: str, vocab_size: int, most: int) -> None:
    if ids_S.dim() != 1 or not 1 <= len(ids_S) <= most:
        raise RequestError(f"ids {list(ids_S.shape)} for {whose}: expected 1 to {most} of one prompt")
    low, high = (int(bound) for bound in ids_S.long().aminmax())
    if low < 0 or high >= vocab_size:
        raise RequestError(f"id {low if low < 0 else high} for {whose}: its vocabulary has {vocab_size}")
