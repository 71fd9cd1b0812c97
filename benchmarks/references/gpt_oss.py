"""GPT-OSS in transformers: `generate` with experts expanded to bfloat16, and eager attention, the only one
that has sinks there. Its path for MXFP4 asks the Hub for kernels, which a machine without a network lacks."""

from __future__ import annotations

from typing import ClassVar

from references.base import Comparison, Machine
from references.language import Ours, workloads
from references.transformers_lm import Transformers


class _Expanded(Machine):
    @property
    def config(self):
        return {key: value for key, value in super().config.items() if key != "quantization_config"}


class ExpandedExperts(Transformers):
    attention: ClassVar[str] = "eager"

    def __init__(self, machine: Machine) -> None:
        super().__init__(_Expanded(machine.architecture, machine.size, machine.device))


COMPARISONS = [Comparison("gpt_oss", "transformers", Ours, ExpandedExperts, workloads)]
