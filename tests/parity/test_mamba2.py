"""Our Mamba 2 against transformers, float32 on the CPU, the tiny configuration with randomised weights.

transformers' norm behind the gate ignores groups, so it answers with one group; more groups are compared with
it after its norm got the groups of the reference that fla ships.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fastkernels.baseline.L4.mamba2 import Mamba2ForCausalLM
from torch import Tensor, nn
from transformers import Mamba2Config, PreTrainedModel
from transformers.models.mamba2.modeling_mamba2 import Mamba2ForCausalLM as HfMamba2

from fastkernels import LLM, kernels, registry
from fastkernels.errors import UsageError
from fastkernels.nn.cache import cache_owners
from fastkernels.nn.weights import destinations, load_weights
from tests.mamba_cases import ssd
from tests.parity.continuation import continuation
from tests.parity.preemption import preempted
from tests.parity.test_llama import places_of, prompt, run
from tests.parity.test_mamba import (
    GREEDY,
    LENGTHS,
    NEW_TOKENS,
    PROMPT,
    TOLERANCE,
    close,
    mixer,
    randomise,
    same,
)

CONFIGS = {name: config.config for name, config in registry.architecture("mamba2").configs.items()}
TINY: dict[str, Any] = CONFIGS["tiny"]
VARIANTS: dict[str, dict[str, Any]] = {
    "one group": {"n_groups": 1},
    "tiny": {},
    "biases": {
        "n_groups": 1,
        "use_bias": True,
        "use_conv_bias": False,
        "conv_kernel": 3,
        "state_size": 8,
        "num_heads": 3,
        "head_dim": 64,
        "expand": 3,
        "tie_word_embeddings": True,
    },
}


@lru_cache
def reference(name: str = "one group") -> PreTrainedModel:
    config = Mamba2Config(**TINY | VARIANTS[name])
    model = HfMamba2(config).float().eval()
    randomise(model)
    if config.n_groups > 1:
        for block in model.backbone.layers:
            block.mixer.norm.forward = MethodType(grouped(config.n_groups), block.mixer.norm)
    return model


def grouped(groups: int):
    """The forward of a norm behind a gate over each of some groups."""

    def forward(self: nn.Module, hidden_states: Tensor, gate: Tensor) -> Tensor:
        opened = (hidden_states.double() * F.silu(gate.double())).unflatten(-1, (groups, -1))
        normed = opened / (opened.square().mean(-1, keepdim=True) + self.variance_epsilon).sqrt()
        return (normed.flatten(-2) * self.weight.double()).to(hidden_states.dtype)

    return forward


def loaded(name: str = "one group", dtype: torch.dtype = torch.float32) -> Mamba2ForCausalLM:
    model = Mamba2ForCausalLM(TINY | VARIANTS[name]).to(dtype).eval().requires_grad_(False)
    load_weights(model, reference(name).state_dict().items())
    return model


ours = lru_cache(loaded)


@lru_cache
@torch.inference_mode()
def expected(name: str = "one group", length: int = PROMPT) -> Tensor:
    """Logits of transformers on the prompt of this length."""
    return reference(name)(prompt(length)[None]).logits[0]


@pytest.mark.parametrize(
    ("name", "length"), [("one group", 1), ("one group", PROMPT), ("tiny", PROMPT), ("biases", PROMPT)]
)
@torch.inference_mode()
def test_logits(name: str, length: int):
    assert expected(name).std() > 0.5, "weights too small for a strong test"
    (hidden_TD,) = run(ours(name), [prompt(length)], [{0: length}])
    actual_TV = ours(name).compute_logits(hidden_TD)
    assert actual_TV.dtype == torch.float32
    close(actual_TV, expected(name, length))


def test_the_grouped_norm_is_that_of_flash_linear_attention():
    """Its reference in PyTorch, of which one group is not two."""
    layernorm_gated = pytest.importorskip("fla.modules.layernorm_gated")
    x, gate, weight = (torch.randn(*shape) for shape in ((5, 32), (5, 32), (32,)))
    found = {}
    for groups in (1, 2):
        shape = (5, groups, 32 // groups)
        found[groups] = kernels.gated_rms_norm(
            x.view(shape), gate.view(shape), weight.view(shape[1:]), 1e-5, True
        ).view(5, 32)
        theirs = layernorm_gated.rms_norm_ref(
            x, weight, None, gate, 1e-5, group_size=32 // groups, norm_before_gate=False
        )
        torch.testing.assert_close(found[groups], theirs, rtol=1e-5, atol=1e-5)
    assert (found[1] - found[2]).abs().max() > 0.1


@pytest.mark.parametrize("implementation", ["reference", "torch"])
def test_the_scan_is_that_of_flash_linear_attention(implementation: str):
    """Its reference in PyTorch: C, B, step x and step A are queries, keys, values and gates; no D there."""
    naive = pytest.importorskip("fla.ops.simple_gla.naive")
    case = ssd((37,), heads=4, groups=2)
    (x, dt, b, c), (a_log, d, bias) = case.tokens, case.others
    step, (b, c) = F.softplus(dt + bias), (t.repeat_interleave(2, 1) for t in (b, c))
    start = case.state[case.rows_B].transpose(-1, -2)
    given = (t[None] for t in (c, b, step[..., None] * x, -step * a_log.exp()))
    theirs, left = naive.naive_recurrent_simple_gla(
        *given, scale=1.0, initial_state=start, output_final_state=True
    )
    y, state = case.run(implementation)
    torch.testing.assert_close(y, theirs[0] + d[:, None] * x, rtol=1e-4, atol=1e-4)
    same(state[case.rows_B], left.transpose(-1, -2))


@torch.inference_mode()
def test_decode_steps_and_states_are_those_of_transformers():
    """Logits of five steps behind a prompt; then the convolution's inputs and the scan's states."""
    ids_T = prompt(PROMPT + 5)
    cache, steps = reference()(ids_T[None, :PROMPT], use_cache=True).cache_params, []
    for i in range(PROMPT, PROMPT + 5):
        out = reference()(ids_T[None, i : i + 1], cache_params=cache, use_cache=True)
        steps.append(out.logits[0])
    (hidden_TD,) = run(ours(), [ids_T], [{0: PROMPT}, *[{0: 1}] * 5])
    close(ours().compute_logits(hidden_TD[PROMPT:]), torch.cat(steps))
    row = places_of([ids_T])[0]
    for (_, owner), theirs in zip(cache_owners(ours()), cache.layers, strict=True):
        same(owner.conv_state[row], theirs.conv_states[0][0, :, -3:].T)
        same(owner.ssm_state[row], theirs.recurrent_states[0][0])


@pytest.mark.parametrize("implementation", ["reference", "torch"])
@pytest.mark.parametrize("chunks", [(33, 1, 1, 1, 1), (2, 1, 67), (1,) * PROMPT])
@torch.inference_mode()
def test_chunks_and_decode_steps_equal_one_forward_in_float64(chunks: tuple[int, ...], implementation: str):
    """The chunked form and the recurrence; more than one chunk of the kernel, and pieces shorter than a
    convolution's past."""
    model, ids_T = ours("tiny", dtype=torch.float64), prompt(sum(chunks))
    (whole_TD,) = run(model, [ids_T], [{0: len(ids_T)}], dtype=torch.float64)
    with kernels.use(ssd_scan=implementation):
        (hidden_TD,) = run(model, [ids_T], [{0: n} for n in chunks], dtype=torch.float64)
    torch.testing.assert_close(hidden_TD, whole_TD, rtol=0, atol=1e-11)


