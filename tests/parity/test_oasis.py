"""Our Oasis against its equations in float64, a tiny model with randomised weights, and what holds of any
right one: causality, clips apart from each other, kept frames as good as recomputed ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import pytest
import torch
from fastkernels.baseline.L2.mlp import ACTIVATIONS
from fastkernels.baseline.L4.oasis import Oasis
from torch import Tensor

from fastkernels import registry
from fastkernels.creation import creating
from fastkernels.errors import UsageError, WeightsError
from fastkernels.nn import diffusion_forcing
from fastkernels.nn.weights import destinations, load_weights
from tests.parity import oasis_equations as equations

# From the architecture's fact sheet, which saw so much of the network, and 1.4e-6 of the autoencoder.
TOLERANCE, VAE_TOLERANCE = 1.8e-5, 5e-6
CONFIGS = registry.architecture("oasis").configs
TINY, REAL = CONFIGS["tiny"].config, CONFIGS["500m"].config
SCALING = TINY["scaling_factor"]
DIT, VAE = TINY["dit"], TINY["vae"]
SHAPE = equations.Shape(
    DIT["depth"],
    DIT["num_heads"],
    DIT["patch_size"],
    (VAE["enc_depth"], VAE["dec_depth"]),
    (VAE["enc_heads"], VAE["dec_heads"]),
    VAE["patch_size"],
)
CLIPS, FRAMES = 2, 5


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The names of both of the checkpoint's files, by the sheet."""
    dit, vae = config["dit"], config["vae"]
    d, p, c = dit["hidden_size"], dit["patch_size"], dit["in_channels"]
    found: dict[str, tuple[int, ...]] = {}

    def affine(name: str, rows: int, columns: int, bias: bool = True) -> None:
        found[f"{name}.weight"] = (rows, columns)
        if bias:
            found[f"{name}.bias"] = (rows,)

    found |= {"x_embedder.proj.weight": (d, c, p, p), "x_embedder.proj.bias": (d,)}
    affine("t_embedder.mlp.0", d, 256)
    affine("t_embedder.mlp.2", d, d)
    affine("external_cond", d, dit["external_cond_dim"])
    for i in range(dit["depth"]):
        for half in "st":
            affine(f"blocks.{i}.{half}_attn.to_qkv", 3 * d, d, bias=False)
            affine(f"blocks.{i}.{half}_attn.to_out", d, d)
            affine(f"blocks.{i}.{half}_mlp.fc1", 4 * d, d)
            affine(f"blocks.{i}.{half}_mlp.fc2", d, 4 * d)
            affine(f"blocks.{i}.{half}_adaLN_modulation.1", 6 * d, d)
    affine("final_layer.linear", p * p * c, d)
    affine("final_layer.adaLN_modulation.1", 2 * d, d)
    e, g, p, c = vae["enc_dim"], vae["dec_dim"], vae["patch_size"], vae["latent_dim"]
    found |= {"patch_embed.proj.weight": (e, 3, p, p), "patch_embed.proj.bias": (e,)}
    for half, size, depth in (("encoder", e, vae["enc_depth"]), ("decoder", g, vae["dec_depth"])):
        for i in range(depth):
            for norm in ("norm1", "norm2"):
                found |= {f"{half}.{i}.{norm}.{kind}": (size,) for kind in ("weight", "bias")}
            affine(f"{half}.{i}.attn.qkv", 3 * size, size)
            affine(f"{half}.{i}.attn.proj", size, size)
            affine(f"{half}.{i}.mlp.fc1", 4 * size, size)
            affine(f"{half}.{i}.mlp.fc2", size, 4 * size)
    for norm, size in (("enc_norm", e), ("dec_norm", g)):
        found |= {f"{norm}.{kind}": (size,) for kind in ("weight", "bias")}
    affine("quant_conv", 2 * c, e)
    affine("post_quant_conv", g, c)
    affine("predictor", 3 * p * p, g)
    return found


@lru_cache
def weights() -> equations.Weights:
    """Norms 0.5 .. 1.5, matrices 1 / sqrt(fan in), biases 0.1: nothing is zero, as some are at first."""
    generator = torch.Generator().manual_seed(0)
    made = {}
    for name, shape in shapes(TINY).items():
        value = torch.randn(shape, generator=generator, dtype=torch.float64)
        if len(shape) > 1:
            value *= value[0].numel() ** -0.5
        elif "norm" in name and name.endswith("weight"):
            value = 0.5 + torch.rand(shape, generator=generator, dtype=torch.float64)
        else:
            value *= 0.1
        made[name] = value
    return made


