"""mla_decode, mla_prefill and store_latent: every implementation on this machine against float64."""

from __future__ import annotations

import pytest
import torch

from fastkernels.errors import KernelError
from tests.mla_case import SIZES, check, make, stored
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

ALL = [REFERENCE, TORCH, TRITON]
# (query tokens, tokens in the cache with them): a prompt, a chunk behind others, one token, none.
ROWS = [[(1, 1)], [(37, 37)], [(5, 70), (1, 33), (0, 0), (16, 16)]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize("impl", ALL)
def test_prefill(impl, rows, dtype):
    check(make(rows, dtype=dtype), impl)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lens", [(1,), (200, 16, 33)], ids=str)
@pytest.mark.parametrize("impl", ALL)
def test_decode(impl, lens, dtype):
    """More keys than one split has."""
    check(make([(1, n) for n in lens], dtype=dtype), impl, is_decode=True)


@pytest.mark.parametrize("impl", ALL)
def test_a_decode_row_of_padding_is_zeros(impl):
    o_BHL = make([(1, 20), (1, 0), (1, 3)]).run(impl, is_decode=True)
    assert (o_BHL[1] == 0).all()
    assert (o_BHL[[0, 2]].abs().sum((1, 2)) > 0).all()


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("impl", ALL)
def test_other_sizes(impl, sizes):
    check(make([(3, 20), (2, 2)], *sizes), impl)
    check(make([(1, 20), (1, 2)], *sizes), impl, is_decode=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("impl", ALL)
def test_stores_latents_at_their_slots(impl, dtype):
    stored(impl, dtype)


@pytest.mark.parametrize("impl", [TRITON])
def test_what_the_kernels_cannot_serve_is_refused(impl):
    for bad, reason in (
        (make([(2, 2)], 4, 600, 8), "512 latent features"),
        (make([(2, 2)], block_size=6), "power of two"),
        (make([(2, 2)], dtype=torch.float64), "float64"),
    ):
        with pytest.raises(KernelError, match=reason):
            bad.run(impl)
