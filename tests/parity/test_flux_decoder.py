"""Our FLUX.1 decoder against the published equations in float64 and, where it is installed, diffusers, on the
CPU, with a tiny autoencoder whose weights are randomised. Nothing is fetched."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from fastkernels.baseline.L4.flux import FluxPipeline
from safetensors.torch import save_file
from torch import Tensor, nn

from fastkernels import kernels, registry
from fastkernels.engine.image_pipeline import ImagePipeline, ImageRequest
from fastkernels.errors import UsageError, WeightsError
from fastkernels.nn import flow_matching
from fastkernels.nn.weights import export_weights, load_weights
from tests.parity.flux_equations import Weights, image

TOLERANCE = 1e-5  # of the largest value, 1: float32 against float64
TINY = registry.architecture("flux").configs["tiny"].config
CONFIG = {part: TINY[part] for part in ("architectures", "transformer", "vae")}
VAE = CONFIG["vae"]
SCALES = (VAE["scaling_factor"], VAE["shift_factor"])
# What a file of the whole autoencoder says besides.
WHOLE_VAE = VAE | {
    "_class_name": "AutoencoderKL",
    "in_channels": 3,
    "out_channels": 3,
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "sample_size": 64,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
    "mid_block_add_attention": True,
    "force_upcast": True,
    "act_fn": "silu",
}


def randomised(module: nn.Module, seed: int) -> nn.Module:
    """Norm weights 0.5 .. 1.5, matrices and filters 1/sqrt(fan in), biases 0.1. The package's own
    random filters see no mean, and would not notice the shift of the latents."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        values = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1:
            values *= parameter[0].numel() ** -0.5
        elif name.endswith("bias"):
            values *= 0.1
        else:
            values = torch.rand(parameter.shape, generator=generator) + 0.5
        parameter.data.copy_(values)
    return module.eval().requires_grad_(False)


@lru_cache
def ours(dtype: torch.dtype = torch.float32) -> FluxPipeline:
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        model = FluxPipeline(CONFIG)
    finally:
        torch.set_default_dtype(previous)
    randomised(model, seed=0)
    return model


def checkpoint() -> Weights:
    """As the autoencoder's own file names it."""
    named = dict(export_weights(ours())).items()
    return {name.removeprefix("vae."): tensor for name, tensor in named if name.startswith("vae.")}


def drawn(images: int = 2, rows: int = 6, columns: int = 10) -> Tensor:
    """Latents [B, Y, X, C], small enough that most pixels are not cut off."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn(images, rows, columns, VAE["latent_channels"], generator=generator)


def expected(weights: Weights, z: Tensor) -> Tensor:
    return torch.stack([image(weights, VAE["norm_num_groups"], one, *SCALES) for one in first(z).double()])


def first(map_BYXC: Tensor) -> Tensor:
    """Channels before rows and columns."""
    return map_BYXC.permute(0, 3, 1, 2)


def error(found: Tensor, wanted: Tensor) -> float:
    return (found.double() - wanted).abs().max().item()


@torch.inference_mode()
@pytest.mark.parametrize("implementation", ["reference", "torch"])
def test_images_of_the_equations(implementation: str):
    wanted = expected(checkpoint(), drawn())
    assert ((wanted > 0) & (wanted < 1)).float().mean() > 0.5, "too many pixels are cut off"
    assert wanted.std() > 0.2, "an image without structure"
    with kernels.use(implementation):
        found = ours().decode(drawn())
    assert (found.dtype, found.shape) == (torch.float32, (2, 3, 48, 80))
    assert error(found, wanted) < TOLERANCE


@torch.inference_mode()
def test_float64_agrees_to_its_own_precision():
    wide = ours(torch.float64)
    load_weights(wide, export_weights(ours()))
    with kernels.use("reference"):
        assert error(wide.decode(drawn().double()), expected(checkpoint(), drawn())) < 1e-12


@torch.inference_mode()
@pytest.mark.parametrize(
    "name",
    [
        "mid_block.attentions.0.to_q.weight",
        "mid_block.attentions.0.to_v.bias",
        "mid_block.attentions.0.group_norm.weight",
        "mid_block.resnets.1.norm2.bias",
        "up_blocks.0.upsamplers.0.conv.weight",
        "up_blocks.3.resnets.0.conv_shortcut.weight",
        "conv_norm_out.weight",
    ],
)
def test_each_tensor_counts(name: str):
    weights = checkpoint()
    weights[f"decoder.{name}"] = weights[f"decoder.{name}"].flip(0)
    assert error(ours().decode(drawn()), expected(weights, drawn())) > 100 * TOLERANCE


@torch.inference_mode()
def test_transposed_filters_would_be_noticed():
    """Rows and columns exchanged."""
    weights = checkpoint()
    weights["decoder.conv_in.weight"] = weights["decoder.conv_in.weight"].transpose(2, 3)
    assert error(ours().decode(drawn()), expected(weights, drawn())) > 100 * TOLERANCE


def test_parameter_counts():
    """49,545,475 is the published decoder's."""
    for name, count in (("dev", 49_545_475), ("tiny", 194_947)):
        with torch.device("meta"):
            model = FluxPipeline(registry.architecture("flux").configs[name].config)
        assert model.vae is not None
        assert sum(parameter.numel() for parameter in model.vae.parameters()) == count


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"latent_channels": 8}, r"vae\.latent_channels: 8: .* in_channels, 16, ask for 4"),
        ({"latent_channels": None}, r"vae\.latent_channels: is missing"),
        ({"block_out_channels": [16, 32, 32]}, "must be 4 numbers"),
        ({"block_out_channels": [16, 32, 32, 36]}, "not multiples of norm_num_groups, 8"),
        ({"use_post_quant_conv": True}, "use_post_quant_conv: True is not supported"),
        ({"mid_block_add_attention": False}, "without attention"),
        ({"up_block_types": ["AttnUpDecoderBlock2D"] * 4}, "AttnUpDecoderBlock2D"),
        ({"act_fn": "relu"}, "act_fn"),
        ({"out_channels": 1}, "an image has 3"),
        ({"scaling_factor": 0}, "scaling_factor"),
    ],
)
def test_configurations_that_are_refused(change: dict[str, Any], says: str):
    with pytest.raises(UsageError, match=says):
        FluxPipeline(CONFIG | {"vae": VAE | change})


