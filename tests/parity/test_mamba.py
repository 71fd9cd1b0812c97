"""Our Mamba against transformers, float32 on the CPU, the tiny configuration with randomised weights.

transformers' initial A_log, D and norms are the same everywhere, which hides mistakes: everything is drawn
here. Its prefill of several tokens begins with scan states of zeros even where a cache holds others, so
chunks are compared with its run over the whole prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from fastkernels.baseline.L4.mamba import MambaForCausalLM
from torch import Tensor, nn
from transformers import MambaConfig, PreTrainedModel
from transformers.models.mamba.modeling_mamba import MambaForCausalLM as HfMamba

from fastkernels import LLM, SamplingParams, registry
from fastkernels.errors import RequestError, UsageError, WeightsError
from fastkernels.nn.cache import cache_owners
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.weights import destinations, export_weights, load_weights
from tests.parity.continuation import continuation
from tests.parity.preemption import preempted
from tests.parity.test_llama import places_of, prompt, run

TOLERANCE = 1e-4  # of values with a std of about 1, from the architecture's fact sheet
CACHE_TOLERANCE = 1e-5  # of a layer's states, relative L2
PROMPT = 37
CONFIGS = {name: config.config for name, config in registry.architecture("mamba").configs.items()}
TINY: dict[str, Any] = CONFIGS["tiny"]
VARIANTS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "biases": {
        "use_bias": True,
        "use_conv_bias": False,
        "conv_kernel": 3,
        "state_size": 8,
        "time_step_rank": "auto",
        "tie_word_embeddings": False,
        "expand": 3,
    },
}


@lru_cache
def reference(name: str = "tiny") -> PreTrainedModel:
    model = HfMamba(MambaConfig(**TINY | VARIANTS[name])).float().eval()
    randomise(model)
    return model


def randomise(model: nn.Module) -> None:
    random_weights(model, seed=0)
    generator = torch.Generator().manual_seed(1)
    ranges = {"A_log": (0.0, 2.0), "dt_proj.bias": (-3.0, -1.0), "dt_bias": (-3.0, -1.0)}
    for key, parameter in model.named_parameters():
        for end, (low, high) in ranges.items():
            if key.endswith(end):
                parameter.data.uniform_(low, high, generator=generator)


def loaded(name: str = "tiny", dtype: torch.dtype = torch.float32) -> MambaForCausalLM:
    model = MambaForCausalLM(TINY | VARIANTS[name]).to(dtype).eval().requires_grad_(False)
    load_weights(model, reference(name).state_dict().items())
    return model


ours = lru_cache(loaded)


@lru_cache
@torch.inference_mode()
def expected(name: str = "tiny", length: int = PROMPT) -> Tensor:
    """Logits of transformers on the prompt of this length."""
    return reference(name)(prompt(length)[None]).logits[0]


def close(actual: Tensor, truth: Tensor) -> None:
    torch.testing.assert_close(actual, truth, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize(("name", "length"), [("tiny", 1), ("tiny", 2), ("tiny", PROMPT), ("biases", PROMPT)])
@torch.inference_mode()
def test_logits(name: str, length: int):
    assert expected(name).std() > 0.5, "weights too small for a strong test"
    (hidden_TD,) = run(ours(name), [prompt(length)], [{0: length}])
    actual_TV = ours(name).compute_logits(hidden_TD)
    assert actual_TV.dtype == torch.float32
    close(actual_TV, expected(name, length))


@torch.inference_mode()
def test_decode_steps_and_states_are_those_of_transformers():
    """Logits of five steps behind a prompt; then the convolution's inputs and the scan's states."""
    ids_T = prompt(PROMPT + 5)
    first = reference()(ids_T[None, :PROMPT], use_cache=True)
    cache, steps = first.cache_params, []
    for i in range(PROMPT, PROMPT + 5):
        out = reference()(ids_T[None, i : i + 1], cache_params=cache, use_cache=True)
        steps.append(out.logits[0])
    (hidden_TD,) = run(ours(), [ids_T], [{0: PROMPT}, *[{0: 1}] * 5])
    close(ours().compute_logits(hidden_TD[PROMPT:]), torch.cat(steps))
    row = places_of([ids_T])[0]
    for (_, owner), theirs in zip(cache_owners(ours()), cache.layers, strict=True):
        same(owner.conv_state[row], theirs.conv_states[0][0, :, -3:].T)
        same(owner.ssm_state[row], theirs.recurrent_states[0][0])


def same(mine: Tensor, theirs: Tensor) -> None:
    assert mine.shape == theirs.shape
    assert (mine - theirs).norm() / theirs.norm() < CACHE_TOLERANCE


@pytest.mark.parametrize("chunks", [(33, 1, 1, 1, 1), (17, 3, 17), (2, 1, 34), (1,) * PROMPT])
@torch.inference_mode()
def test_chunks_and_decode_steps_equal_one_forward_in_float64(chunks: tuple[int, ...]):
    """Chunks shorter than the convolution's past among them."""
    model = ours(dtype=torch.float64)
    (whole_TD,) = run(model, [prompt(PROMPT)], [{0: PROMPT}], dtype=torch.float64)
    (hidden_TD,) = run(model, [prompt(PROMPT)], [{0: n} for n in chunks], dtype=torch.float64)
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


def mixer(change: Callable[[Any], None]) -> Callable[[nn.Module], None]:
    return lambda model: change(model.layers[0].mixer)


