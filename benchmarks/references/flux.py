"""FLUX.1 in diffusers, its text encoders in transformers: from a prompt's token ids on the host, for CLIP and
T5, to images on the device.

The pipeline takes features where it has no tokenizers: its encoders are called as it calls them, T5 first, so
that the launches of CLIP, which is small, are hidden behind it. Its images are left in bfloat16, ours are
float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from fastkernels.registry.workloads import ProgramWorkload
from references.base import Comparison, Machine, one_batch
from references.programs import requests
from references.transformers_lm import filled

GUIDANCE = 3.5
SCHEDULE = {
    "num_train_timesteps": 1000,
    "shift": 3.0,
    "use_dynamic_shifting": True,
    "base_shift": 0.5,
    "max_shift": 1.15,
    "base_image_seq_len": 256,
    "max_image_seq_len": 4096,
}
# Of every FLUX.1 autoencoder, and not in our section of it.
AUTOENCODER = {
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}


class Ours:
    settings: ClassVar[tuple[str, ...]] = ("engine",)

    def __init__(self, machine: Machine) -> None:
        from fastkernels import __version__
        from fastkernels.engine.image_pipeline import ImagePipeline

        self._machine, self.version = machine, __version__
        self._pipeline = ImagePipeline(
            machine.architecture, size=machine.size, device=machine.device, dtype=machine.dtype
        )

    def prepare(self, workload: ProgramWorkload, setting: str) -> Callable[[], int]:
        from fastkernels.engine.image_pipeline import ImageRequest

        drawn = requests(workload, self._machine)
        asked = [ImageRequest(**request, guidance=GUIDANCE, output="image") for request in drawn]
        # The second call of an encoder or the decoder is captured; large images have time for one warm-up.
        for _ in range(2):
            self._pipeline.generate([replace(request, steps=1) for request in asked])
        return lambda: len(self._pipeline.generate(asked))


class Diffusers:
    """Transformer and text encoders are compiled block by block, which is as fast as the whole at once and
    much sooner ready; the decoder whole, with its filters channels last."""

    settings: ClassVar[tuple[str, ...]] = ("default", "compiled", "compiled-cudnn")

    def __init__(self, machine: Machine) -> None:
        import diffusers
        import transformers

        parts = machine.config
        clip = transformers.CLIPTextConfig(**parts["text_encoder"])
        t5 = transformers.T5Config(**parts["text_encoder_2"])
        self._machine = machine
        self._pipeline = diffusers.FluxPipeline(
            scheduler=diffusers.FlowMatchEulerDiscreteScheduler(**SCHEDULE),
            vae=machine.filled(partial(diffusers.AutoencoderKL, **AUTOENCODER, **parts["vae"])),
            text_encoder=filled(transformers.CLIPTextModel._from_config, machine, clip),
            tokenizer=None,
            text_encoder_2=filled(transformers.T5EncoderModel._from_config, machine, t5),
            tokenizer_2=None,
            transformer=machine.filled(partial(diffusers.FluxTransformer2DModel, **parts["transformer"])),
        )
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
        backend = "_native_cudnn" if setting.endswith("cudnn") else "native"
        pipeline.transformer.set_attention_backend(backend)
        drawn = requests(workload, self._machine)
        t5_BS, clip_BS = (torch.stack([request[name] for request in drawn]) for name in ("text", "pooled"))
        height, width, steps = (drawn[0][name] for name in ("height", "width", "steps"))

        @torch.inference_mode()
        def run() -> int:
            text_BSJ = pipeline.text_encoder_2(t5_BS.to(device))[0]
            pooled_BP = pipeline.text_encoder(clip_BS.to(device)).pooler_output
            out = pipeline(
                prompt_embeds=text_BSJ,
                pooled_prompt_embeds=pooled_BP,
                height=height,
                width=width,
                num_inference_steps=steps,
                guidance_scale=GUIDANCE,
                generator=[torch.Generator().manual_seed(request["seed"]) for request in drawn],
                output_type="pt",
            )
            assert out.images.shape[2:] == (height, width), out.images.shape
            return len(out.images)

        return run

    def _compile(self) -> None:
        import torch

        if self._is_compiled:
            return
        pipeline, self._is_compiled = self._pipeline, True
        pipeline.transformer.fuse_qkv_projections()
        pipeline.transformer.compile_repeated_blocks(fullgraph=True)
        pipeline.vae.to(memory_format=torch.channels_last)
        blocks = *pipeline.text_encoder.encoder.layers, *pipeline.text_encoder_2.encoder.block
        for part in (*blocks, pipeline.vae.decoder):
            part.compile(fullgraph=True)


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
