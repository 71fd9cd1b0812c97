"""Words of a candidate on a terminal."""

from fastkernels.records import Failure
from fastkernels.records.base import MOST_CHARACTERS


def test_a_candidate_cannot_write_over_the_table() -> None:
    failure = Failure(message="\x1b[9A\rPASSED", output="\x1b[31mred\x1b[0m\ttab\r\n\x9b2Jnext\x08")
    assert failure.message == "\\x1b[9A\\x0dPASSED"
    assert failure.output == "red\ttab\n\\x9b2Jnext\\x08"


def test_a_place_is_a_word_of_a_candidate_too() -> None:
    assert Failure(message="", file="/mine/L1/\x1b[2J.py").file == "/mine/L1/\\x1b[2J.py"


def test_half_a_surrogate_pair_can_be_written() -> None:
    assert Failure(message="half \udcff").model_dump_json().startswith('{"message":"half \\\\udcff"')


def test_of_megabytes_the_ends_are_kept() -> None:
    long = Failure(message="begin" + "\x07" * 10_000_000 + "end").message
    assert len(long) <= MOST_CHARACTERS
    assert long.startswith("begin\\x07")
    assert "\n[...]\n" in long
    assert long.endswith("\\x07end")
    assert Failure(message=long).message == long
