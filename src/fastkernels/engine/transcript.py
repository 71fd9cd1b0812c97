"""The text of a request as it grows, token by token, and the stop string that ends it.

What a token adds is what it changes: decode(context + token) less decode(context), with a few tokens of
context, because spaces and accents depend on the neighbours. A character of several tokens is held back until
it is complete. Text that is once there never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

# No tokenizer spreads a character over more tokens: what is not complete by then is shown as it is.
MOST_PENDING_TOKENS = 8
MOST_TOKENS_OPEN = 3  # of a character of four bytes that lacks its last
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class Transcript:
    """decode(ids) -> text. stops: strings that end it, not looked for in the first `min_tokens` tokens."""

    def __init__(
        self, decode: Callable[[list[int]], str], stops: Sequence[str] = (), min_tokens: int = 0
    ) -> None:
        self.text = ""
        self.stop: str | None = None  # the stop string that was found; the text is cut before it
        self._decode, self._stops, self._min_tokens = decode, stops, min_tokens
        self._context, self._read = 0, 0  # ids[context:read] are the context, ids[read:] have no text yet

    def read(self, ids: list[int]) -> bool:
        """Read on in the output so far; whether a stop string is complete now."""
        before = len(self.text)
        is_stuck = len(ids) - self._read > MOST_PENDING_TOKENS
        self._extend(ids[: self._last_boundary(ids)] if is_stuck else ids, is_stuck)
        return len(ids) > self._min_tokens and self._cut(before)

    def close(self, ids: list[int]) -> None:
        """Show what was held back, up to a stop string in it: no more tokens come."""
        if self.stop is None:
            before = len(self.text)
            self._extend(ids, True)
            if len(ids) > self._min_tokens:
                self._cut(before)

    def settled(self) -> int:
        """Characters that no stop string can take back."""
        if self.stop is None:
            for held in range(min(len(self.text), max(map(len, self._stops), default=1) - 1), 0, -1):
                if any(stop.startswith(self.text[-held:]) for stop in self._stops):
                    return len(self.text) - held
        return len(self.text)

    def _cut(self, before: int) -> bool:
        """End the text at a stop string that ends behind its first `before` characters, if one does."""
        for stop in self._stops:
            at = self.text.find(stop, max(0, before - len(stop) + 1))
            if at >= 0:
                self.text, self.stop = self.text[:at], stop
                return True
        return False

    def _last_boundary(self, ids: list[int]) -> int:
        """Where a character may begin that the newest tokens leave open: it can still be completed, however
        many broken ones are before it."""
        whole = self._decode(ids[self._context :])
        ends = range(len(ids) - MOST_TOKENS_OPEN, len(ids)) if whole.endswith(_INCOMPLETE) else ()
        splits = (self._decode(ids[self._context : end]) + self._decode(ids[end:]) for end in ends)
        return next((end for end, split in zip(ends, splits) if split == whole), len(ids))

    def _extend(self, ids: list[int], is_forced: bool) -> None:
        old = self._decode(ids[self._context : self._read])
        new = self._decode(ids[self._context :])
        if is_forced or (len(new) > len(old) and not new.endswith(_INCOMPLETE)):
            self.text += new[len(old) :]
            self._context, self._read = self._read, len(ids)
