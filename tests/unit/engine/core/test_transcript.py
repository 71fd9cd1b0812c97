"""Text as it grows: characters of several tokens, neighbours that matter, stop strings across tokens."""

from __future__ import annotations

import os.path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastkernels.engine.core.sampling_params import SamplingParams
from fastkernels.engine.core.transcript import MOST_OPEN, Transcript
from fastkernels.engine.media.text import Text
from tests.tiny_tokenizers import BYTES as TOKEN_BYTES
from tests.tiny_tokenizers import SPECIALS, byte_level_tokenizer, other_tokenizers, sentencepiece_tokenizer

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


KINDS = {
    "sentencepiece": sentencepiece_tokenizer(),
    "byte level": byte_level_tokenizer(),
    **other_tokenizers(),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_prompt_and_answer_make_up_the_text_of_all_ids_streamed_or_not(kind, data):
    tokenizer = KINDS[kind]
    ids = st.lists(st.integers(0, len(tokenizer) - 1), max_size=24)
    prompt, answer = data.draw(ids), data.draw(ids)
    decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=True)
    text = Text(tokenizer, None)
    params = SamplingParams()

    plain = text.transcript(prompt, params)
    plain.close(answer)
    every = decode(prompt + answer)
    kept = os.path.commonprefix([decode(prompt), every])  # noqa: RUF071  all of it, but for a character amid its bytes
    assert kept + plain.text == every
    if not decode(prompt).endswith("\N{REPLACEMENT CHARACTER}") and kind != "sentencepiece":
        assert kept == decode(prompt)

    streamed, shown = text.transcript(prompt, params), ""
    for end in range(1, len(answer) + 1):
        assert not streamed.read(answer[:end])
        before = text.transcript(prompt, params)
        before.close(answer[:end])
        assert streamed.text == before.text, "an answer that ended here would have another text"
        assert streamed.text.startswith(shown), "settled text has changed"
        assert streamed.settled() >= len(shown)
        shown = streamed.text[: streamed.settled()]
    streamed.close(answer)
    assert streamed.text == plain.text
    assert plain.text.startswith(shown)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_stop_string_ends_an_answer_with_the_token_that_completes_it(kind, data):
    tokenizer = KINDS[kind]
    ids = st.lists(st.integers(0, len(tokenizer) - 1), max_size=16)
    prompt, answer = data.draw(ids), data.draw(ids)
    stop = data.draw(st.sampled_from([" world", "\n", "ing.", "\N{GRINNING FACE}", "world", " ", "n"]))
    keeps = data.draw(st.booleans())
    text = Text(tokenizer, None)
    found = text.transcript(prompt, SamplingParams(stop=stop, include_stop_str_in_output=keeps))
    shown = ""
    for end in range(1, len(answer) + 1):
        plain = text.transcript(prompt, SamplingParams())
        plain.close(answer[:end])
        assert found.read(answer[:end]) == (stop in plain.text)
        if found.stop is not None:
            at = plain.text.index(stop)
            assert found.text == plain.text[: at + len(stop) * keeps]
            assert found.text.startswith(shown)
            return
        assert found.text.startswith(shown)
        shown = found.text[: found.settled()]


def test_an_answer_that_begins_with_a_space_keeps_it():
    tokenizer = KINDS["sentencepiece"]
    hello, world = (tokenizer.convert_tokens_to_ids(f"\u2581{word}") for word in ("hello", "world"))
    found = Text(tokenizer, None).transcript([1, hello], SamplingParams(stop=" world"))
    assert found.read([world])
    assert (found.text, found.stop) == ("", " world")
    found = Text(tokenizer, None).transcript([1, hello], SamplingParams())
    found.close([world])
    assert found.text == " world"


@pytest.mark.parametrize("last", ["</s>", "<0x0A>"])
def test_the_context_reaches_back_to_text_that_stays(last):
    tokenizer = KINDS["sentencepiece"]
    hello, world, last, broken = tokenizer.convert_tokens_to_ids(
        ["\u2581hello", "\u2581world", last, "<0xF0>"]
    )
    prompt = [1, hello, *[last] * 20]
    for answer in ([world], [broken, world]):
        found = Text(tokenizer, None).transcript(prompt, SamplingParams())
        found.close(answer)
        every = tokenizer.decode(prompt + answer, skip_special_tokens=True)
        before = tokenizer.decode(prompt, skip_special_tokens=True)
        assert os.path.commonprefix([before, every]) + found.text == every  # noqa: RUF071


def test_bytes_cut_in_a_character_have_one_text():
    tokenizer = KINDS["sentencepiece"]
    ids = tokenizer.convert_tokens_to_ids(["<0x0A>", "<0xF0>", "<0x9F>"])
    streamed, plain = (Text(tokenizer, None).transcript([1], SamplingParams()) for _ in range(2))
    texts = read(streamed, ids)
    plain.close(ids)
    assert streamed.text == plain.text == tokenizer.decode(ids)
    assert texts == [""] * 3, "the next byte may change all of them"


