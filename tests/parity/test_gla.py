"""Our GLA against its equations in float64, and against its production reference where that is installed.

float32 on the CPU, the tiny configuration, every parameter random.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from fastkernels.baseline.L4.gla import GLAForCausalLM
from safetensors.torch import save_file
from torch import Tensor, nn

from fastkernels import LLM, SamplingParams, kernels, registry
from fastkernels.errors import UsageError, WeightsError
from fastkernels.nn.cache import allocate_states
from fastkernels.nn.context import use_step
from fastkernels.nn.weights import export_weights, load_weights
from tests.helpers import make_positions, make_step
from tests.parity import gla_equations as equations
from tests.parity.preemption import preempted

TOLERANCE = 2e-5  # of logits with a std of about 1; measured: 2e-6
PRODUCTION_TOLERANCE = 1e-4  # between the equations and the production kernels in float32; measured: 2.5e-6
CONFIG: dict[str, Any] = registry.architecture("gla").configs["tiny"].config
LENGTHS = (5, 17, 33, 2, 64, 1, 9, 40)
NEW_TOKENS = 24


@lru_cache
def checkpoint() -> dict[str, Tensor]:
    return equations.random_checkpoint(CONFIG)


@lru_cache
def ours() -> GLAForCausalLM:
    model = GLAForCausalLM(CONFIG).eval().requires_grad_(False)
    load_weights(model, checkpoint().items())
    return model


@lru_cache
def prompt(length: int) -> list[int]:
    return torch.randint(3, 256, (length,), generator=torch.Generator().manual_seed(length)).tolist()


@lru_cache
def expected(length: int) -> Tensor:
    return equations.logits(CONFIG, checkpoint(), prompt(length))


@torch.inference_mode()
def run(
    model: GLAForCausalLM, prompts: Sequence[list[int]], schedule: Sequence[dict[int, int]]
) -> list[Tensor]:
    """Logits of each prompt; a step of the schedule says how many tokens of which prompts it takes."""
    allocate_states(model, len(prompts) + 3, torch.float32, "cpu")
    places = (torch.randperm(len(prompts) + 2, generator=torch.Generator().manual_seed(5)) + 1).tolist()
    done, parts = [0] * len(prompts), [[] for _ in prompts]
    for counts in schedule:
        rows = sorted(counts, key=lambda row: not (counts[row] == 1 and done[row] > 0))
        query_lens = [counts[row] for row in rows]
        seq_lens = [done[row] + counts[row] for row in rows]
        ids = [token for row in rows for token in prompts[row][done[row] : done[row] + counts[row]]]
        step = make_step(query_lens, seq_lens, rows=[places[row] for row in rows])
        with use_step(step):
            hidden_TD = model(torch.tensor(ids), make_positions(query_lens, seq_lens))
        for row, part_TV in zip(rows, model.compute_logits(hidden_TD).split(query_lens), strict=True):
            parts[row].append(part_TV)
            done[row] += counts[row]
    assert done == [len(one) for one in prompts], "the schedule must cover every prompt"
    return [torch.cat(part) for part in parts]


def close(actual: Tensor, truth: Tensor, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(actual.double(), truth, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("implementation", [None, "reference", "torch"])
@pytest.mark.parametrize("length", [1, 24, 64, 100])
def test_logits_are_those_of_the_equations(length: int, implementation: str | None):
    assert expected(64).std() > 0.5, "weights too small for a strong test"
    with kernels.use(**({} if implementation is None else dict.fromkeys(("chunk_gla",), implementation))):
        (logits_TV,) = run(ours(), [prompt(length)], [{0: length}])
    assert logits_TV.dtype == torch.float32
    close(logits_TV, expected(length))


@pytest.mark.parametrize("chunks", [(60, 1, 1, 1, 1), (17, 30, 17), (16, 48), (63, 1), (1, 2, 61), (1,) * 64])
def test_chunks_and_decode_steps_equal_one_forward(chunks: tuple[int, ...]):
    (logits_TV,) = run(ours(), [prompt(64)], [{0: count} for count in chunks])
    close(logits_TV, expected(64))


def test_a_batch_of_mixed_lengths_equals_single_runs():
    lengths = (64, 1, 17, 33, 9)
    schedule = [
        {0: 30, 1: 1, 2: 16},  # prefill of unequal lengths, one of them a single token
        {0: 33, 2: 1, 3: 20},  # decode beside a chunk and a new row
        {0: 1, 3: 1, 4: 9},
        {3: 12},
    ]
    for length, logits_TV in zip(lengths, run(ours(), [prompt(n) for n in lengths], schedule), strict=True):
        close(logits_TV, expected(length))


def test_a_wrong_model_would_be_noticed():
    """The tolerance sees a gate divided by 15, one without its bias, and a head norm of another epsilon."""
    for change in (
        lambda layer: setattr(layer.attn.log_sigmoid, "divisor", 15.0),
        lambda layer: setattr(layer.attn.norm, "eps", 1e-2),
        lambda layer: layer.attn.gate_proj.linear.bias.zero_(),
    ):
        model = GLAForCausalLM(CONFIG).eval().requires_grad_(False)
        load_weights(model, checkpoint().items())
        change(model.layers[1])
        (logits_TV,) = run(model, [prompt(64)], [{0: 64}])
        assert (logits_TV - expected(64)).abs().max() > 10 * TOLERANCE


# ---------------------------------------------------------------- generation


@lru_cache
def text(length: int) -> list[int]:
    return equations.greedy(CONFIG, checkpoint(), prompt(length), NEW_TOKENS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The checkpoint as it would be published."""
    path = tmp_path_factory.mktemp("gla")
    save_file(checkpoint(), path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)


