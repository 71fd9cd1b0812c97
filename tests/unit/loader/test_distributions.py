"""Each distribution is what its name says, in every dtype, and depends on its generator alone."""

from __future__ import annotations

import pytest
import torch

from fastkernels.loader import distributions
from fastkernels.loader.distributions import ATTENTION, DISTRIBUTIONS, NORMED, fill, fill_map

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def drawn(name: str, dtype=torch.float32, shape=(64, 256), seed=0, **limits) -> torch.Tensor:
    x = torch.full(shape, torch.nan, dtype=dtype)
    return fill(x, name, torch.Generator().manual_seed(seed), **limits)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_finite_and_reproducible(name, dtype):
    x = drawn(name, dtype)
    assert x.isfinite().all()
    assert torch.equal(x, drawn(name, dtype))
    assert not torch.equal(x, drawn(name, dtype, seed=1))
    assert x.dtype == dtype


def test_shapes_of_values():
    assert drawn("normal").std().sub(1).abs() < 0.05
    assert 10 < drawn("heavy_tail").abs().max() < 500
    offset = drawn("uniform_offset")
    assert offset.min() >= 2
    assert offset.max() <= 4
    constant = drawn("constant_rows")
    assert torch.equal(constant, constant[:, :1].expand_as(constant))
    assert constant[:, 0].unique().numel() > 60
    assert 0.9 < (drawn("sparse") == 0).float().mean() < 0.98
    scale = drawn("extreme").std(1)
    assert scale.max() / scale.min() > 1e5


def test_a_single_row_is_at_an_end_of_the_range_of_scales():
    """Half of the draws have squares beyond float16, as many have rows that epsilon rules."""
    draws = [drawn("extreme", torch.float16, (1, 64), seed, limits=NORMED) for seed in range(200)]
    peaks = torch.stack([x.float().abs().amax() for x in draws])
    beyond = peaks.square() > torch.finfo(torch.float16).max
    assert 0.4 < beyond.float().mean() < 0.6
    assert torch.equal(beyond, peaks > 0.01)


def test_whole_blocks_of_channels_of_a_map_are_quiet():
    """By place the loudest of all would set what is measured over the map."""
    x_BYXC = fill_map(torch.empty(3, 8, 8, 64), "extreme", torch.Generator().manual_seed(0))
    scale_BK = x_BYXC.view(3, 64, 32, 2).transpose(1, 2).flatten(2).std(-1)
    assert scale_BK.min() < 1e-3
    assert scale_BK.max() > 1e3
    for name in DISTRIBUTIONS:
        maps = fill_map(torch.empty(3, 8, 8, 20), name, torch.Generator().manual_seed(0))
        assert maps.isfinite().all()
        rows = fill(torch.empty(3, 8, 8, 20), name, torch.Generator().manual_seed(0))
        assert torch.equal(maps, rows) is (name != "extreme")


def test_limits_bound_scales():
    assert drawn("extreme", limits=ATTENTION).abs().max() < 20
    assert drawn("heavy_tail", limits=ATTENTION).abs().max() < 20
    assert drawn("extreme", torch.float16).abs().max() < 200


def test_mixed_has_rows_of_every_kind():
    x = drawn("mixed", shape=(256, 512))
    constant = (x == x[:, :1]).all(1)
    sparse = ((x == 0).float().mean(1) > 0.8) & ~constant
    offset = (x >= 2).all(1) & ~constant
    extreme = (x.abs().amax(1) > 1000) & ~constant
    for kind in (constant, sparse, offset, extreme):
        assert 1 < kind.sum() < 100


def test_chunks_do_not_repeat(monkeypatch):
    monkeypatch.setattr(distributions, "_CHUNK", 1024)
    x = drawn("normal", shape=(64, 256))
    assert x.unique().numel() > 16_000
    assert x[:, 0].unique().numel() == 64


def test_one_dimension_no_rows_and_scalars():
    assert drawn("mixed", shape=(7,)).isfinite().all()
    assert drawn("mixed", shape=(0, 8)).shape == (0, 8)
    assert drawn("normal", shape=()).isfinite()


def test_unknown_distribution():
    with pytest.raises(ValueError, match=r"'gaussian'.*normal"):
        drawn("gaussian")


@pytest.mark.parametrize("name", ["extreme", "mixed"])
def test_what_norms_take_has_squares_beyond_float16(name):
    x, residual = (drawn(name, torch.float16, (256, 256), seed, limits=NORMED) for seed in (0, 1))
    assert not x.square().isfinite().all()
    assert (x + residual).isfinite().all()
    assert drawn(name, torch.float16, (256, 256)).square().isfinite().all()
    assert torch.equal(drawn(name, limits=NORMED), drawn(name))  # in wider dtypes nothing differs


def test_maps_have_squares_beyond_float16():
    x_BYXC = torch.empty(3, 8, 8, 64, dtype=torch.float16)
    fill_map(x_BYXC, "extreme", torch.Generator().manual_seed(0))
    assert x_BYXC.isfinite().all()
    assert not x_BYXC.square().isfinite().all()
