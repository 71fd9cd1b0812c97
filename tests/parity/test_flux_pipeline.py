"""Our whole FLUX.1 pipeline against diffusers, where that is installed: its own folder, from words, token ids
or features to latents and to an image, on the CPU with tiny parts whose weights are randomised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from fastkernels import registry
from fastkernels.engine.image_pipeline import ImagePipeline, ImageRequest
from fastkernels.nn import latents
from tests.parity.test_flux_decoder import WHOLE_VAE, randomised, without_name
from tests.tiny_tokenizers import clip_tokenizer, t5_tokenizer

TOLERANCE = 1e-4  # of the largest value, after four steps; of the architecture's fact sheet
CONFIG = registry.architecture("flux").configs["tiny"].config
WORDS = "the cat on the mat"
SHAPE = {"height": 48, "width": 80}


@pytest.fixture(scope="module")
def reference() -> Any:
    diffusers = pytest.importorskip(
        "diffusers", reason="the reference library: pip install -e '.[reference]'"
    )
    clip = CLIPTextModel._from_config(CLIPTextConfig(**CONFIG["text_encoder"]), attn_implementation="eager")
    t5 = T5EncoderModel._from_config(T5Config(**CONFIG["text_encoder_2"]), attn_implementation="eager")
    pipeline = diffusers.FluxPipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, shift=3.0, base_shift=0.5, max_shift=1.15
        ),
        vae=randomised(diffusers.AutoencoderKL(**without_name(WHOLE_VAE)), seed=3),
        text_encoder=randomised(clip, seed=4),
        tokenizer=clip_tokenizer(),
        text_encoder_2=randomised(t5, seed=5),
        tokenizer_2=t5_tokenizer(),
        transformer=randomised(diffusers.FluxTransformer2DModel(**CONFIG["transformer"]), seed=2),
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.fixture(scope="module")
def ours(reference: Any, tmp_path_factory: pytest.TempPathFactory) -> ImagePipeline:
    """Loaded from the folder that diffusers saves."""
    folder: Path = tmp_path_factory.mktemp("pipeline")
    reference.save_pretrained(folder)
    return ImagePipeline(folder, device="cpu")


def error(found: Tensor, wanted: Tensor) -> float:
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


@torch.inference_mode()
def compare(reference: Any, ours: ImagePipeline, request: ImageRequest, prompt: dict[str, Any]) -> None:
    noise_LC = latents.noise(16, 3, 5, request.seed, torch.float32)
    asked = {**SHAPE, "num_inference_steps": 4, "guidance_scale": 3.5, "latents": noise_LC[None], **prompt}
    wanted_LC = reference(**asked, output_type="latent").images[0]
    wanted = reference(**asked, output_type="pt").images[0]
    (x_LC,) = ours.generate([request])
    errors = error(x_LC, wanted_LC), error(ours.decode(x_LC, **SHAPE), wanted)
    print(f"after four steps: latents {errors[0]:.2g}, pixels {errors[1]:.2g}")
    assert wanted.std() > 0.1
    assert max(errors) < TOLERANCE


def test_words(reference: Any, ours: ImagePipeline):
    request = ImageRequest(WORDS, None, **SHAPE, steps=4, seed=5, output="latent")
    compare(reference, ours, request, {"prompt": WORDS, "max_sequence_length": 512})
    other = ImageRequest("a mat", None, **SHAPE, steps=4, seed=5, output="latent")
    assert error(*ours.generate([other, request])) > 100 * TOLERANCE, "the prompt does not count"


@torch.inference_mode()
def test_token_ids(reference: Any, ours: ImagePipeline):
    """Shorter than what texts are padded to."""
    generator = torch.Generator().manual_seed(9)
    t5_ids, clip_ids = (torch.randint(100, (length,), generator=generator) for length in (19, 30))
    features = {
        "prompt_embeds": reference.text_encoder_2(t5_ids[None])[0],
        "pooled_prompt_embeds": reference.text_encoder(clip_ids[None]).pooler_output,
    }
    compare(
        reference, ours, ImageRequest(t5_ids, clip_ids, **SHAPE, steps=4, seed=5, output="latent"), features
    )


def test_features(reference: Any, ours: ImagePipeline):
    generator = torch.Generator().manual_seed(9)
    text, pooled = torch.randn(7, 32, generator=generator), torch.randn(24, generator=generator)
    request = ImageRequest(text, pooled, **SHAPE, steps=4, seed=5, output="latent")
    compare(reference, ours, request, {"prompt_embeds": text[None], "pooled_prompt_embeds": pooled[None]})
