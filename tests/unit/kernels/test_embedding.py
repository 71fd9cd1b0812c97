"""embedding: bitwise the rows of the table."""

import pytest
import torch

from fastkernels import kernels
from tests.pointwise_cases import check, embedding_cases, randn
from tests.unit.kernels.implementations import REFERENCE, TORCH


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("case", embedding_cases(), ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, TORCH])
def test_against_the_rows(case, impl, dtype):
    check(case, dtype, impl)
    args = case.make(dtype)
    assert torch.equal(kernels.embedding(*args, impl=impl).double(), case.answer(*args)[0])


@pytest.mark.parametrize("impl", [REFERENCE, TORCH])
def test_an_id_out_of_range(impl):
    with pytest.raises(IndexError):
        kernels.embedding(torch.tensor([11]), randn(11, 4, dtype=torch.float32), impl=impl)
