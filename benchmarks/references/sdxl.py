"""Stable Diffusion XL in diffusers, its text encoders in transformers: from a prompt's token ids on the host,
for both encoders, to latents on the device.

The pipeline takes features where it has no tokenizers: its encoders are called as it calls them. Without a
prompt to go away from it takes zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from fastkernels.registry.workloads import ProgramWorkload
from references.base import Comparison, Machine, one_batch
from references.programs import Ours, requests
from references.transformers_lm import filled

GUIDANCE = 5.0
SCHEDULE = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "timestep_spacing": "leading",
    "steps_offset": 1,
}
# Of the autoencoder, and not in our section of it.
AUTOENCODER = {
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
}


class Diffusers:
    """The U-Net is compiled as a whole and tuned, its filters channels last; text encoders block by block."""

    settings: ClassVar[tuple[str, ...]] = ("default", "compiled")

    def __init__(self, machine: Machine) -> None:
        import diffusers
        import torch
        import transformers

        parts = machine.config
        clip, clip_2 = (
            transformers.CLIPTextConfig(**parts[part]) for part in ("text_encoder", "text_encoder_2")
        )
        self._machine = machine
        self._pipeline = diffusers.StableDiffusionXLPipeline(
            scheduler=diffusers.EulerDiscreteScheduler(**SCHEDULE),
            vae=machine.filled(partial(diffusers.AutoencoderKL, **AUTOENCODER, **parts["vae"])),
            text_encoder=filled(transformers.CLIPTextModel._from_config, machine, clip),
            tokenizer=None,
            text_encoder_2=filled(transformers.CLIPTextModelWithProjection._from_config, machine, clip_2),
            tokenizer_2=None,
            unet=machine.filled(partial(diffusers.UNet2DConditionModel, **parts["unet"])),
            add_watermarker=False,
        )
        self._pipeline.unet.to(memory_format=torch.channels_last)
        self._pipeline.set_progress_bar_config(disable=True)
        self.version = f"{diffusers.__version__}, transformers {transformers.__version__}"
        self._is_compiled = False

    def prepare(self, workload: ProgramWorkload, setting: str) -> Callable[[], int]:
        import torch

        torch.compiler.reset()
        pipeline, device = self._pipeline, self._machine.device
        if setting != "default":
            self._compile()
        assert self._is_compiled == (setting != "default"), "what is compiled stays so: default comes first"
        drawn = requests(workload, self._machine)
        ids = [torch.stack([request[name] for request in drawn]) for name in ("text", "pooled")]
        height, width, steps = (drawn[0][name] for name in ("height", "width", "steps"))
        encoders = (pipeline.text_encoder, pipeline.text_encoder_2)

        @torch.inference_mode()
        def run() -> int:
            found = [
                encoder(ids_BN.to(device), output_hidden_states=True)
                for encoder, ids_BN in zip(encoders, ids)
            ]
            text_BNJ = torch.cat([one.hidden_states[-2] for one in found], dim=-1)
            pooled_BP = found[1].text_embeds
            out = pipeline(
                prompt_embeds=text_BNJ,
                pooled_prompt_embeds=pooled_BP,
                negative_prompt_embeds=torch.zeros_like(text_BNJ),
                negative_pooled_prompt_embeds=torch.zeros_like(pooled_BP),
                height=height,
                width=width,
                num_inference_steps=steps,
                guidance_scale=GUIDANCE,
                generator=[torch.Generator().manual_seed(request["seed"]) for request in drawn],
                output_type="latent",
            )
            assert out.images.shape[2:] == (height // 8, width // 8), out.images.shape
            return len(out.images)

        return run

    def _compile(self) -> None:
        if self._is_compiled:
            return
        pipeline, self._is_compiled = self._pipeline, True
        pipeline.unet.fuse_qkv_projections()
        pipeline.unet.compile(mode="max-autotune", fullgraph=True)
        for encoder in (pipeline.text_encoder, pipeline.text_encoder_2):
            # Of one encoder the module has no part between itself and its layers.
            for layer in getattr(encoder, "text_model", encoder).encoder.layers:
                layer.compile(fullgraph=True)


_workloads: Any = partial(one_batch, "sdxl")
COMPARISONS = [
    Comparison(
        "sdxl",
        "diffusers",
        Ours,
        Diffusers,
        _workloads,
        bars=dict.fromkeys(("guided-1024", "guided-512", "guided-single-1024", "guided-single-512"), 1.0),
    )
]
