"""Text as it grows: characters of several tokens, neighbours that matter, stop strings across tokens."""

from __future__ import annotations

import pytest

from fastkernels.engine.transcript import Transcript

BYTES = lambda ids: bytes(ids).decode("utf-8", errors="replace")
WORDS = lambda ids: " ".join(f"w{i}" for i in ids)


def read(transcript: Transcript, ids: list[int]) -> list[str]:
    """The text after each token that stays, until a stop."""
    texts = []
    for end in range(1, len(ids) + 1):
        has_stopped = transcript.read(ids[:end])
        texts.append(transcript.text[: transcript.settled()])
        if has_stopped:
            return texts
    transcript.close(ids)
    return texts


def test_characters_of_several_tokens_appear_when_they_are_complete():
    text = "a\u00e9\u20ac\U0001f600z"
    transcript = Transcript(BYTES)
    texts = read(transcript, list(text.encode()))
    assert transcript.text == text
    assert texts == ["a", "a", *["a\u00e9"] * 3, *["a\u00e9\u20ac"] * 4, text[:-1], text]


def test_text_between_tokens_is_kept():
    transcript = Transcript(WORDS)
    assert read(transcript, [3, 4, 15]) == ["w3", "w3 w4", "w3 w4 w15"]


def test_what_never_completes_is_shown_in_the_end():
    transcript = Transcript(BYTES)
    read(transcript, [97, 0xE2, 0x82])
    assert transcript.text == "a\N{REPLACEMENT CHARACTER}"
    assert read(Transcript(BYTES), [0xFF] * 40 + [97])[-1] == "\N{REPLACEMENT CHARACTER}" * 40 + "a"


@pytest.mark.parametrize("broken", range(20))
def test_a_character_behind_broken_ones_stays_whole(broken):
    transcript = Transcript(BYTES, ["\u20ac"])
    read(transcript, [0xFF] * broken + list("\U0001f600a\u20ac".encode()))
    assert transcript.text == "\N{REPLACEMENT CHARACTER}" * broken + "\U0001f600a"


def test_tokens_without_text_cost_nothing():
    transcript = Transcript(lambda ids: "".join("x" for i in ids if i))
    assert read(transcript, [0] * 30 + [1])[-1] == "x"


@pytest.mark.parametrize(
    ("stops", "left", "found"),
    [
        (["w4 w5"], "w3 ", "w4 w5"),
        (["4 w5 w"], "w3 w", "4 w5 w"),
        (["zz", "w3"], "", "w3"),
        (["w5", "w4 w5"], "w3 w4 ", "w5"),  # both end with one token: the first of the list
        (["w9"], "w3 w4 w5 w6", None),
    ],
)
def test_stop_string_across_tokens_cuts_the_text(stops, left, found):
    transcript = Transcript(WORDS, stops)
    read(transcript, [3, 4, 5, 6])
    assert (transcript.text, transcript.stop) == (left, found)


def test_stop_string_in_what_is_held_back_at_the_end_cuts_the_text():
    tokens = [b"a", b"b\xe2"]  # the last one begins a character
    for min_tokens, left in ((0, ("a", "b")), (2, ("ab\N{REPLACEMENT CHARACTER}", None))):
        transcript = Transcript(
            lambda ids: b"".join(tokens[i] for i in ids).decode(errors="replace"), ["b"], min_tokens
        )
        read(transcript, [0, 1])
        assert (transcript.text, transcript.stop) == left


def test_stop_strings_are_not_looked_for_before_min_tokens():
    transcript = Transcript(WORDS, ["w4"], min_tokens=2)
    assert read(transcript, [4, 4, 5, 4, 6])[-1] == "w4 w4 w5 "


def test_what_may_become_a_stop_string_is_not_settled():
    transcript = Transcript(lambda ids: "".join(chr(i) for i in ids), ["abc", "cd"])
    seen = []
    for end in range(1, 8):
        assert not transcript.read([ord(c) for c in "xabaabz"[:end]])
        seen.append(transcript.text[: transcript.settled()])
    assert seen == ["x", "x", "x", "xab", "xaba", "xaba", "xabaabz"]
    assert transcript.read([ord(c) for c in "xabaabzabc"])
    assert transcript.text == "xabaabz"