def ours(dtype: torch.dtype = torch.float64) -> Oasis:
    with creating("cpu", dtype):
        model = Oasis(TINY)
    load_weights(model, weights().items())
    return model


def drawn(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


LATENT = (DIT["in_channels"], DIT["input_h"], DIT["input_w"])
X, ACTIONS = drawn(CLIPS, FRAMES, *LATENT, seed=1), drawn(CLIPS, FRAMES, 25, seed=2)
T = torch.tensor([[14.0, 14, 999, 3, 500], [249, 14, 14, 14, 749]], dtype=torch.float64)
IMAGE = torch.rand(3, 16, 24, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@lru_cache
def wanted_velocity() -> Tensor:
    return torch.stack(
        [equations.velocity(weights(), SHAPE, *one) for one in zip(X, T.tolist(), ACTIONS, strict=True)]
    )


@lru_cache
def wanted_frames(steps: int = 3, prompted: int = 2) -> Tensor:
    return torch.stack(
        [
            equations.rollout(weights(), SHAPE, x[:prompted], x[prompted:], actions, steps)
            for x, actions in zip(X, ACTIONS, strict=True)
        ]
    )


@torch.inference_mode()
def velocity_error(model: Oasis) -> float:
    dtype = model.x_embedder.weight.dtype
    found = model(X.to(dtype), T.to(torch.promote_types(dtype, torch.float32)), ACTIONS.to(dtype))
    return (found - wanted_velocity()).abs().max().item()


@torch.inference_mode()
def rollout_error(model: Oasis, steps: int = 3, prompted: int = 2) -> float:
    dtype = model.x_embedder.weight.dtype
    x, actions = X.to(dtype), ACTIONS.to(dtype)
    found = model.rollout(x[:, :prompted], x[:, prompted:], actions, steps)
    return (found - wanted_frames(steps, prompted)[:, prompted:]).abs().max().item()


@torch.inference_mode()
def decode_error(model: Oasis) -> float:
    """Of pixels that are not clamped: the equations' latents are as large as real ones."""
    z = X[0, :1] * SCALING
    dtype = model.decoder.predictor.weight.dtype
    found = model.decode(z[None].to(dtype))[0, 0].permute(2, 0, 1)
    return (found - equations.decode(weights(), SHAPE, z[0], SCALING).clamp(0, 1)).abs().max().item()


@torch.inference_mode()
def encode_error(model: Oasis) -> float:
    pixels = (2 * IMAGE - 1).permute(1, 2, 0)[None].to(model.x_embedder.weight.dtype)
    difference = model.encode(pixels)[0] - equations.encode(weights(), SHAPE, IMAGE, SCALING)
    return difference.abs().max().item() / SCALING


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, TOLERANCE), (torch.float64, 1e-11)], ids=str
)
def test_every_part_against_the_equations(dtype: torch.dtype, tolerance: float) -> None:
    assert wanted_velocity().std() > 0.5, "weights too small for a strong test"
    model = ours(dtype)
    for error in (velocity_error, rollout_error, partial(rollout_error, prompted=1)):
        assert error(model) < tolerance, error
    for error in (encode_error, decode_error):
        assert error(model) < min(tolerance, VAE_TOLERANCE), error


def test_the_schedule_is_the_published_one() -> None:
    abar = diffusion_forcing.alphas_cumprod(1000)
    vector = {0: 0.999699712, 14: 0.995320499, 249: 0.850853503, 499: 0.499999791, 749: 0.149146438}
    for level, value in vector.items():
        assert abs(abar[level] - value) < 1e-9
    assert abs(abar[999] - 3.00283e-7) < 1e-12
    assert abar == equations.alphas().tolist()
    assert [step[0] for step in diffusion_forcing.steps_of(4, abar)] == [999, 749, 499, 249]
    assert [step[0] for step in diffusion_forcing.steps_of(8, abar)] == [
        999,
        874,
        749,
        624,
        499,
        374,
        249,
        124,
    ]


