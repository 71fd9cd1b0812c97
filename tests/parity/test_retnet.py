"""Our RetNet against its equations in float64 and against flash-linear-attention, which runs in Triton's
interpreter. float32 on the CPU, the tiny configuration, every parameter random.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from fastkernels.baseline.L4.retnet import RetNetForCausalLM
from safetensors.torch import save_file
from torch import Tensor

from fastkernels import LLM, SamplingParams, kernels, registry
from fastkernels.errors import RequestError, UsageError, WeightsError
from fastkernels.kernels.gla import torch as chunks_in_torch
from fastkernels.nn.cache import cache_owners
from fastkernels.nn.weights import destinations, export_weights, load_weights
from tests.gla_case import make, worst
from tests.parity import gla_equations as equations
from tests.parity.preemption import preempted
from tests.parity.test_llama import places_of, run

TOLERANCE = 1e-4  # of logits with a std of about 1, from the architecture's fact sheet; measured: 3e-6
CONFIGS = {name: config.config for name, config in registry.architecture("retnet").configs.items()}
TINY: dict[str, Any] = CONFIGS["tiny"]
PROMPT, LENGTHS, NEW_TOKENS = 24, (5, 17, 33, 2, 48, 1), 16
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)


@lru_cache
def checkpoint() -> dict[str, Tensor]:
    return equations.random_checkpoint(TINY)


def loaded(dtype: torch.dtype = torch.float32) -> RetNetForCausalLM:
    model = RetNetForCausalLM(TINY).to(dtype).eval().requires_grad_(False)
    load_weights(model, checkpoint().items())
    return model


ours = lru_cache(loaded)


@lru_cache
def prompt(length: int) -> Tensor:
    return torch.randint(3, 256, (length,), generator=torch.Generator().manual_seed(length))


@lru_cache
def expected(length: int) -> Tensor:
    return equations.logits(TINY, checkpoint(), prompt(length).tolist())


@torch.inference_mode()
def logits(
    model: RetNetForCausalLM, lengths: tuple[int, ...], schedule: list[dict[int, int]]
) -> list[Tensor]:
    """Of each prompt; a step of the schedule says how many tokens of which prompts it takes."""
    return [model.compute_logits(x) for x in run(model, [prompt(n) for n in lengths], schedule)]


def close(actual: Tensor, truth: Tensor) -> None:
    torch.testing.assert_close(actual.double(), truth.double(), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("implementation", ["reference", "torch"])
@pytest.mark.parametrize("length", [1, 24, 100])
def test_logits_are_those_of_the_equations(length: int, implementation: str):
    assert expected(24).std() > 0.5, "weights too small for a strong test"
    with kernels.use(chunk_gla=implementation):
        (logits_TV,) = logits(ours(), (length,), [{0: length}])
    assert logits_TV.dtype == torch.float32
    close(logits_TV, expected(length))


def test_a_batch_of_mixed_lengths_equals_single_runs():
    """Positions count from each request's first token, in pieces, beside others and in decode steps."""
    schedule = [
        {0: 7, 1: 1, 2: 16},  # prefill of unequal lengths, one of them a single token
        {0: 9, 2: 1, 3: 20},  # decode beside a chunk and a new row
        {0: 8, 3: 1, 4: 9},
        {0: 1, 3: 1},
        {0: 1, 3: 1},
        {3: 10},
    ]
    lengths = (26, 1, 17, 33, 9)
    for length, logits_TV in zip(lengths, logits(ours(), lengths, schedule), strict=True):
        close(logits_TV, expected(length))


