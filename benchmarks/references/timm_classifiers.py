"""Image classifiers in timm: maps channels last, made with our configuration (random weights in both).

default              eager, cuDNN chooses by measurement
compiled             one graph, captured (reduce-overhead)
max-autotune         the same, kernels chosen by measurement
frozen               captured, norms folded into the convolutions by the compiler
contiguous           captured, maps channels first: in float32 cuDNN may prefer them

Float32 is float32 on both sides: timm's convolutions are told not to round to tf32, as ours never do. Where
ours use the tensor cores, they add three products of parts of each number, which is as near as float32.
timm is installed apart (`--reference-path .venv/apart`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

from fastkernels.registry.workloads import ProgramWorkload
from references.base import Comparison, Machine, one_batch
from references.programs import Ours, images, normalised
from references.yolov10 import declare_operators

# Module, class, activation, and what our configurations do not say because it is the class's own form.
MODELS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "mobilenetv4": (
        "mobilenetv3", "MobileNetV3", "ReLU", {"fix_stem": True, "head_bias": False, "head_norm": True}
    ),
    "efficientnetv2": ("efficientnet", "EfficientNet", "SiLU", {}),
}  # fmt: skip


class Timm:
    settings: ClassVar[tuple[str, ...]] = ("default", "compiled", "max-autotune", "frozen", "contiguous")

    def __init__(self, machine: Machine) -> None:
        import torch

        if machine.device == "cpu":
            declare_operators()
        import timm

        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        self._machine, self._device, self._dtype = machine, machine.device, getattr(torch, machine.dtype)
        self._model = machine.filled(self._made)
        self.version = timm.__version__

    def _made(self) -> Any:
        import torch
        from timm.models import _efficientnet_builder as builder

        module, name, activation, own = MODELS[self._machine.architecture]
        config = self._machine.config
        return getattr(import_module(f"timm.models.{module}"), name)(
            block_args=builder.decode_arch_def(config["block_args"]),
            round_chs_fn=builder.round_channels,
            act_layer=getattr(torch.nn, activation),
            **{key: config[key] for key in ("stem_size", "num_features", "num_classes")},
            **own,
        )

    def prepare(self, workload: ProgramWorkload, setting: str) -> Callable[[], int]:
        import torch
        from torch._inductor import config

        torch.compiler.reset()
        config.freezing, config.layout_optimization = setting == "frozen", setting != "contiguous"
        layout = torch.contiguous_format if setting == "contiguous" else torch.channels_last
        model = self._model.to(memory_format=layout)
        if setting != "default":
            mode = "max-autotune" if setting == "max-autotune" else "reduce-overhead"
            model = torch.compile(model, mode=mode, fullgraph=True)
        pixels_of_batch = normalised(images(workload, self._machine), self._device, self._dtype)

        @torch.no_grad()  # a frozen graph is none of inference mode
        def run() -> int:
            pixels_BCHW = pixels_of_batch().permute(0, 3, 1, 2)
            return len(model(pixels_BCHW.contiguous(memory_format=layout)))

        return run


def _comparison(architecture: str, side: int) -> Comparison:
    workloads: Any = partial(one_batch, architecture)
    bars = {f"classify-single-{side}": 1.5, f"classify-{side}": 1.1}
    return Comparison(architecture, "timm", Ours, Timm, workloads, bars=bars)


COMPARISONS = [_comparison("mobilenetv4", 256), _comparison("efficientnetv2", 320)]
