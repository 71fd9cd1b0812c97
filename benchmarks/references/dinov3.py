"""DINOv3 in timm, whose pooling is ours, and in transformers: SDPA attention, images of one size.

timm is no dependency: `--reference-path` says where it lies. Its torchvision has no operators beside a CPU
build of PyTorch; the comparison there is with transformers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from fastkernels.registry.workloads import ProgramWorkload
from references.base import Comparison, Machine, one_batch
from references.programs import Ours, images, normalised
from references.transformers_lm import filled

PREFIX = 5  # a class token and registers


class _Reference(ABC):
    """`_answer(model, pixels [B, 3, H, W])` gives features [B, D]."""

    settings: ClassVar[tuple[str, ...]] = ("default", "compiled")
    version: str

    def __init__(self, machine: Machine, model: Any) -> None:
        self._machine, self._model = machine, model

    def prepare(self, workload: ProgramWorkload, setting: str) -> Callable[[], int]:
        import torch

        torch.compiler.reset()
        answer: Callable[[Any], Any] = partial(self._answer, self._model)
        if setting == "compiled":
            answer = torch.compile(answer, mode="reduce-overhead")
        machine = self._machine
        dtype = getattr(torch, machine.dtype)
        pixels_of_batch = normalised(images(workload, machine), machine.device, dtype)

        @torch.inference_mode()
        def run() -> int:
            return len(answer(pixels_of_batch().permute(0, 3, 1, 2)))

        return run

    @abstractmethod
    def _answer(self, model: Any, pixels_BCHW: Any) -> Any: ...


class Timm(_Reference):
    def __init__(self, machine: Machine) -> None:
        import timm
        from timm.models.eva import Eva
        from torch import nn

        config = machine.config
        made = partial(
            Eva,
            img_size=config["image_size"],
            patch_size=config["patch_size"],
            dynamic_img_size=True,
            embed_dim=config["hidden_size"],
            depth=config["num_hidden_layers"],
            num_heads=config["num_attention_heads"],
            qkv_bias=False,
            mlp_ratio=config["intermediate_size"] / config["hidden_size"],
            init_values=1e-5,
            rope_type="dinov3",
            rope_temperature=config["rope_theta"],
            use_rot_pos_emb=True,
            use_abs_pos_emb=False,
            rope_rotate_half=True,
            swiglu_mlp=True,
            swiglu_align_to=64,
            num_reg_tokens=config["num_register_tokens"],
            use_fc_norm=False,
            norm_layer=partial(nn.LayerNorm, eps=config["layer_norm_eps"]),
            num_classes=0,
        )
        super().__init__(machine, machine.filled(made))
        self.version = timm.__version__

    def _answer(self, model: Any, pixels_BCHW: Any) -> Any:
        return model(pixels_BCHW)


class Transformers(_Reference):
    def __init__(self, machine: Machine) -> None:
        import transformers

        config = transformers.DINOv3ViTConfig(**machine.config)
        super().__init__(machine, filled(transformers.DINOv3ViTModel._from_config, machine, config))
        self.version = transformers.__version__

    def _answer(self, model: Any, pixels_BCHW: Any) -> Any:
        return model(pixel_values=pixels_BCHW).last_hidden_state[:, PREFIX:].mean(1)


_workloads: Any = partial(one_batch, "dinov3")
BARS = {"patches-256-single": 1.5, "patches-256": 1.1, "patches-512": 1.1}
COMPARISONS = [
    Comparison("dinov3", "timm", Ours, Timm, _workloads, bars=BARS),
    Comparison("dinov3", "transformers", Ours, Transformers, _workloads, bars=BARS),
]
