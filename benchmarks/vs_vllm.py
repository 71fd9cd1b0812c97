"""Our engine and vLLM on one machine, one after the other: the same prompts and lengths, random weights.

    python benchmarks/vs_vllm.py --out benchmarks/h200/vs_vllm_llama.json [--vllm-path ~/site-vllm]

Each engine runs in a process of its own, through its public `LLM`: bf16, greedy, exact output lengths, no
prefix cache, 0.9 of the memory. Throughput is one run of all requests; latency the median of 5 runs after 1.
A ratio above 1 is ours.

`--vllm-path` is the folder with vLLM's packages, where it is not installed beside ours. `--side` is this
program's own: one engine, JSON on the last line.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORKLOADS = {
    "prefill-heavy": (1000, 1024, 512),
    "balanced": (1000, 512, 512),
    "decode-heavy": (1000, 512, 1024),
    "single-request": (1, 128, 128),
    "fixed-batch-32": (32, 128, 128),
}
LATENCY = ("single-request", "fixed-batch-32")
LATENCY_RUNS, LATENCY_WARM_UPS = 5, 1
MAX_MODEL_LEN = 4096
SEED = 20
STEPS_WATCHED = 64  # decode steps of batch 1 in the profile of the gaps

Prompts = list[list[int]]
Generate = Callable[[Prompts, int], Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--vllm-path", type=Path)
    parser.add_argument("--sides", default="fastkernels,vllm", help="one of them alone gives no ratios")
    parser.add_argument("--side", choices=["fastkernels", "vllm"], help=argparse.SUPPRESS)
    parser.add_argument("--config", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = arguments.workloads.split(",")
    if unknown := [name for name in names if name not in WORKLOADS]:
        parser.error(f"no workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    if arguments.side:
        print(json.dumps(_one_side(arguments.side, names, arguments.config)))
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_config()))
        sides = {
            side: _in_a_process(side, names, arguments.vllm_path, folder)
            for side in arguments.sides.split(",")
        }
    report = _report(sides, names)
    text = json.dumps(report, indent=1) + "\n"
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


def _report(sides: dict[str, dict], names: list[str]) -> dict[str, Any]:
    report: dict[str, Any] = {
        "kind": "comparison",
        "ratios": {},
        "start_s": {side: found["start_s"] for side, found in sides.items()},
        "idle_us_batch1": sides.get("fastkernels", {}).get("idle_us_batch1"),
        "workloads": {
            name: {side: found["workloads"][name] for side, found in sides.items()} for name in names
        },
        "engines": {side: found["version"] for side, found in sides.items()},
        "environment": _environment(),
    }
    if len(sides) == 2:
        ours, theirs = sides["fastkernels"]["workloads"], sides["vllm"]["workloads"]
        report["ratios"] = {name: theirs[name]["seconds"] / ours[name]["seconds"] for name in names}
    return report


def _environment() -> dict[str, Any]:
    from fastkernels.measure.environment import environment

    return environment("cuda").model_dump()


def _config() -> dict[str, Any]:
    from fastkernels import registry

    llama = registry.architecture("llama")
    return dict(llama.configs[llama.default_config["full"]].config)


def _in_a_process(side: str, names: list[str], vllm_path: Path | None, config: str) -> dict[str, Any]:
    env = dict(os.environ, HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="WARNING")
    if side == "vllm" and vllm_path:
        env["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(vllm_path.expanduser()), env.get("PYTHONPATH")])
        )
    command = [sys.executable, __file__, "--side", side, "--workloads", ",".join(names), "--config", config]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{side} ended with {done.returncode}; what it said is above")
    return json.loads(done.stdout.splitlines()[-1])


# ---------------------------------------------------------------- one side


def _one_side(side: str, names: list[str], config: Path) -> dict[str, Any]:
    begin = time.perf_counter()
    generate, vocabulary, version = _ours() if side == "fastkernels" else _vllms(config)
    rng = random.Random(SEED)

    def prompts(count: int, length: int) -> Prompts:
        return [[rng.randrange(vocabulary) for _ in range(length)] for _ in range(count)]

    generate(prompts(1, 16), 1)
    start_s = time.perf_counter() - begin
    generate(prompts(8, 64), 16)
    found = {name: _run(generate, prompts, name) for name in names}
    result = {"start_s": start_s, "workloads": found, "version": version}
    if side == "fastkernels":
        result["idle_us_batch1"] = _gap_us(lambda: generate(prompts(1, 128), STEPS_WATCHED))
    return result


def _run(generate: Generate, prompts: Callable[[int, int], Prompts], name: str) -> dict[str, Any]:
    count, input_len, output_len = WORKLOADS[name]
    runs = LATENCY_RUNS + LATENCY_WARM_UPS if name in LATENCY else 1
    seconds = []
    for _ in range(runs):
        batch = prompts(count, input_len)
        begin = time.perf_counter()
        outputs = generate(batch, output_len)
        seconds.append(time.perf_counter() - begin)
        lengths = {len(output.outputs[0].token_ids) for output in outputs}
        assert lengths == {output_len}, f"{name}: lengths {lengths}, not {output_len}"
    kept = seconds[LATENCY_WARM_UPS:] if name in LATENCY else seconds
    median = statistics.median(kept)
    print(f"{name}: {median:.3f} s, {count * output_len / median:.0f} out tok/s", file=sys.stderr, flush=True)
    return {"seconds": median, "all_seconds": kept, "output_tokens_per_s": count * output_len / median}


def _ours() -> tuple[Generate, int, str]:
    from fastkernels import LLM, SamplingParams, __version__

    llm = LLM("llama", size="full", dtype="bfloat16", max_model_len=MAX_MODEL_LEN, seed=0)

    def generate(prompts: Prompts, length: int) -> Any:
        return llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True))

    return generate, llm.vocabulary, __version__


def _vllms(config: Path) -> tuple[Generate, int, str]:
    import vllm

    vocabulary = json.loads((config / "config.json").read_text())["vocab_size"]
    llm = vllm.LLM(
        model=str(config), load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", seed=0,
        max_model_len=MAX_MODEL_LEN, gpu_memory_utilization=0.9, enable_prefix_caching=False,
    )  # fmt: skip

    def generate(prompts: Prompts, length: int) -> Any:
        params = vllm.SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=length, detokenize=False)
        return llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)

    return generate, vocabulary, vllm.__version__


def _gap_us(run: Callable[[], Any]) -> float:
    """Median idle time of the device between two decode steps: the longest gaps between kernels, one for each
    step."""
    from torch.profiler import ProfilerActivity, profile

    run()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        run()
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in found.events() or []
        if str(event.device_type).endswith("CUDA")
    )
    gaps, busy_until = [], spans[0][1]
    for start, end in spans[1:]:
        gaps.append(start - busy_until)
        busy_until = max(busy_until, end)
    return statistics.median(sorted(gaps)[-(STEPS_WATCHED - 1) :])


if __name__ == "__main__":
    main()
