"""A model on several ranks says what it says on one; what cannot be served is refused; no process is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fastkernels import LLM, SamplingParams
from fastkernels.engine.core.parallel import device_of_rank_0
from fastkernels.errors import MachineError, UsageError
from tests.ranks_program import CASES, PROMPTS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked")


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("ranks")
    done = subprocess.run(
        [sys.executable, "-m", "tests.ranks_program", str(folder)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", CASES)
def test_text_is_the_same_on_any_number_of_ranks(report, case: str) -> None:
    """Greedy, drawn, filtered, penalised, with log-probabilities of the answer and of the prompt."""
    found = report["cases"][case]
    sizes = (1, *CASES[case][1])
    assert found["processes"] == [size - 1 for size in sizes]
    alone, *others = found["texts"]
    assert all(texts == alone for texts in others)
    assert len({tuple(text) for text in alone}) == len(PROMPTS)
    whole, *parts = found["weights_bytes"]
    # Norms and the router are on every rank; one key head may be on two.
    assert all(part * size < 1.1 * whole for part, size in zip(parts, sizes[1:]))


def test_a_checkpoint_is_read_by_rank(report) -> None:
    alone, split = report["from a folder"]
    assert split == alone


def test_candidates_have_their_places(report) -> None:
    texts = report["cases"]["llama"]["texts"][0]
    assert report["all_reduce"]["calls"] > 0
    assert report["all_reduce"]["texts"] == texts
    # Where a candidate chooses it sees all logits, as on one rank.
    assert {shape[1] for shape in report["sampling"]["shapes"]} == {256}
    assert report["sampling"]["texts"][0] == texts[0]


@pytest.mark.parametrize(
    ("what", "error", "code", "said"),
    [
        ("vocabulary", "UsageError", 2, "size=3: 256 ids of the vocabulary are no multiple of it"),
        ("heads", "UsageError", 2, "tensor_parallel_size=8: 4 attention heads are no multiple of it"),
        ("experts", "UsageError", 2, "has no experts to split"),
        ("architecture", "UsageError", 2, "Not written for several yet: L1/activation, "),
        ("no number", "UsageError", 2, "tensor_parallel_size=0: must be at least 1"),
        ("second", "UsageError", 2, "default group is in use in this process"),
        ("shut down", "MachineError", 3, "its ranks have been shut down: make a new LLM"),
    ],
)
def test_what_cannot_be_served_is_refused(report, what: str, error: str, code: int, said: str) -> None:
    found = report["refused"][what]
    assert found[:2] == [error, code]
    assert said in found[2]


def test_a_rank_that_fails_ends_the_model_and_leaves_nothing(report) -> None:
    found = report["failing"]
    for what, said in (("raising", "ValueError: not on this rank"), ("killed", "has ended by signal 9")):
        error, code, message = found[what]
        assert (error, code) == ("MachineError", 3)
        assert "rank 1" in message
        assert said in message
        assert found[f"{what} left"] == []
    assert found["again"][0] == "MachineError"
    assert found["fresh"] == report["cases"]["llama"]["texts"][0]
    assert report["orphans"] == []
    assert report["in a group"] is False
    assert report["ports"] == []


def test_ranks_of_a_process_with_threads_are_started_anew(monkeypatch) -> None:
    """And end with the LLM."""
    params = SamplingParams(temperature=0.0, max_tokens=4)
    alone = LLM("llama", config="tiny", device="cpu", max_num_seqs=4)
    monkeypatch.setattr("fastkernels.engine.core.ranks._is_single_threaded", lambda: False)
    llm = LLM("llama", config="tiny", device="cpu", max_num_seqs=4, tensor_parallel_size=2)
    (pid,) = llm.ranks.pids
    said, expected = (one.generate([[5, 6]], params, use_tqdm=False) for one in (llm, alone))
    assert said[0].outputs[0].token_ids == expected[0].outputs[0].token_ids
    del llm, said
    assert not Path(f"/proc/{pid}").exists()


def test_gpus_are_as_many_and_alike(monkeypatch) -> None:
    gpus = [
        SimpleNamespace(name="H200", total_memory=1 << 37),
        SimpleNamespace(name="T4", total_memory=1 << 34),
    ]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    monkeypatch.setattr(torch.cuda, "get_device_properties", gpus.__getitem__)
    cuda = torch.device("cuda")
    with pytest.raises(MachineError, match="tensor_parallel_size=4: this machine has 2 GPUs"):
        device_of_rank_0(cuda, 4)
    with pytest.raises(MachineError, match=r"GPU 0 is H200 \(128 GiB\) and GPU 1 T4 \(16 GiB\)"):
        device_of_rank_0(cuda, 2)
    with pytest.raises(UsageError, match="leave out the number"):
        device_of_rank_0(torch.device("cuda", 1), 2)
    gpus[1] = gpus[0]
    assert device_of_rank_0(cuda, 2) == torch.device("cuda", 0)
    assert device_of_rank_0(cuda, 1) == cuda
