"""Kernels over clouds of voxels, every implementation: tables by dictionaries, convolutions voxel by voxel,
codes bit by bit in tests/parity/test_point_transformer_v3.py; and how voxels in an order are cut into
patches."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from fastkernels import kernels
from fastkernels.kernels.serialize import ORDERS
from fastkernels.nn.clouds import num_padded, patches
from tests.cloud_cases import CONVOLUTIONS, around, cloud, convolution, convolved
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
@pytest.mark.parametrize("shape", CONVOLUTIONS, ids=str)
def test_sparse_conv(impl, shape):
    x, neighbors, weight, bias = convolution(*shape)
    for dtype, tolerance in zip(DTYPES, (2e-6, 2e-2)):
        given = [each.to(dtype) for each in (x, weight, bias)]
        for own_bias in (given[2], None):
            found = kernels.sparse_conv(given[0], neighbors, given[1], own_bias, impl=impl)
            assert found.dtype == dtype
            wanted = convolved(given[0], neighbors, given[1], own_bias)
            torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("impl", [REFERENCE, TRITON])
def test_sparse_conv_of_rows_in_a_wider_tensor(impl):
    x, neighbors, weight, bias = convolution(*CONVOLUTIONS[1])
    wide = torch.cat((torch.full_like(x, torch.nan), x), 1)[:, x.shape[1] :]
    found = kernels.sparse_conv(wide, neighbors, weight, bias, impl=impl)
    torch.testing.assert_close(found.double(), convolved(x, neighbors, weight, bias), rtol=2e-6, atol=2e-6)


def test_a_weight_of_other_taps_is_refused():
    x, neighbors, weight, bias = convolution(*CONVOLUTIONS[1])
    with pytest.raises(ValueError, match=r"none of 27 taps of 16 channels"):
        kernels.sparse_conv(x, neighbors, weight[:, 16:], bias)


@pytest.mark.parametrize("impl", [REFERENCE, TORCH])
@pytest.mark.parametrize("taps", [1, 3, 5])
def test_neighbors(impl, taps):
    """Also at the edges of the largest grid, and of clouds that stand in no order."""
    grid, batch = cloud((120, 3, 61))
    order = torch.randperm(len(grid), generator=torch.Generator().manual_seed(2))
    for shift in (0, (1 << 16) - 7):
        moved = grid[order] + torch.tensor((shift, 0, shift))
        found = kernels.sparse_neighbors(moved.int(), batch[order].int(), taps, impl=impl)
        assert torch.equal(found, around(moved, batch[order], taps).int())


@pytest.mark.parametrize("impl", [REFERENCE, TORCH])
def test_coarser_voxels_are_serialised_as_if_they_were_given(impl):
    grid, batch = cloud((70, 9))
    code, order, inverse = kernels.serialize(grid, batch, 3, ORDERS, impl=impl)
    assert torch.equal(order.gather(1, inverse), torch.arange(79).expand(4, -1))
    halved, cluster = torch.cat((batch[:, None], grid >> 1), 1).unique(dim=0, return_inverse=True)
    found = kernels.coarsen(code, order, len(halved), impl=impl)
    coarse_code, coarse_order, coarse_inverse, clusters, idx_ptr, head = found
    wanted = kernels.serialize(grid[head] >> 1, batch[head], 2, ORDERS, impl=impl)
    for one, other in zip((coarse_code, coarse_order, coarse_inverse), wanted):
        assert torch.equal(one, other)
    assert coarse_code[0].tolist() == sorted(coarse_code[0].tolist()), "clusters are in the order of z"
    same = clusters[:, None] == clusters
    assert torch.equal(same, cluster[:, None] == cluster)
    for m in range(len(halved)):
        assert (clusters[order[0][idx_ptr[m] : idx_ptr[m + 1]]] == m).all()


def test_another_number_of_clusters_is_refused_by_the_reference():
    code, order, _ = kernels.serialize(*cloud((70,)), 3, ORDERS)
    with pytest.raises(ValueError, match="different voxels of twice the side, not 70"):
        kernels.coarsen(code, order, 70, impl="reference")


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
@pytest.mark.parametrize("features", [1, 37, 600])
def test_segment_max(impl, features):
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(50, 2 * features, generator=generator)[:, ::2]
    x[7, 0], x[8, 0] = torch.nan, -torch.inf
    indices = torch.randperm(50, generator=generator)
    ends = [0, 1, 4, 12, 13, 29, 50]
    found = kernels.segment_max(x, indices, torch.tensor(ends), impl=impl)
    rows = [x[indices[a:b]].amax(0) for a, b in pairwise(ends)]
    torch.testing.assert_close(found, torch.stack(rows), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("impl", [REFERENCE, TORCH])
def test_batch_norm(impl):
    generator = torch.Generator().manual_seed(5)
    x, (mean, var, weight, bias) = torch.randn(9, 37, generator=generator), torch.rand(4, 37)
    wanted = torch.nn.functional.batch_norm(
        *(each.double() for each in (x, mean, var, weight, bias)), eps=1e-3
    )
    found = kernels.batch_norm(x, mean, var, weight, bias, 1e-3, impl=impl)
    torch.testing.assert_close(found.double(), wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("counts", [(40,), (16, 17, 5, 32, 1), (3, 3), (33, 2, 48)], ids=str)
def test_patches(counts):
    """Each voxel has a place of its own, patches keep to their cloud, and all of a long one are full."""
    size, batch = 16, torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    pad, unpad, starts = patches(batch, counts, size)
    assert len(pad) == num_padded(counts, size) == starts[-1]
    assert torch.equal(pad[unpad], torch.arange(sum(counts)))
    lengths = starts.diff().tolist()
    for at, length in zip(starts.tolist(), lengths):
        row = pad[at : at + length]
        (of,) = set(batch[row].tolist())
        assert length == min(size, counts[of])
        assert len(set(row.tolist())) == length
        assert int(row.max() - row.min()) == length - 1, "neighbours on the curve"
    assert len(lengths) == sum(-(-count // size) for count in counts)
