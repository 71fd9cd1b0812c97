"""Text in and out: the tokenizer of a model folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fastkernels.engine.core.sampling_params import SamplingParams
from fastkernels.engine.core.transcript import Transcript
from fastkernels.errors import RequestError

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")

Message = Mapping[str, Any]  # {"role": ..., "content": ...}


class Text:
    """A tokenizer, loaded on first use, or none."""

    def __init__(self, tokenizer: Any | None, folder: Path | None) -> None:
        self._tokenizer = tokenizer
        has_files = folder is not None and any((folder / name).is_file() for name in _TOKENIZER_FILES)
        self._folder = folder if has_files else None
        self._failure = ""  # to load it, in words: it is tried once
        self._bytes: list[int] | None = None  # not looked for yet
        self._tokens: dict[int, str] = {}

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

    def required(self, what: str) -> Any:
        """The tokenizer; a RequestError says that `what` needs one."""
        if self.tokenizer is None:
            raise RequestError(
                f"{what} needs a tokenizer, and this model has none: give one (LLM: tokenizer=, fk: "
                "--tokenizer), or give lists of token ids"
            )
        return self.tokenizer

    def require(self, sampling: SamplingParams) -> None:
        """RequestError where text is to be made and cannot be: said before a step, not in the middle of
        others' requests."""
        if sampling.detokenize:
            _ = self.tokenizer

    def encode(self, prompt: str) -> list[int]:
        tokenizer = self.required("a text prompt")
        with tokenizing(prompt):
            return list(tokenizer.encode(prompt))

    def encode_part(self, text: str) -> list[int]:
        """Of a text that stands inside a prompt."""
        tokenizer = self.required("the text beside a medium")
        with tokenizing(text):
            return list(tokenizer.encode(text, add_special_tokens=False))

    def conversation(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> tuple[str, list[int]]:
        """The prompt that the tokenizer's chat template, or the one in `options`, makes of messages: its text
        and its ids. A RequestError says why there is none."""
        tokenizer = self.required("a chat")
        if not options.get("chat_template") and not getattr(tokenizer, "chat_template", None):
            raise RequestError(
                "the tokenizer has no chat template: give one as chat_template, or call generate() with text"
            )
        with tokenizing(messages):
            text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
            return text, list(tokenizer.encode(text, add_special_tokens=False))

    def transcript(
        self, prompt: Sequence[int], sampling: SamplingParams, has_stops: bool = True
    ) -> Transcript | None:
        """For the text of an answer; None without a tokenizer, or where nobody wants text."""
        if not sampling.detokenize or self.tokenizer is None:
            return None
        return Transcript(
            partial(self._decode, skips=sampling.skip_special_tokens),
            sampling.stop_strings if has_stops else [],
            sampling.min_tokens,
            keeps_stop=sampling.include_stop_str_in_output,
            prompt=prompt,
            byte_ids=self._byte_ids(),
        )

    def token(self, token: int) -> str:
        """The text of one token as it reads behind another: without a neighbour some lose their space."""
        if token not in self._tokens:
            alone, twice = (self._decode([token] * count, skips=False) for count in (1, 2))
            self._tokens[token] = twice[len(alone) :] if twice.startswith(alone) else alone
        return self._tokens[token]

    def _decode(self, ids: list[int], skips: bool) -> str:
        # What a cleaning of spaces takes back depends on what comes later.
        return self.required("text").decode(
            ids, skip_special_tokens=skips, clean_up_tokenization_spaces=False
        )

    def _byte_ids(self) -> list[int]:
        """The ids of a letter's byte and of one that no character has, where the tokenizer decodes a run of
        byte tokens, <0x00> to <0xFF>, as one."""
        if self._bytes is None:
            known = self.required("text").get_vocab()
            ids = [known[name] for name in ("<0x41>", "<0xFF>") if name in known]
            is_one = len(ids) == 2 and self._decode(ids, skips=False) == "\N{REPLACEMENT CHARACTER}" * 2
            self._bytes = ids if is_one else []
        return self._bytes


def conversations(messages: Any) -> list[Sequence[Message]]:
    """One conversation or several, as a list of them; contents in text parts become text. A RequestError
    names what is no message of text."""
    listed = messages if isinstance(messages, (list, tuple)) else [messages]
    listed = [listed] if not all(isinstance(one, (list, tuple)) for one in listed) else listed
    return [[_message(one) for one in conversation] for conversation in listed]


def _message(message: Any) -> Message:
    if not isinstance(message, Mapping) or "role" not in message:
        raise RequestError(f"a message is {{'role': ..., 'content': text}}, not {message!r:.60}")
    content = message.get("content")
    if not isinstance(content, (list, tuple)):
        return message
    parts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) < len(parts):
        raise RequestError(f"the content of a message is text, not {content!r:.60}")
    return {**message, "content": "\n".join(texts)}


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
