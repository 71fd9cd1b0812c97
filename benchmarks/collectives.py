"""Times collectives and what overlaps them on the GPUs of this machine, one process for each.

    python benchmarks/collectives.py --ranks 2 --out benchmarks/h200x2/collectives.json
        [--tasks all_reduce gemm_all_reduce] [--least 4096] [--most 67108864] [--limit-s 500] [--sweep]

{"kind": "collectives", "rows": [{"task", "bytes", "implementation", "us", "busbw_gbs", "ceiling_share",
 "ratio_to_nccl"}], "environment"}

bytes           what the collective is of: the tensor of all_reduce and all_to_all, else the longer one
us              the time of one call: of CALLS in a CUDA graph, the rank that took longest, the median of
                replays; all ranks' devices begin a replay together. Caches are warm, for all alike.
busbw_gbs       bytes that a rank must receive in that time where no switch adds up: 2 (R - 1) / R of those of
                all_reduce, (R - 1) / R of the others'
ceiling_share   of what a copy from another GPU's memory reaches while all ranks do the same
ratio_to_nccl   us over that of NCCL: `torch`, or where there is a product `sequential` beside it

Each implementation of each size is timed by itself: none runs beside another or between its calls. Results
are compared with the reference's before they are timed. Where a rank dies or nothing is heard for SILENT_S,
all ranks are ended, the row says so, and a new group goes on behind it. `captured: false`: no CUDA graph
could be made, so the time is of eager calls. --sweep times our exchange with other tiles as well.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore

sys.path.insert(0, str(Path(__file__).parent))

CALLS, REPLAYS, WARM_UPS = 10, 15, 3
SILENT_S = 30
HIDDEN = 8192  # of Llama-3.1-70B
OFF = {torch.bfloat16: 2e-2, torch.float32: 1e-5}  # a result may be, of its norm
NCCL = {"all_reduce": "torch", "reduce_scatter": "torch", "all_gather": "torch", "all_to_all": "torch"}
PLAIN = {
    "all_reduce": ("torch", "triton", "one_shot", "two_shot"),
    "reduce_scatter": ("torch", "triton"),
    "all_gather": ("torch", "triton"),
    "all_to_all": ("torch", "triton"),
}
# Inputs and outputs of a rank's part of a layer of Llama-3.1-70B, over the number of ranks.
ROWS_SPLIT = {"attention output": (8192, 8192), "down": (28672, 8192)}
COLUMNS_SPLIT = {"qkv": (8192, 10240), "gate and up": (8192, 57344)}
PREFILLS = (2048, 8192)
PRODUCTS = {
    "gemm_all_reduce": ("sequential", "overlapped"),
    "gemm_reduce_scatter": ("sequential", "overlapped", "torch"),
    "all_gather_gemm": ("sequential", "overlapped", "torch"),
}
# model, tokens of a rank, hidden, experts, experts of a token, float8
EXPERTS = (
    ("mixtral", 64, 4096, 8, 2, False),
    ("mixtral", 4096, 4096, 8, 2, False),
    ("deepseek_v32", 128, 7168, 256, 8, True),
    ("deepseek_v32", 2048, 7168, 256, 8, True),
)
TILES = ((2048, 4, 0, 128), (4096, 8, 0, 128), (8192, 8, 0, 64), (8192, 16, 1, 128), (16384, 16, 1, 64),
         (16384, 16, 2, 32), (16384, 16, 4, 128), (32768, 16, 2, 128), (32768, 16, 2, 64))  # fmt: skip
SIZES = tuple(1 << power for power in range(12, 27))
SWEPT = (8192, 65536, 262144, 1048576, 8388608, 67108864)


def jobs(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The likeliest to be wanted first: time may run out."""
    sizes = [size for size in SIZES if arguments.least <= size <= arguments.most]
    found = [
        {"task": task, "bytes": size, "implementation": implementation}
        for task, implementations in PLAIN.items()
        for size in (sizes if task == "all_reduce" else sizes[::2])
        for implementation in implementations
    ]
    found += [
        {"task": "all_reduce_norm", "bytes": tokens * HIDDEN * 2, "implementation": implementation}
        for tokens in (1, 16, 64, 256, 2048, 8192)
        for implementation in ("sequential", "triton")
    ]
    found += [
        {"task": task, "tokens": tokens, "layer": layer, "implementation": implementation}
        for task, implementations in PRODUCTS.items()
        for layer in (COLUMNS_SPLIT if task == "all_gather_gemm" else ROWS_SPLIT)
        for tokens in PREFILLS
        for implementation in implementations
    ]
    if arguments.sweep:
        found += [
            {"task": "all_reduce", "bytes": size, "implementation": "triton", "tile": list(tile)}
            for size in SWEPT
            for tile in TILES
        ]
    found += [
        {"task": task, "model": model, "tokens": tokens, "skew": skew, "implementation": implementation}
        for task in ("ep_dispatch", "ep_combine", "expert_parallel")
        for model, tokens, *_ in EXPERTS
        for skew in ("uniform", "zipf")
        for implementation in (
            ("sequential", "parts", "overlapped") if task == "expert_parallel" else ("sequential", "triton")
        )
    ]
    return [job for job in found if not arguments.tasks or job["task"] in arguments.tasks]


