"""Language models in transformers: `generate`, greedy, exact lengths, SDPA attention.

Settings of it: as a user gets it (a cache that grows); with a static cache, where it compiles the decode step
and replays it from a CUDA graph; and the same with grouped products of the experts in the decode step, where
it copies the chosen experts' weights by default (faster for one row, slower for many).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, ClassVar

from fastkernels.registry.workloads import TokenWorkload
from references.base import Comparison, Machine
from references.language import Ours, prompts, workloads


class Transformers:
    settings: ClassVar[tuple[str, ...]] = ("default", "static", "static-grouped")
    attention: ClassVar[str] = "sdpa"

    def __init__(self, machine: Machine) -> None:
        import transformers

        self._model = causal_lm(machine, self.attention)
        config = self._model.config
        self._device, self._vocabulary = machine.device, config.vocab_size
        self.version = transformers.__version__ + extras(config.model_type)
        self._switch = self._model._optimize_model_for_decode

    def prepare(self, workload: TokenWorkload, setting: str) -> Callable[[], int]:
        import torch

        torch.compiler.reset()
        options = {} if setting == "default" else {"cache_implementation": "static"}
        grouped = setting == "static-grouped"
        self._model._optimize_model_for_decode = contextlib.nullcontext if grouped else self._switch
        return generation(self._model, workload, self._vocabulary, self._device, options)


def causal_lm(machine: Machine, attention: str = "sdpa") -> Any:
    """The machine's language model in transformers, with our random weights. By the names of transformers'
    own classes: flash-linear-attention, once imported, stands in their place behind AutoModelForCausalLM."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    fields = machine.config
    kind = fields.pop("model_type")
    config = getattr(transformers, CONFIG_MAPPING_NAMES[kind])(**fields)
    model = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind])
    return filled(model._from_config, machine, config, attention)


def filled(make: Callable[..., Any], machine: Machine, config: Any, attention: str = "sdpa") -> Any:
    """A model of transformers with our random weights."""
    import torch

    dtype = getattr(torch, machine.dtype)
    return machine.filled(lambda: make(config, dtype=dtype, attn_implementation=attention))


def generation(
    model: Any, workload: TokenWorkload, vocabulary: int, device: str, options: dict[str, Any]
) -> Callable[[], int]:
    import torch

    ids_BT = torch.tensor(prompts(workload, vocabulary), device=device)
    fixed = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}

    def run() -> int:
        out_BT = model.generate(
            ids_BT,
            attention_mask=torch.ones_like(ids_BT),
            max_new_tokens=workload.output_len,
            **fixed,
            **options,
        )
        return out_BT[:, workload.input_len :].numel()

    return run


def extras(model_type: str) -> str:
    """What else is installed that such a model is faster with."""
    if model_type not in ("jamba", "mamba", "mamba2"):
        return ""
    names = ("mamba_ssm", "causal_conv1d")
    return ", " + ", ".join(f"{'with' if find_spec(name) else 'without'} {name}" for name in names)


COMPARISONS = [
    Comparison(
        "mixtral", "transformers", Ours, Transformers, workloads, bars={"single-request": 4.0, "batch": 4.0}
    ),
    Comparison(
        "jamba",
        "transformers",
        Ours,
        Transformers,
        workloads,
        bars={"single-request": 4.0, "batch": 4.0, "prefill": 1.3},
    ),
    Comparison("llama", "transformers", Ours, Transformers, workloads),
]