def exchanged(weight: Tensor, first: slice, second: slice) -> None:
    kept = weight[first].clone()
    weight[first] = weight[second]
    weight[second] = kept


def epsilon(model: nn.Module) -> None:
    for layer in model.layers:
        layer.norm.eps = 1e-3


MISTAKES = {
    "z before u": mixer(lambda m: exchanged(m.in_proj.linear.weight, slice(128), slice(128, 256))),
    "C before B": mixer(lambda m: exchanged(m.x_proj.weight, slice(4, 20), slice(20, 36))),
    "no bias of the step": mixer(lambda m: m.dt_bias.zero_()),
    "no bias of the convolution": mixer(lambda m: m.conv_bias.zero_()),
    "no D": mixer(lambda m: m.D.zero_()),
    "A without its exponential": mixer(lambda m: m.A_log.log_()),
    "taps in reverse": mixer(lambda m: m.conv_weight.copy_(m.conv_weight.flip(-1))),
    "another epsilon": epsilon,
}


@pytest.mark.parametrize("mistake", MISTAKES)
@torch.inference_mode()
def test_a_wrong_model_would_be_noticed(mistake: str):
    wrong = loaded()
    MISTAKES[mistake](wrong)
    (hidden_TD,) = run(wrong, [prompt(PROMPT)], [{0: PROMPT}])
    assert (wrong.compute_logits(hidden_TD) - expected()).abs().max() > 10 * TOLERANCE


# ---------------------------------------------------------------- generation


LENGTHS, NEW_TOKENS = (5, 17, 33, 2, 48, 1), 16
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)


@lru_cache
def text(length: int) -> list[int]:
    """transformers' greedy continuation of the prompt of this length."""
    return continuation(reference(), prompt(length), NEW_TOKENS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("mamba")
    reference().save_pretrained(path)
    return path


@pytest.mark.parametrize(
    "engine",
    [{}, {"max_num_batched_tokens": 16}, {"max_num_seqs": 3}],
    ids=["batched", "chunked", "three-rows"],
)
def test_greedy_text_is_that_of_transformers(folder: Path, engine: dict[str, int]):
    """Of more requests than there are rows, too: the others wait for one."""
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
    reasons = ("256", "empty", "max_model_len")
    for error, reason in zip(outputs[1:4], reasons, strict=True):
        assert isinstance(error, RequestError)
        assert reason in str(error)
    assert [outputs[i].outputs[0].token_ids for i in (0, 4)] == [text(5), text(17)]


# ---------------------------------------------------------------- weights and configuration


def names_of_the_sheet(layers: int) -> set[str]:
    mixer = ["in_proj.weight", "conv1d.weight", "conv1d.bias", "x_proj.weight", "dt_proj.weight"]
    mixer += ["dt_proj.bias", "A_log", "D", "out_proj.weight"]
    parts = ["norm.weight", *(f"mixer.{name}" for name in mixer)]
    each = {f"backbone.layers.{i}.{part}" for i in range(layers) for part in parts}
    return {"backbone.embeddings.weight", "backbone.norm_f.weight", *each}


def test_every_tensor_of_the_real_checkpoint_has_its_place():
    with torch.device("meta"):
        model, theirs = MambaForCausalLM(CONFIGS["2.8b"]), HfMamba(MambaConfig(**CONFIGS["2.8b"]))
    places, unnamed = destinations(model)
    shapes = {name: list(place.shape) for name, place in places.items()}
    wanted = {name: list(tensor.shape) for name, tensor in theirs.state_dict().items()}
    assert wanted.pop("lm_head.weight") == [50280, 2560]
    assert shapes == wanted
    assert shapes.keys() == names_of_the_sheet(64)
    assert unnamed == []
    assert sum(parameter.numel() for parameter in model.parameters()) == 2_768_345_600


def test_a_checkpoint_with_the_older_name_of_its_embedding_loads():
    weights = dict(export_weights(ours()))
    weights["backbone.embedding.weight"] = weights.pop("backbone.embeddings.weight")
    again = MambaForCausalLM(TINY)
    load_weights(again, weights.items())
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), ours().parameters(), strict=True))
    del weights["backbone.layers.1.mixer.A_log"]
    with pytest.raises(WeightsError, match=r"missing     backbone\.layers\.1\.mixer\.A_log"):
        load_weights(again, weights.items())


@pytest.mark.parametrize("is_wide", [True, False])
@torch.inference_mode()
def test_the_residual_of_a_model_of_16_bits_is_float32_where_asked(is_wide: bool):
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = MambaForCausalLM(TINY | {"residual_in_fp32": is_wide}).eval()
    finally:
        torch.set_default_dtype(previous)
    load_weights(model, reference().state_dict().items())
    assert model.layers[0].mixer.A_log.dtype == torch.float32
    seen: list[torch.dtype] = []
    for layer in model.layers:
        layer.register_forward_hook(lambda *call: seen.append(call[2][1].dtype))
    (hidden_TD,) = run(model, [prompt(PROMPT)], [{0: PROMPT}])
    assert hidden_TD.dtype == torch.bfloat16
    assert seen == [torch.float32 if is_wide else torch.bfloat16] * 3
    assert (model.compute_logits(hidden_TD) - expected()).norm() < 0.05 * expected().norm()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "gelu"),
        ("conv_kernel", 1),
        ("time_step_rank", 0),
        ("intermediate_size", 100),
        ("model_type", "falcon_mamba"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_key(key: str, value: object):
    with pytest.raises(UsageError, match=key):
        MambaForCausalLM(TINY | {key: value})
