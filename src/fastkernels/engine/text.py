"""Text in and out: the tokenizer of a model folder, and stop strings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastkernels.engine.requests import Request
from fastkernels.errors import RequestError

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
# A character can take several tokens, and a token several characters: this many more tokens are looked at for
# a stop.
_STOP_SLACK_TOKENS = 8


class Text:
    """A tokenizer, loaded on first use, or none."""

    def __init__(self, tokenizer: Any | None, folder: Path | None) -> None:
        self._tokenizer = tokenizer
        has_files = folder is not None and any((folder / name).is_file() for name in _TOKENIZER_FILES)
        self._folder = folder if has_files else None

    @property
    def tokenizer(self) -> Any | None:
        if self._tokenizer is None and self._folder is not None:
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(self._folder, local_files_only=True)
        return self._tokenizer

    def encode(self, prompt: str) -> list[int]:
        if self.tokenizer is None:
            raise RequestError(
                "A text prompt needs a tokenizer, and this model has none: give lists of token ids"
            )
        return list(self.tokenizer.encode(prompt))

    def decode(self, ids: list[int]) -> str:
        """The text of `ids`, empty without a tokenizer."""
        return "" if self.tokenizer is None else self.tokenizer.decode(ids, skip_special_tokens=True)

    def completion(self, request: Request) -> str:
        """The text of a finished request, cut before the stop string that ended it."""
        text = self.decode(request.output)
        return text if request.stop_text is None else text[: text.find(request.stop_text)]

    def watch(self, request: Request) -> str | None:
        """ "stop" once the newest tokens complete a stop string."""
        stops = request.sampling.stop_strings
        if not stops:
            return None
        recent = max(len(stop) for stop in stops) + _STOP_SLACK_TOKENS
        tail = self.decode(request.output[-recent:])
        request.stop_text = next((stop for stop in stops if stop in tail), None)
        return None if request.stop_text is None else "stop"
