"""rope against complex multiplication in float64; frequencies against published values and transformers."""

import gc
import weakref

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from fastkernels import kernels
from fastkernels.errors import UsageError
from fastkernels.kernels.rope.tables import frequencies, rotary_table
from tests.pointwise_cases import check, rope_cases
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

# (T, H, J, K, R): grouped heads, one head, more key than query heads, a partial rotation, odd halves, no
# token.
CASES = rope_cases([
    (9, 4, 2, 16, 16), (1, 1, 1, 64, 64), (3, 2, 5, 8, 8), (4, 6, 3, 24, 16), (5, 3, 1, 14, 10),
    (2, 20, 4, 128, 128), (0, 4, 2, 16, 16),
])  # fmt: skip

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
TINY = {**LLAMA3, "original_max_position_embeddings": 40}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 2048}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_against_the_formula(case, impl, dtype):
    if impl == "torch" and dtype != torch.float32:
        reason = kernels.registered["rope"].why_not("torch", case.make(dtype))
        assert reason
        assert "16-bit" in reason
        return
    check(case, dtype, impl)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, TORCH])
def test_exact_in_float64(case, impl):
    args = case.make(torch.float64)
    for got, exact in zip(kernels.rope(*args, impl=impl), case.answer(*args), strict=True):
        torch.testing.assert_close(got, exact, rtol=1e-14, atol=1e-14)


def test_frequencies_of_llama_3_1_8b():
    """29 kept, 6 interpolated, 29 divided by 8; single values from the model's published configuration."""
    frequency, amplitude = frequencies(128, LLAMA3)
    plain, _ = frequencies(128, {"rope_theta": 500000.0})
    assert amplitude == 1.0
    assert frequency.dtype == torch.float32
    assert frequency.shape == (64,)
    assert torch.equal(frequency[:29], plain[:29])
    assert torch.equal(frequency[35:], plain[35:] / 8)
    assert (frequency[29:35] < plain[29:35]).all()
    assert (frequency[29:35] > plain[29:35] / 8).all()
    known = {
        28: 3.211446e-3,
        29: 2.166571e-3,
        31: 8.567514e-4,
        34: 1.785078e-4,
        35: 9.556212e-5,
        63: 3.068926e-7,
    }
    for index, value in known.items():
        assert frequency[index].item() == pytest.approx(value, rel=5e-7)


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "default", "rope_theta": 10000.0},
        LLAMA3,
        TINY,
        YARN,
        {**YARN, "truncate": False, "beta_fast": 16, "beta_slow": 2},
        {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3},
        {**YARN, "attention_factor": 1.25},
        {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    ],
    ids=lambda p: f"{p['rope_type']}-{len(p)}-{p.get('original_max_position_embeddings')}",
)
@pytest.mark.parametrize("head_dim", [16, 128])
def test_frequencies_are_those_of_transformers(parameters, head_dim):
    config = LlamaConfig(
        hidden_size=4 * head_dim, num_attention_heads=4, head_dim=head_dim, max_position_embeddings=8192,
        rope_parameters=dict(parameters),
    )  # fmt: skip
    frequency, amplitude = frequencies(head_dim, parameters)
    if parameters["rope_type"] == "default":
        expected, factor = 1.0 / (10000.0 ** (torch.arange(0, head_dim, 2).float() / head_dim)), 1.0
    else:
        expected, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu")
    assert torch.equal(frequency, expected), "not bitwise: angles at long positions would differ"
    assert amplitude == pytest.approx(factor, rel=1e-12)


def test_table_rows():
    table = rotary_table(16, 50, {"rope_theta": 100.0, "partial_rotary_factor": 0.5})
    assert table.shape == (50, 8)
    assert table.dtype == torch.float32
    angles = 49 * 100.0 ** (-torch.arange(0, 8, 2).double() / 8)
    torch.testing.assert_close(table[49].double(), torch.cat((angles.cos(), angles.sin())), rtol=0, atol=1e-5)
    assert torch.equal(table[0], torch.tensor([1.0] * 4 + [0.0] * 4))


def test_table_keeps_long_positions_apart_in_bf16():
    """Angles made in bf16 would repeat beyond position 256; rounded cosines of float32 angles do not."""
    exact = rotary_table(16, 4096, TINY, torch.float64)
    rounded = rotary_table(16, 4096, TINY, torch.bfloat16)
    assert (rounded.double() - exact).abs().max() <= 2**-8


def test_layers_share_one_table_until_nobody_needs_it():
    first = rotary_table(16, 30, dict(TINY))
    assert rotary_table(16, 30, dict(reversed(TINY.items())), device="cpu") is first
    assert rotary_table(16, 31, TINY) is not first
    assert rotary_table(16, 30, TINY, torch.bfloat16) is not first
    gone = weakref.ref(first)
    del first
    gc.collect()
    assert gone() is None


def test_table_on_the_default_device_and_outside_inference_mode():
    with torch.device("meta"):
        assert rotary_table(16, 30, TINY).device.type == "meta"
    with torch.inference_mode():
        table = rotary_table(16, 29, TINY)
    assert not table.is_inference()


def test_bad_parameters():
    with pytest.raises(UsageError, match=r"'dynamic'.*default, llama3, yarn"):
        rotary_table(16, 8, {"rope_type": "dynamic", "rope_theta": 1e4})
    with pytest.raises(UsageError, match="'llama3' lack 'factor'"):
        rotary_table(16, 8, {"rope_type": "llama3", "rope_theta": 1e4})
