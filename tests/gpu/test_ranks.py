"""Candidates on a group of two GPUs: each gets its verdict, by NCCL as by Gloo."""

from __future__ import annotations

import pytest
import torch

from tests.redteam import ON_GPUS, fault, judge

if torch.cuda.device_count() < 2:
    pytest.skip("needs two GPUs", allow_module_level=True)

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def judged(tmp_path_factory) -> dict[str, dict]:
    reports = judge(tmp_path_factory.mktemp("judged"), list(ON_GPUS), "cuda", wanted=ON_GPUS)
    return {row["candidate"]: row for report in reports for row in report["rows"]}


@pytest.mark.parametrize("name", ON_GPUS)
def test_candidates_on_several_gpus_get_their_verdict(judged, name: str) -> None:
    assert fault(name, judged[name], ON_GPUS) is None
