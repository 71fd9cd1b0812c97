"""Our Stable Diffusion XL against diffusers and transformers, where those are installed, on the CPU with tiny
parts whose weights are randomised: each part, the schedule, and the whole pipeline. Nothing is fetched."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fastkernels.baseline.L1.glu import GeluAndMul
from fastkernels.baseline.L4.sdxl import StableDiffusionXLPipeline
from torch import Tensor
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from fastkernels import Model, kernels, registry
from fastkernels.engine.image_pipeline import ImagePipeline, ImageRequest
from fastkernels.errors import UsageError, WeightsError
from fastkernels.nn import euler
from fastkernels.nn.weights import destinations, load_weights
from tests.parity.test_flux_decoder import randomised
from tests.tiny_tokenizers import clip_tokenizer

diffusers: Any = pytest.importorskip(
    "diffusers", reason="the reference library: pip install -e '.[reference]'"
)

# NumPy's remark about how the library makes its noise levels.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
TOLERANCE = 1e-5  # of the largest value: float32 in another order
CONFIGS = registry.architecture("sdxl").configs
TINY = CONFIGS["tiny"].config
UNET, VAE = TINY["unet"], TINY["vae"]
BLOCKS = {"down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4}
# As the checkpoint's file has it.
SCHEDULER = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "timestep_spacing": "leading",
    "steps_offset": 1,
}


@cache
def reference() -> dict[str, Any]:
    return {
        "unet": randomised(diffusers.UNet2DConditionModel(**UNET), seed=1),
        "vae": randomised(diffusers.AutoencoderKL(**BLOCKS, **VAE), seed=2),
        "text_encoder": randomised(clip(CLIPTextModel, "text_encoder"), seed=3),
        "text_encoder_2": randomised(clip(CLIPTextModelWithProjection, "text_encoder_2"), seed=4),
    }


def clip(kind: Any, part: str) -> Any:
    return kind._from_config(CLIPTextConfig(**TINY[part]), attn_implementation="eager")


def checkpoint() -> dict[str, Tensor]:
    parts = reference().items()
    return {f"{part}.{name}": t for part, module in parts for name, t in module.state_dict().items()}


def ours(dtype: torch.dtype = torch.float32) -> StableDiffusionXLPipeline:
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        model = StableDiffusionXLPipeline(TINY)
    finally:
        torch.set_default_dtype(previous)
    load_weights(model, checkpoint().items())
    return model


def first(map_BYXC: Tensor) -> Tensor:
    """Channels before rows and columns."""
    return map_BYXC.permute(0, 3, 1, 2)


def inputs() -> tuple[Tensor, ...]:
    """Latents, timesteps, text, pooled text and sizes of two images, none of the sizes like another."""
    generator = torch.Generator().manual_seed(5)
    drawn = [torch.randn(2, *shape, generator=generator) for shape in ((12, 8, 4), (7, 56), (32,))]
    sizes = torch.tensor([[96.0, 64, 0, 0, 96, 64], [130, 517, 3, 7, 96, 64]])
    return drawn[0], torch.tensor([981.0, 21.0]), drawn[1], drawn[2], sizes


@cache
@torch.inference_mode()
def noise(dtype: torch.dtype = torch.float32) -> Tensor:
    """What the reference predicts."""
    sample, timestep, text, pooled, sizes = (part.to(dtype) for part in inputs())
    unet = copy.deepcopy(reference()["unet"]).to(dtype)
    told = {"text_embeds": pooled, "time_ids": sizes}
    return unet(first(sample), timestep, text, added_cond_kwargs=told, return_dict=False)[0]


@torch.inference_mode()
def predicted(model: StableDiffusionXLPipeline, dtype: torch.dtype = torch.float32) -> Tensor:
    sample, timestep, text, pooled, sizes = inputs()
    return first(model(sample.to(dtype), timestep, text.to(dtype), pooled.to(dtype), sizes))


def error(found: Tensor, wanted: Tensor) -> float:
    return ((found.double() - wanted.double()).abs().max() / wanted.abs().max()).item()


# ---------------------------------------------------------------- parts


@pytest.mark.parametrize("implementation", ["reference", "torch"])
def test_noise_of_a_batch(implementation: str) -> None:
    assert noise().std() > 0.5, "weights too small for a strong test"
    with kernels.use(implementation):
        found = error(predicted(ours()), noise())
    print(f"{implementation}: largest difference {found:.2g} of the largest value")
    assert found < TOLERANCE


class _Features(torch.nn.Module):
    """A timestep's features as the library makes them: of float32 angles, where ours are float64."""

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.num_channels = num_channels

    def forward(self, timesteps: Tensor) -> Tensor:
        made = diffusers.models.embeddings.get_timestep_embedding
        return made(timesteps, self.num_channels, flip_sin_to_cos=True, downscale_freq_shift=0)