# ---------------------------------------------------------------- folders


SCHEDULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 1.0, "use_dynamic_shifting": False}


def write(folder: Path, config: dict[str, Any], weights: Weights) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: t.contiguous() for name, t in weights.items()}, folder / "model.safetensors")


def write_pipeline(folder: Path, vae: Weights) -> None:
    """As diffusers saves it: with the other half of the autoencoder, and what is no part of the model."""
    own = {n: t for n, t in export_weights(ours()) if n.startswith("transformer.")}
    transformer = {name.removeprefix("transformer."): tensor for name, tensor in own.items()}
    write(
        folder / "transformer",
        {"_class_name": "FluxTransformer2DModel", **CONFIG["transformer"]},
        transformer,
    )
    write(folder / "vae", WHOLE_VAE, vae)
    index = {
        "_class_name": "FluxPipeline",
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "transformer": ["diffusers", "FluxTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }
    (folder / "model_index.json").write_text(json.dumps(index))
    (folder / "scheduler").mkdir()
    (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps(SCHEDULER))


def encoder_weights() -> Weights:
    return {
        "encoder.conv_in.weight": torch.zeros(16, 3, 3, 3),
        "encoder.down_blocks.0.resnets.0.norm1.weight": torch.zeros(16),
        "encoder.down_blocks.0.downsamplers.0.conv.bias": torch.zeros(16),
        "encoder.mid_block.attentions.0.to_out.0.weight": torch.zeros(32, 32),
        "encoder.mid_block.attentions.0.to_q.weight": torch.zeros(32, 32),
    }


def test_a_whole_folder_answers_with_images(tmp_path: Path):
    write_pipeline(tmp_path, checkpoint() | encoder_weights())
    pipeline = ImagePipeline(tmp_path, device="cpu")
    for loaded, wanted in zip(pipeline.model.parameters(), ours().parameters(), strict=True):
        assert torch.equal(loaded, wanted)
    (found,) = pipeline.generate([ImageRequest(torch.zeros(3, 32), torch.zeros(24), 32, 48, steps=1)])
    assert found.shape == (3, 32, 48)


def test_a_folder_saved_without_its_autoencoder_answers_with_latents(tmp_path: Path):
    write_pipeline(tmp_path, checkpoint())
    index = json.loads((tmp_path / "model_index.json").read_text()) | {"vae": [None, None]}
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    assert ImagePipeline(tmp_path, device="cpu").model.vae is None


@pytest.mark.parametrize(("part", "file"), [("vae", "config.json"), ("scheduler", "scheduler_config.json")])
def test_a_part_that_is_missing_is_named(part: str, file: str, tmp_path: Path):
    write_pipeline(tmp_path, checkpoint())
    (tmp_path / part / file).unlink()
    with pytest.raises(UsageError, match=rf"names the part {part}, but there is no {part}/{file}"):
        ImagePipeline(tmp_path, device="cpu")


def test_the_schedule_is_that_of_the_folder(tmp_path: Path):
    """Without a shift, as the model that was distilled to a few steps has it, levels are even."""
    write_pipeline(tmp_path, checkpoint())
    pipeline = ImagePipeline(tmp_path, device="cpu")
    levels = flow_matching.noise_levels(4, 4096, pipeline.model.schedule)
    assert levels.tolist() == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])
    request = ImageRequest(torch.zeros(3, 32), torch.zeros(24), 32, 48, steps=3, output="latent")
    (even,) = pipeline.generate([request])
    (tmp_path / "scheduler" / "scheduler_config.json").write_text(json.dumps(SCHEDULER | {"shift": 3.0}))
    (shifted,) = ImagePipeline(tmp_path, device="cpu").generate([request])
    assert not torch.allclose(even, shifted)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"_class_name": "DDIMScheduler"}, r"scheduler\._class_name: 'DDIMScheduler' is not supported"),
        ({"use_karras_sigmas": True}, r"scheduler\.use_karras_sigmas: True is not supported"),
        ({"num_train_timesteps": 100}, r"scheduler\.num_train_timesteps: 100 is not supported"),
        ({"shift": "far"}, r"scheduler\.shift: must be a positive number"),
        ({"use_dynamic_shifting": True, "max_image_seq_len": 256}, r"must be more than base_image_seq_len"),
    ],
)
def test_a_schedule_that_the_engine_does_not_have_is_refused(
    change: dict[str, Any], says: str, tmp_path: Path
):
    write_pipeline(tmp_path, checkpoint())
    (tmp_path / "scheduler" / "scheduler_config.json").write_text(json.dumps(SCHEDULER | change))
    with pytest.raises(UsageError, match=says):
        ImagePipeline(tmp_path, device="cpu")


