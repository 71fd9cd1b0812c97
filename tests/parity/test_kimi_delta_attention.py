"""Our Kimi Delta Attention against transformers' block, float32 on the CPU, with randomised weights."""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import Any

import pytest
import torch
from fastkernels.baseline.L2.kda_attention import KimiDeltaAttention
from torch import Tensor
from transformers.models.kimi_linear import modeling_kimi_linear as theirs_module
from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig

from fastkernels import kernels
from fastkernels.nn.cache import allocate_states
from fastkernels.nn.context import use_step
from fastkernels.nn.random_weights import random_weights
from tests.helpers import make_step

TOLERANCE = 1e-5  # of outputs with a std of about 1; measured: 1.5e-6
WIDTH, HEADS, DIM = 64, 4, 16
for name in ("chunk_kimi_delta_attention", "recurrent_kimi_delta_attention"):
    setattr(theirs_module, name, inspect.unwrap(getattr(theirs_module, name)))


@lru_cache
def reference() -> Any:
    linear = {"head_dim": DIM, "num_heads": HEADS, "short_conv_kernel_size": 4}
    linear |= {"kda_layers": [1], "full_attn_layers": []}
    config = KimiLinearConfig(
        hidden_size=WIDTH, num_hidden_layers=1, linear_attn_config=linear, rms_norm_eps=1e-5
    )
    block = theirs_module.KimiLinearDeltaAttention(config, 0).float().eval().requires_grad_(False)
    random_weights(block, seed=0)
    generator = torch.Generator().manual_seed(1)
    block.forget_gate.A_log.uniform_(-2.0, 1.5, generator=generator)
    block.forget_gate.dt_bias.uniform_(-3.0, 1.0, generator=generator)
    return block


def ours() -> KimiDeltaAttention:
    block, theirs = KimiDeltaAttention(WIDTH, HEADS, DIM).requires_grad_(False), reference()
    gate = theirs.forget_gate
    read = (theirs.q_proj, theirs.k_proj, theirs.v_proj, gate.f_a_proj, theirs.g_a_proj, theirs.b_proj)
    block.in_proj.linear.weight.copy_(torch.cat([each.weight for each in read]))
    for mine, other in (
        (block.conv_weight, theirs.conv1d.weight),
        (block.f_b_proj.linear.weight, gate.f_b_proj.weight),
        (block.g_b_proj.linear.weight, theirs.g_b_proj.weight),
        (block.A_log, gate.A_log.flatten()),
        (block.dt_bias, gate.dt_bias),
        (block.o_norm.weight, theirs.o_norm.weight),
        (block.o_proj.linear.weight, theirs.o_proj.weight),
    ):
        mine.copy_(other)
    return block


@lru_cache
def hidden() -> Tensor:
    return torch.randn(70, WIDTH, generator=torch.Generator().manual_seed(2))


@lru_cache
@torch.inference_mode()
def expected() -> Tensor:
    return reference()(hidden()[None])[0]


@torch.inference_mode()
def run(block: KimiDeltaAttention, chunks: tuple[int, ...]) -> Tensor:
    """The tokens in pieces, beside a row of nobody whose states are NaN."""
    (conv, state) = allocate_states(block, 3, torch.float32, "cpu")
    for pool in (conv, state):
        pool[:, 1] = torch.nan
    found, done = [], 0
    for count in chunks:
        with use_step(make_step([count], [done + count], 4, rows=[2])):
            found.append(block(hidden()[done : done + count]))
        done += count
    return torch.cat(found)


@pytest.mark.parametrize("implementation", ["reference", "torch"])
@pytest.mark.parametrize("chunks", [(70,), (24, 16, 30), (66, 1, 1, 1, 1), (2, 1, 67)])
def test_outputs(chunks: tuple[int, ...], implementation: str):
    """Long and short pieces, and steps of one token; more than one chunk of a kernel."""
    assert expected().std() > 0.3, "weights too small for a strong test"
    with kernels.use(chunk_delta_rule=implementation):
        found_TD = run(ours(), chunks)
    torch.testing.assert_close(found_TD, expected(), rtol=TOLERANCE, atol=TOLERANCE)


def rolled(start: int, stop: int, by: int) -> Any:
    def change(m: Any) -> None:
        rows = m.in_proj.linear.weight[start:stop]
        rows.copy_(rows.roll(by, 0))

    return change


def one_gate_of_a_head(m: Any) -> None:
    chunk = m.chunk.forward
    m.chunk.forward = lambda q, k, v, g, *rest: chunk(q, k, v, g.mean(-1, keepdim=True).expand_as(g), *rest)


MISTAKES = {
    "a gate of silu": lambda m: setattr(m.o_norm, "activation", "silu"),
    "decay and output gate exchanged": rolled(192, 224, 16),
    "another head's beta": rolled(224, 228, 1),
    "keys before queries": rolled(0, 128, 64),
    "no bias of the step": lambda m: m.dt_bias.zero_(),
    "another head's rate": lambda m: m.A_log.copy_(m.A_log.roll(1)),
    "one gate of a head": one_gate_of_a_head,
    "another epsilon": lambda m: setattr(m.o_norm, "eps", 1e-2),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_block_would_be_noticed(mistake: str):
    wrong = ours()
    with torch.inference_mode():
        MISTAKES[mistake](wrong)
    assert (run(wrong, (70,)) - expected()).abs().max() > 100 * TOLERANCE


def test_the_order_of_tokens_matters_without_positions():
    order = torch.arange(70)
    order[[3, 40]] = order[[40, 3]]
    with torch.inference_mode():
        swapped = reference()(hidden()[order][None])[0]
    assert (swapped[-1] - expected()[-1]).abs().max() > 100 * TOLERANCE
