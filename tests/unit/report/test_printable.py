"""Words of a candidate on a terminal."""

from fastkernels.records import Failure


def test_a_candidate_cannot_write_over_the_table() -> None:
    failure = Failure(message="\x1b[9A\rPASSED", output="\x1b[31mred\x1b[0m\ttab\r\n\x9b2Jnext\x08")
    assert failure.message == "\\x1b[9A\\x0dPASSED"
    assert failure.output == "red\ttab\n\\x9b2Jnext\\x08"
