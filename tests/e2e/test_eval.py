"""`fk eval` as a user runs it: the tiny model on a CPU, sides in real processes."""

import json
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from fastkernels import registry
from fastkernels.runner.models import eval as eval_module
from tests.contract.test_checkpoints import checkpoint, write
from tests.e2e.program import assert_good, called, evaluate, settings, started
from tests.ranks_program import layer

ROOT = Path(__file__).parents[2]
CANDIDATES = ROOT / "tests" / "candidates"
LLAMA = ("--model", "llama", "--size", "tiny", "--device", "cpu", "--rounds", "2", "--workload")
FASTER = str(ROOT / "examples" / "candidates" / "faster")
QUICK, ALONE = (*LLAMA, "balanced"), (*LLAMA, "single-request")

pytestmark = pytest.mark.slow


@pytest.mark.whole
def test_the_baseline_against_itself(tmp_path):
    done, report = evaluate(tmp_path, *QUICK, "--self-test", run=started)
    assert_good(done, report)
    model = report["models"][0]
    assert model["correctness"] == 1.0
    assert model["valid"]
    assert len(model["noise_d"]) == 3
    assert report["macroeval"]["coverage"] == 1.0
    assert "CPU: not a GPU result" in done.stdout


def test_an_honest_candidate_is_inside_and_right(tmp_path):
    done, report = evaluate(tmp_path, *QUICK, "--candidates", str(ROOT / "examples/candidates/faster"))
    assert_good(done, report)
    model = report["models"][0]
    assert model["swap"]["sites"] == 7  # two norms in each of three layers, and the final one
    assert model["swap"]["calls"] > 7
    assert model["valid"]
    assert model["workloads"][0]["throughput_ratio"] > 0


IMAGES = (
    "--model",
    "siglip2",
    "--size",
    "tiny",
    "--device",
    "cpu",
    "--workload",
    "mixed-res",
    "--rounds",
    "2",
)


def test_an_image_encoder_against_itself(tmp_path):
    done, report = evaluate(tmp_path, *IMAGES, "--self-test")
    assert_good(done, report)
    model = report["models"][0]
    assert model["valid"]
    assert model["correctness"] == 1.0
    assert model["workloads"][0]["unit"] == "images/s"
    assert model["ruin_point"] > 0.3


DETECTIONS = (
    "--model",
    "yolov10",
    "--size",
    "tiny",
    "--device",
    "cpu",
    "--workload",
    "detect-batch-4",
    "--rounds",
    "2",
)


@pytest.mark.whole
def test_a_detector_against_itself(tmp_path):
    # The ruin point is the difference of a few drawn images: 0.03 to 0.12 over five seeds.
    done, report = evaluate(tmp_path, *DETECTIONS, "--self-test", "--seed", "1300548875961785923")
    assert_good(done, report)
    model = report["models"][0]
    assert model["valid"]
    assert model["correctness"] == 1.0
    assert model["workloads"][0]["unit"] == "s"
    assert model["ruin_point"] > 10 * model["noise_floor"]


@pytest.mark.whole
def test_a_text_to_image_model_against_itself(tmp_path):
    """Its sides take no options of an engine with tokens."""
    asked = ("--model", "flux", "--size", "tiny", "--device", "cpu", "--workload", "single-512")
    done, report = evaluate(tmp_path, *asked, "--rounds", "2", "--self-test")
    assert_good(done, report)
    model = report["models"][0]
    assert model["valid"]
    assert model["correctness"] == 1.0
    assert model["workloads"][0]["unit"] == "s"


@pytest.mark.whole
def test_a_wrong_candidate_inside_a_detector(tmp_path):
    """Its filters are right, its activation is another one."""
    folder = tmp_path / "mine" / "L2"
    folder.mkdir(parents=True)
    (folder / "conv_norm_act.py").write_text(
        "import torch\nfrom fastkernels.baseline.L2.conv_norm_act import ConvNormAct as Base\n\n\n"
        "class ConvNormAct(Base):\n    def forward(self, x):\n"
        "        return torch.relu(self.conv(x) + self.bias)\n"
    )
    done, report = evaluate(tmp_path, *DETECTIONS, "--candidates", str(tmp_path / "mine"))
    assert done.returncode == 1
    assert not report["models"][0]["valid"]
    assert report["models"][0]["correctness"] < 0.5


