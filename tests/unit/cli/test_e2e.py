"""`fk e2e` on a tiny model: its figures fit together, and what cannot be served is refused with a reason."""

import json
import signal

import pytest
from click.testing import CliRunner

from fastkernels import registry
from fastkernels.cli import main
from fastkernels.cli.e2e import command
from fastkernels.engine.llm import LLM
from fastkernels.errors import FastKernelsError, NotFoundError, UsageError
from fastkernels.runner.models import e2e

TINY = ["--size", "tiny", "--device", "cpu"]
LLAMA = ["--model", "llama", *TINY]


def run(*arguments: str):
    return CliRunner().invoke(command, [*arguments, *LLAMA], catch_exceptions=False)


def test_throughput_says_what_vllm_bench_says(tmp_path) -> None:
    path = tmp_path / "out.json"
    done = run(
        "throughput",
        "--num-prompts",
        "5",
        "--input-len",
        "12",
        "--output-len",
        "7",
        "--output-json",
        str(path),
    )
    assert done.exit_code == 0
    assert "output tokens/s" in done.stdout
    found = json.loads(path.read_text())
    assert found["num_requests"] == 5
    assert found["total_num_tokens"] == 5 * (12 + 7)
    assert found["tokens_per_second"] * found["elapsed_time"] == pytest.approx(5 * 19)
    assert found["output_tokens_per_second"] * found["elapsed_time"] == pytest.approx(5 * 7)
    assert found["start_s"] > 0
    assert found["environment"]["device_type"] == "cpu"
    assert found["stats"]["free_cache_blocks"], "what was served is gone again"


