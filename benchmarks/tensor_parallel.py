"""One model on 1, 2, 4 ... GPUs: milliseconds of a token at batch 1, and throughput.

    python benchmarks/tensor_parallel.py llama --tp 1,2,4 --out benchmarks/h200x4/tensor_parallel_llama.json
    python benchmarks/tensor_parallel.py llama --config 70b --tp 4 --workloads balanced --out a.json
    python benchmarks/tensor_parallel.py mixtral --tp 2 --ep --out a.json            whole experts by rank
    python benchmarks/tensor_parallel.py llama --tp 1,2 --size tiny --device cpu     that it runs
    python benchmarks/tensor_parallel.py llama --tp 1,2,4 --cut-off --out a.json     of a run that was cut off

Each number of ranks runs in a process of its own, through the public LLM: greedy, exact lengths, random
weights, no prefix cache. A token at batch 1 is what a longer continuation of one prompt takes beside a
shorter one, medians of --runs. A workload is timed once, behind one of as many other prompts. `engine` says
how many steps were replayed: captured ones hold the collectives.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from comparison import each_side, finish, timed, write
from references.language import Prompts, count

# requests, tokens in, tokens out
WORKLOADS = {
    "full": {
        "fixed-batch-32": (32, 128, 128),
        "balanced": (1000, 512, 512),
        "prefill-heavy": (1000, 1024, 512),
        "decode-heavy": (1000, 512, 1024),
    },
    "tiny": {"fixed-batch-32": (8, 32, 16), "balanced": (16, 32, 32)},
}
TOKEN_LENS = {"full": (128, 32, 288), "tiny": (16, 8, 40)}  # of a prompt, of the two continuations
POSITIONS = {"full": 2048, "tiny": 128}
SEED = 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("architecture")
    parser.add_argument("--tp", default="1,2,4", help="numbers of ranks")
    parser.add_argument("--ep", action="store_true", help="whole experts by rank")
    parser.add_argument("--config", help="of the architecture; default: the one of --size")
    parser.add_argument("--size", choices=list(WORKLOADS), default="full")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--workloads", default="fixed-batch-32,balanced")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cut-off", action="store_true", help="from what the sides left beside --out")
    parser.add_argument("--side", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = list(filter(None, arguments.workloads.split(",")))
    if unknown := [name for name in names if name not in WORKLOADS[arguments.size]]:
        known = ", ".join(WORKLOADS[arguments.size])
        parser.error(f"no workload {', '.join(unknown)}; there are {known}")
    if arguments.side:
        one_side(arguments, names)
        return
    flags = [arguments.architecture, "--size", arguments.size, "--device", arguments.device]
    flags += ["--workloads", arguments.workloads, "--runs", str(arguments.runs)]
    flags += ["--config", arguments.config] if arguments.config else []
    sides = [size.strip() for size in arguments.tp.split(",")]
    given = {size: [*flags, *(["--ep"] if arguments.ep and size != "1" else [])] for size in sides}
    found = each_side(__file__, given, arguments.out, {}, arguments.cut_off)
    write(report(arguments, found), arguments.out, found)


def report(arguments: argparse.Namespace, found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    from fastkernels.measure.environment import environment

    return {
        "kind": "tensor_parallel",
        "architecture": arguments.architecture,
        "config": next(iter(found.values()))["config"],
        "size": arguments.size,
        "ms_per_token_batch1": {f"tp{size}": one["ms_per_token_batch1"] for size, one in found.items()},
        "rows": list(found.values()),
        "cut_off": arguments.cut_off,
        "environment": environment(arguments.device).model_dump(),
    }


def one_side(arguments: argparse.Namespace, names: list[str]) -> None:
    """Writes what it has so far behind every workload."""
    from fastkernels import LLM, SamplingParams

    begin = time.perf_counter()
    llm = LLM(
        arguments.architecture,
        config=arguments.config,
        size=arguments.size,
        device=arguments.device,
        max_model_len=POSITIONS[arguments.size],
        tensor_parallel_size=arguments.side,
        enable_expert_parallel=arguments.ep,
    )
    rng = random.Random(SEED)

    def prompts(requests: int, length: int) -> Prompts:
        return [[rng.randrange(llm.vocabulary) for _ in range(length)] for _ in range(requests)]

    def generate(given: Prompts, length: int) -> int:
        params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
        return count(llm.generate(given, params, use_tqdm=False))

    generate(prompts(1, 16), 1)
    found: dict[str, Any] = {
        "tp": arguments.side,
        "ep": arguments.side if arguments.ep else 1,
        "config": llm.source.name,
        "start_s": time.perf_counter() - begin,
        "weights_gb_of_a_rank": llm.stats()["weights_bytes"] / 1e9,
        "workloads": {},
    }
    input_len, short, long = TOKEN_LENS[arguments.size]
    seconds = {
        length: timed(lambda n=length: generate(prompts(1, input_len), n), warm_ups=2, runs=arguments.runs)[1]
        for length in (short, long)
    }
    medians = {length: statistics.median(one["all_seconds"]) for length, one in seconds.items()}
    found["ms_per_token_batch1"] = 1e3 * (medians[long] - medians[short]) / (long - short)
    print(f"tp {arguments.side}: {found['ms_per_token_batch1']:.3f} ms a token", file=sys.stderr, flush=True)
    finish(arguments.result, found)
    for name in names:
        requests, length, output_len = WORKLOADS[arguments.size][name]
        made, figures = timed(
            lambda r=requests, n=length, m=output_len: generate(prompts(r, n), m), warm_ups=1, runs=1
        )
        assert made == requests * output_len, f"{name}: {made} tokens, not {requests * output_len}"
        found["workloads"][name] = {**figures, "output_tokens_per_s": made / figures["seconds"]}
        rate = found["workloads"][name]["output_tokens_per_s"]
        print(f"tp {arguments.side}: {name} {rate:.0f} out tok/s", file=sys.stderr, flush=True)
        finish(arguments.result, found)
    found["engine"] = {
        k: llm.stats()[k] for k in ("steps", "graph_replays", "piecewise_replays", "eager_steps")
    }
    llm.shutdown()
    finish(arguments.result, found)


if __name__ == "__main__":
    main()
