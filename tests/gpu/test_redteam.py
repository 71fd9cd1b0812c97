"""The attacks of tests/candidates that need CUDA: each gets its verdict, and those that attack something beat
a judge that has no defence (naive.py)."""

from __future__ import annotations

import pytest
import torch

from tests.redteam import EXPECTED, OF_DEVICE, assert_fooled, fault, judge, naive

HERE = OF_DEVICE["cuda"]
ATTACKS = [name for name in HERE if "naive" in EXPECTED[name]]

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def judged(tmp_path_factory) -> dict[str, dict]:
    reports = judge(tmp_path_factory.mktemp("judged"), HERE, "cuda")
    return {row["candidate"]: row for report in reports for row in report["rows"]}


@pytest.fixture(scope="module")
def fooled() -> dict[str, dict]:
    """What the naive judge says of every attack, and of two candidates that attack nothing."""
    return naive("tests.gpu.naive", [*ATTACKS, "honest", "zeros"])


@pytest.mark.parametrize("name", HERE)
def test_attacks_on_a_device_get_their_verdict(judged, name: str) -> None:
    assert fault(name, judged[name]) is None


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_beat_a_judge_without_defence(fooled, name: str) -> None:
    assert_fooled(name, fooled[name])


def test_the_naive_judge_can_say_no(fooled) -> None:
    assert fooled["honest"]["passed"]
    assert not fooled["zeros"]["passed"]
