"""Recurrent models in flash-linear-attention, with transformers' `generate`: it has no compiled setting of
its own. Here is GLA; mamba.py has others."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import ClassVar

from fastkernels.records import Size
from fastkernels.registry.workloads import TokenWorkload
from references import language
from references.base import Comparison, Machine
from references.transformers_lm import extras, generation

THROUGHPUT = 256  # requests; "few" are 32, of which its step takes as long as of one
PREFILL = 2016  # of its 2,048 positions: whole chunks, and room for the answer
# Where it calls something else than the configuration does.
ITS_WORDS = {"layer_norm_epsilon": "norm_eps", "time_step_rank": "dt_rank", "time_step_limit": "dt_limit"}


class FlashLinearAttention:
    settings: ClassVar[tuple[str, ...]] = ("default",)

    def __init__(self, machine: Machine) -> None:
        if machine.device == "cpu":
            _interpret()
        fields = machine.config
        (name,), kind = fields.pop("architectures"), fields.pop("model_type")
        cls = getattr(import_module(f"fla.models.{kind}"), name)
        config = cls.config_class(**{ITS_WORDS.get(key, key): value for key, value in fields.items()})
        self._model = machine.filled(lambda: cls(config))
        self._device, self._vocabulary = machine.device, config.vocab_size
        self.version = import_module("fla").__version__ + extras(kind)

    def prepare(self, workload: TokenWorkload, setting: str) -> Callable[[], int]:
        return generation(self._model, workload, self._vocabulary, self._device, {})


def _interpret() -> None:
    """Its Triton kernels in the interpreter; measuring their choices would need a GPU."""
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime.autotuner import Autotuner

    tune = Autotuner.run

    def first(self, *args, **kwargs):
        self.configs = self.configs[:1]
        return tune(self, *args, **kwargs)

    Autotuner.run = first


def recurrent_workloads(size: Size) -> dict[str, TokenWorkload]:
    few = language.workloads(size)["batch"].model_copy(update={"name": "few"})
    return {**language.workloads(size, throughput=THROUGHPUT, prefill=PREFILL), "few": few}


COMPARISONS = [
    Comparison(
        "gla",
        "flash-linear-attention",
        language.Ours,
        FlashLinearAttention,
        recurrent_workloads,
        bars={"single-request": 10.0, "few": 4.0, "batch": 4.0, "prefill": 1.0},
    )
]
