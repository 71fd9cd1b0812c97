"""The text of a request as it grows, token by token, and the stop string that ends it.

    text of the prompt + text of the answer = text of all ids

Spaces, accents and characters of several tokens depend on the neighbours. So an answer is decoded behind a
few tokens of context, first of its prompt, then of itself, and what the context alone gives is taken off. The
newest characters may still change with the next token: `settled` says how many do not. Streamed or not, the
text of the same ids is the same.

Some tokenizers with a token for each byte decode a run of such tokens as one: where it is no valid text, each
of its bytes becomes a replacement character. There a wrong byte behind the ids shows how much is open.

A token costs a bounded amount of decoding. Open ids that have become many are folded: their text is kept, and
a few ids that mean the same for what comes stand in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

# Tokens of the prompt that are context; more where they have no text of their own.
LEAST_CONTEXT = 8
# Ids that are decoded again with the next token; more are folded.
MOST_OPEN = 32
_MOST_BYTES = 4  # of a character
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class Transcript:
    """decode(ids) -> text. stops: strings that end it, not looked for in the first `min_tokens` tokens; the
    text is cut before a stop, or behind it with `keeps_stop`. prompt: ids ahead of the answer. byte_ids: of a
    tokenizer that decodes a run of byte tokens as one, the ids of a letter's byte and of a wrong byte."""

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        stops: Sequence[str] = (),
        min_tokens: int = 0,
        *,
        keeps_stop: bool = False,
        prompt: Sequence[int] = (),
        byte_ids: Sequence[int] = (),
    ) -> None:
        self.text = ""
        self.stop: str | None = None  # the stop string that was found
        self._decode, self._byte_ids = decode, byte_ids
        self._stops, self._min_tokens, self._keeps_stop = stops, min_tokens, keeps_stop
        self._context = self._end_of(prompt)
        self._before = decode(self._context)
        # The first `read` ids without the open ones have the text text[:kept] + folded; the last of them that
        # have text, or what stands for them, are the context.
        self._read = self._kept = self._settled = 0
        self._open: list[int] = []
        # Where a letter's byte stands for a part of a run: its text if the run is valid, and if it is not.
        self._folded: tuple[str, str] | None = None

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
        self._open += ids[self._read :]
        self._read = len(ids)
        earlier = self.text[self._kept :]
        seen = self._context + self._open
        whole = self._decode(seen)
        begin = self._begin(whole)
        folded = self._folded[whole[0] == _INCOMPLETE] if self._folded else ""
        added = folded + whole[begin:]
        before = self._kept + _common(earlier, added)
        self.text = self.text[: self._kept] + added
        end = len(whole) if is_last else self._final(seen, whole)
        self._settled = self._kept + (len(folded) + end - begin if end > begin else 0)
        if end == len(whole) and not is_last:
            if added or not self._before:
                self._move()
            self._open, self._kept = [], len(self.text)
        elif len(seen) > MOST_OPEN and not is_last:
            self._open = [i for i in self._open if self._decode([i, i])]  # the others never had text
            if self._byte_ids:
                self._fold_run(begin, end)
            else:
                self._fold_characters(whole)
        return len(ids) > self._min_tokens and self._cut(before)

    def _begin(self, text: str) -> int:
        """Where the text of the open ids begins: behind the context, or amid it where the prompt ends amid a
        character."""
        return len(self._before) if self._folded else _common(self._before, text)

    def _move(self) -> None:
        """Make the newest ids the context, and earlier ones where those have no text alone: a decoder strips
        the beginning of what it gets."""
        alone = self._decode(self._open)
        is_enough = self._final(self._open, alone) > 0
        self._context = self._open if is_enough else self._end_of(self._context + self._open)
        self._before = alone if is_enough else self._decode(self._context)
        self._folded = None

    def _fold_characters(self, whole: str) -> None:
        """Leave open only the newest ids: they have more bytes than a character, so that none to come reaches
        back beyond them."""
        if len(self._open) < LEAST_CONTEXT:
            return
        seen = self._context + self._open
        context, rest = seen[-2 * LEAST_CONTEXT : -LEAST_CONTEXT], seen[-LEAST_CONTEXT:]
        text, before = self._decode(context + rest), self._decode(context)
        before = before[: _common(before, text)]  # it may end amid a character
        left = text[len(before) :]
        if whole.endswith(left):
            self._context, self._before, self._open = context, before, rest
            self._kept = len(self.text) - len(left)

    def _fold_run(self, begin: int, end: int) -> None:
        """Fold all but the bytes of a last character that is not whole: into a letter's byte if the run is
        valid up to there, else into a wrong byte, since no byte to come can mend it."""
        if len(self._open) < _MOST_BYTES:
            return
        letter, wrong = self._byte_ids
        valid, broken = self._folded or ("", "")
        if end > begin:  # something ended the run before this one
            self._kept, valid, broken = self._settled, "", ""
        for cut in range(len(self._open), len(self._open) - _MOST_BYTES, -1):
            seen = self._context + self._open[:cut]
            if self._decode([*seen, letter])[-1] != _INCOMPLETE:
                whole, spoilt = self._decode(seen), self._decode([*seen, wrong])[:-1]
                valid += whole[max(end, self._begin(whole)) :]
                broken += spoilt[max(end, self._begin(spoilt)) :]
                self._folded = valid, broken
                self._context, self._open = [letter], self._open[cut:]
                break
        else:
            self._folded, self._kept = None, len(self.text)
            self._context, self._open = [wrong], []
        self._before = self._decode(self._context)

    def _final(self, ids: list[int], text: str) -> int:
        """Characters of the ids' text that stay, whatever comes behind them."""
        if self._byte_ids:
            text = text[: _common(text, self._decode([*ids, self._byte_ids[1]]))]
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