def test_weights_that_do_not_fit_are_named(tmp_path: Path):
    weights = checkpoint() | {"decoder.extra.weight": torch.zeros(3), "decoder.conv_out.bias": torch.zeros(4)}
    del weights["decoder.mid_block.attentions.0.to_k.weight"]
    write_pipeline(tmp_path, weights)
    with pytest.raises(WeightsError) as failure:
        ImagePipeline(tmp_path, device="cpu")
    text = str(failure.value)
    assert "1 missing, 1 unexpected, 1 misshapen" in text
    assert "missing     vae.decoder.mid_block.attentions.0.to_k.weight, expected [32, 32]" in text
    assert "unexpected  vae.decoder.extra.weight [3]" in text
    assert "misshapen   vae.decoder.conv_out.bias [4], expected [3]" in text


# ---------------------------------------------------------------- against the reference library


@pytest.fixture
def diffusers() -> Any:
    return pytest.importorskip("diffusers", reason="the reference library: pip install -e '.[reference]'")


def without_name(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "_class_name"}


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_decoder_of_diffusers(diffusers: Any, dtype: torch.dtype):
    reference = randomised(diffusers.AutoencoderKL(**without_name(WHOLE_VAE)), seed=1).to(dtype)
    model = ours(torch.float64) if dtype == torch.float64 else FluxPipeline(CONFIG)
    transformer = {n: t for n, t in export_weights(ours()) if n.startswith("transformer.")}
    theirs = {f"vae.{name}": tensor for name, tensor in reference.state_dict().items()}
    load_weights(model, (transformer | theirs).items())
    z = drawn().to(dtype)
    pixels = reference.decode(first(z) / SCALES[0] + SCALES[1], return_dict=False)[0]
    wanted = (pixels / 2 + 0.5).clamp(0, 1)
    assert wanted.std() > 0.1
    with kernels.use("reference") if dtype == torch.float64 else kernels.use("torch"):
        found = error(model.decode(z), wanted.double())
    print(f"{dtype}: largest difference of a pixel {found:.2g}")
    assert found < (1e-12 if dtype == torch.float64 else TOLERANCE)
