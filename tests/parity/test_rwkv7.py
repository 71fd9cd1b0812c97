"""Our RWKV-7 against its equations in float64, and against its production reference where that is installed.

float32 on the CPU, the tiny configuration, every parameter random. The reference warns that it may be wrong
and refers to the official repository, whose equations these are.
"""

from __future__ import annotations

import json
import math
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
from fastkernels.baseline.L4.rwkv7 import RWKV7ForCausalLM
from safetensors.torch import save_file
from torch import Tensor

from fastkernels import LLM, SamplingParams, kernels, registry
from fastkernels.errors import RequestError, UsageError, WeightsError
from fastkernels.nn.fusion import apart
from fastkernels.nn.weights import destinations, export_weights, load_weights
from tests.parity import rwkv7_equations as equations
from tests.parity.test_llama import places_of, prompt, run

TOLERANCE = 1e-4  # of logits with a std of about 1, from the architecture's fact sheet; measured: 3e-6
CONFIGS = {name: config.config for name, config in registry.architecture("rwkv7").configs.items()}
TINY: dict[str, Any] = CONFIGS["tiny"]
PROMPT = 70
LENGTHS = (5, 17, 33, 2, 64, 1, 9, 40)
NEW_TOKENS = 16
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)


@lru_cache
def checkpoint() -> dict[str, Tensor]:
    return equations.random_checkpoint(TINY)


@lru_cache
def ours(dtype: torch.dtype = torch.float32) -> RWKV7ForCausalLM:
    model = RWKV7ForCausalLM(TINY).to(dtype).eval().requires_grad_(False)
    load_weights(model, checkpoint().items())
    return model


@lru_cache
def expected(length: int = PROMPT) -> Tensor:
    return equations.logits(TINY, checkpoint(), prompt(length).tolist())


