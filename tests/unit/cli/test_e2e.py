"""`fk e2e` on a tiny model: its figures fit together, and what cannot be served is refused with a reason."""

import json

import pytest
from click.testing import CliRunner

from fastkernels.cli.e2e import command
from fastkernels.errors import NotFoundError, UsageError

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
    assert len(found["latencies"]) == 3
    assert min(found["latencies"]) <= found["percentiles"]["50"] <= max(found["latencies"])
    assert "Avg latency" in done.stderr


def test_candidates_are_in_place(tmp_path) -> None:
    (tmp_path / "L1").mkdir()
    (tmp_path / "L1" / "rms_norm.py").write_text("raise RuntimeError('this candidate was imported')")
    with pytest.raises(RuntimeError, match="was imported"):
        run("latency", "--candidates", str(tmp_path))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match=r"need 1000 positions; the model is loaded with 256"):
        run("throughput", "--input-len", "500", "--output-len", "500")
    with pytest.raises(NotFoundError, match="nosuch"):
        CliRunner().invoke(command, ["latency", "--model", "nosuch", *TINY], catch_exceptions=False)
    with pytest.raises(UsageError, match="name one of them"):
        run("latency", "--candidates", "examples/candidates")
    assert run("throughput", "--num-prompts", "0").exit_code == 2
