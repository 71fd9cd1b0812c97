"""Our FLUX.1 transformer and its denoising loop against the published equations in float64, on the CPU, a
tiny model with randomised weights.

Figures of the schedule are the reference library's, from the architecture's fact sheet. Nothing is fetched.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

import pytest
import torch
from fastkernels.baseline.L4.flux import FluxPipeline
from torch import Tensor

from fastkernels import kernels, registry
from fastkernels.engine.image_pipeline import ImagePipeline, ImageRequest
from fastkernels.errors import UsageError, WeightsError
from fastkernels.nn import flow_matching, latents
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.weights import export_weights, load_weights
from tests.parity.flux_equations import Shape, Weights, velocity

TOLERANCE = 2e-5  # of the velocity's largest value, float32 against float64
CONFIGS = registry.architecture("flux").configs
TINY = CONFIGS["tiny"].config["transformer"]  # alone, as the file of that folder has it
SHAPE = Shape(double=2, single=2, heads=4, axes=(4, 6, 6))
GRID, TEXT = (3, 5), 7
TXT_IDS = torch.zeros(TEXT, 3, dtype=torch.int64)
IMG_IDS = latents.grid_ids(*GRID, torch.device("cpu"))


@lru_cache
def ours(dtype: torch.dtype = torch.float32) -> FluxPipeline:
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        model = FluxPipeline(TINY)
    finally:
        torch.set_default_dtype(previous)
    random_weights(model, seed=0)
    return model


def checkpoint() -> Weights:
    return dict(export_weights(ours()))


def inputs(images: int = 2) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Latents, prompts, pooled prompts, timesteps and guidance, another of each for each image."""
    generator = torch.Generator().manual_seed(3)
    drawn = [
        torch.randn(images, *shape, generator=generator)
        for shape in ((math.prod(GRID), 16), (TEXT, 32), (24,))
    ]
    times = torch.linspace(1000.0, 87.5, images)
    return drawn[0], drawn[1], drawn[2], times, torch.linspace(3504.0, 1000.0, images)


def expected(weights: Weights, grid: tuple[int, int] = GRID) -> Tensor:
    x, text, pooled, t, g = inputs()
    singles = zip(x.double(), text.double(), pooled.double(), t.tolist(), g.tolist())
    return torch.stack([velocity(weights, SHAPE, *one, grid) for one in singles])


@torch.inference_mode()
def run(model: FluxPipeline, dtype: torch.dtype = torch.float32) -> Tensor:
    return model(*(part.to(dtype) for part in inputs()), IMG_IDS, TXT_IDS)


def error(found: Tensor, wanted: Tensor) -> float:
    return ((found.double() - wanted).abs().max() / wanted.abs().max()).item()


@pytest.mark.parametrize("implementation", ["reference", "torch"])
def test_velocity_of_a_batch(implementation: str):
    wanted = expected(checkpoint())
    assert wanted.std() > 0.5, "weights too small for a strong test"
    with kernels.use(implementation):
        assert error(run(ours()), wanted) < TOLERANCE


def test_float64_agrees_to_its_own_precision():
    """Weights drawn in float64 are the float32 ones: their table of levels is float32."""
    wide = ours(torch.float64)
    load_weights(wide, export_weights(ours()))
    with kernels.use("reference"):
        assert error(run(wide, torch.float64), expected(checkpoint())) < 1e-12


def swapped(weights: Weights, name: str, parts: int, i: int, j: int) -> Weights:
    """Two of the parts of a matrix and of its bias exchanged."""
    changed = dict(weights)
    for kind in ("weight", "bias"):
        pieces = list(weights[f"{name}.{kind}"].chunk(parts))
        pieces[i], pieces[j] = pieces[j], pieces[i]
        changed[f"{name}.{kind}"] = torch.cat(pieces)
    return changed


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("norm_out.linear", 2),
        ("transformer_blocks.0.norm1.linear", 6),
        ("transformer_blocks.1.norm1_context.linear", 6),
        ("single_transformer_blocks.0.norm.linear", 3),
    ],
)
def test_a_wrong_order_of_scale_and_shift_would_be_noticed(name: str, parts: int):
    assert error(run(ours()), expected(swapped(checkpoint(), name, parts, 0, 1))) > 100 * TOLERANCE


def test_wrong_inputs_of_the_last_product_of_a_single_block_would_be_noticed():
    """Attention comes first, then the MLP."""
    weights = checkpoint()
    name = "single_transformer_blocks.1.proj_out.weight"
    weights[name] = torch.cat((weights[name][:, 64:], weights[name][:, :64]), dim=1)
    assert error(run(ours()), expected(weights)) > 100 * TOLERANCE


def test_wrong_positions_would_be_noticed():
    assert error(run(ours()), expected(checkpoint(), grid=(GRID[1], GRID[0]))) > 100 * TOLERANCE


@pytest.mark.parametrize("name", ["norm_q", "norm_k", "norm_added_q", "norm_added_k"])
def test_each_head_norm_counts(name: str):
    weights = checkpoint()
    weights[f"transformer_blocks.0.attn.{name}.weight"] = weights[
        f"transformer_blocks.0.attn.{name}.weight"
    ].flip(0)
    assert error(run(ours()), expected(weights)) > 10 * TOLERANCE


