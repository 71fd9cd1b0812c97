"""Text in and out: the tokenizer of a model folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastkernels.engine.params import SamplingParams
from fastkernels.engine.transcript import Transcript
from fastkernels.errors import RequestError

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


class Text:
    """A tokenizer, loaded on first use, or none."""

    def __init__(self, tokenizer: Any | None, folder: Path | None) -> None:
        self._tokenizer = tokenizer
        has_files = folder is not None and any((folder / name).is_file() for name in _TOKENIZER_FILES)
        self._folder = folder if has_files else None
        self._failure = ""  # to load it, in words: it is tried once

    @property
    def tokenizer(self) -> Any | None:
        """A RequestError says why there is none that could be loaded."""
        if self._failure:
            raise RequestError(self._failure)
        if self._tokenizer is None and self._folder is not None:
            try:
                self._tokenizer = load_tokenizer(self._folder)
            except RequestError as error:
                self._failure = str(error)
                raise
        return self._tokenizer

    def require(self, sampling: SamplingParams) -> None:
        """RequestError where text is to be made and cannot be: said before a step, not in the middle of
        others' requests."""
        if sampling.detokenize:
            _ = self.tokenizer

    def encode(self, prompt: str) -> list[int]:
        if self.tokenizer is None:
            raise RequestError(
                "A text prompt needs a tokenizer, and this model has none: give lists of token ids"
            )
        with tokenizing(prompt):
            return list(self.tokenizer.encode(prompt))

    def decode(self, ids: list[int]) -> str:
        """The text of `ids`, empty without a tokenizer."""
        return "" if self.tokenizer is None else self.tokenizer.decode(ids, skip_special_tokens=True)

    def transcript(self, sampling: SamplingParams, has_stops: bool = True) -> Transcript | None:
        """For text that is read as it grows; None without a tokenizer, or where nobody wants text."""
        if not sampling.detokenize or self.tokenizer is None:
            return None
        stops = sampling.stop_strings if has_stops else []
        return Transcript(self.decode, stops, sampling.min_tokens)


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer in a folder; a RequestError says what is wrong with its files."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever readers of its many formats raise
        first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip()
        if first.endswith(":"):  # a list begins, of all that transformers tried
            first = "transformers can read none of its files"
        raise RequestError(
            f"the tokenizer in {folder} cannot be loaded: {first.rstrip('.')}. Copy its files again, or give "
            "token ids (a language model: with detokenize=False)"
        ) from error


@contextlib.contextmanager
def tokenizing(prompt: Any) -> Iterator[None]:
    """What a tokenizer raises in the body is the prompt's RequestError."""
    try:
        yield
    except Exception as error:  # half a surrogate pair is a TypeError of some
        raise RequestError(f"the tokenizer refuses {prompt!r:.60}: {error}") from error