@torch.inference_mode()
def test_a_batch_of_mixed_lengths_equals_single_runs():
    lengths = (37, 1, 17, 33, 9)
    schedule = [
        {0: 20, 1: 1, 2: 16},  # prefill of unequal lengths, one of them a single token
        {0: 16, 2: 1, 3: 20},  # decode beside a chunk and a new row
        {0: 1, 3: 1, 4: 9},
        {3: 12},
    ]
    for length, hidden_TD in zip(lengths, run(ours(), [prompt(n) for n in lengths], schedule), strict=True):
        close(ours().compute_logits(hidden_TD), expected(length=length))


def rolled(parameter: str, start: int, stop: int, by: int):
    """Rows `start` to `stop` of a parameter of the first mixer, in another order."""

    def change(m: Any) -> None:
        rows = m.get_parameter(parameter)[start:stop]
        rows.copy_(rows.roll(by, 0))

    return mixer(change)


def tiled(m: Any) -> None:
    """Groups as if every second head had the first one's B and C."""
    m.scan.forward = lambda x, dt, b, c, *rest: kernels.ssd_scan(
        x, dt, *(t.repeat(1, x.shape[1] // t.shape[1], 1) for t in (b, c)), *rest
    )


def norm_of_one_group(m: Any) -> None:
    m.norm.groups = (1, 128)


MISTAKES = {
    "x before z": rolled("in_proj.linear.weight", 0, 256, 128),
    "C before B": rolled("in_proj.linear.weight", 256, 320, 32),
    "another head's step": rolled("in_proj.linear.weight", 320, 328, 1),
    "tiled groups": mixer(tiled),
    "a norm of one group": mixer(norm_of_one_group),
    "no bias of the step": mixer(lambda m: m.dt_bias.zero_()),
    "no bias of the convolution": mixer(lambda m: m.conv_bias.zero_()),
    "no D": mixer(lambda m: m.D.zero_()),
    "A without its exponential": mixer(lambda m: m.A_log.log_()),
    "another epsilon": mixer(lambda m: setattr(m.norm, "eps", 1e-2)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@torch.inference_mode()
def test_a_wrong_model_would_be_noticed(mistake: str):
    wrong = loaded("tiny")
    MISTAKES[mistake](wrong)
    (hidden_TD,) = run(wrong, [prompt(PROMPT)], [{0: PROMPT}])
    assert (wrong.compute_logits(hidden_TD) - expected("tiny")).abs().max() > 10 * TOLERANCE


# ---------------------------------------------------------------- generation


@lru_cache
def text(length: int) -> list[int]:
    """transformers' greedy continuation of the prompt of this length."""
    return continuation(reference(), prompt(length), NEW_TOKENS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("mamba2")
    reference().save_pretrained(path)
    return path


@pytest.mark.parametrize(
    "engine", [{}, {"max_num_batched_tokens": 16, "max_num_seqs": 3}], ids=["batched", "chunked"]
)
def test_greedy_text_is_that_of_transformers(folder: Path, engine: dict[str, int]):
    llm = LLM(folder, device="cpu", max_model_len=256, **engine)
    outputs = llm.generate([prompt(n).tolist() for n in LENGTHS], GREEDY)
    assert [out.outputs[0].token_ids for out in outputs] == [text(n) for n in LENGTHS]
    assert llm.stats()["cache_blocks"] == []


def test_preempted_requests_continue_as_if_nothing_had_happened(folder: Path):
    found, preemptions = preempted(folder, {n: prompt(n).tolist() for n in LENGTHS}, GREEDY)
    assert found == {n: text(n) for n in LENGTHS}
    assert preemptions > 5


# ---------------------------------------------------------------- weights and configuration


def names_of_the_sheet(layers: int) -> set[str]:
    mixer = ["in_proj.weight", "conv1d.weight", "conv1d.bias", "A_log", "D", "dt_bias"]
    parts = ["norm.weight", *(f"mixer.{name}" for name in (*mixer, "norm.weight", "out_proj.weight"))]
    each = {f"backbone.layers.{i}.{part}" for i in range(layers) for part in parts}
    return {"backbone.embeddings.weight", "backbone.norm_f.weight", "lm_head.weight", *each}


def test_every_tensor_of_the_real_checkpoint_has_its_place():
    with torch.device("meta"):
        model, theirs = Mamba2ForCausalLM(CONFIGS["7b"]), HfMamba2(Mamba2Config(**CONFIGS["7b"]))
    places, unnamed = destinations(model)
    shapes = {name: list(place.shape) for name, place in places.items()}
    assert shapes == {name: list(tensor.shape) for name, tensor in theirs.state_dict().items()}
    assert shapes.keys() == names_of_the_sheet(64)
    assert unnamed == []
    assert sum(parameter.numel() for parameter in model.parameters()) == 7_285_403_648


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "gelu"),
        ("conv_kernel", 1),
        ("num_heads", 7),
        ("n_groups", 3),
        ("time_step_limit", [0.0, 0.1]),
        ("model_type", "mamba"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_key(key: str, value: object):
    with pytest.raises(UsageError, match=key):
        Mamba2ForCausalLM(TINY | {key: value})
