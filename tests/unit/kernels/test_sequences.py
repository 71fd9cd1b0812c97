"""The kernels of nets over short sequences: every implementation on this machine against formulas in
float64."""

from __future__ import annotations

import pytest
import torch

from fastkernels import kernels
from fastkernels.kernels import registered
from tests.pointwise_cases import check
from tests.sequence_cases import CONVOLUTIONS, NORMS, TRANSPOSED, convolution_cases, film_cases
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

CASES = [*convolution_cases(CONVOLUTIONS, TRANSPOSED), *film_cases(NORMS)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_against_formulas(case, impl, dtype):
    check(case, dtype, impl)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_is_exact_in_float64(case):
    args = case.make(torch.float64)
    found = registered[case.kernel](*args, impl="reference")
    torch.testing.assert_close(found, case.answer(*args)[0], rtol=1e-12, atol=1e-12)
    on_meta = [arg.to("meta") if isinstance(arg, torch.Tensor) else arg for arg in args]
    assert registered[case.kernel](*on_meta).shape == found.shape


@pytest.mark.parametrize("impl", [REFERENCE, TORCH])
def test_the_largest_of_tokens(impl):
    x = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0)) - 9
    assert torch.equal(kernels.max_tokens(x, impl=impl), x.sort(1).values[:, -1])
    x[1, 2, 3] = torch.nan
    assert kernels.max_tokens(x, impl=impl).isnan().nonzero().tolist() == [[1, 3]]


def test_what_does_not_fit_is_refused():
    x, c = torch.ones(2, 8, 4), torch.ones(8)
    with pytest.raises(ValueError, match="8 channels are no 3 groups"):
        kernels.group_norm_film(x, c, c, None, None, None, 3, 1e-5)
    with pytest.raises(ValueError, match="come together"):
        kernels.group_norm_film(x, c, c, torch.ones(2, 8), None, None, 4, 1e-5)
    with pytest.raises(ValueError, match=r"residual is \[2, 8, 1\], it must be \[2, 8, 4\]"):
        kernels.group_norm_film(x, c, c, None, None, x[..., :1], 4, 1e-5)
    with pytest.raises(ValueError, match="at least one token"):
        kernels.max_tokens(x[:, :0])
    long = (torch.ones(1, 4, 65), torch.ones(2, 4, 3), None, 1, 1)
    assert "up to 64 frames" in registered["conv1d"].implementation("triton").limits("conv1d")(*long)
