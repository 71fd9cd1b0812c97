"""One side of a whole-model trial, inside its own process: the engine with one overlay, driven by the judge.

Every method answers with JSON values. `generate` only says that it is done: the judge times it with its own
clock and asks for the tokens afterwards, so that neither the clock nor the size of the answer is in this
process's hands.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fastkernels.engine.llm import LLM, SamplingParams
from fastkernels.kernels import base as kernels
from fastkernels.loader.overlay import Overlay


class ModelSide:
    """An LLM built from an overlay; `noise` names kernels that run their `reference`: other numerics."""

    def __init__(self, layers: Sequence[str], model: str, noise: Sequence[str] = (), **engine: Any) -> None:
        self.overlay = Overlay.over_baseline([Path(layer) for layer in layers])
        self._noise = contextlib.ExitStack()
        if noise:
            self._noise.enter_context(kernels.use(**dict.fromkeys(noise, "reference")))
        self.llm = LLM(model, overlay=self.overlay, **engine)
        self._outputs: list[list[int]] = []

    def generate(self, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        """Greedy, exact lengths; the tokens stay here until `outputs`."""
        greedy = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        self._outputs = [list(o.outputs[0].token_ids) for o in self.llm.generate(prompts, greedy)]
        return {"requests": len(self._outputs)}

    def outputs(self) -> dict[str, Any]:
        return {"token_ids": self._outputs}

    def forced(self, prompts: list[list[int]], continuations: list[list[int]], top: int) -> dict[str, Any]:
        """Decode along given tokens: at each position the argmax and the `top` largest log-probabilities."""
        params = [
            SamplingParams(temperature=0.0, max_tokens=len(ids), ignore_eos=True, logprobs=top or None)
            for ids in continuations
        ]
        results = [o.outputs[0] for o in self.llm.generate(prompts, params, forced=continuations)]
        tops = [[{str(i): p for i, p in position.items()} for position in r.logprobs or ()] for r in results]
        return {"argmax": [list(r.token_ids) for r in results], "top": tops}

    def sites(self) -> dict[str, Any]:
        """Names of the modules whose class a candidate layer defines, by the file that defines it
        (`L1/rms_norm`).
        """
        candidate_layers = self.overlay.layers[:-1]
        found: dict[str, list[str]] = {}
        for name, module in self.llm.model.named_modules():
            if self.overlay.origin(type(module)) in candidate_layers:
                found.setdefault(self.overlay.task(type(module)) or "?", []).append(name)
        return {"sites": found}

    def proof(self, sites: dict[str, list[str]], prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        """An eager run with a clock round every site: calls, seconds at the sites, seconds in all."""
        modules = dict(self.llm.model.named_modules())
        # A candidate may have inner modules that the baseline lacks; the clock counts the outermost site
        # only.
        here = {task: [modules[name] for name in names if name in modules] for task, names in sites.items()}
        clock = SiteClock(here, self._synchronise)
        with self.llm.eager(), clock.attached():
            self._synchronise()
            begin = time.perf_counter()
            self.generate(prompts, max_tokens)
            self._synchronise()
            total = time.perf_counter() - begin
        return {"calls": clock.calls, "site_s": clock.seconds, "total_s": total}

    def stats(self) -> dict[str, Any]:
        """What the engine did, and which kernels were passed over for which reason."""
        passed_over = {f"{k}:{i}: {why}": n for (k, i, why), n in kernels.skipped.items()}
        return {"engine": self.llm.stats(), "passed_over": passed_over}

    def _synchronise(self) -> None:
        if torch.cuda.is_available() and self.llm.device.type == "cuda":
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
