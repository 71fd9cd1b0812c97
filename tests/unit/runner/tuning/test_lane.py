"""A process of fk tune: it answers, and one that does not is ended and replaced."""

import os
import signal
import time

from fastkernels import registry
from fastkernels.runner.tuning.lane import Lane, Lost
from fastkernels.runner.tuning.look import Looked
from fastkernels.runner.tuning.stopwatch import Timed

CASE = next(c for c in registry.cases("rms_norm", "tiny") if c.timed)


def answered(lane: Lane, limit_s: float = 60.0):
    while (answer := lane.answer(limit_s)) is None:
        time.sleep(0.02)
    return answer


def test_it_looks_times_and_is_replaced_when_it_dies_or_takes_too_long() -> None:
    lane = Lane("cpu", threads=1)
    try:
        lane.look(CASE, frozenset(), is_alone=True)
        looked = answered(lane)
        assert isinstance(looked, Looked)
        lane.time(CASE, looked, 0.01)
        assert isinstance(answered(lane), Timed)
        pid = lane._process.pid
        assert os.getpgid(pid) == pid, "compilers that a library starts end with it"
        lane.time(CASE, looked, 30.0)
        lost = answered(lane, limit_s=-100.0)
        assert isinstance(lost, Lost)
        assert lost.why == "its first call takes longer than -100 s"
        assert lane._process.pid != pid
        lane.look(CASE, frozenset(), is_alone=True)
        os.kill(lane._process.pid, signal.SIGKILL)
        assert answered(lane).why == "its process ended with exit code -9"
    finally:
        lane.close()
    assert not lane._process.is_alive()