def test_the_order_of_requests_does_not_matter():
    x, text, pooled, t, g = (part.flip(0) for part in inputs())
    with torch.inference_mode():
        flipped = ours()(x, text, pooled, t, g, IMG_IDS, TXT_IDS).flip(0)
    torch.testing.assert_close(flipped, run(ours()), rtol=0, atol=1e-5)


def test_weights_of_diffusers_files():
    own = checkpoint()
    assert own["transformer_blocks.1.attn.add_k_proj.weight"].shape == (64, 64)
    assert own["single_transformer_blocks.0.proj_out.weight"].shape == (64, 320)
    assert own["transformer_blocks.0.ff_context.net.0.proj.bias"].shape == (256,)
    assert len(own) == 20 + 2 * 32 + 2 * 14
    model = FluxPipeline(TINY)
    load_weights(model, own.items())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), ours().parameters(), strict=True))
    with pytest.raises(WeightsError, match=r"to_q\.weight"):
        load_weights(model, ((n, t) for n, t in own.items() if not n.endswith("to_q.weight")))


def test_parameter_counts():
    for name, count in (("dev", 11_901_408_320), ("tiny", 482_768)):
        with torch.device("meta"):
            model = FluxPipeline(CONFIGS[name].config["transformer"])
        assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"axes_dims_rope": [4, 6, 8]}, "adds up to 18, attention_head_dim is 16"),
        ({"axes_dims_rope": [5, 5, 6]}, "three even numbers"),
        ({"axes_dims_rope": None}, "three even numbers"),
        ({"patch_size": 2}, "patch_size: 2"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
    ],
)
def test_configurations_that_are_refused(change: dict[str, object], says: str):
    with pytest.raises(UsageError, match=says):
        FluxPipeline(TINY | change)


# ---------------------------------------------------------------- the loop


@pytest.mark.parametrize(
    ("tokens", "first", "last"),
    [
        (4096, [1.0, 0.9884, 0.9762, 0.9634], [0.1955, 0.1047, 0.0]),
        (1024, [1.0, 0.9807, 0.9606, 0.9399], [0.1262, 0.0650, 0.0]),
    ],
)
def test_noise_levels_are_the_published_ones(tokens: int, first: list[float], last: list[float]):
    levels = flow_matching.noise_levels(28, tokens)
    assert (levels.dtype, len(levels)) == (torch.float32, 29)
    assert levels[:4].tolist() == pytest.approx(first, abs=5e-5)
    assert levels[-3:].tolist() == pytest.approx(last, abs=5e-5)


def test_timesteps_and_guidance_are_rounded_as_they_cross_to_the_model():
    bf16 = torch.bfloat16
    assert flow_matching.guidance(torch.tensor([3.5]), bf16).tolist() == [3504.0]
    assert flow_matching.guidance(torch.tensor([3.5]), torch.float32).tolist() == [3500.0]
    # 988.4 is 988 in bfloat16, 988 / 1000 is 0.98828125 there, and a thousand times that 988.
    assert flow_matching.timesteps(torch.tensor([0.9884]), bf16).tolist() == [988.0]
    assert flow_matching.timesteps(torch.tensor([0.5]), bf16).dtype == torch.float32


def test_latents_pack_to_tokens_and_back():
    x = torch.arange(4 * 6 * 10).view(4, 6, 10)
    tokens = latents.pack(x)
    assert tokens.shape == (15, 16)
    # Token (row 1, column 2): channel slowest, then the row and the column within the token.
    assert tokens[1 * 5 + 2].tolist() == [
        x[c, 2 + dy, 4 + dx] for c in range(4) for dy in (0, 1) for dx in (0, 1)
    ]
    assert torch.equal(latents.unpack(torch.stack((-tokens, tokens)), 3, 5)[1], x.permute(1, 2, 0))
    assert IMG_IDS[1 * 5 + 2].tolist() == [0, 1, 2]


def test_latents_after_four_steps_are_those_of_the_equations():
    pipeline = ImagePipeline("flux", config="tiny", device="cpu", seed=5)
    weights = {
        name.removeprefix("transformer."): tensor.double() for name, tensor in export_weights(pipeline.model)
    }
    generator = torch.Generator().manual_seed(9)
    requests = [
        ImageRequest(torch.randn(TEXT, 32, generator=generator), torch.randn(24, generator=generator),
                     height=48, width=80, steps=4, guidance=guidance, seed=seed, output="latent")
        for seed, guidance in ((1, 3.5), (2, 1.0))
    ]  # fmt: skip
    found = pipeline.generate(requests)
    assert pipeline.stages["denoise"].batch_sizes == [2]
    e_mu = math.exp(0.5 + (1.15 - 0.5) / (4096 - 256) * (15 - 256))
    sigmas = [e_mu / (e_mu + 1 / s - 1) for s in (1.0, 0.75, 0.5, 0.25)] + [0.0]
    for request, one in zip(requests, found):
        start = torch.randn(4, 6, 10, generator=torch.Generator().manual_seed(request.seed))
        x = latents.pack(start).double()
        for now, after in itertools.pairwise(sigmas):
            conditions = (request.text.double(), request.pooled.double(), 1000 * now, 1000 * request.guidance)
            x = x + (after - now) * velocity(weights, SHAPE, x, *conditions, (3, 5))
        assert error(one, x) < 1e-4
        assert error(one, latents.pack(start).double()) > 0.1, "the steps change nothing"