# ---------------------------------------------------------------- a rank


class Call:
    """make(): the call of a job, and bytes that it is of; what it gives is compared with the reference's."""

    def __init__(self, job: dict[str, Any], rank: int, ranks: int, device: torch.device) -> None:
        self.job, self.rank, self.ranks, self.device = job, rank, ranks, device
        self.generator = torch.Generator(device).manual_seed(1000 + rank)

    def drawn(self, *shape: int, scale: float = 1.0) -> Tensor:
        value = torch.empty(shape, dtype=torch.bfloat16, device=self.device)
        return value.normal_(0, scale, generator=self.generator)

    def arguments(self) -> tuple[str, tuple[Any, ...], int]:
        """Kernel, its arguments, bytes."""
        task, job = self.job["task"], self.job
        if task in PLAIN:
            long = job["bytes"] // 2 // (self.ranks * 8) * self.ranks * 8
            size = long // self.ranks if task == "all_gather" else long
            x = self.drawn(size // 8, 8)
            return task, (x,) if task in ("all_reduce", "all_to_all") else (x, 0), 2 * long
        if task == "all_reduce_norm":
            tokens = job["bytes"] // 2 // HIDDEN
            x, weight = (
                self.drawn(tokens, HIDDEN),
                torch.ones(HIDDEN, dtype=torch.bfloat16, device=self.device),
            )
            return task, (x, torch.zeros_like(x), weight, 1e-5), job["bytes"]
        if task in PRODUCTS:
            return self._product(task)
        return self._experts(task)

    def _product(self, task: str) -> tuple[str, tuple[Any, ...], int]:
        tokens, gathers = self.job["tokens"], task == "all_gather_gemm"
        inputs, outputs = (COLUMNS_SPLIT if gathers else ROWS_SPLIT)[self.job["layer"]]
        if gathers:
            x, weight = self.drawn(tokens // self.ranks, inputs), self.drawn(outputs // self.ranks, inputs)
            return task, (x, weight.mul_(inputs**-0.5)), 2 * tokens * inputs
        width = inputs // self.ranks
        return (
            task,
            (self.drawn(tokens, width), self.drawn(outputs, width, scale=inputs**-0.5)),
            2 * tokens * outputs,
        )

    def _experts(self, task: str) -> tuple[str, tuple[Any, ...], int]:
        name, tokens = self.job["model"], self.job["tokens"]
        _, _, hidden, experts, top_k, use_fp8 = next(e for e in EXPERTS if e[:2] == (name, tokens))
        rank_E = torch.arange(1, experts + 1, device=self.device, dtype=torch.float32)
        weight_E = torch.ones_like(rank_E) if self.job["skew"] == "uniform" else 1 / rank_E
        ids = torch.multinomial(weight_E.expand(tokens, -1), top_k, generator=self.generator).int()
        weights = torch.rand(tokens, top_k, device=self.device, generator=self.generator)
        x = self.drawn(tokens, hidden)
        if task == "ep_dispatch":
            return task, (x, ids, weights, experts, use_fp8), x.numel() * (1 if use_fp8 else 2) * self.ranks
        if task == "ep_combine":
            rows = self.drawn(self.ranks * tokens, hidden)
            return task, (rows, ids, experts, None), 2 * rows.numel()
        inner = {"mixtral": 14336, "deepseek_v32": 2048}[name]
        each = experts // self.ranks
        w13 = self.drawn(each, 2 * inner, hidden, scale=hidden**-0.5)
        w2 = self.drawn(each, hidden, inner, scale=inner**-0.5)
        return task, (x, weights, ids, w13, w2, experts, use_fp8), 4 * x.numel() * self.ranks

    def made(self) -> tuple[Callable[[], Any], Callable[[], Any], int]:
        """(the call, the reference's, bytes)"""
        from fastkernels import kernels

        name, arguments, size = self.arguments()
        kernel, implementation = kernels.registered[name], self.job["implementation"]

        def forced(impl: str) -> Callable[[], Any]:
            return lambda: kernel(*arguments, impl=impl)

        def over_shared_memory() -> Any:
            with kernels.use(ep_dispatch="triton", ep_combine="triton"):
                return kernel(*arguments, impl=implementation)

        if name == "expert_parallel" and implementation != "sequential":
            return over_shared_memory, forced("reference"), size
        if implementation != "sequential":
            return forced(implementation), forced("reference"), size

        def sequential() -> Any:
            with kernels.use(**NCCL):
                return kernel(*arguments, impl="parts")

        return sequential, forced("reference"), size


def serve(rank: int, ranks: int, store: str, listed: Path, first: int) -> None:
    """Each job from `first` on; the first rank prints a line for each."""
    faulthandler.register(signal.SIGUSR1)
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl", store=FileStore(store, ranks), rank=rank, world_size=ranks, device_id=device
    )
    from fastkernels.kernels import exchange_triton
    from fastkernels.kernels.exchange_triton import Tile
    from fastkernels.kernels.group import Distributed, use_group

    tiles = exchange_triton.TILES
    with use_group(Distributed()):
        link = _link_gbs(device)
        for index, job in enumerate(json.loads(listed.read_text())[first:], first):
            exchange_triton.TILES = ((1 << 62, Tile(*job["tile"])),) if "tile" in job else tiles
            outcome = _timed(job, rank, ranks, device)
            if rank == 0:
                print(json.dumps({"index": index, "link_gbs": link, **outcome}), flush=True)
            torch.cuda.empty_cache()
    dist.barrier()
    os._exit(0)  # graphs and symmetric memory outlive their group otherwise


def _link_gbs(device: torch.device) -> float:
    """What a rank receives by copies from the next one's memory, all at once."""
    from fastkernels.kernels import symmetric
    from fastkernels.kernels.group import group

    size, here = 1 << 28, group()
    _, handle = symmetric.workspace(size, device)
    theirs = handle.get_buffer((here.rank + 1) % here.size, (size,), torch.uint8)
    own = torch.empty_like(theirs, device=device)
    return 5 * size / _slowest_us(lambda: [own.copy_(theirs) for _ in range(5)], device) / 1e3


def _timed(job: dict[str, Any], rank: int, ranks: int, device: torch.device) -> dict[str, Any]:
    """us and bytes of the job, or why not: the same kind of answer on every rank. What loses the device ends
    the rank."""
    from fastkernels.errors import KernelError

    try:
        call, reference, size = Call(job, rank, ranks, device).made()
        off = _off(call(), reference())
    except (KernelError, RuntimeError) as error:
        if "CUDA error" in str(error):
            raise
        return {"error": str(error).partition("\n")[0]}
    worst = torch.tensor([off], device=device)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    if not float(worst) <= OFF[torch.bfloat16] * (3 if job.get("model") == "deepseek_v32" else 1):
        return {"error": f"off the reference by {float(worst):.3g} of its norm"}
    del reference
    for _ in range(WARM_UPS):
        call()
    torch.cuda.synchronize(device)
    dist.barrier()
    captured = True
    try:
        from fastkernels.kernels import counters

        counters.prepare()
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(CALLS):
                call()
        run = graph.replay
    except (KernelError, RuntimeError) as error:
        if rank == 0:
            print(f"not captured: {job}: {error}", file=sys.stderr, flush=True)
        captured, run = False, lambda: [call() for _ in range(CALLS)]
        torch.cuda.synchronize(device)
    us = _slowest_us(run, device) / CALLS
    return {"us": us, "bytes": size, "off": float(worst), "captured": captured}


def _off(found: Any, expected: Any) -> float:
    several = [(found, expected)] if isinstance(found, Tensor) else list(zip(found, expected, strict=True))
    shares = [
        float((one.double() - other.double()).norm() / other.double().norm().clamp_min(1e-30))
        for one, other in several
    ]
    return max(shares)


def _slowest_us(run: Callable[[], object], device: torch.device) -> float:
    """Median over replays of the rank that takes longest; devices begin together."""
    ready = torch.zeros(1, device=device)
    events = []
    for _ in range(2 + REPLAYS):
        torch.cuda.synchronize(device)
        dist.all_reduce(ready)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        events.append((begin, end))
    torch.cuda.synchronize(device)
    times = torch.tensor([begin.elapsed_time(end) * 1e3 for begin, end in events[2:]], device=device)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return statistics.median(times.tolist())


# ---------------------------------------------------------------- who starts and watches the ranks


def outcomes(listed: list[dict[str, Any]], ranks: int, limit_s: float) -> dict[int, dict[str, Any]]:
    """What each job came to, by its place; those that no time was left for are not there."""
    deadline, found, first = time.monotonic() + limit_s, {}, 0
    while first < len(listed) and time.monotonic() < deadline:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "jobs.json"
            path.write_text(json.dumps(listed))
            processes = [_start(rank, ranks, Path(folder) / "store", path, first) for rank in range(ranks)]
            try:
                why = _listen(processes, found, deadline)
            finally:
                for process in processes:
                    process.send_signal(signal.SIGUSR1)  # one that hangs says where
                time.sleep(0.3)
                for process in processes:
                    process.kill()
                    process.communicate()
        first = max(found, default=-1) + 1
        if why and first < len(listed):
            found[first] = {"error": why}
            first += 1
    return found


def _start(rank: int, ranks: int, store: Path, listed: Path, first: int) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        __file__,
        "--serve",
        str(rank),
        str(ranks),
        str(store),
        str(listed),
        str(first),
    ]
    off = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    heard = subprocess.DEVNULL if rank else subprocess.PIPE
    return subprocess.Popen(command, stdout=heard, env={**os.environ, **off})


