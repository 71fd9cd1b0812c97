"""Words of a candidate on a terminal."""

from fastkernels.records import Failure
from fastkernels.records.kernels import MOST_PRINTED, MOST_SAID


def test_a_candidate_cannot_write_over_the_table() -> None:
    failure = Failure(message="\x1b[9A\rPASSED", output="\x1b[31mred\x1b[0m\ttab\r\n\x9b2Jnext\x08")
    assert failure.message == "\\x1b[9A\\x0dPASSED"
    assert failure.output == "red\ttab\n\\x9b2Jnext\\x08"


def test_a_report_does_not_grow_with_what_a_candidate_says() -> None:
    failure = Failure(message="begin" + "x" * 5_000_000 + "end", output="y" * 5_000_000)
    assert failure.message.startswith("beginx")
    assert failure.message.endswith("xend")
    assert (len(failure.message), len(failure.output)) == (MOST_SAID, MOST_PRINTED)
    assert Failure.model_validate(failure.model_dump()) == failure
