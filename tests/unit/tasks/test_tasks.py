"""L1 to L3 tasks: equations of their docstrings in plain PyTorch, shapes, dtypes and arguments."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from fastkernels.baseline.L1.embedding import Embedding
from fastkernels.baseline.L1.glu import GeluAndMul, SiluAndMul
from fastkernels.baseline.L1.linear import Linear
from fastkernels.baseline.L1.rms_norm import RMSNorm
from fastkernels.baseline.L1.rope import RotaryEmbedding
from fastkernels.baseline.L1.sampling import Sampler
from fastkernels.baseline.L1.softmax import Softmax
from fastkernels.baseline.L2.gated_mlp import GatedMLP
from fastkernels.baseline.L2.parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from fastkernels.baseline.L2.parallel_linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)

from fastkernels.nn.fusion import apart
from fastkernels.nn.random_weights import random_weights

T, D = 7, 24


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def built(module: torch.nn.Module) -> torch.nn.Module:
    random_weights(module, seed=1)
    return module


def test_rms_norm_alone_on_heads_and_after_a_sum():
    norm = built(RMSNorm(D, eps=0.1))
    x, residual = randn(T, D), randn(T, D, seed=1)

    def expected(s: torch.Tensor) -> torch.Tensor:
        return s / (s.square().mean(-1, keepdim=True) + 0.1).sqrt() * norm.weight

    torch.testing.assert_close(norm(x), expected(x))
    y, total = norm(x, residual)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(y, expected(x + residual))
    packed = randn(T, 5 * D)
    heads = packed[:, D : 4 * D].view(T, 3, D)
    torch.testing.assert_close(norm(heads), expected(heads))


def test_glu():
    x = randn(T, 2 * D)
    gate, up = x.chunk(2, -1)
    torch.testing.assert_close(SiluAndMul()(x), F.silu(gate) * up)
    for approximate in ("none", "tanh"):
        torch.testing.assert_close(GeluAndMul(approximate)(x), F.gelu(gate, approximate=approximate) * up)
    with pytest.raises(ValueError, match="'fast'"):
        GeluAndMul("fast")


def test_rope_turns_pairs_by_their_angle_and_keeps_views_flat():
    rope = RotaryEmbedding(8, 32, {"rope_type": "default", "rope_theta": 100.0})
    qkv = randn(T, 5 * 8)
    q, k, _ = qkv.split([3 * 8, 8, 8], dim=-1)
    positions = torch.tensor([0, 1, 5, 31, 2, 2, 9])
    turned_q, turned_k = rope(positions, q, k)
    assert (turned_q.shape, turned_k.shape) == (q.shape, k.shape)
    angle = positions[:, None] * 100.0 ** (-torch.arange(4) / 4)
    for x, y in ((q, turned_q), (k, turned_k)):
        pairs = torch.complex(*x.reshape(T, -1, 8).split(4, dim=-1)) * torch.exp(1j * angle)[:, None]
        torch.testing.assert_close(y.reshape(T, -1, 8), torch.cat((pairs.real, pairs.imag), dim=-1))
    assert torch.equal(turned_q[0], q[0]), "position 0 is not rotated"
    assert "cos_sin_PR" not in rope.state_dict()


def test_rotary_tables_are_shared_and_follow_the_ambient_dtype_and_device():
    parameters = {"rope_type": "default", "rope_theta": 100.0}
    first, second = (RotaryEmbedding(8, 32, dict(parameters)).cos_sin_PR for _ in range(2))
    assert first.data_ptr() == second.data_ptr()
    assert first.dtype == torch.float32
    torch.set_default_dtype(torch.bfloat16)
    try:
        half = RotaryEmbedding(8, 32, parameters).cos_sin_PR
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(half, first.to(torch.bfloat16))
    with torch.device("meta"):
        assert RotaryEmbedding(8, 32, parameters).cos_sin_PR.is_meta


@pytest.mark.parametrize("bias", [False, True])
def test_linear_and_its_packings(bias: bool):
    x = randn(T, D)
    sizes = {
        Linear(D, 10, bias): 10,
        ColumnParallelLinear(D, 10, bias): 10,
        RowParallelLinear(D, 10, bias): 10,
        MergedColumnParallelLinear(D, [4, 6], bias): 10,
        QKVParallelLinear(D, 8, 4, 2, bias): (4 + 2 + 2) * 8,
    }
    for module, size in sizes.items():
        parameters = dict(built(module).named_parameters())
        prefix = "" if isinstance(module, Linear) else "linear."
        assert set(parameters) == {f"{prefix}weight"} | ({f"{prefix}bias"} if bias else set())
        assert not any(parameter.requires_grad for parameter in parameters.values())
        weight = parameters[f"{prefix}weight"]
        assert weight.shape == (size, D)
        torch.testing.assert_close(module(x), F.linear(x, weight, parameters.get(f"{prefix}bias")))
    assert MergedColumnParallelLinear(D, [4, 6]).output_sizes == [4, 6]
    assert QKVParallelLinear(D, 8, 4, 2).output_sizes == [32, 16, 16]


def test_embedding_and_head():
    ids = torch.tensor([3, 0, 9, 3])
    for module in (Embedding(10, D), VocabParallelEmbedding(10, D)):
        (weight,) = built(module).parameters()
        assert torch.equal(module(ids), weight[ids])
    head = built(ParallelLMHead(10, D)).to(torch.bfloat16)
    hidden = randn(T, D).to(torch.bfloat16)
    logits = head(hidden)
    assert logits.dtype == torch.float32
    wide = F.linear(hidden.double(), head.linear.weight.double())
    torch.testing.assert_close(logits.double(), wide, rtol=1e-5, atol=1e-5)
    with apart(head):
        assert torch.equal(head(hidden), F.linear(hidden, head.linear.weight).float())
    head.linear = torch.nn.Linear(D, 10, bias=False, dtype=torch.bfloat16)
    assert not head.fuses
    assert torch.equal(head(hidden), F.linear(hidden, head.linear.weight).float())
    assert head.to(torch.float64)(hidden.double()).dtype == torch.float64


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("bias", [False, True])
def test_gated_mlp(activation: str, bias: bool):
    mlp = built(GatedMLP(D, 20, activation, bias))
    act = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda z: F.gelu(z, approximate="tanh")}[activation]
    x = randn(T, D)
    gate, up = mlp.gate_up_proj(x).chunk(2, -1)
    down = mlp.down_proj.linear
    torch.testing.assert_close(mlp(x), F.linear(act(gate) * up, down.weight, down.bias))
    assert (down.bias is not None) == bias
    with pytest.raises(ValueError, match="'relu'"):
        GatedMLP(D, 20, "relu")


def test_softmax_and_sampler():
    logits = randn(4, 50)
    torch.testing.assert_close(Softmax()(logits), logits.softmax(-1))
    seeds, positions = torch.arange(4), torch.full((4,), 7)
    ids = Sampler()(logits, torch.zeros(4), None, None, seeds, positions)
    assert torch.equal(ids, logits.argmax(-1))
    top_k = torch.ones(4, dtype=torch.int32)
    assert torch.equal(Sampler()(logits, torch.ones(4), top_k, None, seeds, positions), ids)
