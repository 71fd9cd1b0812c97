"""Language models: our side of every comparison of them, and the workloads."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, ClassVar

from fastkernels.records import Size
from fastkernels.registry.workloads import TokenWorkload
from references.base import Machine

SEED = 20
Prompts = list[list[int]]


def workload(name: str, requests: int, input_len: int, output_len: int, size: Size) -> TokenWorkload:
    kind = "latency" if requests == 1 else "throughput"
    return TokenWorkload(
        name=name, kind=kind, size=size, requests=requests, input_len=input_len, output_len=output_len
    )


def workloads(size: Size, throughput: int = 32, prefill: int = 2048) -> dict[str, TokenWorkload]:
    """One request, several of them together, and prompts alone; short enough for a library without an
    engine. throughput: requests of the second one; prefill: tokens of each prompt of the third."""
    if size == "full":
        shapes = {"single-request": (1, 128, 128), "batch": (throughput, 128, 32), "prefill": (8, prefill, 1)}
    else:
        shapes = {"single-request": (1, 32, 16), "batch": (4, 32, 16), "prefill": (4, 48, 1)}
    return {name: workload(name, *shape, size) for name, shape in shapes.items()}


def prompts(workload: TokenWorkload, vocabulary: int) -> Prompts:
    rng = random.Random(SEED)
    return [[rng.randrange(vocabulary) for _ in range(workload.input_len)] for _ in range(workload.requests)]


class Ours:
    """Through the public LLM: greedy, exact lengths, no prefix cache."""

    settings: ClassVar[tuple[str, ...]] = ("engine",)

    def __init__(self, machine: Machine, **options: Any) -> None:
        from fastkernels import LLM, __version__

        options = {"dtype": machine.dtype, "device": machine.device, "seed": 0, **options}
        if machine.device == "cuda":
            options = {"gpu_memory_utilization": machine.memory, **options}
        if machine.changes:
            self.llm = LLM(machine.config, **options)
        else:
            self.llm = LLM(machine.architecture, size=machine.size, **options)
        self.vocabulary, self.version = self.llm.vocabulary, __version__

    def generate(self, prompts: Any, length: int) -> list[Any]:
        from fastkernels import SamplingParams

        return self.llm.generate(
            prompts, SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True), use_tqdm=False
        )

    def prepare(self, workload: TokenWorkload, setting: str) -> Callable[[], int]:
        return tokens_made(self, workload)


def tokens_made(side: Any, workload: TokenWorkload) -> Callable[[], int]:
    """A run of a side with `generate` and `vocabulary`, as Ours has them."""
    given = prompts(workload, side.vocabulary)
    return lambda: count(side.generate(given, workload.output_len))


def count(outputs: list[Any]) -> int:
    return sum(len(output.outputs[0].token_ids) for output in outputs)
