"""What a capture records, against the checkpoint's own weights and the workload's own numbers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fastkernels import LLM, registry
from fastkernels.capture.run import CaptureRequest, run_capture
from fastkernels.errors import NotFoundError, RequestError, UsageError
from fastkernels.loader import golden
from fastkernels.loader.golden import PHASES
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.weights import build, find
from tests.golden_folders import FAVOURITE
from tests.unit.capture.conftest import capture

LAYERS = ("layers.0.block_sparse_moe", "layers.1.block_sparse_moe")
WORKLOAD = registry.workloads(["prefill-heavy"], "tiny")[0]


def test_golden_values_follow_from_each_other(skewed: Path, checkpoint: Path) -> None:
    """hidden states, gate -> logits -> ids, with the gate of the checkpoint's file."""
    values = golden.read(str(skewed))
    weights = load_file(checkpoint / "model.safetensors")
    gates = [weights[f"model.layers.{i}.block_sparse_moe.gate.weight"] for i in range(2)]
    assert torch.equal(values.tensors["gate"], torch.stack(gates))
    for phase in PHASES:
        logits_LNE, ids_LNK = values.of(phase, "router_logits"), values.of(phase, "expert_ids")
        assert torch.equal(logits_LNE.topk(2).indices, ids_LNK.long())
        hidden_LMD = values.of(phase, "hidden_states")
        again_LME = torch.einsum("lmd,led->lme", hidden_LMD, values.tensors["gate"])
        torch.testing.assert_close(again_LME, logits_LNE[:, : hidden_LMD.shape[1]])


def test_all_tokens_are_counted_and_the_first_are_kept(skewed: Path) -> None:
    values = golden.read(str(skewed))
    seen = {"prefill": 4 * WORKLOAD.input_len, "decode": 4 * (WORKLOAD.output_len - 1)}
    for phase in PHASES:
        tokens = values.capture.tokens[phase]
        assert (tokens.seen, tokens.kept, tokens.hidden) == (seen[phase], min(300, seen[phase]), 20)
        load_LE = values.of(phase, "load")
        assert load_LE.sum(1).tolist() == [2 * tokens.seen] * 2
        for layer in range(2):
            ids = values.of(phase, "expert_ids")[layer]
            counts_E = torch.bincount(ids.flatten(), minlength=4)
            assert (counts_E <= load_LE[layer]).all()
            assert tokens.kept < tokens.seen or torch.equal(counts_E, load_LE[layer])
    steps = {phase: values.of(phase, "steps").unique_consecutive().tolist() for phase in PHASES}
    assert steps["prefill"] == [0]
    assert steps["decode"] == list(range(1, WORKLOAD.output_len)), "one step for each further token"


def test_favourites_of_a_checkpoint_are_seen(skewed: Path, random_weights: Path) -> None:
    for phase in PHASES:
        share_LE = {
            path: (load := golden.read(str(path)).of(phase, "load").double()) / load.sum(1, keepdim=True)
            for path in (skewed, random_weights)
        }
        assert (share_LE[skewed].argmax(1) == FAVOURITE).all()
        assert share_LE[skewed].max(1).values.min() > 0.45, "half of the choices at most: two of each token"
        assert share_LE[random_weights].max() < 0.45


def test_the_provenance_says_what_was_run(skewed: Path, random_weights: Path, checkpoint: Path) -> None:
    real, drawn = golden.read(str(skewed)).capture, golden.read(str(random_weights)).capture
    assert (real.weights, drawn.weights) == ("checkpoint", "random")
    assert (real.architecture, real.layers, real.top_k, real.experts) == ("mixtral", LAYERS, 2, 4)
    assert (real.workload, real.requests, real.dtype) == ("prefill-heavy", 4, "float32")
    said = json.loads((checkpoint / "config.json").read_text())
    assert {name: real.config[name] for name in said} == said, "what it leaves out has its default"
    assert real.environment.torch == torch.__version__
    assert "RANDOM weights" in drawn.summary
    assert "RANDOM weights" not in real.summary
    assert "random prompts" in real.summary