def wide() -> StableDiffusionXLPipeline:
    model = ours(torch.float64)
    model.time_text.time_proj, model.time_text.add_time_proj = _Features(16), _Features(8)
    return model


def wide_error(model: StableDiffusionXLPipeline) -> float:
    return error(predicted(model, torch.float64), noise(torch.float64))


def test_float64_agrees_to_its_own_precision() -> None:
    found = wide_error(wide())
    print(f"float64: largest difference {found:.2g} of the largest value")
    assert found < 1e-12


@torch.inference_mode()
def test_features_of_both_text_encoders() -> None:
    ids = torch.randint(100, (3, 11), generator=torch.Generator().manual_seed(9))
    theirs, model = reference(), ours()
    hidden = theirs["text_encoder"](ids, output_hidden_states=True).hidden_states[-2]
    whole = theirs["text_encoder_2"](ids, output_hidden_states=True)
    assert model.text_encoder is not None
    assert model.text_encoder_2 is not None
    assert error(model.text_encoder(ids), hidden) < TOLERANCE
    found = model.text_encoder_2(ids)
    assert error(found[0], whole.hidden_states[-2]) < TOLERANCE
    assert error(found[1], whole.text_embeds) < TOLERANCE
    assert error(found[0], whole.hidden_states[-1]) > 100 * TOLERANCE, "another layer's states"


@torch.inference_mode()
def test_images_of_latents() -> None:
    latents = 0.05 * inputs()[0]
    pixels = reference()["vae"].decode(first(latents) / VAE["scaling_factor"], return_dict=False)[0]
    wanted = (pixels / 2 + 0.5).clamp(0, 1)
    assert wanted.std() > 0.1
    assert error(ours().decode(latents), wanted) < TOLERANCE


# ---------------------------------------------------------------- wrong models


def _epsilon_of(chosen: Callable[[str], bool]) -> Callable[[StableDiffusionXLPipeline], None]:
    """1e-6 where it is 1e-5, and the other way round."""

    def change(model: StableDiffusionXLPipeline) -> None:
        norms = [module for name, module in model.named_modules() if chosen(name) and hasattr(module, "eps")]
        assert norms
        for norm in norms:
            norm.eps = 1e-6 if norm.eps == 1e-5 else 1e-5

    return change


def _gate_before_value(model: StableDiffusionXLPipeline) -> None:
    linear = model.mid_layer.attention.transformer_blocks[0].ff.gate_up_proj.linear
    for parameter in linear.parameters():
        parameter.data = torch.cat(parameter.data.chunk(2)[::-1])


def _gelu_of_tanh(model: StableDiffusionXLPipeline) -> None:
    for module in model.modules():
        if hasattr(module, "act_fn"):
            module.act_fn = GeluAndMul("tanh")


def _kept_in_order(model: StableDiffusionXLPipeline) -> None:
    """The output of conv_in first, where sizes allow it: the last two that are kept are exchanged."""
    layer = model.up_layers[-1][-1].resnet
    swapped = layer.conv1.weight.data
    layer.conv1.weight.data = torch.cat(swapped.chunk(2, dim=-1)[::-1], dim=-1)


def _sin_before_cos(model: StableDiffusionXLPipeline) -> None:
    weight = model.time_text.timestep_embedder.linear_1.weight
    weight.data = torch.cat(weight.data.chunk(2, dim=-1)[::-1], dim=-1)


def _sizes_in_another_order(model: StableDiffusionXLPipeline) -> None:
    """Width before height."""
    weight = model.time_text.text_embedder.linear_1.weight
    sizes = weight.data[:, 32:].unflatten(1, (3, 2, 8)).flip(2).flatten(1)
    weight.data = torch.cat((weight.data[:, :32], sizes), dim=1)