@pytest.mark.parametrize("is_right", [True, False])
def test_candidates_inside_an_image_encoder(tmp_path, is_right):
    folder = tmp_path / "mine" / "L1"
    folder.mkdir(parents=True)
    result = "super().forward(input)" if is_right else "input"
    (folder / "layer_norm.py").write_text(
        "from fastkernels.baseline.L1.layer_norm import LayerNorm as Base\n\n\n"
        f"class LayerNorm(Base):\n    def forward(self, input):\n        return {result}\n"
    )
    done, report = evaluate(tmp_path, *IMAGES, "--candidates", str(tmp_path / "mine"))
    model = report["models"][0]
    assert (
        model["swap"]["sites"] == model["swap"]["calls"] == 6
    )  # two in each of two layers, one each at the end
    assert model["valid"] == is_right
    if is_right:
        assert_good(done, report)
    else:
        assert done.returncode == 1
        assert model["correctness"] < 0.5


def test_a_workload_of_another_kind_is_refused(tmp_path):
    done, _ = evaluate(tmp_path, *IMAGES[:6], "--workload", "balanced", "--self-test")
    assert done.returncode == 2
    assert "none of them was asked for" in done.stderr


@pytest.mark.parametrize(
    ("name", "says"),
    [
        pytest.param("zeros", None, marks=pytest.mark.whole),
        ("exception", "no such tile"),
        pytest.param("exit_zero", "status 0", marks=pytest.mark.whole),
        ("syntax_error", "SyntaxError"),
    ],
)
def test_bad_candidates_are_invalid(tmp_path, name, says):
    # The status that is the candidate's own must not become the program's.
    run = started if name == "exit_zero" else called
    done, report = evaluate(tmp_path, *QUICK, "--candidates", str(CANDIDATES / name), run=run)
    assert done.returncode == 1, done.stderr
    model = report["models"][0]
    assert not model["valid"]
    assert model["speedup"] is None
    if says:
        assert says in model["failure"]["message"] + model["failure"]["output"]
        assert says in done.stdout


@pytest.mark.whole
def test_tokens_that_are_made_when_they_are_asked_for_are_no_win(tmp_path):
    _, report = evaluate(tmp_path, *ALONE, "--candidates", str(CANDIDATES / "late_tokens"))
    (model,) = report["models"]
    assert model["valid"]
    assert model["workloads"][0]["latency_ratio"] < 2, "it would be hundreds"


def test_features_that_are_made_when_they_are_asked_for_are_a_failure(tmp_path):
    done, report = evaluate(tmp_path, *IMAGES, "--candidates", str(CANDIDATES / "late_features"))
    assert done.returncode == 1, done.stderr
    (model,) = report["models"]
    assert not model["valid"]
    assert "TAMPERED(late-answer): answer " in model["failure"]["message"]


@pytest.mark.parametrize("name", ["garbled_tokens", pytest.param("nan", marks=pytest.mark.whole)])
def test_answers_that_are_none_are_the_candidates_failure(name, tmp_path):
    """Tokens outside the vocabulary, along which no baseline can be forced; logits that are NaN, of the last
    request of each step: alone it is all of them."""
    done, report = evaluate(tmp_path, *ALONE, "--candidates", str(CANDIDATES / name))
    assert done.returncode == 1, done.stderr
    (model,) = report["models"]
    assert not model["valid"]
    if name == "garbled_tokens":
        said = model["failure"]["message"]
        assert said == "garbled answer to 'outputs': token 1000000 of a vocabulary of 256"


@pytest.mark.whole
def test_one_workload_that_is_guessed_makes_all_invalid(tmp_path):
    """Its answers are few among all that are compared: by the mean alone another workload would save them."""
    done, report = evaluate(tmp_path, *ALONE, "--candidates", str(CANDIDATES / "guesses_alone"))
    assert done.returncode == 1, done.stderr
    (model,) = report["models"]
    assert set(samples_of(model)) == {0.0}
    assert not model["valid"]
    assert any("single-request: its answers in a timed round are wrong" in note for note in model["notes"])


@pytest.mark.whole
def test_answers_that_are_cut_short_cost_more_than_they_win(tmp_path):
    """A quarter of each is filler: too little for its workload to be wrong."""
    done, report = evaluate(tmp_path, *ALONE, "--candidates", str(CANDIDATES / "lazy_tail"))
    assert done.returncode == 1, done.stderr
    (model,) = report["models"]
    assert set(samples_of(model)) == {0.0}
    assert model["correctness"] < 0.6
    assert not model["valid"]