def test_a_snapshot_of_the_hub_has_its_commit(checkpoint: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    for file in checkpoint.iterdir():
        (snapshot / file.name).symlink_to(file)
    out = capture(snapshot, tmp_path / "golden", requests=1)
    assert golden.read(str(out)).capture.revision == "0123abcd"


def test_calls_of_tasks_with_shapes_strides_and_counts(skewed: Path) -> None:
    calls = [json.loads(line) for line in (skewed / golden.CALLS).read_text().splitlines()]
    overlay = Overlay.over_baseline()
    model = build(find("mixtral", None, "tiny"), overlay, torch.device("meta"), torch.float32)
    # Of its modules: what these import for other architectures has no call. Logits are asked for nowhere.
    parts = {task for module in model.modules() if (task := overlay.task(type(module)))} - {"L1/softmax"}
    assert {call["task"] for call in calls} == parts
    blocks = [call for call in calls if call["task"] == "L2/moe"]
    described = {(c["phase"], *c["arguments"]["hidden_states"]["shape"]): c for c in blocks}
    prompt, decode = described["prefill", 512, 64], described["decode", 4, 64]
    assert (prompt["calls"], decode["calls"]) == (2, 2 * (WORKLOAD.output_len - 1)), "two layers"
    assert decode["module"] == "layers.*.block_sparse_moe"
    assert decode["arguments"]["hidden_states"] == {"shape": [4, 64], "dtype": "float32", "stride": [64, 1]}
    queries = next(c for c in calls if c["task"] == "L1/rope" and c["phase"] == "decode")["arguments"]
    strides = [spec["stride"][0] for spec in queries.values() if isinstance(spec, dict)]
    assert 128 in strides, "queries are a part of the packed projection: 4 * 16 + 2 * 2 * 16 wide"


def test_text_prompts_need_a_tokenizer_and_a_file_with_text(checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\ntwo\n")
    with pytest.raises(RequestError, match=r"--prompts .*prompts.txt needs a tokenizer, .*random ids"):
        capture(checkpoint, tmp_path / "out", prompts=str(file))
    file.write_text("\n")
    with pytest.raises(UsageError, match="no prompt in it"):
        capture(checkpoint, tmp_path / "out", prompts=str(file))
    with pytest.raises(UsageError, match=r"--prompts .*: No such file"):
        capture(checkpoint, tmp_path / "out", prompts=str(tmp_path / "none"))
    with pytest.raises(UsageError, match=r"single-image: not a workload of prompts"):
        capture(checkpoint, tmp_path / "out", workload="single-image")
    assert not (tmp_path / "out").exists()


def test_random_ids_need_no_tokenizer_that_can_be_loaded(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(checkpoint, folder)
    (folder / "tokenizer.json").write_text("{")
    assert golden.read(str(capture(folder, tmp_path / "golden", requests=1))).capture.requests == 1


def test_a_file_of_text_is_routed(checkpoint: Path, tmp_path: Path, monkeypatch) -> None:
    """A tokenizer of letters stands for the model's."""

    class Letters:
        def encode(self, text: str) -> list[int]:
            return [ord(letter) % 256 for letter in text]

        def decode(self, ids: list[int], **_: object) -> str:
            return "".join(map(chr, ids))

    from fastkernels.engine.media.text import Text

    monkeypatch.setattr(Text, "tokenizer", Letters())
    file = tmp_path / "prompts.txt"
    file.write_text("fourteen chars\nfive!\nnot served\n")
    out = capture(checkpoint, tmp_path / "golden", prompts=str(file), requests=2)
    found = golden.read(str(out)).capture
    assert found.requests == 2
    assert found.tokens["prefill"].seen == 14 + 5
    assert found.prompts.startswith("prompts.txt (SHA-256 ")
    assert found.summary.endswith("; weights of a checkpoint")


# ---------------------------------------------------------------- what cannot be captured


def refused(tmp_path: Path, **changes: object) -> None:
    asked = {"model": "mixtral", "out": str(tmp_path / "out"), "size": "tiny", "device": "cpu"}
    run_capture(CaptureRequest(**{**asked, **changes}))


def test_nothing_is_loaded_for_a_model_without_choices(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(LLM, "__init__", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(UsageError, match=r"llama: no task of it depends") as refusal:
        refused(tmp_path, model="llama")
    listed = str(refusal.value).partition("Architectures with such tasks: ")[2].partition(" (--model)")[0]
    # Those whose kernels are measured by the routing of a case.
    routed = {
        entry.id
        for entry in registry.architectures()
        if any(case.routing for task in registry.tasks() for case in registry.cases(task, "tiny", entry.id))
    }
    assert listed.split(", ") == sorted(routed)
    assert {"jamba", "mixtral"} <= routed
    assert "llama" not in routed
    with pytest.raises(NotFoundError, match="Did you mean mixtral"):
        refused(tmp_path, model="mixtrl")
    with pytest.raises(NotFoundError, match="No workload 'nosuch'"):
        refused(tmp_path, workload="nosuch")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("precious")
    with pytest.raises(UsageError, match="is not empty"):
        refused(tmp_path)
    assert (tmp_path / "out" / "mine.txt").read_text() == "precious"
    with pytest.raises(UsageError, match="nothing can be written into"):
        refused(tmp_path, out=str(tmp_path / "out" / "mine.txt" / "golden"))
    with pytest.raises(UsageError, match="--out /proc/golden: nothing can be written into /proc"):
        refused(tmp_path, out="/proc/golden")


def test_a_run_without_decode_steps_is_refused(tmp_path: Path, monkeypatch) -> None:
    short = WORKLOAD.model_copy(update={"output_len": 1})
    monkeypatch.setattr(registry, "workloads", lambda *_: [short])
    monkeypatch.setattr(LLM, "__init__", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(UsageError, match="needs decode steps as well"):
        refused(tmp_path)
    assert not (tmp_path / "out").exists()