@pytest.mark.parametrize(
    "engine",
    [{}, {"max_num_batched_tokens": 16}, {"max_num_seqs": 3}, {"max_num_seqs": 1}],
    ids=["batched", "chunked", "three-rows", "alone"],
)
def test_greedy_text_is_that_of_the_equations(folder: Path, engine: dict[str, int]):
    llm = LLM(folder, device="cpu", **engine)
    outputs = llm.generate([prompt(n) for n in LENGTHS], GREEDY)
    assert [out.outputs[0].token_ids for out in outputs] == [text(n) for n in LENGTHS]
    assert llm.stats()["cache_blocks"] == []


def test_preempted_requests_continue_as_if_nothing_had_happened(folder: Path):
    found, preemptions = preempted(folder, {n: prompt(n) for n in LENGTHS}, GREEDY)
    assert found == {n: text(n) for n in LENGTHS}
    assert preemptions > 10


def test_forced_decoding_scores_the_forced_ids(folder: Path):
    llm = LLM(folder, device="cpu", max_num_batched_tokens=32)
    forced = [[(7 * i + 13 * k) % 256 for k in range(20)] for i in range(len(LENGTHS))]
    outputs = llm.generate([prompt(n) for n in LENGTHS], SamplingParams(temperature=0.0), forced=forced)
    for n, given, out in zip(LENGTHS, forced, outputs):
        truth = equations.logits(CONFIG, checkpoint(), prompt(n) + given)[n - 1 : -1]
        assert out.outputs[0].token_ids == truth.argmax(-1).tolist()


# ---------------------------------------------------------------- weights and configuration


def test_packed_weights_round_trip():
    exported = dict(export_weights(ours()))
    assert exported.keys() == checkpoint().keys()
    assert all(torch.equal(exported[name], value) for name, value in checkpoint().items())


def test_a_norm_that_is_not_fused_has_another_name():
    model = GLAForCausalLM(CONFIG | {"fuse_norm": False})
    names = {name.replace("g_norm_swish_gate", "g_norm"): value for name, value in checkpoint().items()}
    load_weights(model, names.items())
    with pytest.raises(WeightsError, match="g_norm_swish_gate"):
        load_weights(model, checkpoint().items())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_short_conv", True),
        ("use_gk", False),
        ("feature_map", "relu"),
        ("num_kv_heads", 1),
        ("expand_k", 0.3),
        ("hidden_act", "gelu"),
        ("model_type", "llama"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_key(key: str, value: object):
    with pytest.raises(UsageError, match=key):
        GLAForCausalLM(CONFIG | {key: value})


def test_parameter_counts():
    for name, count in (("2.7b", 2_703_583_744), ("tiny", 118_208)):
        with torch.device("meta"):
            model: nn.Module = GLAForCausalLM(registry.architecture("gla").configs[name].config)
        assert sum(parameter.numel() for parameter in model.parameters()) == count


# ---------------------------------------------------------------- the production reference


PRODUCTION = """
import json, sys, torch
from safetensors.torch import load_file
from triton.runtime.autotuner import Autotuner
tune = Autotuner.run
def first(self, *args, **kwargs):  # measuring its choices needs a GPU
    self.configs = self.configs[:1]
    return tune(self, *args, **kwargs)
Autotuner.run = first
from fla.models.gla import GLAConfig, GLAForCausalLM
folder, ids = sys.argv[1], json.loads(sys.argv[2])
config = json.load(open(folder + "/config.json"))
own = {key: value for key, value in config.items() if key not in ("architectures", "model_type")}
model = GLAForCausalLM(GLAConfig(**own))
model.float().eval().load_state_dict(load_file(folder + "/model.safetensors"))
with torch.inference_mode():
    torch.save(model(torch.tensor([ids])).logits[0], folder + "/logits.pt")
"""


@pytest.mark.skipif(
    find_spec("fla") is None,
    reason="flash-linear-attention is not installed: pip install -e '.[reference]'",
)
def test_the_production_reference_agrees(folder: Path):
    """In Triton's interpreter, in a process of its own; prompts of up to 64 tokens: longer ones take kernels
    that the interpreter cannot run."""
    command = [sys.executable, "-c", PRODUCTION, str(folder), json.dumps(prompt(24))]
    subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, check=True, capture_output=True)
    logits_TV = torch.load(folder / "logits.pt")
    close(logits_TV, expected(24), PRODUCTION_TOLERANCE)
    (own_TV,) = run(ours(), [prompt(24)], [{0: 24}])
    close(own_TV, logits_TV.double(), PRODUCTION_TOLERANCE)