def _listen(
    processes: list[subprocess.Popen[bytes]], found: dict[int, dict[str, Any]], deadline: float
) -> str | None:
    """Notes what the first rank says. Why the job after the last one was not finished; None where none was
    begun, or no time is left."""
    output = processes[0].stdout
    assert output is not None
    os.set_blocking(output.fileno(), False)
    heard, text = time.monotonic(), b""
    while True:
        now = time.monotonic()
        if now > deadline:
            return None
        if now - heard > SILENT_S:
            return f"nothing was heard for {SILENT_S} s"
        select.select([output], [], [], 0.5)
        if part := output.read():
            heard, text = now, text + part
            *lines, text = text.split(b"\n")
            for line in filter(None, lines):
                said = json.loads(line)
                found[said.pop("index")] = said
            continue
        codes = [process.poll() for process in processes]
        if any(code not in (None, 0) for code in codes):
            return f"a rank ended: {codes}"
        if all(code == 0 for code in codes):
            return None


def rows(listed: list[dict[str, Any]], found: dict[int, dict[str, Any]], ranks: int) -> list[dict[str, Any]]:
    made = [_row(job, found[index], ranks) for index, job in enumerate(listed) if index in found]
    by_nccl = {
        _same(row): row["us"]
        for row in made
        if "us" in row and row["implementation"] in ("sequential", "torch")
        and not (row["task"] in PRODUCTS and row["implementation"] == "torch")
    }  # fmt: skip
    for row in made:
        if "us" in row and _same(row) in by_nccl:
            row["ratio_to_nccl"] = row["us"] / by_nccl[_same(row)]
    return made