def test_a_step_inverts_what_v_stands_for() -> None:
    """v = sqrt(abar) eps - sqrt(1 - abar) x0: a step to any level is its mixture, the last one x0 itself."""
    start, noise = drawn(3, seed=5), drawn(3, seed=6)
    alpha = torch.tensor(0.3, dtype=torch.float64)
    x = alpha.sqrt() * start + (1 - alpha).sqrt() * noise
    v = alpha.sqrt() * noise - (1 - alpha).sqrt() * start
    torch.testing.assert_close(diffusion_forcing.ddim_step(x, v, 0.3, 1.0), start)
    mixed = 0.8**0.5 * start + 0.2**0.5 * noise
    torch.testing.assert_close(diffusion_forcing.ddim_step(x, v, 0.3, 0.8), mixed)


@torch.inference_mode()
def test_earlier_frames_do_not_see_later_ones_and_clips_not_each_other() -> None:
    model, changed = ours(torch.float32), X.float().clone()
    changed[:, -1] += 1
    before, after = (model(x, T.float(), ACTIONS.float()) for x in (X.float(), changed))
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert (before[:, -1] - after[:, -1]).abs().max() > 0.1
    turned = model(X.float().flip(0), T.float().flip(0), ACTIONS.float().flip(0)).flip(0)
    torch.testing.assert_close(turned, before, rtol=0, atol=TOLERANCE)


# ------------------------------------------------------------------ where implementations go wrong


def _tables(model: Oasis, change: Callable[[Tensor], Tensor]) -> None:
    for table in (model.spatial_rope, model.temporal_rope, model.encoder.rope, model.decoder.rope):
        table.forward = lambda ids, own=table.forward: change(own(ids))


def _half_split(model: Oasis) -> None:
    for block in model.blocks:
        for rope in (block.s_attn.rope, block.t_attn.rope):
            own = rope.forward

            def forward(q: Tensor, k: Tensor, table: Tensor, own: Any = own) -> tuple[Tensor, Tensor]:
                pairs = [x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2) for x in (q, k)]
                turned = own(*pairs, table)
                q, k = (x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2) for x in turned)
                return q, k

            rope.forward = forward


def _places_in_pixels(model: Oasis) -> None:
    own = model.spatial_rope
    model.spatial_rope.forward = lambda ids: torch.cat(
        [
            part(torch.cat([ids[:, a, None] * _rates(own.dim, own.max_freq) for a in (0, 1)], dim=-1))
            for part in (torch.cos, torch.sin)
        ],
        dim=-1,
    )


def _rates(dim: int, most: float) -> Tensor:
    return torch.pi * torch.linspace(1, most / 2, dim // 2, dtype=torch.float64)


def _scale_first(model: Oasis) -> None:
    for block in model.blocks:
        for norm in (block.s_norm1, block.t_norm1):
            weight, bias = norm.linear.weight, norm.linear.bias
            for parameter in (weight, bias):
                shift, scale, *rest = parameter.data.chunk(6)
                parameter.data = torch.cat((scale, shift, *rest))


def _one_modulation(model: Oasis) -> None:
    for block in model.blocks:
        block.t_norm1 = block.s_norm1


def _other_gelu(model: Oasis, half: str = "") -> None:
    blocks = getattr(model, half).blocks if half else model.blocks
    for block in blocks:
        for name in ("mlp", "s_mlp", "t_mlp"):
            if (mlp := getattr(block, name, None)) is not None:
                other = "gelu_tanh" if half else "gelu"
                mlp.hidden_act, mlp.activation_fn = other, ACTIVATIONS[other]()


def _other_unpatchify(model: Oasis) -> None:
    """The order of the other part's patches."""
    c, p = DIT["in_channels"], DIT["patch_size"]
    _rows(model.proj_out, lambda x: x.unflatten(0, (c, p, p)).movedim(0, 2).flatten(0, 2))


def _other_pixels(model: Oasis) -> None:
    p = VAE["patch_size"]
    _rows(model.decoder.predictor, lambda x: x.unflatten(0, (p, p, 3)).movedim(2, 0).flatten(0, 2))


def _rows(linear: Any, change: Callable[[Tensor], Tensor]) -> None:
    linear.weight.data, linear.bias.data = (change(x.data).contiguous() for x in (linear.weight, linear.bias))


def _final_shift_first(model: Oasis) -> None:
    _rows(model.norm_out.linear, lambda x: torch.cat(x.chunk(2)[::-1]))


def _bidirectional(model: Oasis) -> None:
    for block in model.blocks:
        scale = block.t_attn.attn.scale
        block.t_attn.attn.forward = lambda q, k, v, scale=scale: (
            torch.nn.functional.scaled_dot_product_attention(
                *(x.transpose(1, 2) for x in (q, k, v)), scale=scale
            ).transpose(1, 2)
        )


def _context_level(model: Oasis) -> None:
    model.context_level += 1


def _whole_heads_turn(model: Oasis) -> None:
    _tables(model, lambda table: torch.cat([part.roll(1, -1) for part in table.chunk(2, -1)], dim=-1))


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (_half_split, velocity_error),
        (_places_in_pixels, velocity_error),
        (_scale_first, velocity_error),
        (_one_modulation, velocity_error),
        (_other_gelu, velocity_error),
        (_other_unpatchify, velocity_error),
        (_final_shift_first, velocity_error),
        (_bidirectional, velocity_error),
        (_context_level, rollout_error),
        (_whole_heads_turn, decode_error),
        (partial(_other_gelu, half="encoder"), encode_error),
        (partial(_other_gelu, half="decoder"), decode_error),
        (_other_pixels, decode_error),
    ],
    ids=lambda one: getattr(one, "__name__", repr(getattr(one, "keywords", ""))),
)
def test_what_goes_wrong_is_seen(spoil: Callable[[Oasis], None], error: Callable[[Oasis], float]) -> None:
    model = ours()
    spoil(model)
    assert error(model) > 10 * (VAE_TOLERANCE if error in (encode_error, decode_error) else TOLERANCE)