@pytest.mark.parametrize("size", [1, 16, 64])
@pytest.mark.parametrize("pieces", [(33, 1, 1, 1, 1), (2, 1, 67), (1,) * 37])
@torch.inference_mode()
def test_chunks_of_any_size_and_the_recurrence_agree_in_float64(
    pieces: tuple[int, ...], size: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(chunks_in_torch, "CHUNK", size)
    model, ids_T = ours(torch.float64), prompt(sum(pieces))
    with kernels.use(chunk_gla="reference"):
        (whole_TD,) = run(model, [ids_T], [{0: len(ids_T)}], dtype=torch.float64)
    with kernels.use(chunk_gla="torch"):
        (hidden_TD,) = run(model, [ids_T], [{0: n} for n in pieces], dtype=torch.float64)
    torch.testing.assert_close(hidden_TD, whole_TD, rtol=0, atol=1e-11)


@pytest.mark.parametrize("implementation", ["reference", "torch"])
def test_the_scan_is_that_of_flash_linear_attention(implementation: str):
    """Its references in PyTorch: over all pairs from an empty state, and token by token from a state."""
    pairs = pytest.importorskip("fla.ops.retention.naive").naive_retention
    naive = pytest.importorskip("fla.ops.simple_gla.naive").naive_recurrent_simple_gla
    case = make((37,), heads=4, steepness=None)
    gate = torch.tensor([1 - 2.0 ** (-5 - h) for h in range(4)]).log().expand(1, 37, 4)
    q, k, v = (x[None] for x in (case.q_THK, case.k_THK, case.v_THV))
    row = int(case.rows_B)
    theirs, left = naive(q, k, v, gate, initial_state=case.state_RHKV[row : row + 1])
    o, state = case.run(implementation)
    assert worst(o, theirs[0].double()) < 1e-5
    assert worst(state[row : row + 1], left.double()) < 1e-5
    case.state_RHKV[row] = 0
    o, _ = case.run(implementation)
    theirs = pairs(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
    assert worst(o, theirs[0].double()) < 2e-5


def attention(change: Callable[[Any], None]) -> Callable[[RetNetForCausalLM], None]:
    return lambda model: change(model.layers[1].attn)


def answering(change: Callable[..., Tensor]) -> Callable[[RetNetForCausalLM], None]:
    """What the scan of the second layer answers, changed: `change(o, q, k, v)`."""

    def put(attn: Any) -> None:
        scan = attn.chunk.forward
        attn.chunk.forward = lambda q, k, v, *rest: change(scan(q, k, v, *rest), q, k, v)

    return attention(put)


def turned(change: Callable[..., tuple[Tensor, Tensor]]) -> Callable[[RetNetForCausalLM], None]:
    """`change(rotate, positions, q, k)` in the place of the second layer's rotation."""

    def put(attn: Any) -> None:
        rotate = attn.rotary.forward
        attn.rotary.forward = lambda positions, q, k: change(rotate, positions, q, k)

    return attention(put)


def interleaved(rotate: Callable[..., Any], positions: Tensor, *tokens: Tensor) -> Any:
    """Pairs of neighbours, as if by another layout."""
    apart = [x.unflatten(-1, (2, 16, 2)).transpose(-1, -2).flatten(1) for x in tokens]
    return [x.unflatten(-1, (2, 2, 16)).transpose(-1, -2).flatten(1) for x in rotate(positions, *apart)]


def scaled_by_position(rotate: Callable[..., Any], positions: Tensor, q: Tensor, k: Tensor) -> Any:
    """With the paper's scaling of pairs by position."""
    pairs = (torch.arange(0, 32, 2) + 0.4 * 32) / (1.4 * 32)
    scales = (pairs ** (positions[:, None] / 512)).repeat(1, 2)[:, None]
    q, k = (x.unflatten(-1, (2, 32)) for x in rotate(positions, q, k))
    return (q * scales).flatten(1), (k / scales).flatten(1)


def another_decay(attn: Any) -> None:
    """Of the head behind it."""
    attn.chunk.forward = lambda q, k, v, state, *rest: kernels.chunk_gla(
        *(torch.cat((x[:, :1], x), 1) for x in (q, k, v)), None,
        torch.cat((state[:, :1], state), 1), *rest[:2], attn.chunk.scale, rest[2],
    )[:, 1:]  # fmt: skip


def summed_decays(o: Tensor, *_: Tensor) -> Tensor:
    """Divided by the root of the sum of each row of decays, as in the paper's parallel form."""
    past = torch.arange(1, len(o) + 1)[:, None]
    kept = 1 - 2.0 ** (-5 - torch.arange(2.0))
    return o / ((1 - kept**past) / (1 - kept)).sqrt()[..., None]


def gate_before_the_norm(attn: Any) -> None:
    attn.norm.forward = lambda x, g: kernels.gated_rms_norm(x, g, attn.norm.weight, attn.norm.eps, True)


MISTAKES: dict[str, Callable[[RetNetForCausalLM], None]] = {
    "no rotation": turned(lambda rotate, positions, q, k: (q, k)),
    "a rotation of queries alone": turned(lambda rotate, positions, q, k: (rotate(positions, q, k)[0], k)),
    "pairs of neighbours": turned(interleaved),
    "scaled pairs": turned(scaled_by_position),
    "decays of the next heads": attention(another_decay),
    "a sum of decays below": answering(summed_decays),
    "at least 1 below": answering(lambda o, q, k, v: o / o.sum(-1, keepdim=True).abs().clamp(min=1)),
    "another scale": attention(lambda attn: setattr(attn.chunk, "scale", 1 / 32)),
    "without the token's own value": answering(
        lambda o, q, k, v: o - (q * k).sum(-1, keepdim=True) * v * 32**-0.5
    ),
    "another epsilon": attention(lambda attn: setattr(attn.norm, "eps", 1e-2)),
    "a gate before the norm": attention(gate_before_the_norm),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_model_would_be_noticed(mistake: str):
    wrong = loaded()
    MISTAKES[mistake](wrong)
    (logits_TV,) = logits(wrong, (PROMPT,), [{0: PROMPT}])
    assert (logits_TV - expected(PROMPT)).abs().max() > 10 * TOLERANCE


def test_a_decode_step_that_begins_at_position_0_would_be_noticed():
    wrong = loaded()
    for layer in wrong.layers:
        rotate = layer.attn.rotary.forward
        layer.attn.rotary.forward = lambda positions, q, k, rotate=rotate: rotate(
            positions - positions.min(), q, k
        )
    (logits_TV,) = logits(wrong, (PROMPT,), [{0: PROMPT - 1}, {0: 1}])
    close(logits_TV[:-1], expected(PROMPT)[:-1])
    assert (logits_TV[-1] - expected(PROMPT)[-1]).abs().max() > 10 * TOLERANCE


# ---------------------------------------------------------------- generation


@lru_cache
def text(length: int) -> list[int]:
    return equations.greedy(TINY, checkpoint(), prompt(length).tolist(), NEW_TOKENS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The checkpoint as it would be published."""
    path = tmp_path_factory.mktemp("retnet")
    save_file(checkpoint(), path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(TINY))
    return path


@pytest.mark.parametrize(
    "engine", [{}, {"max_num_batched_tokens": 16, "max_num_seqs": 3}], ids=["batched", "chunked"]
)
def test_greedy_text_is_that_of_the_equations(folder: Path, engine: dict[str, int]):
    llm = LLM(folder, device="cpu", **engine)
    outputs = llm.generate([prompt(n).tolist() for n in LENGTHS], GREEDY)
    assert [out.outputs[0].token_ids for out in outputs] == [text(n) for n in LENGTHS]
    assert llm.stats()["cache_blocks"] == []


def test_preempted_requests_continue_as_if_nothing_had_happened(folder: Path):
    found, preemptions = preempted(folder, {n: prompt(n).tolist() for n in LENGTHS}, GREEDY)
    assert found == {n: text(n) for n in LENGTHS}
    assert preemptions > 5


def test_bad_requests_are_named_and_harm_no_other(folder: Path):
    with pytest.raises(UsageError, match="enable_prefix_caching"):
        LLM(folder, device="cpu", enable_prefix_caching=True)
    llm = LLM(folder, device="cpu", max_num_seqs=2)
    given = [prompt(5).tolist(), [1, 256], [], [3] * 257, prompt(17).tolist()]
    outputs = llm.generate(given, GREEDY, errors="return")
    for error, reason in zip(outputs[1:4], ("256", "empty", "max_model_len"), strict=True):
        assert isinstance(error, RequestError)
        assert reason in str(error)
    assert [outputs[i].outputs[0].token_ids for i in (0, 4)] == [text(5), text(17)]


# ---------------------------------------------------------------- weights and configuration


def names_of_the_sheet(layers: int) -> set[str]:
    projections = [f"attn.{name}_proj.weight" for name in "qkvgo"]
    mlp = [f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")]
    parts = ["attn_norm.weight", "mlp_norm.weight", "attn.g_norm_swish_gate.weight", *projections, *mlp]
    each = {f"model.layers.{i}.{part}" for i in range(layers) for part in parts}
    return {"model.embeddings.weight", "model.norm.weight", "lm_head.weight", *each}


def test_every_tensor_of_the_real_checkpoint_has_its_place():
    with torch.device("meta"):
        model = RetNetForCausalLM(CONFIGS["2.7b"])
    places, unnamed = destinations(model)
    assert {name: tuple(place.shape) for name, place in places.items()} == equations.shapes(
        CONFIGS["2.7b"] | {"intermediate_size": 3584}
    )
    assert places.keys() == names_of_the_sheet(32)
    assert unnamed == []
    assert sum(parameter.numel() for parameter in model.parameters()) == 2_722_548_224
    assert sum(parameter.numel() for parameter in ours().parameters()) == 147_904


def test_packed_weights_round_trip_and_what_is_missing_is_named():
    exported = dict(export_weights(ours()))
    assert exported.keys() == checkpoint().keys()
    assert all(torch.equal(exported[name], value) for name, value in checkpoint().items())
    gone = "model.layers.1.attn.k_proj.weight"
    given = {name: value for name, value in checkpoint().items() if name != gone}
    with pytest.raises(WeightsError, match=rf"missing     {gone}"):
        load_weights(loaded(), given.items())
    with pytest.raises(WeightsError, match=gone):
        load_weights(loaded(), {**given, gone: torch.zeros(64, 63)}.items())
    renamed = {name.replace("g_norm_swish_gate", "g_norm"): value for name, value in checkpoint().items()}
    load_weights(RetNetForCausalLM(TINY | {"fuse_norm": False}), renamed.items())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_short_conv", True),
        ("use_output_gate", False),
        ("feature_map", "relu"),
        ("num_kv_heads", 1),
        ("expand_k", 0.03125),
        ("expand_v", 0.3),
        ("hidden_act", "gelu"),
        ("attnres_block_size", 2),
        ("model_type", "gla"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_key(key: str, value: object):
    with pytest.raises(UsageError, match=key):
        RetNetForCausalLM(TINY | {key: value})


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
from fla.models.retnet import RetNetConfig, RetNetForCausalLM
folder, ids = sys.argv[1], torch.tensor(json.loads(sys.argv[2]))
config = json.load(open(folder + "/config.json"))
own = {key: value for key, value in config.items() if key not in ("architectures", "model_type")}
model = RetNetForCausalLM(RetNetConfig(**own)).float().eval()
model.load_state_dict(load_file(folder + "/model.safetensors"))
with torch.inference_mode():
    out = model(ids[:, :24], use_cache=True)
    logits = [out.logits]
    for i in range(24, ids.shape[1]):
        out = model(ids[:, i:i + 1], past_key_values=out.past_key_values, use_cache=True)
        logits.append(out.logits)
states = [layer["recurrent_state"] for layer in out.past_key_values]
torch.save({"logits": torch.cat(logits, 1), "states": states}, folder + "/answer.pt")
"""


@pytest.mark.whole
@pytest.mark.skipif(
    find_spec("fla") is None,
    reason="flash-linear-attention is not installed: pip install -e '.[reference]'",
)
def test_the_production_reference_agrees(folder: Path):
    """Logits of two prompts of 24 tokens and of four steps behind them, and the states that these leave. In
    Triton's interpreter, in a process of its own; prompts of up to 64 tokens: longer ones take kernels that
    the interpreter cannot run."""
    ids = [prompt(28).tolist(), prompt(29)[:28].tolist()]
    command = [sys.executable, "-c", PRODUCTION, str(folder), json.dumps(ids)]
    subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, check=True, capture_output=True)
    theirs = torch.load(folder / "answer.pt")
    given = [torch.tensor(one) for one in ids]
    both = run(ours(), given, [{0: 24, 1: 24}, *[{0: 1, 1: 1}] * 4])
    for one, hidden_TD, logits_TV in zip(ids, both, theirs["logits"], strict=True):
        close(ours().compute_logits(hidden_TD), logits_TV)
        close(logits_TV, equations.logits(TINY, checkpoint(), one))
    for (_, owner), states in zip(cache_owners(ours()), theirs["states"], strict=True):
        close(owner.state[list(places_of(given))], states)