def _row(job: dict[str, Any], outcome: dict[str, Any], ranks: int) -> dict[str, Any]:
    row = {**job, **outcome}
    link = row.pop("link_gbs", None)
    if "us" in row:
        share = (2 if row["task"] in ("all_reduce", "all_reduce_norm", "gemm_all_reduce") else 1) / ranks
        row["busbw_gbs"] = share * (ranks - 1) * row["bytes"] / row["us"] / 1e3
        if link:
            row["ceiling_share"], row["link_gbs"] = row["busbw_gbs"] / link, link
    return row


def _same(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in ("task", "bytes", "layer", "tokens", "model", "skew"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", nargs="*", default=[])
    parser.add_argument("--least", type=int, default=1 << 12)
    parser.add_argument("--most", type=int, default=1 << 26)
    parser.add_argument("--limit-s", type=float, default=540)
    parser.add_argument("--sweep", action="store_true")
    arguments = parser.parse_args()
    if arguments.ranks > torch.cuda.device_count():
        parser.error(f"{arguments.ranks} ranks need as many GPUs, here are {torch.cuda.device_count()}")
    from committed import write

    from fastkernels.measure.environment import environment

    listed = jobs(arguments)
    made = rows(listed, outcomes(listed, arguments.ranks, arguments.limit_s), arguments.ranks)

    told = {
        "kind": "collectives",
        "rows": made,
        "environment": environment("cuda").model_dump(mode="json"),
        "ranks": arguments.ranks,
    }
    write(told, arguments.out)
    for row in made:
        what = " ".join(
            str(row[key]) for key in ("task", "bytes", "layer", "model", "tokens", "skew") if key in row
        )
        ratio = f"{row['ratio_to_nccl']:.3f}" if "ratio_to_nccl" in row else ""
        said = row.get("error") or f"{row['us']:.1f} us {row['busbw_gbs']:.0f} GB/s"
        print(f"{what} {row['implementation']} {row.get('tile', '')}: {said} {ratio}")
    print(f"{len(made)} of {len(listed)} rows in {arguments.out}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], Path(sys.argv[5]), int(sys.argv[6]))
    else:
        main()
