"""hash_encoding, fused_mlp, sh_encoding, init_rays, march_rays and volume_composite on this machine, against
loops in float64 and numbers of the reference's own functions."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from fastkernels import kernels
from fastkernels.errors import KernelError
from fastkernels.kernels.init_rays import S_MAX, S_MIN, distance_of, ld_random, place_of
from fastkernels.kernels.occupancy import morton
from fastkernels.kernels.spherical_harmonics import basis
from tests import radiance_cases as cases
from tests.unit.kernels.implementations import REFERENCE, TORCH, TRITON

CONE = 1 / 256


def close(found: Tensor, wanted: Tensor, most: float) -> None:
    assert found.shape == wanted.shape
    torch.testing.assert_close(found.double(), wanted, rtol=most, atol=most)


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
@pytest.mark.parametrize("name", cases.GRIDS)
def test_features_of_a_grid(name: str, impl: str):
    x, table, levels = cases.grid(name)
    wanted = cases.encoded(x, table, levels)
    close(kernels.hash_encoding(x, table, *levels, impl=impl), wanted, 2e-5)
    if impl != "triton":
        close(kernels.hash_encoding(x.double(), table.double(), *levels, impl=impl), wanted, 1e-13)


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
@pytest.mark.parametrize("name", cases.NETWORKS)
def test_narrow_perceptrons(name: str, impl: str):
    x, weights = cases.network(name)
    close(kernels.fused_mlp(x, weights, impl=impl), cases.through(x, weights), 2e-6)


@pytest.mark.parametrize("impl", [REFERENCE, TRITON])
@pytest.mark.parametrize("name", cases.MARCHES)
def test_samples_are_the_places_in_occupied_cells(name: str, impl: str):
    args = cases.march(name)
    wanted = cases.marched(*args)
    for result, exact, most in zip(kernels.march_rays(*args, impl=impl), wanted, (1e-6, 1e-6, 0)):
        close(result, exact.double(), most)
    if name == "cascades":
        assert int((wanted[2] >= 0).sum()) > 20, "most rays go on"
        assert int((wanted[1][:, 0] == 0).sum()) > 3, "some find nothing"


@pytest.mark.parametrize("impl", [REFERENCE, TRITON])
def test_a_ray_without_a_direction_ends(impl: str):
    """It would stay in its cell, which is free."""
    origins, directions, starts, steps, grid, *rest = cases.march("two")
    given = torch.full_like(origins, 0.5), torch.zeros_like(directions), starts, steps, torch.zeros_like(grid)
    _, deltas, following = kernels.march_rays(*given, *rest, impl=impl)
    assert not deltas.any()
    assert bool((following == -1).all())


@pytest.mark.parametrize("impl", [REFERENCE, TRITON])
@pytest.mark.parametrize("name", cases.SUMS)
def test_samples_are_blended(name: str, impl: str):
    args = cases.samples(name)
    found, wanted = kernels.volume_composite(*args, impl=impl), cases.composed(*args)
    close(found, wanted, 1e-6)
    assert torch.equal(found[:, 3] == 1, wanted[:, 3] == 1)


def test_numbers_of_the_references_own_functions():
    seeds = torch.arange(4) * 786433
    random = [0, 0.60863775, 0.122548714, 0.183609337]
    torch.testing.assert_close(ld_random(0, seeds).double() / 2**32, torch.tensor(random).double())
    distances = torch.tensor([0.01, 1, 5, 30], dtype=torch.float64)
    places = place_of(distances, CONE)
    wanted = torch.tensor([-464.774658, 0, 412.820312, 872.406067], dtype=torch.float64)
    torch.testing.assert_close(places, wanted, rtol=1e-7, atol=1e-5)
    torch.testing.assert_close(distance_of(places, CONE), distances)
    deltas = (distance_of(places + 1, CONE) - distances)[1:3]
    torch.testing.assert_close(deltas, torch.tensor([0.00390625, 0.01953125]).double(), rtol=1e-9, atol=0)
    assert (round(S_MIN, 11), round(S_MAX, 7)) == (0.00169145587, 1.7320508)
    far = torch.tensor([100.0, 500.0, 900.0], dtype=torch.float64)
    torch.testing.assert_close(distance_of(place_of(far, CONE), CONE), far)
    assert int(morton(torch.tensor(5), torch.tensor(9), torch.tensor(100))) == 1180995


def test_rays_go_through_the_middles_of_pixels():
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0]
    camera = torch.cat((turn, torch.tensor([[0.2], [0.7], [0.4]])), 1)
    K = torch.tensor([[20.0, 0, 3.5], [0, 30, 2.25], [0, 0, 1]], dtype=torch.float64)
    o, d, starts = kernels.init_rays(camera[None], K[None], 6, 5, 2, CONE)
    at = torch.linalg.inv(K) @ torch.tensor([4.5, 2.5, 1], dtype=torch.float64)  # row 2, column 4
    wanted = turn @ (at / at.norm())
    torch.testing.assert_close(d[2 * 6 + 4], wanted)
    assert torch.equal(o, camera[:, 3].expand(30, 3))
    jitter = ld_random(0, torch.arange(30) * 786433).double() / 2**32
    torch.testing.assert_close(
        starts, place_of(torch.tensor(1e-6), CONE).double() + jitter, rtol=1e-7, atol=0
    )
    # From outside: a ray begins where it enters the box.
    camera = torch.tensor([[[1.0, 0, 0, 0.5], [0, 1, 0, 0.5], [0, 0, 1, -3.5]]], dtype=torch.float64)
    _, d, starts = kernels.init_rays(camera, K[None], 6, 5, 2, CONE)
    torch.testing.assert_close(distance_of(starts - jitter, CONE), 3 / d[:, 2] + 1e-6)


def test_directions_as_harmonics():
    d = torch.nn.functional.normalize(torch.randn(31, 3, dtype=torch.float64), dim=-1)
    assert torch.equal(kernels.sh_encoding(d, 3), torch.stack(basis(*d.unbind(-1), 3), -1))
    # Orthonormal on the sphere: a mean over many directions is the identity over 4 pi.
    many = torch.nn.functional.normalize(torch.randn(400_000, 3, dtype=torch.float64), dim=-1)
    y = kernels.sh_encoding(many, 3)
    assert float((y.T @ y / len(y) * 4 * torch.pi - torch.eye(16)).abs().max()) < 0.03


def test_roundings_that_decide_can_be_turned_round():
    march, composite = (
        import_module(f"fastkernels.kernels.{name}") for name in ("march_rays", "volume_composite")
    )
    grid = torch.zeros(1, 64, dtype=torch.uint8)
    grid[0, 0] = 1  # the cell at the origin, 1/8 wide
    p = torch.tensor([[0.12499999999, 0.1, 0.1], [0.06, 0.06, 0.06], [0.1251, 0.1, 0.1]], dtype=torch.float64)

    def occupied(slack: float) -> list[bool]:
        return march._occupied(p, grid, 8, 1, slack).tolist()

    assert (occupied(0.0), occupied(1e-6)) == ([True, True, False], [False, True, False])
    alpha = torch.tensor([0.99 + 1e-12, 0.5], dtype=torch.float64)
    with composite.other_way(1e-6):
        assert composite._decided(alpha > 0.99, alpha).tolist() == [False, False]
    assert composite._decided(alpha > 0.99, alpha).tolist() == [True, False]


def test_what_does_not_fit_is_named():
    x, table, levels = cases.grid("counted")
    with pytest.raises(ValueError, match="a table of 7 rows, the levels have"):
        kernels.hash_encoding(x, table[:7], *levels)
    with pytest.raises(ValueError, match="fit each other"):
        kernels.fused_mlp(torch.ones(2, 3), [torch.ones(4, 3), torch.ones(2, 5)])
    with pytest.raises(ValueError, match="degree 4, served are 0 to 3"):
        kernels.sh_encoding(x, 4)
    args: list[Any] = list(cases.march("two"))
    with pytest.raises(ValueError, match="power of two, not 3"):
        kernels.march_rays(*args[:5], 3, *args[6:])
    with pytest.raises(ValueError, match=r"grid \[2, 4096\] for aabb_scale 4: \[3, S\^3 / 8\]"):
        kernels.march_rays(*args[:5], 4, *args[6:])
    with pytest.raises(KernelError, match="triton"):
        kernels.volume_composite(*(part.double() for part in cases.samples("few")), impl="triton")


def test_operators_agree_with_their_schema_and_fake():
    x, table, levels = cases.grid("counted")
    eye, K = torch.eye(3, 4)[None], torch.eye(3)[None]
    calls = {
        "hash_encoding": (x, table, *levels),
        "fused_mlp": cases.network("density"),
        "sh_encoding": (x, 3),
        "init_rays": (eye, K, 5, 3, 2, CONE),
        "march_rays": cases.march("two"),
        "volume_composite": cases.samples("few"),
    }
    for name, args in calls.items():
        op = getattr(torch.ops.fastkernels, name).default
        torch.library.opcheck(op, args, test_utils=("test_schema", "test_faketensor"))
