"""The text of a request as it grows, token by token, and the stop string that ends it.

    text of the prompt + text of the answer = text of all ids

Spaces, accents and characters of several tokens depend on the neighbours. So an answer is decoded behind a
few tokens of context, first of its prompt, then of itself, and what the context alone gives is taken off. The
newest characters may still change with the next token: `settled` says how many do not. Streamed or not, the
text of the same ids is the same.

A tokenizer with a token for each byte decodes a run of them as one: all of it is replaced where one byte is
wrong. There a broken byte behind the ids shows what is open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

# Tokens of the prompt that are context; more where they have no text of their own.
LEAST_CONTEXT = 8
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class Transcript:
    """decode(ids) -> text. stops: strings that end it, not looked for in the first `min_tokens` tokens; the
    text is cut before a stop, or behind it with `keeps_stop`. prompt: ids ahead of the answer. broken: of a
    tokenizer with byte tokens, the id of a byte that completes no character, alone in a list."""

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        stops: Sequence[str] = (),
        min_tokens: int = 0,
        *,
        keeps_stop: bool = False,
        prompt: Sequence[int] = (),
        broken: Sequence[int] = (),
    ) -> None:
        self.text = ""
        self.stop: str | None = None  # the stop string that was found
        self._decode, self._broken = decode, list(broken)
        self._stops, self._min_tokens, self._keeps_stop = stops, min_tokens, keeps_stop
        self._context = self._end_of(prompt)
        self._before = decode(self._context)
        # The text of the first `read` ids is text[:kept]; the last of them that have text are the context.
        self._read = self._kept = self._settled = 0

    def read(self, ids: list[int]) -> bool:
        """Read on in the output so far; whether a stop string is complete now."""
        return self._extend(ids, is_last=False)

    def close(self, ids: list[int]) -> None:
        """Read to the end, up to a stop string: no more tokens come."""
        if self.stop is None:
            self._extend(ids, is_last=True)

    def settled(self) -> int:
        """Characters that no token and no stop string can take back."""
        if self.stop is not None:
            return len(self.text)
        longest = 0 if self._keeps_stop else max(map(len, self._stops), default=1) - 1
        for held in range(min(self._settled, longest), 0, -1):
            begin = self.text[self._settled - held : self._settled]
            if any(stop.startswith(begin) for stop in self._stops):
                return self._settled - held
        return self._settled

    def _extend(self, ids: list[int], is_last: bool) -> bool:
        fresh, earlier = ids[self._read :], self.text[self._kept :]
        seen = self._context + fresh
        whole = self._decode(seen)
        begin = _common(self._before, whole)  # less than all where the prompt ends amid a character
        added = whole[begin:]
        before = self._kept + _common(earlier, added)
        self.text = self.text[: self._kept] + added
        end = len(whole) if is_last else self._final(seen, whole)
        self._settled = self._kept + max(0, end - begin)
        if end == len(whole) and not is_last:
            if added or not self._before:
                self._move(fresh)
            self._read, self._kept = len(ids), len(self.text)
        return len(ids) > self._min_tokens and self._cut(before)

    def _move(self, fresh: list[int]) -> None:
        """Make the newest ids the context, or add them: a decoder strips the beginning of what it gets."""
        alone = self._decode(fresh)
        if self._final(fresh, alone):
            self._context, self._before = fresh, alone
        else:
            self._context = self._context + fresh
            self._before = self._decode(self._context)

    def _final(self, ids: list[int], text: str) -> int:
        """Characters of the ids' text that stay, whatever comes behind them."""
        if self._broken:
            text = text[: _common(text, self._decode(ids + self._broken))]
        return len(text.rstrip(_INCOMPLETE))

    def _end_of(self, prompt: Sequence[int]) -> list[int]:
        """The last ids of a prompt, as many as have text that stays; all of them if none do."""
        count = LEAST_CONTEXT
        while count < len(prompt):
            context = list(prompt[-count:])
            if self._final(context, self._decode(context)):
                return context
            count *= 2
        return list(prompt)

    def _cut(self, before: int) -> bool:
        """End the text at a stop string that ends behind its first `before` characters, if one does."""
        for stop in self._stops:
            at = self.text.find(stop, max(0, before - len(stop) + 1))
            if at >= 0:
                self.text, self.stop = self.text[: at + len(stop) * self._keeps_stop], stop
                return True
        return False


def _common(first: str, second: str) -> int:
    """Characters that two texts begin with together."""
    if second.startswith(first):
        return len(first)
    differ = (place for place, (one, other) in enumerate(zip(first, second)) if one != other)
    return next(differ, len(second))
