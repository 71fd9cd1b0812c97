"""Mamba and Mamba 2 in flash-linear-attention and in transformers, both with transformers' `generate`.

Both take the kernels of mamba_ssm and causal_conv1d where those are installed; the version says whether.
Without them their scans are PyTorch: Mamba's goes from token to token, Mamba 2's writes out every product of
a chunk, which at 7 B needs hundreds of GB for some prompts together; a setting that fails is reported. The
settings that end in `scan` compile that one function: transformers then has an associative scan for Mamba,
and sums of products need no memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

from fastkernels.registry.workloads import TokenWorkload
from references.base import Comparison, Machine
from references.gla import FlashLinearAttention, recurrent_workloads
from references.language import Ours
from references.transformers_lm import Transformers


class Scan:
    """A function of a library, as it is or compiled, at the place where the library looks for it."""

    def __init__(self, place: Any, name: str) -> None:
        self._place, self._name, self._plain = place, name, getattr(place, name)

    def compile(self, is_compiled: bool) -> None:
        import torch

        scan = torch.compile(self._plain, dynamic=False) if is_compiled else self._plain
        setattr(self._place, self._name, scan)


class WithoutAttention(Transformers):
    settings: ClassVar[tuple[str, ...]] = ("default", "static", "static-scan")
    attention: ClassVar[str] = "eager"  # the only name that such a model takes
    scans: ClassVar[dict[str, str]] = {"mamba": "mamba_selective_scan", "mamba2": "mamba2_chunk_scan"}

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        module = sys.modules[type(self._model).__module__]
        self._scan = Scan(module, self.scans[self._model.config.model_type])

    def prepare(self, workload: TokenWorkload, setting: str) -> Callable[[], int]:
        self._scan.compile(setting == "static-scan")
        return super().prepare(workload, setting)


class Mamba2InFla(FlashLinearAttention):
    """Its Mamba has no such setting: a loop over tokens would be compiled token by token."""

    settings: ClassVar[tuple[str, ...]] = ("default", "scan")

    def __init__(self, machine: Machine) -> None:
        import torch

        super().__init__(machine)
        layers = import_module("fla.layers.mamba2")
        self._scan = Scan(layers.Mamba2, "torch_forward")
        # A kernel of its own, not to be traced.
        layers.RMSNormGated.forward = torch.compiler.disable(layers.RMSNormGated.forward)

    def prepare(self, workload: TokenWorkload, setting: str) -> Callable[[], int]:
        import torch

        torch.compiler.reset()
        self._scan.compile(setting == "scan")
        return super().prepare(workload, setting)


BARS = {"single-request": 10.0, "batch": 2.0, "prefill": 1.0}
# Requests of the throughput workload: a state of the larger model takes 276 MB.
MODELS = {"mamba": (256, FlashLinearAttention), "mamba2": (64, Mamba2InFla)}
COMPARISONS = [
    Comparison(model, name, Ours, theirs, partial(recurrent_workloads, throughput=requests), bars)
    for model, (requests, in_fla) in MODELS.items()
    for name, theirs, bars in (
        ("flash-linear-attention", in_fla, BARS),
        ("transformers", WithoutAttention, {}),
    )
]