def test_latency_counts_its_iterations_without_the_warm_up() -> None:
    done = run(
        "latency", "--batch-size", "2", "--input-len", "8", "--output-len", "4", "--num-iters", "3",
        "--num-iters-warmup", "1", "--json", "-",
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["complete"]
    assert len(found["latencies"]) == 3
    assert min(found["latencies"]) <= found["percentiles"]["50"] <= max(found["latencies"])
    assert "Avg latency" in done.stderr


@pytest.mark.usefixtures("heeds_signals")
@pytest.mark.parametrize("finished", [0, 2])
def test_an_interrupted_latency_says_and_writes_the_iterations_that_were_finished(
    tmp_path, monkeypatch: pytest.MonkeyPatch, finished: int
) -> None:
    generate, calls = LLM.generate, []

    def interrupted(*arguments, **options):
        calls.append(0)
        if len(calls) == 1 + 1 + finished + 1:  # load's first tokens, one warm-up, what is finished
            signal.raise_signal(signal.SIGINT)
        return generate(*arguments, **options)

    monkeypatch.setattr(LLM, "generate", interrupted)
    path = tmp_path / "out.json"
    asked = ["--batch-size", "1", "--input-len", "4", "--output-len", "2", "--num-iters-warmup", "1"]
    done = CliRunner().invoke(
        main, ["e2e", "latency", *LLAMA, *asked, "--num-iters", "4", "--json", str(path)]
    )
    assert done.exit_code == 130
    assert path.exists() == (finished > 0)
    if finished:
        found = json.loads(path.read_text())
        assert not found["complete"]
        assert len(found["latencies"]) == finished
        assert f"{found['avg_latency']:.4f}" in done.stdout
        assert "interrupted: 2 of 4 iterations were finished" in done.stdout
    else:
        assert "interrupted" in done.stderr


def test_a_model_that_listens_is_refused_before_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(e2e, "LLM", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(UsageError, match="whisper:tiny takes audio beside its prompts"):
        CliRunner().invoke(command, ["throughput", "--model", "whisper", *TINY], catch_exceptions=False)


def test_settings_stand_behind_the_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FK_SIZE", "huge")
    with pytest.raises(UsageError, match="FK_SIZE: size"):
        CliRunner().invoke(command, ["throughput", "--model", "llama"], catch_exceptions=False)
    monkeypatch.setenv("FK_SIZE", "tiny")
    monkeypatch.setenv("FK_DEVICE", "cpu")
    short = ["--num-prompts", "1", "--input-len", "2", "--output-len", "1", "--json", "-"]
    done = CliRunner().invoke(command, ["throughput", "--model", "llama", *short], catch_exceptions=False)
    engine = json.loads(done.stdout)["engine"]
    assert (engine["device"], engine["size"]) == ("cpu", "tiny")


def test_candidates_are_in_place(tmp_path) -> None:
    (tmp_path / "L1").mkdir()
    (tmp_path / "L1" / "rms_norm.py").write_text("raise RuntimeError('this candidate was imported')")
    with pytest.raises(FastKernelsError, match="was imported"):
        run("latency", "--candidates", str(tmp_path))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(
        UsageError,
        match=r"need 1000 positions; the model is loaded with 256 .*: --input-len 128 --output-len 64",
    ):
        run("throughput", "--input-len", "500", "--output-len", "500")
    with pytest.raises(UsageError, match=r"need 640 positions; the model is loaded with 4"):
        run("throughput", "--max-model-len", "4")
    with pytest.raises(NotFoundError, match="nosuch"):
        CliRunner().invoke(command, ["latency", "--model", "nosuch", *TINY], catch_exceptions=False)
    with pytest.raises(UsageError, match="name one of them"):
        run("latency", "--candidates", "examples/candidates")
    assert run("throughput", "--num-prompts", "0").exit_code == 2


def test_a_model_that_is_shorter_than_the_warm_up_is_served() -> None:
    sizes = ["--max-model-len", "8", "--input-len", "4", "--output-len", "4", "--num-prompts", "2"]
    assert run("throughput", *sizes).exit_code == 0


def test_a_folder_without_a_tokenizer_is_told_in_one_line(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"transformers can read\. Give a folder with a tokenizer") as raised:
        run("latency", "--tokenizer", str(tmp_path))
    assert "\n" not in str(raised.value)


SHORT = ["--num-prompts", "3", "--random-input-len", "12", "--random-output-len", "7"]


def test_a_command_line_of_vllm_bench_can_be_pasted() -> None:
    done = run(
        "throughput", *SHORT, "--dataset-name", "random", "--load-format", "dummy", "--n", "1",
        "--no-enable-prefix-caching", "--tensor-parallel-size", "1", "-pp", "1", "--disable-detokenize",
        "--temperature", "0", "--random-range-ratio", "0.0", "--trust-remote-code", "--json", "-",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["run"] == {"requests": 3, "input_len": 12, "output_len": 7, "detokenize": False}
    assert found["engine"]["options"] == {"enable_prefix_caching": False, "tensor_parallel_size": 1}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--dataset-name", "sharegpt"], "'sharegpt': only 'random' is served: prompts are random ids"),
        (["-pp", "2"], "2: only 1 is served: every rank has a part of each layer"),
        (["--n", "4"], "4: only 1 is served: a request has one continuation"),
        (["--temperature", "0.7"], "0.7: only 0.0 is served: continuations are greedy"),
        (["--load-format", "gguf"], "'gguf' is not one of 'auto', 'dummy'"),
        (["--seed", "-1"], "-1 is not in the range 0<=x"),
        (["--seed", "a"], "not a valid integer"),
    ],
)
def test_what_a_flag_cannot_mean_here_is_refused_with_the_reason(flags: list[str], says: str) -> None:
    for verb in ("throughput", "latency"):
        done = run(verb, *flags)
        assert done.exit_code == 2
        assert says in " ".join(done.stderr.split())


def test_dummy_weights_need_no_checkpoint(tmp_path) -> None:
    entry = registry.architecture("llama")
    (tmp_path / "config.json").write_text(json.dumps(entry.configs[entry.default_config["tiny"]].config))
    arguments = ["throughput", *SHORT, "--model", str(tmp_path), "--device", "cpu"]
    with pytest.raises(UsageError, match="safetensors"):
        CliRunner().invoke(command, arguments, catch_exceptions=False)
    done = CliRunner().invoke(command, [*arguments, "--load-format", "dummy"], catch_exceptions=False)
    assert done.exit_code == 0
    (tmp_path / "config.json").unlink()
    with pytest.raises(UsageError, match=r"holds no config\.json"):
        CliRunner().invoke(command, [*arguments, "--load-format", "dummy"], catch_exceptions=False)


def test_a_tokenizer_is_a_folder_that_has_one(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"--tokenizer .*Give a folder with a tokenizer"):
        run("throughput", *SHORT, "--tokenizer", str(tmp_path))


def test_a_seed_below_zero_is_no_capture(tmp_path) -> None:
    asked = ["capture", "--model", "mixtral", "--out", str(tmp_path / "golden"), "--seed", "-1"]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 2
    assert "-1 is not in the range" in done.stderr


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("class RMSNorm(:", "SyntaxError"),
        (
            "from fastkernels.baseline.L1.rms_norm import RMSNorm as B\n"
            "class RMSNorm(B):\n"
            "    def forward(self, x, residual=None):\n"
            "        raise ValueError('here')\n",
            "ValueError: here",
        ),
    ],
)
def test_a_broken_candidate_is_told_as_one(tmp_path, source: str, told: str) -> None:
    (tmp_path / "L1").mkdir()
    (tmp_path / "L1" / "rms_norm.py").write_text(source)
    with pytest.raises(FastKernelsError, match=f"the model fails: {told}.*fk kernels --candidates") as error:
        run("latency", "--num-iters", "1", "--candidates", str(tmp_path))
    assert error.value.exit_code == 1


def test_a_candidate_that_the_model_never_imports_is_refused(tmp_path) -> None:
    """Nothing would be measured but the baseline."""
    (tmp_path / "L1").mkdir()
    (tmp_path / "L1" / "layer_norm.py").write_text("raise RuntimeError('this candidate was imported')")
    with pytest.raises(UsageError, match="replaces L1/layer_norm, which llama never imports"):
        run("latency", "--candidates", str(tmp_path))