def _keys_for_values(model: StableDiffusionXLPipeline) -> None:
    weight = model.up_layers[0][1].attention.transformer_blocks[1].attn2.to_kv.weight
    weight.data = torch.cat(weight.data.chunk(2)[::-1])


def _heads_of_another_size(model: StableDiffusionXLPipeline) -> None:
    """As many heads as a head should have features."""
    attention = model.down_layers[1][0].attention.transformer_blocks[0].attn1
    attention.num_heads, attention.head_size = attention.head_size, attention.num_heads


def _time_before_the_norm(model: StableDiffusionXLPipeline) -> None:
    """Without its activation."""
    model.mid_resnet.nonlinearity = torch.nn.Identity()


WRONG: list[Callable[[StableDiffusionXLPipeline], None]] = [
    _epsilon_of(lambda name: ".resnet.norm" in name or name == "conv_norm_out"),
    _epsilon_of(lambda name: name.endswith("attention.norm")),
    _epsilon_of(lambda name: ".transformer_blocks." in name),
    _gate_before_value,
    _gelu_of_tanh,
    _kept_in_order,
    _sin_before_cos,
    _sizes_in_another_order,
    _keys_for_values,
    _heads_of_another_size,
    _time_before_the_norm,
]


def test_wrong_models_would_be_noticed() -> None:
    """In float64, where an epsilon is 10^4 times what two right models differ by."""
    right = wide()
    for place, change in enumerate(WRONG):
        model = copy.deepcopy(right)
        change(model)
        found = wide_error(model)
        assert found > 1e-8, f"{place}, {change.__name__}: {found:.2g}"


# ---------------------------------------------------------------- schedule


@pytest.mark.parametrize("steps", [1, 4, 30, 50, 1000])
def test_the_schedule_is_the_librarys(steps: int) -> None:
    theirs = diffusers.EulerDiscreteScheduler(**SCHEDULER)
    theirs.set_timesteps(steps)
    timesteps, levels = euler.Schedule().levels(steps)
    assert timesteps.tolist() == theirs.timesteps.tolist()
    torch.testing.assert_close(levels, theirs.sigmas, rtol=2e-6, atol=1e-6)
    drawn = torch.randn(2, 1, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    x, predicted = drawn[0], drawn[1]
    torch.testing.assert_close(euler.first_state(x, levels), x * theirs.init_noise_sigma, rtol=2e-6, atol=0)
    at = theirs.timesteps[0]
    scaled = theirs.scale_model_input(x, at)
    torch.testing.assert_close(euler.model_input(x, levels[:1]), scaled, rtol=2e-6, atol=1e-6)
    after = theirs.step(predicted, at, x, return_dict=False)[0]
    torch.testing.assert_close(euler.step(x, predicted, levels[:1], levels[1:2]), after, rtol=2e-6, atol=1e-5)


def test_the_schedule_of_fifty_steps() -> None:
    """Figures of the architecture's fact sheet."""
    timesteps, levels = euler.Schedule().levels(50)
    assert timesteps[[0, 1, 2, 3, -3, -2, -1]].tolist() == [981, 961, 941, 921, 41, 21, 1]
    found = levels[[0, 1, 2, 3, -4, -3, -2, -1]].tolist()
    assert found == pytest.approx([13.1204, 11.6761, 10.4250, 9.3381, 0.2018, 0.1415, 0.0413, 0], abs=1e-4)
    assert euler.first_state(torch.ones(1), levels).item() == pytest.approx(13.1585, abs=1e-4)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"_class_name": "DDIMScheduler"}, "scheduler._class_name: 'DDIMScheduler' is not supported"),
        ({"prediction_type": "v_prediction"}, "scheduler.prediction_type: 'v_prediction'"),
        ({"timestep_spacing": "trailing"}, "scheduler.timestep_spacing: 'trailing'"),
        ({"use_karras_sigmas": True}, "scheduler.use_karras_sigmas: True is not supported"),
        ({"steps_offset": -1}, "scheduler.steps_offset: must be an integer"),
    ],
)
def test_a_schedule_of_other_mathematics_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        StableDiffusionXLPipeline(TINY | {"scheduler": SCHEDULER | change})


