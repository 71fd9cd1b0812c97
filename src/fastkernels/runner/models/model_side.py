"""One side of a whole-model trial, inside its own process: the engine with one overlay, driven by the judge.

Every method answers with JSON values. A kind of answer adds its own methods: token_side.py, program_side.py.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fastkernels.kernels import base as kernels
from fastkernels.loader.overlay import Overlay
from fastkernels.measure.cuda import Driver
from fastkernels.nn.fusion import apart
from fastkernels.runner.inside import flags


class ModelSide(ABC):
    """An overlay, and a model built from it; `noise` names kernels that run their `reference`: other
    numerics."""

    model: nn.Module
    device: torch.device

    def __init__(self, layers: Sequence[str], noise: Sequence[str]) -> None:
        self._threads, self._flags, self._gpu_flags = torch.get_num_threads, flags.read, flags.of_gpu
        self._kept = flags.Kept()
        self._driver = Driver() if torch.cuda.is_available() else None
        self.overlay = Overlay.over_baseline([Path(layer) for layer in layers])
        self._noise = contextlib.ExitStack()
        if noise:
            self._noise.enter_context(kernels.use(**dict.fromkeys(noise, "reference")))

    # ---- what a kind of answer defines

    @abstractmethod
    def eager(self) -> contextlib.AbstractContextManager[None]:
        """Without CUDA graphs for the body."""

    @abstractmethod
    def run_once(self, **inputs: Any) -> None:
        """Answer the inputs of a proof pass."""

    @abstractmethod
    def engine_stats(self) -> dict[str, Any]:
        """What the engine did so far."""

    # ---- what all have

    def hello(self) -> dict[str, Any]:
        """Once the model is there, before its first call: settings of the process that imports changed."""
        return {"put_back": self._kept.put_back()}

    def sites(self) -> dict[str, Any]:
        """Names of the modules whose class a candidate layer defines, by the file that defines it
        (`L1/rms_norm`).
        """
        candidate_layers = self.overlay.layers[:-1]
        found: dict[str, list[str]] = {}
        for name, module in self.model.named_modules():
            if self.overlay.origin(type(module)) in candidate_layers:
                found.setdefault(self.overlay.task(type(module)) or "?", []).append(name)
        return {"sites": found}

    def proof(self, sites: dict[str, list[str]], **inputs: Any) -> dict[str, Any]:
        """An eager run with a clock round every site: calls, seconds at the sites, seconds in all.

        Without fused kernels on either side: the baseline would call nothing at sites that it fuses.
        `put_back`: settings of the process that it changed, before any graph is captured with them.
        """
        modules = dict(self.model.named_modules())
        # A candidate may have inner modules that the baseline lacks; the clock counts the outermost site
        # only.
        here = {task: [modules[name] for name in names if name in modules] for task, names in sites.items()}
        clock = SiteClock(here, self.synchronise)
        with self.eager(), apart(self.model), clock.attached():
            self.synchronise()
            begin = time.perf_counter()
            self.run_once(**inputs)
            self.synchronise()
            total = time.perf_counter() - begin
        found = {"calls": clock.calls, "site_s": clock.seconds, "total_s": total}
        return {**found, "put_back": self._kept.put_back()}

    def stats(self) -> dict[str, Any]:
        """What the engine did, which kernels were passed over for which reason, and what the process is set
        to."""
        passed_over = {f"{k}:{i}: {why}": n for (k, i, why), n in kernels.skipped.items()}
        settings = {**self._flags(), "torch's number of threads": str(self._threads())}
        if self._driver is not None and self.device.type == "cuda":
            settings |= self._gpu_flags(self._driver)
        return {"engine": self.engine_stats(), "passed_over": passed_over, "settings": settings}

    def synchronise(self) -> None:
        if torch.cuda.is_available() and self.device.type == "cuda":
            torch.cuda.synchronize()


class SiteClock:
    """Counts calls and seconds of modules; the time of one inside another counts once."""

    def __init__(self, modules: dict[str, list[nn.Module]], synchronise: Any) -> None:
        self.calls = dict.fromkeys(modules, 0)
        self.seconds = 0.0
        self._modules, self._synchronise = modules, synchronise
        self._depth, self._begin = 0, 0.0

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        handles = []
        for task, modules in self._modules.items():
            for module in modules:
                handles.append(module.register_forward_pre_hook(self._enter(task)))
                handles.append(module.register_forward_hook(self._leave))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, task: str) -> Any:
        def hook(module: nn.Module, args: Any) -> None:
            self.calls[task] += 1
            if self._depth == 0:
                self._synchronise()
                self._begin = time.perf_counter()
            self._depth += 1

        return hook

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._synchronise()
            self.seconds += time.perf_counter() - self._begin