@pytest.mark.whole
def test_a_token_that_follows_itself_is_no_answer(tmp_path, monkeypatch):
    """Forced along it, the baseline says it, too: but for the first, which is no choice of its own."""
    # Weights with such a token, which is found for most prompts.
    monkeypatch.setattr(eval_module, "_weights_seed", lambda *_: 3789059621)
    done, report = evaluate(tmp_path, *ALONE, "--candidates", str(CANDIDATES / "fixed_point"))
    assert done.returncode == 1, done.stderr
    (model,) = report["models"]
    (workload,) = model["workloads"]
    assert workload["latency_ratio"] > 3, "the attack must work, where its answers are believed"
    assert set(samples_of(model)) == {0.0}
    assert not model["valid"]


def samples_of(model: dict) -> list[float]:
    """d of what both sides are compared on, without that of timed answers."""
    audited = sum(len(workload["audited_d"]) for workload in model["workloads"])
    return model["d"][: len(model["d"]) - audited]


def test_a_candidate_that_sets_the_whole_process_is_invalid(tmp_path):
    done, report = evaluate(tmp_path, *QUICK, "--candidates", str(CANDIDATES / "more_threads"))
    assert done.returncode == 1, done.stderr
    (model,) = report["models"]
    assert not model["valid"]
    assert "TAMPERED(global-state): torch's number of threads is 4, not 1" in model["failure"]["message"]


IMPORTS = """
from fastkernels.baseline.L1.rms_norm import RMSNorm as Baseline


class RMSNorm(Baseline):
    def forward(self, x, residual=None):
        import sgl_like

        return super().forward(x, residual)
"""


@pytest.mark.whole
def test_what_an_import_in_the_first_call_sets_is_put_back(tmp_path, monkeypatch):
    """As importing vLLM turns cuDNN's attention off."""
    library = tmp_path / "installed" / "sgl_like.py"
    library.parent.mkdir()
    library.write_text("import torch; torch.set_float32_matmul_precision('high')")
    monkeypatch.setenv("PYTHONPATH", str(library.parent))
    file = tmp_path / "imports" / "L1" / "rms_norm.py"
    file.parent.mkdir(parents=True)
    file.write_text(IMPORTS)
    done, report = evaluate(tmp_path, *ALONE, "--candidates", str(file.parents[1]))
    assert_good(done, report)
    (model,) = report["models"]
    assert model["valid"]
    assert any("float32 matmul precision" in note for note in model["notes"])


def test_what_no_source_may_do_it_may_not_do_in_a_model(tmp_path):
    """`fk kernels` has the same verdict."""
    done, report = evaluate(tmp_path, *QUICK, "--candidates", str(CANDIDATES / "patched_harness"))
    assert done.returncode == 1, done.stderr
    (model,) = report["models"]
    assert not model["valid"]
    assert model["failure"]["message"].startswith("TAMPERED(patch): sets time.perf_counter_ns")
    assert model["failure"]["line"] == 9


def test_a_module_that_is_called_otherwise_does_not_drop_in(tmp_path):
    """It may be right here: the engine gives this argument by its place."""
    file = tmp_path / "other" / "L1" / "rms_norm.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "from fastkernels.baseline.L1.rms_norm import RMSNorm as Base\n\n\n"
        "class RMSNorm(Base):\n    def forward(self, hidden_states, residual=None):\n"
        "        return super().forward(hidden_states, residual)\n"
    )
    done, report = evaluate(tmp_path, *QUICK, "--candidates", str(tmp_path / "other"))
    assert done.returncode == 1, done.stderr
    assert report["models"][0]["failure"]["message"].startswith("SIGNATURE_MISMATCH: ")


@pytest.mark.whole
def test_what_a_model_does_not_reach_concerns_nobody(tmp_path):
    shutil.copytree(ROOT / "examples/candidates/faster", tmp_path / "two")
    (tmp_path / "two" / "L1" / "conv.py").write_text("import time\n\ntime.perf_counter_ns = None\n")
    done, report = evaluate(tmp_path, *QUICK, "--candidates", str(tmp_path / "two"))
    assert_good(done, report)
    assert report["models"][0]["swap"]["unused"] == ["L1/conv"]


