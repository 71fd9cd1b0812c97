"""BitNet in transformers with `generate`: as a user gets it, and with a static cache, where it compiles the
decode step and replays it.

Of its two linear layers AutoBitLinear is compared, which the checkpoint's configuration names: it keeps the
ternary weights unpacked, where the other one unpacks them in every call.
"""

from __future__ import annotations

from typing import Any, ClassVar

from references.base import Comparison, Machine
from references.language import Ours, workloads
from references.transformers_lm import Transformers


class Unpacked(Transformers):
    settings: ClassVar[tuple[str, ...]] = ("default", "static")

    def __init__(self, machine: Machine) -> None:
        super().__init__(_Float(machine.architecture, machine.size, machine.device))
        _make_ternary(self._model)


class _Float(Machine):
    """With the configuration of ordinary weights: transformers' constructors take no notice of another."""

    @property
    def config(self) -> dict[str, Any]:
        return {key: value for key, value in super().config.items() if key != "quantization_config"}


def _make_ternary(model: Any) -> None:
    """Every projection becomes an AutoBitLinear of its own weights, made ternary, and their scale."""
    import torch
    from transformers.integrations.bitnet import AutoBitLinear

    from fastkernels.kernels import ternary

    for name, module in list(model.named_modules()):
        if not isinstance(module, torch.nn.Linear) or name == "lm_head":
            continue
        packed, omega = ternary.ternarised(module.weight)
        values, like = ternary.unpack(packed, module.weight.dtype), module.weight
        with torch.device("meta"):  # its own weight is given below
            layer = AutoBitLinear(module.in_features, module.out_features, bias=False, dtype=like.dtype)
        layer.weight = torch.nn.Parameter(values, requires_grad=False)
        layer.weight_scale = torch.nn.Buffer(omega.to(like.dtype))
        model.set_submodule(name, layer)


COMPARISONS = [
    Comparison("bitnet", "transformers", Ours, Unpacked, workloads, bars={"single-request": 2.0}),
]
