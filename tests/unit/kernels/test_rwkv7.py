"""chunk_rwkv7, recurrent_rwkv7 and token_shift: every implementation on this machine against one token at a
time in float64."""

import itertools

import pytest
import torch

from fastkernels.errors import KernelError
from fastkernels.kernels import registered
from tests.mamba_cases import check, worst
from tests.rwkv7_cases import LEAST, heads, shift
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

EVERY = [REFERENCE, TRITON]
CHUNKED = [REFERENCE, TORCH, TRITON]
# Around chunks of 16 and 64 tokens: one token, exactly one chunk, one more, several rows, one without a token.
LENGTHS = [(1,), (64,), (65, 1, 15), (0, 40, 0, 17), ()]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lens", LENGTHS, ids=str)
@pytest.mark.parametrize("impl", CHUNKED)
def test_chunks_against_the_recurrence(impl, lens, dtype):
    check(heads(lens, dtype=dtype), impl)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("impl", EVERY)
def test_steps_against_the_recurrence(impl, rows, dtype):
    check(heads((1,) * rows, dtype=dtype), impl, is_update=True)