def test_a_long_prompt_is_not_decoded_for_each_token():
    lengths = []

    def decode(ids):
        lengths.append(len(ids))
        return WORDS(ids)

    transcript = Transcript(decode, prompt=list(range(5000)))
    read(transcript, list(range(50)))
    assert transcript.text == "".join(f" w{i}" for i in range(50))
    assert max(lengths) < 20


FACE = "\N{GRINNING FACE}".encode()
RUNS = {  # W stands for a word
    "wrong bytes": b"\xff" * 200,
    "beginnings": b"\xe2" * 200,
    "halves": b"\xe2\x82" * 100,
    "ends": b"\x9f" * 200,
    "whole": (FACE + b"A") * 40,
    "whole, then wrong": FACE * 25 + b"\xe2" + FACE * 24,
    "whole, then amid one": FACE * 40 + FACE[:3],
    "a letter between": FACE[:2] * 50 + b"A" + FACE[:3] * 35,
    "words between": (b"WW" + FACE * 12 + b"W" + FACE * 9 + b"\xe2" + b"W" + b"\xff" * 40) * 2,
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("begin", [b"", b"A.", FACE[:2], FACE * 30, FACE * 30 + FACE[:1], b"\xff" * 40])
@pytest.mark.parametrize("kind", ["sentencepiece", "byte level"])
@pytest.mark.parametrize("step", [1, 45])
def test_a_long_run_of_bytes_has_the_text_of_all_ids_at_a_bounded_cost(kind, begin, run, step):
    tokenizer = KINDS[kind]
    word = tokenizer.convert_tokens_to_ids("\u2581world" if kind == "sentencepiece" else "\u0120world")
    tokens = {ord("W"): word, **{byte: len(SPECIALS) + place for place, byte in enumerate(TOKEN_BYTES)}}
    prompt, answer = ([tokens[byte] for byte in part] for part in (begin, run + b"WW"))
    text, costs, ends = Text(tokenizer, None), [0], [*range(step, len(answer), step), len(answer)]
    decode = text._decode

    def counted(ids, skips):
        costs[-1] += len(ids)
        return decode(ids, skips)

    text._decode = counted
    streamed, shown = text.transcript(prompt, SamplingParams()), ""
    for count in ends:
        costs.append(0)
        assert not streamed.read(answer[:count])
        every = tokenizer.decode(prompt + answer[:count])
        kept = os.path.commonprefix([tokenizer.decode(prompt), every])  # noqa: RUF071
        assert kept + streamed.text == every
        assert streamed.text.startswith(shown), "settled text has changed"
        assert streamed.settled() >= len(shown)
        shown = streamed.text[: streamed.settled()]
    assert shown == streamed.text, "a word ends all runs"
    assert max(costs[1:]) <= 10 * (MOST_OPEN + step + len(prompt)), "decodings of all that is open"
    assert sum(costs) <= 4 * MOST_OPEN * len(answer)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le"])
@pytest.mark.parametrize(
    "cycle",
    [[b"\x82\xac\xe2"], [b"\xe2", b"\x82"], [b"\xac\xe2\x82", b"\xff\xe2", b"\x82"], [b"\xfd", b"\xff"]],
)
def test_tokens_that_end_amid_a_character_have_the_text_of_all_ids(cycle, encoding):
    decode = lambda ids: b"".join(cycle[i % len(cycle)] for i in ids).decode(encoding, errors="replace")
    transcript = Transcript(decode)
    for end in range(1, 200):
        transcript.read(list(range(end)))
        assert transcript.text == decode(list(range(end)))


def test_tokens_without_text_amid_a_character_have_a_bounded_cost():
    sizes = []

    def decode(ids):
        sizes.append(len(ids))
        return BYTES([i for i in ids if i])

    transcript = Transcript(decode)
    read(transcript, [0xE2, *[0] * 500, 0x82, 0xAC])
    assert transcript.text == "\u20ac"
    assert max(sizes) <= MOST_OPEN + 1


def test_a_decoder_that_strips_what_it_gets_has_a_bounded_context():
    sizes = []

    def decode(ids):
        sizes.append(len(ids))
        return "".join(map(chr, ids)).removeprefix(" ")

    transcript = Transcript(decode, prompt=[97])
    read(transcript, [32] * 500)
    assert transcript.text == " " * 500
    assert max(sizes) <= MOST_OPEN


def test_a_token_has_the_text_that_it_has_behind_another():
    for kind, token, wanted in (
        ("sentencepiece", "\u2581world", " world"),
        ("sentencepiece", "<0xF0>", "\N{REPLACEMENT CHARACTER}"),
        ("wordpiece", "##ing", "ing"),
        ("none", "world", " world"),
        ("byte level", "\u0120world", " world"),
        ("sentencepiece", "</s>", "</s>"),
    ):
        tokenizer = KINDS[kind]
        assert Text(tokenizer, None).token(tokenizer.convert_tokens_to_ids(token)) == wanted