def close(actual: Tensor, truth: Tensor, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(actual.double(), truth, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("implementation", ["torch", "reference"])
@pytest.mark.parametrize("length", [1, PROMPT])
@torch.inference_mode()
def test_logits_are_those_of_the_equations(length: int, implementation: str):
    assert expected().std() > 0.5, "weights too small for a strong test"
    with kernels.use(chunk_rwkv7=implementation):
        (hidden_TD,) = run(ours(), [prompt(length)], [{0: length}])
    logits_TV = ours().compute_logits(hidden_TD)
    assert logits_TV.dtype == torch.float32
    close(logits_TV, expected(length))


@pytest.mark.parametrize("chunks", [(66, 1, 1, 1, 1), (17, 1, 52), (1,) * PROMPT])
@torch.inference_mode()
def test_chunks_and_decode_steps_equal_one_forward_in_float64(chunks: tuple[int, ...]):
    """The chunked form, the recurrence and the kernel of a step; both shifts too."""
    model, ids_T = ours(torch.float64), prompt(PROMPT)
    (hidden_TD,) = run(model, [ids_T], [{0: n} for n in chunks], dtype=torch.float64)
    torch.testing.assert_close(hidden_TD, whole(), rtol=0, atol=1e-10)


@lru_cache
def whole() -> Tensor:
    return run(ours(torch.float64), [prompt(PROMPT)], [{0: PROMPT}], dtype=torch.float64)[0]


@torch.inference_mode()
def test_parts_compute_what_fused_kernels_do():
    """Steps of chunks and of single tokens, with the layers' parts one by one."""
    with apart(ours()):
        (hidden_TD,) = run(ours(), [prompt(PROMPT)], [{0: 67}, *[{0: 1}] * 3])
    close(ours().compute_logits(hidden_TD), expected())


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
        close(ours().compute_logits(hidden_TD), expected(length))


def decayed_first(s: Tensor, w: Tensor, kk: Tensor, a: Tensor) -> Tensor:
    s = w.exp()[..., None] * s
    return s - (kk * a)[..., None] * (kk[..., None] * s).sum(-2, keepdim=True)


def mixes_of(order: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda a: {x: a[f"attn.x_{y}"].flatten() for x, y in zip(equations.MIXES, order)}


MISTAKES: dict[str, dict[str, Callable[..., Any]]] = {
    "the decay of RWKV-6": {"decay": lambda z: -torch.exp(z)},
    "a decay without its bound": {"decay": lambda z: -equations.sigmoid(z)},
    "no tanh in w": {"act_w": lambda z: z},
    "tanh in a": {"act_a": torch.tanh},
    "tanh in v": {"act_v": torch.tanh},
    "no sigmoid in g": {"act_g": lambda z: z},
    "keys as long as they are": {"length": lambda x: 1.0},
    "the model's epsilon in the norm of heads": {"head_eps": lambda config: config["norm_eps"]},
    "removal behind the decay": {"removed": decayed_first},
    "removal by the new key": {"removal_key": lambda before, after: after},
    "bonus of the old key": {"bonus_key": lambda before, after: before},
    "bonus of the value before it is mixed": {"bonus_value": lambda before, after: before},
    "bonus behind the gate": {"gated": lambda o, bonus, g: o * g + bonus},
    "each layer's own v": {"first": lambda v, v_first: v},
    "a stream without pre_norm": {"stream": lambda embedded, normed: embedded},
    "shifts of what is not normed": {"shifted": lambda normed, raw: raw},
    "the first token before itself": {"before": lambda x: torch.cat((x[:1], x[:-1]))},
    "relu that is not squared": {"activated": lambda z: z.clamp(min=0)},
    "shares in another order": {"mixes": mixes_of("rkwvag")},
}


@pytest.mark.parametrize("mistake", MISTAKES)
@torch.inference_mode()
def test_a_wrong_model_would_be_noticed(mistake: str):
    wrong = equations.logits(TINY, checkpoint(), prompt(PROMPT).tolist(), MISTAKES[mistake])
    assert (wrong - expected()).abs().max() > 10 * TOLERANCE


# ---------------------------------------------------------------- generation


@lru_cache
def text(length: int) -> list[int]:
    return equations.greedy(TINY, checkpoint(), prompt(length).tolist(), NEW_TOKENS)


def texts_of(llm: LLM) -> list[list[int]]:
    outputs = llm.generate([prompt(n).tolist() for n in LENGTHS], GREEDY)
    return [out.outputs[0].token_ids for out in outputs]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The checkpoint as it would be published."""
    path = tmp_path_factory.mktemp("rwkv7")
    save_file(checkpoint(), path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(TINY))
    return path


@pytest.mark.parametrize(
    "engine", [{}, {"max_num_batched_tokens": 16, "max_num_seqs": 3}], ids=["batched", "chunked"]
)
def test_greedy_text_is_that_of_the_equations(folder: Path, engine: dict[str, int]):
    llm = LLM(folder, device="cpu", **engine)
    assert texts_of(llm) == [text(n) for n in LENGTHS]
    assert llm.stats()["cache_blocks"] == []


def test_preempted_requests_continue_as_if_nothing_had_happened(folder: Path):
    """States need no blocks, so nothing runs out by itself: every third step one row is sent back."""
    llm = LLM(folder, device="cpu", max_num_seqs=4, max_num_batched_tokens=24)
    for n in LENGTHS:
        llm.add_request(prompt(n).tolist(), GREEDY, request_id=str(n))
    found, steps, ledger = {}, 0, llm._scheduler.ledger
    while llm.has_unfinished_requests():
        found |= {int(out.request_id): out.outputs[0].token_ids for out in llm.step()}
        steps += 1
        if steps % 3 == 0 and len(ledger.running) > 1:
            ledger.preempt(int(ledger.running[-1]))
    assert found == {n: text(n) for n in LENGTHS}
    assert llm.stats()["preemptions"] > 5


def test_prefixes_are_not_reused_and_equal_ones_do_not_matter(folder: Path):
    """A state is overwritten by the next token: caching prefixes is refused. Requests with one beginning, in
    rows that others had before, have the texts that they have alone."""
    with pytest.raises(UsageError, match="prefix"):
        LLM(folder, device="cpu", enable_prefix_caching=True)
    llm = LLM(folder, device="cpu", max_num_seqs=2)
    first = prompt(40).tolist()
    alone = [llm.generate([ids], GREEDY)[0].outputs[0].token_ids for ids in (first, first[:33])]
    again = llm.generate([first, first[:33], first, first[:33]], GREEDY)
    assert [out.outputs[0].token_ids for out in again] == alone * 2
    assert alone[0] == text(40)


def test_a_bad_request_leaves_the_others_alone(folder: Path):
    llm = LLM(folder, device="cpu")
    outputs = llm.generate([prompt(9).tolist(), [3, 256], []], GREEDY, errors="return")
    assert outputs[0].outputs[0].token_ids == text(9)
    assert all(isinstance(out, RequestError) for out in outputs[1:])
    assert "256" in str(outputs[1])


# ---------------------------------------------------------------- weights and configuration


def test_every_tensor_of_the_real_checkpoint_has_its_place():
    with torch.device("meta"):
        model = RWKV7ForCausalLM(CONFIGS["2.9b"])
    places, unnamed = destinations(model)
    assert {name: tuple(place.shape) for name, place in places.items()} == equations.shapes(CONFIGS["2.9b"])
    assert unnamed == []
    assert sum(parameter.numel() for parameter in model.parameters()) == 2_947_735_040


def test_packed_weights_round_trip_and_load_from_an_older_file():
    """Older files have the shares of time mix in one tensor."""
    exported = dict(export_weights(ours()))
    assert exported.keys() == checkpoint().keys()
    assert all(torch.equal(exported[name], value) for name, value in checkpoint().items())
    assert sum(parameter.numel() for parameter in ours().parameters()) == 110_656
    for i in range(2):
        names = [f"model.layers.{i}.attn.x_{x}" for x in equations.MIXES]
        exported[f"model.layers.{i}.attn.x_x"] = torch.cat([exported.pop(name)[0] for name in names])
    older = RWKV7ForCausalLM(TINY)
    load_weights(older, exported.items())
    for name, parameter in ours().named_parameters():
        assert torch.equal(older.get_parameter(name), parameter), name


def test_what_does_not_fit_is_named():
    surplus, missing = "model.layers.0.attn.v_lora.lora.0.weight", "model.layers.1.attn.x_g"
    tensors = {name: x for name, x in checkpoint().items() if name != missing} | {surplus: torch.ones(4, 64)}
    tensors["model.layers.0.ffn.x_k"] = torch.ones(63)
    with pytest.raises(WeightsError) as raised:
        load_weights(RWKV7ForCausalLM(TINY), tensors.items())
    assert all(name in str(raised.value) for name in (surplus, missing, "ffn.x_k"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "relu"),
        ("norm_first", False),
        ("head_dim", 48),
        ("num_heads", 4),
        ("value_dim", 128),
        ("attn", {"layers": [0]}),
        ("model_type", "rwkv6"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_key(key: str, value: object):
    with pytest.raises(UsageError, match=key):
        RWKV7ForCausalLM(TINY | {key: value})


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
from fla.models.rwkv7 import RWKV7Config, RWKV7ForCausalLM
folder, ids = sys.argv[1], json.loads(sys.argv[2])
config = json.load(open(folder + "/config.json"))
own = {key: value for key, value in config.items() if key not in ("architectures", "model_type")}
with torch.inference_mode():
    model = RWKV7ForCausalLM(RWKV7Config(**own, fuse_norm=False))
    model.float().eval().load_state_dict(load_file(folder + "/model.safetensors"))
    out = model(torch.tensor([ids[:-1]]), use_cache=True)
    parts = [out.logits[0]]
    out = model(torch.tensor([ids[-1:]]), past_key_values=out.past_key_values, use_cache=True)
    cache = [(s["recurrent_state"][0], s["conv_state"].flatten(), s["ffn_state"].flatten())
             for s in (out.past_key_values[i] for i in range(2))]
    torch.save((torch.cat([*parts, out.logits[0]]), cache), folder + "/found.pt")
"""


@pytest.mark.skipif(
    find_spec("fla") is None,
    reason="flash-linear-attention is not installed: pip install -e '.[reference]'",
)
@torch.inference_mode()
def test_the_production_reference_agrees(folder: Path):
    """In Triton's interpreter, in a process of its own: a prompt, a token behind it, and the states that
    they leave."""
    ids_T = prompt(12)
    command = [sys.executable, "-c", PRODUCTION, str(folder), json.dumps(ids_T.tolist())]
    subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, check=True, capture_output=True)
    logits_TV, cache = torch.load(folder / "found.pt")
    truth = equations.logits(TINY, checkpoint(), ids_T.tolist())
    (hidden_TD,) = run(ours(), [ids_T], [{0: 11}, {0: 1}])
    close(logits_TV, truth)
    close(ours().compute_logits(hidden_TD), logits_TV.double())
    row = places_of([ids_T])[0]
    for layer, (state, shift, ffn_shift) in zip(ours().layers, cache, strict=True):
        close(layer.attn.heads.state[row], state.double())
        close(layer.attn.heads.shift_state[row], shift.double())
        close(layer.ffn.shift_state[row], ffn_shift.double())


@pytest.mark.parametrize("implementation", ["reference", "torch"])
def test_the_recurrence_is_that_of_the_production_reference(implementation: str):
    """Its recurrence in PyTorch: queries are scaled there, alpha = -kk, beta = kk a."""
    naive = pytest.importorskip("fla.ops.generalized_delta_rule.dplr.naive")
    from tests.rwkv7_cases import heads

    case = heads((37,), 3, 16)
    r, w, k, v, kk, a = (x.transpose(0, 1)[None] for x in case.tokens)
    start = case.state[case.rows_B]
    o, left = naive.dplr_recurrence(r * math.sqrt(16), k, v, -kk, kk * a, w, initial_state=start)
    found, state = case.run(implementation)
    close(found, o[0].transpose(0, 1).double(), 1e-5)
    close(state[case.rows_B], left.double(), 1e-5)
