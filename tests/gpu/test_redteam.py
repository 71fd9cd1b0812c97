"""The attacks of tests/candidates that need CUDA."""

from __future__ import annotations

import pytest
import torch

from tests.redteam import OF_DEVICE, fault, judge

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def judged(tmp_path_factory) -> dict[str, dict]:
    reports = judge(tmp_path_factory.mktemp("judged"), OF_DEVICE["cuda"], "cuda")
    return {row["candidate"]: row for report in reports for row in report["rows"]}


@pytest.mark.parametrize("name", OF_DEVICE["cuda"])
def test_attacks_on_a_device_get_their_verdict(judged, name: str) -> None:
    assert fault(name, judged[name]) is None
