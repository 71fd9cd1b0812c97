"""Language models in vLLM: bf16, greedy, exact lengths, no prefix cache."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from fastkernels.records import Size
from fastkernels.registry.workloads import TokenWorkload
from references.base import Comparison, Machine
from references.language import Ours, Prompts, tokens_made, workload

MAX_MODEL_LEN = 4096


class Vllm:
    settings: ClassVar[tuple[str, ...]] = ("engine",)

    def __init__(self, machine: Machine) -> None:
        import vllm

        config = machine.config
        self.vocabulary, self.version = config["vocab_size"], vllm.__version__
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(config))
            self._llm = vllm.LLM(
                model=folder, load_format="dummy", skip_tokenizer_init=True, dtype=machine.dtype, seed=0,
                max_model_len=MAX_MODEL_LEN, gpu_memory_utilization=machine.memory,
                enable_prefix_caching=False,
            )  # fmt: skip

    def generate(self, prompts: Prompts, length: int) -> list[Any]:
        import vllm

        params = vllm.SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=length, detokenize=False)
        return self._llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)

    def prepare(self, workload: TokenWorkload, setting: str) -> Callable[[], int]:
        return tokens_made(self, workload)


def _workloads(size: Size) -> dict[str, TokenWorkload]:
    """Both are engines: requests enough to fill them."""
    shapes = {"single-request": (1, 128, 128), "fixed-batch-32": (32, 128, 128), "many": (256, 512, 128)}
    return {name: workload(name, *shape, size) for name, shape in shapes.items()}


def _ours(machine: Machine) -> Ours:
    return Ours(machine, max_model_len=MAX_MODEL_LEN)


_BARS = {"single-request": 1.0, "fixed-batch-32": 1.0, "many": 1.0}
_MODELS = {
    "llama": {},
    "mixtral": {},
    "jamba": {},
    "gemma4": {"single-request": 1.05, "fixed-batch-32": 1.05},
    "gpt_oss": {"single-request": 1.02, "fixed-batch-32": 1.02},
}
COMPARISONS = [
    Comparison(name, "vllm", _ours, Vllm, _workloads, bars=_BARS | bars) for name, bars in _MODELS.items()
]
