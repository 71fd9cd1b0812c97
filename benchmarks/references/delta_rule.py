"""Qwen3-Next and Kimi Linear in transformers, with flash-linear-attention's kernels where they are installed,
and in vLLM.

The 159 GB of Qwen3-Next are more than one GPU holds: both sides get 20 of its 48 layers, at their real
widths. Kimi Linear's 98 GB need a GPU of 141 GB.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

from references.base import Comparison, Machine
from references.language import Ours, workloads
from references.transformers_lm import Transformers
from references.vllm_lm import MAX_MODEL_LEN, Vllm

# Five times three layers of Gated DeltaNet and one of attention: 67.7 GB, which 80 GB hold; 36 layers are
# 120 GB, of 141.
CHANGES = {"qwen3_next": {"num_hidden_layers": 20}, "kimi_linear": {}}
# Of each, the functions that it takes from flash-linear-attention.
RULES = {
    "qwen3_next": ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"),
    "kimi_linear": ("chunk_kimi_delta_attention", "recurrent_kimi_delta_attention"),
}
BARS = {
    "transformers": {"single-request": 10.0, "batch": 10.0, "prefill": 1.0},
    "vllm": {"single-request": 1.05, "batch": 1.05, "prefill": 1.05},
}


class WithDeltaRule(Transformers):
    """On a CPU, where flash-linear-attention's kernels cannot run, its own functions in PyTorch."""

    library: ClassVar[str] = "fla"

    def __init__(self, machine: Machine) -> None:
        kind = machine.config["model_type"]
        if machine.device == "cpu":
            module: Any = import_module(f"transformers.models.{kind}.modeling_{kind}")
            for name in RULES[kind]:
                setattr(module, name, inspect.unwrap(getattr(module, name)))
        super().__init__(machine)
        with_it = machine.device != "cpu" and find_spec(self.library) is not None
        self.version += f", {'with' if with_it else 'without'} {self.library}"


def _ours(machine: Machine) -> Ours:
    return Ours(machine, max_model_len=MAX_MODEL_LEN)


SIDES = {"transformers": (Ours, WithDeltaRule), "vllm": (_ours, Vllm)}
COMPARISONS = [
    Comparison(model, name, ours, theirs, workloads, bars=BARS[name], changes=changes)
    for model, changes in CHANGES.items()
    for name, (ours, theirs) in SIDES.items()
]