def test_a_candidate_that_the_model_never_uses_is_said_to_be_unused(tmp_path):
    folder = tmp_path / "unused" / "L1"
    folder.mkdir(parents=True)
    (folder / "glu.py").write_text(
        "from fastkernels.baseline.L1.glu import GeluAndMul as Base\n\n\nclass GeluAndMul(Base):\n    pass\n"
    )
    done, report = evaluate(tmp_path, *QUICK, "--candidates", str(tmp_path / "unused"))
    assert done.returncode == 1
    assert report["models"][0]["swap"]["unused"] == ["L1/glu"]
    assert report["macroeval"]["coverage"] == 0.0


@pytest.mark.parametrize(
    ("arguments", "code", "says", "run"),
    [
        (("--model", "lama", "--self-test"), 2, "Did you mean llama", started),
        (("--model", "lama"), 2, "Did you mean llama", called),
        (("--model", "llama", "--self-test", "--workload", "balance"), 2, "Did you mean balanced", called),
        (("--model", "llama", "--device", "cuda", "--self-test"), 3, "fk doctor", called),
        (("--model", "llama", "--candidates", "no/such/folder"), 2, "no such folder", called),
        (("--model", "llama", "--candidates", "examples/candidates"), 2, "top:below", called),
        (("--model", "dlrmv2", "--candidates", FASTER), 2, "L1/rms_norm, which dlrmv2 never", called),
    ],
)
def test_bad_requests(tmp_path, arguments, code, says, run):
    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    done, report = evaluate(tmp_path, *arguments, run=run)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not report


def test_a_folder_whose_weights_do_not_fit(tmp_path):
    """One message; no score, because nothing was judged. The folder is named from here, and workers run
    elsewhere."""
    entry = registry.architecture("llama")
    tensors = checkpoint(entry)
    first, second, *_ = sorted(tensors)
    del tensors[first]
    tensors[second] = torch.zeros(3, 3)
    (tmp_path / "model").mkdir()
    folder = os.path.relpath(write(tmp_path / "model", entry, tensors))
    done, report = evaluate(tmp_path, "--model", f"./{folder}", *QUICK[2:], "--self-test")
    assert done.returncode == 2, done.stderr
    assert f"missing     {first}" in done.stderr
    assert f"misshapen   {second} [3, 3]" in done.stderr
    assert "Traceback" not in done.stderr
    assert "MacroEval" not in done.stdout
    assert not report


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.whole)])
def test_ctrl_c_leaves_a_marked_report_and_no_workers(number, tmp_path, interruptible):
    path = tmp_path / "report.json"
    command = [
        sys.executable,
        "-m",
        "fastkernels",
        "eval",
        *QUICK,
        "--rounds",
        "400",
        "--self-test",
        "--json",
        str(path),
    ]
    process = interruptible(command, {**os.environ, **settings(tmp_path)})
    assert process.stderr is not None
    for line in process.stderr:  # a line every few seconds
        if re.search(r"round ([2-9]|\d\d)", line):
            break
    children = children_of(process.pid)
    assert children
    os.kill(process.pid, number)
    shown, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    report = json.loads(path.read_text())
    assert (report["complete"], report["models"]) == (False, [])
    ((workload,),) = (model["workloads"] for model in report["unfinished"])
    assert workload["name"] == "balanced"
    assert len(workload["baseline"]) == len(workload["candidate"]) >= 1
    assert f"rounds: {len(workload['baseline'])}" in shown
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(Path(f"/proc/{pid}").exists() for pid in children):
        time.sleep(0.1)
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


def children_of(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


@pytest.mark.whole
def test_candidates_run_on_every_rank(tmp_path):
    """One is every layer's sum over the ranks; another fails on the second rank alone."""
    ranks = (*LLAMA, "prefill-heavy", "--tp", "2", "--candidates")
    done, report = evaluate(tmp_path, *ranks, str(layer(tmp_path, "all_reduce")))
    assert_good(done, report)
    model = report["models"][0]
    assert model["swap"]["sites"] == 7  # two layers split by rows in each of three, and the embedding
    assert model["valid"]
    assert model["correctness"] == 1.0
    done, report = evaluate(tmp_path, *ranks, str(layer(tmp_path, "rms_norm")))
    assert done.returncode == 1
    assert "rank 1: ValueError: not on this rank" in report["models"][0]["failure"]["message"]
