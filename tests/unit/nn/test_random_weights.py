"""Seeded random weights: distributions, independence of device, order and chunking, and golden bits."""

from __future__ import annotations

import math

import pytest
import torch
from fastkernels.baseline.L1.bitnet_linear import BitLinear
from torch import nn

from fastkernels import kernels
from fastkernels.kernels import ternary
from fastkernels.nn import random_weights as module
from fastkernels.nn.random_weights import random_weights


class Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))


class Model(nn.Module):
    def __init__(self, is_tied: bool = False) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(500, 64)
        self.proj = nn.Linear(400, 300)
        self.norm = Norm(2000)
        self.head = nn.Linear(64, 500, bias=False)
        if is_tied:
            self.head.weight = self.embed_tokens.weight


def drawn(seed: int = 0, **kwargs: bool) -> Model:
    model = Model(**kwargs)
    random_weights(model, seed)
    return model


def test_distributions():
    model = drawn()
    assert model.embed_tokens.weight.std().item() == pytest.approx(1, rel=0.02)
    assert model.proj.weight.std().item() == pytest.approx(400**-0.5, rel=0.02)
    assert model.proj.bias.std().item() == pytest.approx(0.1, rel=0.15)
    assert model.norm.weight.min() >= 0.5
    assert model.norm.weight.max() <= 1.5
    assert model.norm.weight.mean().item() == pytest.approx(1, abs=0.03)
    assert model.norm.weight.std().item() == pytest.approx(12**-0.5, rel=0.05)


def test_stacks_of_experts_are_matrices_of_their_own_fan_in():
    model = nn.Module()
    model.experts, model.conv = nn.Module(), nn.Conv1d(16, 64, 9)
    model.experts.w13 = nn.Parameter(torch.empty(5, 48, 100))
    random_weights(model, 0)
    assert model.experts.w13.std().item() == pytest.approx(100**-0.5, rel=0.03)
    assert model.conv.weight.std().item() == pytest.approx(144**-0.5, rel=0.05)


def test_codes_of_four_bits_are_matrices_and_sinks_reach_far():
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, shape in (("weight", (4, 96, 9, 16)), ("weight_scale", (4, 96, 9))):
                codes = nn.Parameter(torch.empty(shape, dtype=torch.uint8), requires_grad=False)
                setattr(self, name, codes)
            self.bias = nn.Parameter(torch.empty(4, 4096), requires_grad=False)
            self.sinks = nn.Parameter(torch.empty(4096), requires_grad=False)

    packed = Packed()
    random_weights(packed, seed=0)
    weights = kernels.low_bit_dequant(packed.weight, packed.weight_scale, torch.float32)
    assert weights.std().item() == pytest.approx(288**-0.5, rel=0.35)
    assert len(packed.weight.unique()) == 256
    assert len(packed.weight_scale.unique()) == 3
    assert packed.bias.std().item() == pytest.approx(module.BIAS_STD, rel=0.05)
    assert packed.sinks.min() < 0.1
    assert packed.sinks.max() > 7.9


def test_queries_and_keys_of_scores_that_are_not_scaled_are_small():
    model = nn.Module()
    model.attn = nn.Module()
    model.attn.unscaled_qkv_proj = nn.Linear(400, 300, bias=False)
    random_weights(model, 0)
    assert model.attn.unscaled_qkv_proj.weight.std().item() == pytest.approx(3200**-0.5, rel=0.02)


def test_norms_of_scores_that_are_not_scaled_divide_by_the_root_of_the_head_size():
    model = nn.Module()
    model.unscaled_q_norm, model.unscaled_k_norm = nn.RMSNorm(256), nn.RMSNorm(256)
    random_weights(model, 0)
    for norm in (model.unscaled_q_norm, model.unscaled_k_norm):
        assert 0.5 / 4 < norm.weight.min() < norm.weight.max() < 1.5 / 4
        assert norm.weight.mean().item() == pytest.approx(1 / 4, rel=0.05)


def test_a_norm_before_a_head_that_is_the_embedding_has_random_signs():
    model = nn.Module()
    model.signed_norm = nn.RMSNorm(5000)
    random_weights(model, 0)
    weight = model.signed_norm.weight
    assert 0.49 < weight.abs().min() < weight.abs().max() < 1.51
    assert weight.mean().item() == pytest.approx(0, abs=0.05)


def test_scans_over_states_have_short_steps_and_decay_by_different_rates():
    model = nn.Module()
    model.mamba, model.A_log = nn.Module(), nn.Parameter(torch.empty(2000, 16))
    model.mamba.dt_bias = nn.Parameter(torch.empty(2000))
    random_weights(model, 0)
    for values, (low, high) in (
        (nn.functional.softplus(model.mamba.dt_bias), module.TIME_STEPS),
        (model.A_log.exp(), module.DECAY_RATES),
    ):
        assert low * 0.999 <= values.min() <= 1.05 * low
        assert high * 0.95 <= values.max() <= 1.001 * high
        assert values.log().mean().item() == pytest.approx(math.log(low * high) / 2, abs=0.1)
    assert not torch.equal(model.A_log[0], model.A_log[1])