# ---------------------------------------------------------------- the whole


@pytest.fixture(scope="module")
def pipeline() -> Any:
    made = diffusers.StableDiffusionXLPipeline(
        **reference(),
        tokenizer=clip_tokenizer(),
        tokenizer_2=clip_tokenizer(pad="<pad>"),
        scheduler=diffusers.EulerDiscreteScheduler(**SCHEDULER),
        add_watermarker=False,
    )
    made.set_progress_bar_config(disable=True)
    return made


@pytest.fixture(scope="module")
def model(pipeline: Any, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Loaded from the folder that diffusers saves."""
    folder: Path = tmp_path_factory.mktemp("sdxl")
    pipeline.save_pretrained(folder)
    return Model(folder, device="cpu")


def request(number: int, **change: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(number)
    text, pooled = (torch.randint(100, (9,), generator=generator) for _ in range(2))
    asked = {"text": text, "pooled": pooled, "height": 96, "width": 64, "steps": 4, "seed": number}
    return asked | change


@torch.inference_mode()
def expected(pipeline: Any, asked: dict[str, Any], output: str) -> Tensor:
    parts = (pipeline.text_encoder, pipeline.text_encoder_2)
    found = [part(asked[s][None], output_hidden_states=True) for part, s in zip(parts, ("text", "pooled"))]
    text = torch.cat([one.hidden_states[-2] for one in found], dim=-1)
    # One prompt, no other to go without: zeros are what the library takes for that.
    return pipeline(
        prompt_embeds=text,
        pooled_prompt_embeds=found[1].text_embeds,
        negative_prompt_embeds=torch.zeros_like(text),
        negative_pooled_prompt_embeds=torch.zeros_like(found[1].text_embeds),
        height=asked["height"],
        width=asked["width"],
        num_inference_steps=asked["steps"],
        guidance_scale=asked.get("guidance", 5.0),
        generator=torch.Generator().manual_seed(asked["seed"]),
        output_type=output,
    ).images[0]


@pytest.mark.parametrize("guidance", [5.0, 1.0])
def test_latents_and_image_of_a_prompt(pipeline: Any, model: Model, guidance: float) -> None:
    """guidance 1: one pass, with the prompt."""
    asked = request(7, guidance=guidance)
    (found,) = model.run([asked])
    wanted = expected(pipeline, asked, "latent")
    errors = [error(found["latents"].permute(2, 0, 1), wanted)]
    (image,) = model.finish([found], [asked])
    pixels = expected(pipeline, asked, "pt")
    errors.append(error(image["image"].permute(2, 0, 1), pixels))
    print(f"guidance {guidance}, after four steps: latents {errors[0]:.2g}, pixels {errors[1]:.2g}")
    assert pixels.std() > 0.1
    assert max(errors) < 1e-4


@torch.inference_mode()
def test_words(pipeline: Any, model: Model) -> None:
    """Each tokenizer pads with an id of its own."""
    words = "the cat on the mat"
    drawn = torch.randn(1, 4, 12, 8, generator=torch.Generator().manual_seed(5))
    wanted = pipeline(
        words, height=96, width=64, num_inference_steps=4, guidance_scale=5.0, latents=drawn, output_type="pt"
    ).images[0]
    ours = ImagePipeline(model.source.folder, device="cpu")
    request = ImageRequest(words, None, 96, 64, steps=4, guidance=5.0, seed=5)
    (found,) = ours.generate([request])
    assert error(found, wanted) < 1e-4
    (latents,) = ours.generate([replace(request, output="latent")])
    assert torch.equal(ours.decode(latents, 96, 64), found)


@torch.inference_mode()
def test_a_text_of_zeros_adds_a_bias() -> None:
    attention = ours().mid_layer.attention.transformer_blocks[0].attn2
    hidden = torch.randn(2, 6, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        attention(hidden, torch.zeros(2, 5, 56)), attention.to_out.bias.expand(2, 6, 64)
    )


# ---------------------------------------------------------------- checkpoints


def test_names_of_the_real_checkpoint_have_their_places() -> None:
    fields = CONFIGS["base"].config
    with torch.device("meta"):
        model = StableDiffusionXLPipeline(fields)
        theirs = {
            "unet": diffusers.UNet2DConditionModel(**fields["unet"]),
            "vae": diffusers.AutoencoderKL(**BLOCKS, **fields["vae"]),
            "text_encoder": CLIPTextModel(CLIPTextConfig(**fields["text_encoder"])),
            "text_encoder_2": CLIPTextModelWithProjection(CLIPTextConfig(**fields["text_encoder_2"])),
        }
    counts = [sum(p.numel() for p in part.parameters()) for part in theirs.values()]
    assert counts == [2_567_463_684, 83_653_863, 123_060_480, 694_659_840]
    places, unnamed = destinations(model)
    assert not unnamed
    wanted = {}
    for part, module in theirs.items():
        # Files have a prefix that the module of one encoder dropped.
        prefix = "text_model." if part == "text_encoder" else ""
        wanted |= {f"{part}.{prefix}{name}": list(t.shape) for name, t in module.state_dict().items()}
    unused = wanted.keys() - places.keys()
    assert all(model.weight_map.ignores(name) for name in unused)
    assert {name.split(".")[1] for name in unused if name.startswith("vae.")} == {"encoder", "quant_conv"}
    assert sum(name.startswith("text_encoder.") for name in unused) == 18  # the last layer and a norm
    assert places.keys() <= wanted.keys()
    assert all(list(place.shape) == wanted[name] for name, place in places.items())


def test_weights_that_do_not_fit_are_named() -> None:
    weights = checkpoint() | {"unet.extra.weight": torch.zeros(3), "unet.conv_out.bias": torch.zeros(5)}
    del weights["unet.mid_block.attentions.0.transformer_blocks.1.attn2.to_v.weight"]
    with pytest.raises(WeightsError) as failure:
        load_weights(StableDiffusionXLPipeline(TINY), weights.items())
    text = str(failure.value)
    assert "1 missing, 1 unexpected, 1 misshapen" in text
    assert "unet.mid_block.attentions.0.transformer_blocks.1.attn2.to_v.weight" in text


def test_a_unet_alone_loads_and_takes_features() -> None:
    model = StableDiffusionXLPipeline({"_class_name": "UNet2DConditionModel", **UNET})
    load_weights(model, reference()["unet"].state_dict().items())
    assert (model.vae, model.text_encoder) == (None, None)
    assert error(predicted(model), noise()) < TOLERANCE


@pytest.mark.parametrize(
    ("section", "change", "says"),
    [
        (
            "unet",
            {"attention_head_dim": [2, 4]},
            "unet.attention_head_dim: .*: expected one for each of the 3",
        ),
        ("unet", {"attention_head_dim": [2, 5, 8]}, r"32 is no multiple of 5 \(attention_head_dim\)"),
        ("unet", {"norm_num_groups": 7}, r"16 is no multiple of 7 \(norm_num_groups\)"),
        ("unet", {"addition_embed_type": "text"}, "unet.addition_embed_type: 'text' is not supported"),
        ("unet", {"use_linear_projection": False}, "unet.use_linear_projection: false is not supported"),
        ("unet", {"down_block_types": ["DownBlock2D"] * 3}, "unet.up_block_types: must attend at the levels"),
        ("unet", {"norm_eps": 1e-6}, "unet.norm_eps: 1e-06 is not supported"),
        ("unet", {"projection_class_embeddings_input_dim": 48}, "leaves nothing of a prompt beside 6 sizes"),
        ("vae", {"use_post_quant_conv": False}, "vae.use_post_quant_conv: False is not supported"),
        ("vae", {"latent_channels": 8}, "vae.latent_channels: 8, but the U-Net's in_channels are 4"),
        ("text_encoder_2", {"hidden_size": 36}, "36 and the 24 of text_encoder are 60, but .* is 56"),
        (
            "text_encoder_2",
            {"projection_dim": 30},
            "projection_dim: 30, but the U-Net takes 32",
        ),
        ("text_encoder", {"num_hidden_layers": 1}, "text_encoder.num_hidden_layers: must be at least 2"),
    ],
)
def test_configurations_that_are_refused(section: str, change: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        StableDiffusionXLPipeline(TINY | {section: TINY[section] | change})
    with pytest.raises(UsageError, match="text_encoder: is missing, but text_encoder_2 is there"):
        StableDiffusionXLPipeline(TINY | {"text_encoder": None})