def test_noise_on_frames_that_are_done_or_another_last_level_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    abar = diffusion_forcing.alphas_cumprod(1000)
    steps = diffusion_forcing.steps_of(3, abar)
    monkeypatch.setattr(diffusion_forcing, "steps_of", lambda *_: [*steps[:-1], (*steps[-1][:2], abar[0])])
    assert rollout_error(ours()) > 10 * TOLERANCE
    monkeypatch.undo()
    model = ours()
    own = model.predict

    def noisy(x: Tensor, *rest: Any) -> Tensor:
        done = abar[14] ** 0.5 * x[:, :-1] + (1 - abar[14]) ** 0.5 * drawn(*x[:, :-1].shape, seed=9)
        return own(torch.cat((done, x[:, -1:]), dim=1), *rest)

    model.predict = noisy
    assert rollout_error(model) > 10 * TOLERANCE


# ------------------------------------------------------------------ the checkpoint


def test_the_real_checkpoints_names_fill_every_parameter() -> None:
    with torch.device("meta"):
        model = Oasis(REAL)
    vae = sum(p.numel() for half in (model.encoder, model.decoder) for p in half.parameters())
    network = sum(p.numel() for p in model.parameters()) - vae
    assert network + 16 + 32 == 607_943_792  # the file's, with the frequencies of two rotations
    assert vae == 229_246_160
    places, unnamed = destinations(model)
    assert set(places) == set(shapes(REAL))
    assert not unnamed
    for name in ("spatial_rotary_emb.freqs", "blocks.3.t_attn.rotary_emb.freqs"):
        assert model.weight_map.ignores(name)


def test_a_half_precision_model_decodes_in_float32() -> None:
    with torch.device("meta"), creating("meta", torch.float16):
        model = Oasis(TINY)
    assert {p.dtype for p in model.decoder.parameters()} == {torch.float32}
    others = (p for name, p in model.named_parameters() if not name.startswith("decoder."))
    assert {p.dtype for p in others} == {torch.float16}


@pytest.mark.parametrize(
    ("name", "says"), [("predictor.bias", "predictor.bias"), ("blocks.1.t_attn.to_out.bias", "to_out")]
)
def test_renamed_tensors_are_an_error(name: str, says: str) -> None:
    renamed = {other if other != name else f"{other}2": value for other, value in weights().items()}
    with pytest.raises(WeightsError, match=says):
        load_weights(Oasis(TINY), renamed.items())


@pytest.mark.parametrize(
    ("section", "changes", "says"),
    [
        ("dit", {"hidden_size": 60}, "hidden_size: 60 is no multiple of 8 times num_heads, 4"),
        ("dit", {"input_h": 5}, "input_h: 5 is no multiple of patch_size, 2"),
        ("vae", {"latent_dim": 8}, "latent_dim: and patches make latents"),
    ],
)
def test_configurations_that_do_not_fit_are_refused(section: str, changes: dict, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Oasis(TINY | {section: TINY[section] | changes})