def test_shares_of_the_token_before_lie_between_none_and_all():
    model = nn.Module()
    model.x_x, model.x_k = nn.Parameter(torch.empty(6, 500)), nn.Parameter(torch.empty(3000))
    random_weights(model, 0)
    for shares in (model.x_x, model.x_k):
        assert 0 < shares.min() < 0.01
        assert 0.99 < shares.max() < 1


def test_filters_keep_a_variance_and_shut_out_the_mean():
    """Of convolutions, channels last; a depthwise filter has one channel and is as it falls."""
    model = nn.Module()
    model.wide = nn.Parameter(torch.empty(64, 3, 3, 16))
    model.depthwise = nn.Parameter(torch.empty(512, 3, 3, 1))
    model.pw_proj, model.conv_pwl = nn.Module(), nn.Module()
    for end in (model.pw_proj, model.conv_pwl):
        end.weight = nn.Parameter(torch.empty(64, 1, 1, 96))
    random_weights(model, 0)
    ends = ((model.pw_proj.weight, 960), (model.conv_pwl.weight, 576))  # of branches: smaller
    for filters, fan_in in ((model.wide, 144), (model.depthwise, 9), *ends):
        assert filters.std().item() == pytest.approx((module.FILTER_GAIN / fan_in) ** 0.5, rel=0.05)
    assert torch.equal(model.wide[..., 0::2], -model.wide[..., 1::2])
    assert model.depthwise.sum((1, 2, 3)).std() > 1


def test_normal_values_are_normal_and_uncorrelated():
    values = drawn().proj.weight.double().flatten() * 20
    assert values.mean().abs() < 4 / math.sqrt(values.numel())
    assert (values**4).mean().item() == pytest.approx(3, rel=0.05)
    for lag in (1, 2, 64, 400):
        assert (values[lag:] * values[:-lag]).mean().abs() < 4 / math.sqrt(values.numel())


def test_parameters_and_seeds_are_unrelated():
    first, second = drawn(seed=0), drawn(seed=1)
    a, b = first.embed_tokens.weight.flatten(), second.embed_tokens.weight.flatten()
    c = first.head.weight.flatten() * 8
    for left, right in ((a, b), (a, c)):
        assert (left * right).mean().abs() < 4 / math.sqrt(a.numel())


def test_a_tied_head_is_a_matrix():
    assert drawn(is_tied=True).head.weight.std().item() == pytest.approx(64**-0.5, rel=0.02)


def test_same_bits_for_a_seed_whatever_the_neighbours_and_chunks(monkeypatch: pytest.MonkeyPatch):
    whole = drawn(seed=3)
    monkeypatch.setattr(module, "_CHUNK", 1000)
    in_pieces = drawn(seed=3)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), in_pieces.parameters(), strict=True))
    alone = nn.ModuleDict({"proj": nn.Linear(400, 300)})
    random_weights(alone, 3)
    assert torch.equal(alone["proj"].weight, whole.proj.weight)


def test_low_precision_is_the_rounded_float32():
    half = Model().to(torch.bfloat16)
    random_weights(half, 0)
    assert torch.equal(half.proj.weight, drawn().proj.weight.to(torch.bfloat16))


def test_the_hash_is_murmur3s_finaliser():
    def fmix32(x: int) -> int:
        x ^= x >> 16
        x = x * 0x85EBCA6B & 0xFFFFFFFF
        x ^= x >> 13
        x = x * 0xC2B2AE35 & 0xFFFFFFFF
        return x ^ x >> 16

    inputs = [0, 1, 2, 12345, (1 << 31) - 1, -1, -(1 << 31), -987654321]
    expected = torch.tensor([fmix32(x & 0xFFFFFFFF) for x in inputs], dtype=torch.int64)
    mixed = module._mix(torch.tensor(inputs, dtype=torch.int32))
    assert torch.equal(mixed.to(torch.int64) & 0xFFFFFFFF, expected)


def test_ternary_weights_are_as_large_as_ordinary_ones():
    """-1, 0 and 1 are equally likely, and the scales make results of scale 1."""
    layer = BitLinear(512, 256, [128, 64, 64])
    random_weights(layer, seed=0)
    values_NK = ternary.unpack(layer.weight, torch.float32)
    for value in (-1, 0, 1):
        assert (values_NK == value).float().mean() == pytest.approx(1 / 3, abs=0.01)
    assert ternary.is_packed(layer.weight)
    usual = (512 * 2 / 3) ** -0.5
    assert len(set(layer.weight_scale.tolist())) == 3
    assert 0.5 * usual <= layer.weight_scale.min() <= layer.weight_scale.max() <= 1.5 * usual
