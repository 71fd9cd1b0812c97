"""FLUX.1 in diffusers, from encoded prompts to latents, as our pipeline is.

Where either end is added to both sides, `_prompt` and `output_type` are what changes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from fastkernels.registry.schema import GenerationWorkload
from references.base import Comparison, Machine, one_batch

SEED, GUIDANCE = 20, 3.5
SCHEDULE = {
    "num_train_timesteps": 1000,
    "shift": 3.0,
    "use_dynamic_shifting": True,
    "base_shift": 0.5,
    "max_shift": 1.15,
    "base_image_seq_len": 256,
    "max_image_seq_len": 4096,
}


def _prompt(workload: GenerationWorkload, machine: Machine) -> tuple[Any, Any]:
    """Features of the prompts' tokens [B, S, J] and pooled ones [B, P], on the device."""
    import torch

    config, generator = machine.config, torch.Generator().manual_seed(SEED)
    shapes = (
        (workload.batch, workload.prompt_len, config["joint_attention_dim"]),
        (workload.batch, config["pooled_projection_dim"]),
    )
    dtype = getattr(torch, machine.dtype)
    text_BSJ, pooled_BP = (
        torch.randn(shape, generator=generator).to(machine.device, dtype) for shape in shapes
    )
    return text_BSJ, pooled_BP


class Ours:
    settings: ClassVar[tuple[str, ...]] = ("engine",)

    def __init__(self, machine: Machine) -> None:
        from fastkernels import __version__
        from fastkernels.engine.image_pipeline import ImagePipeline

        self._machine, self.version = machine, __version__
        self._pipeline = ImagePipeline(
            machine.architecture, size=machine.size, device=machine.device, dtype=machine.dtype
        )

    def prepare(self, workload: GenerationWorkload, setting: str) -> Callable[[], int]:
        from fastkernels.engine.image_pipeline import ImageRequest

        height, width = workload.resolution
        requests = [
            ImageRequest(text, pooled, height, width, workload.steps, GUIDANCE, seed=i)
            for i, (text, pooled) in enumerate(zip(*_prompt(workload, self._machine)))
        ]
        return lambda: len(self._pipeline.generate(requests))


class Diffusers:
    """Compiled block by block, which is as fast as the whole at once and much sooner ready."""

    settings: ClassVar[tuple[str, ...]] = ("default", "compiled", "compiled-cudnn")

    def __init__(self, machine: Machine) -> None:
        import diffusers

        from fastkernels.nn.random_weights import random_weights

        fields = machine.config
        config = {k: v for k, v in fields.items() if k not in ("architectures", "model_type")}
        with machine.creating():
            self._transformer = diffusers.FluxTransformer2DModel(**config)
        random_weights(self._transformer, seed=0)
        self._transformer.eval().requires_grad_(False)
        self._machine, self.version = machine, diffusers.__version__
        self._pipeline = diffusers.FluxPipeline(
            scheduler=diffusers.FlowMatchEulerDiscreteScheduler(**SCHEDULE),
            vae=None, text_encoder=None, tokenizer=None, text_encoder_2=None, tokenizer_2=None,
            transformer=self._transformer,
        )  # fmt: skip
        self._pipeline.set_progress_bar_config(disable=True)
        self._is_compiled = False

    def prepare(self, workload: GenerationWorkload, setting: str) -> Callable[[], int]:
        import torch

        torch.compiler.reset()
        if setting != "default" and not self._is_compiled:
            self._transformer.fuse_qkv_projections()
            self._transformer.compile_repeated_blocks(fullgraph=True)
            self._is_compiled = True
        self._transformer.set_attention_backend("_native_cudnn" if setting.endswith("cudnn") else "native")
        text_BSJ, pooled_BP = _prompt(workload, self._machine)
        height, width = workload.resolution

        def run() -> int:
            out = self._pipeline(
                prompt_embeds=text_BSJ,
                pooled_prompt_embeds=pooled_BP,
                height=height,
                width=width,
                num_inference_steps=workload.steps,
                guidance_scale=GUIDANCE,
                generator=[torch.Generator().manual_seed(i) for i in range(workload.batch)],
                output_type="latent",
            )
            return len(out.images)

        return run


_workloads: Any = partial(one_batch, "flux")
COMPARISONS = [
    Comparison(
        "flux",
        "diffusers",
        Ours,
        Diffusers,
        _workloads,
        bars=dict.fromkeys(("res-1024", "res-512", "single-1024", "single-512"), 1.0),
    )
]
