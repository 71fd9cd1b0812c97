"""Our Jamba against transformers, float32 on the CPU, the tiny configuration with randomised weights.

transformers' initial A_log, D and norms are the same everywhere, which hides mistakes: everything is drawn
here. Its prefill of several tokens begins with states of zeros even where a cache holds others, so chunks are
compared with its run over the whole prompt.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch
from fastkernels.baseline.L4.jamba import JambaForCausalLM
from torch import Tensor, nn
from transformers import JambaConfig, PreTrainedModel
from transformers.models.jamba.modeling_jamba import JambaForCausalLM as HfJamba

from fastkernels import LLM, SamplingParams, kernels, registry
from fastkernels.errors import UsageError, WeightsError
from fastkernels.nn.cache import cache_owners
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.weights import export_weights, load_weights
from tests.parity.continuation import continuation
from tests.parity.test_llama import places_of, prompt, run

TOLERANCE = 1e-4  # of values with a std of about 1; measured: 1.5e-5, token by token 3.8e-5
CACHE_TOLERANCE = 1e-5  # of a layer's cache, relative L2: single states are sums that cancel; measured: 4e-6
PROMPT = 64
CONFIGS = {name: config.config for name, config in registry.architecture("jamba").configs.items()}
CONFIG: dict[str, Any] = CONFIGS["tiny"]
VARIANTS: dict[str, dict[str, Any]] = {
    "tiny": {},
    # Attention with experts, an odd number of layers, other periods, biases, a rank that is derived.
    "other-periods": {
        "num_hidden_layers": 5,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 3,
        "expert_layer_offset": 1,
        "mamba_proj_bias": True,
        "mamba_conv_bias": False,
        "mamba_dt_rank": "auto",
        "mamba_d_conv": 3,
        "mamba_d_state": 8,
        "tie_word_embeddings": True,
    },
    "one-expert": {"num_hidden_layers": 5, "num_experts": 1},
}


@lru_cache
def reference(name: str = "tiny") -> PreTrainedModel:
    config = JambaConfig(**CONFIG | VARIANTS[name], use_mamba_kernels=False)
    model = HfJamba._from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    random_weights(model, seed=0)
    generator = torch.Generator().manual_seed(1)
    for key, parameter in model.named_parameters():
        ranges = {"A_log": (-2.0, 1.5), "dt_proj.bias": (-3.0, 0.0)}
        for end, (low, high) in ranges.items():
            if key.endswith(end):
                parameter.data.uniform_(low, high, generator=generator)
    return model


@lru_cache
def ours(name: str = "tiny") -> JambaForCausalLM:
    return loaded(name)


def loaded(name: str = "tiny") -> JambaForCausalLM:
    model = JambaForCausalLM(CONFIG | VARIANTS[name]).eval().requires_grad_(False)
    load_weights(model, reference(name).state_dict().items())
    return model


@lru_cache
@torch.inference_mode()
def expected(name: str = "tiny", length: int = PROMPT) -> tuple[Tensor, Tensor]:
    """(hidden states, logits) of transformers on the prompt of this length."""
    ids_1T = prompt(length)[None]
    return reference(name).model(ids_1T).last_hidden_state[0], reference(name)(ids_1T).logits[0]


def close(actual: Tensor, truth: Tensor) -> None:
    torch.testing.assert_close(actual, truth, rtol=TOLERANCE, atol=TOLERANCE)


def same(mine: Tensor, theirs: Tensor) -> None:
    assert mine.shape == theirs.shape
    assert (mine - theirs).norm() / theirs.norm() < CACHE_TOLERANCE


def chosen_experts(model: nn.Module, call: Any) -> list[Tensor]:
    """Sorted ids [T, k] of every router while `call` runs; transformers' or ours."""
    found: list[Tensor] = []

    def note(module: nn.Module, args: Any, result: Any) -> None:
        found.append(result.topk(2, -1).indices.sort(-1).values)

    gates = [m for name, m in model.named_modules() if name.endswith((".router", ".block_sparse_moe.gate"))]
    hooks = [gate.register_forward_hook(note) for gate in gates]
    call()
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("length", [1, 2, 37, PROMPT])
@pytest.mark.parametrize("name", VARIANTS)
@torch.inference_mode()
def test_hidden_states_and_logits(name: str, length: int):
    expected_TD, logits_TV = expected(name, length)
    assert expected(name)[1].std() > 0.5, "weights too small for a strong test"
    (hidden_TD,) = run(ours(name), [prompt(length)], [{0: length}])
    close(hidden_TD, expected_TD)
    actual_TV = ours(name).compute_logits(hidden_TD)
    assert actual_TV.dtype == torch.float32
    close(actual_TV, logits_TV)


@torch.inference_mode()
def test_the_same_experts_are_chosen_and_all_of_them():
    ids_T = prompt(PROMPT)
    theirs = chosen_experts(reference(), lambda: reference()(ids_T[None]))
    mine = chosen_experts(ours(), lambda: run(ours(), [ids_T], [{0: PROMPT}]))
    assert len(mine) == len(theirs) == 2
    for a, b in zip(mine, theirs, strict=True):
        assert torch.equal(a, b)
        assert a.unique().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("chunks", [(60, 1, 1, 1, 1), (17, 30, 17), (2, 1, 61), (16, 48), (1,) * 64])
@torch.inference_mode()
def test_chunks_and_decode_steps_equal_one_forward(chunks: tuple[int, ...]):
    (hidden_TD,) = run(ours(), [prompt(PROMPT)], [{0: count} for count in chunks])
    close(hidden_TD, expected()[0])


@pytest.mark.parametrize("implementation", ["reference", "torch"])
@torch.inference_mode()
def test_every_cpu_implementation(implementation: str):
    with kernels.use(implementation):
        for schedule in ([{0: PROMPT}], [{0: 41}, {0: 20}, {0: 1}, {0: 1}, {0: 1}]):
            (hidden_TD,) = run(ours(), [prompt(PROMPT)], schedule)
            close(hidden_TD, expected()[0])


@torch.inference_mode()
def test_a_batch_of_mixed_lengths_equals_single_runs():
    lengths = (64, 1, 17, 33, 9)
    schedule = [
        {0: 30, 1: 1, 2: 16},  # prefill of unequal lengths, one of them a single token
        {0: 33, 2: 1, 3: 20},  # decode beside a chunk and a new row
        {0: 1, 3: 1, 4: 9},
        {3: 12},
    ]
    for length, hidden_TD in zip(lengths, run(ours(), [prompt(n) for n in lengths], schedule), strict=True):
        close(hidden_TD, expected(length=length)[0])


@torch.inference_mode()
def test_caches_are_those_of_transformers():
    """After a prefill and some decode steps: the convolution's inputs, the scan's states, keys and values."""
    ids_T = prompt(40)
    cache = reference()(ids_T[None, :37], use_cache=True).past_key_values
    for i in range(37, 40):
        cache = reference()(ids_T[None, i : i + 1], past_key_values=cache, use_cache=True).past_key_values
    run(ours(), [ids_T], [{0: 37}, {0: 1}, {0: 1}, {0: 1}], seed=None)
    row, found = places_of([ids_T])[0], cache_owners(ours())
    assert len(found) == len(cache.layers) == 4
    for (name, owner), theirs in zip(found, cache.layers, strict=True):
        if name.endswith(".attn"):
            for mine, pairs in ((owner.k_cache, theirs.keys), (owner.v_cache, theirs.values)):
                same(mine[1:].flatten(0, 1)[:40], pairs[0].transpose(0, 1))
        else:
            same(owner.conv_state[row], theirs.conv_states[0][0, :, -3:].T)
            same(owner.ssm_state[row], theirs.recurrent_states[0][0])


def renormalised(model: nn.Module) -> None:
    for layer in model.layers:
        if hasattr(layer, "block_sparse_moe"):
            layer.block_sparse_moe.topk.renormalize = True


def without_norm(which: str):
    def change(model: nn.Module) -> None:
        setattr(model.layers[1].mamba, which, nn.Identity())

    return change


def halves_exchanged(model: nn.Module) -> None:
    weight = model.layers[3].mamba.in_proj.linear.weight
    weight.copy_(weight.roll(len(weight) // 2, 0))


def bias_missing(which: str):
    return lambda model: getattr(model.layers[1].mamba, which).zero_()


MISTAKES = {
    "renormalised": renormalised,
    "no dt norm": without_norm("dt_layernorm"),
    "no B norm": without_norm("b_layernorm"),
    "no C norm": without_norm("c_layernorm"),
    "z before u": halves_exchanged,
    "no bias of the step": bias_missing("dt_bias"),
    "no bias of the convolution": bias_missing("conv_bias"),
    "no D": bias_missing("D"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@torch.inference_mode()
def test_a_wrong_model_would_be_noticed(mistake: str):
    wrong = loaded()
    MISTAKES[mistake](wrong)
    (hidden_TD,) = run(wrong, [prompt(PROMPT)], [{0: PROMPT}])
    assert (hidden_TD - expected()[0]).abs().max() > 100 * TOLERANCE


# ---------------------------------------------------------------- generation


LENGTHS, NEW_TOKENS = (5, 17, 33, 2, 48, 1), 16
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)


@lru_cache
def text(length: int) -> list[int]:
    """transformers' greedy continuation of the prompt of this length."""
    return continuation(reference(), prompt(length), NEW_TOKENS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("jamba")
    reference().save_pretrained(path)
    return path


@pytest.mark.parametrize(
    "engine",
    [
        {},
        {"max_num_batched_tokens": 16},
        {"num_kv_cache_blocks": 22, "block_size": 4, "max_num_batched_tokens": 24},
        {"max_num_seqs": 3},
        {"max_num_seqs": 1},
    ],
    ids=["batched", "chunked", "preempted", "three-rows", "alone"],
)
@pytest.mark.usefixtures("nobody_grows")
def test_greedy_text_is_that_of_transformers(folder, engine: dict[str, int]):
    """One model with both kinds of caches; preemptions come from a lack of blocks."""
    llm = LLM(folder, device="cpu", **engine)
    outputs = llm.generate([prompt(n).tolist() for n in LENGTHS], GREEDY)
    assert [out.outputs[0].token_ids for out in outputs] == [text(n) for n in LENGTHS]
    stats = llm.stats()
    assert (stats["preemptions"] > 0) == ("num_kv_cache_blocks" in engine)
    assert stats["state_bytes"] > 0
    assert stats["free_cache_blocks"] == [blocks - 1 for blocks in stats["cache_blocks"]]


# ---------------------------------------------------------------- weights and configuration


def test_both_spellings_of_a_checkpoint_load_alike():
    exported = dict(export_weights(ours()))
    assert exported["model.layers.0.mamba.conv1d.weight"].shape == (128, 1, 4)
    assert exported["model.layers.3.feed_forward.experts.3.down_proj.weight"].shape == (64, 96)
    again = JambaForCausalLM(CONFIG)
    load_weights(again, exported.items())
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), ours().parameters(), strict=True))
    stacked = reference().state_dict()["model.layers.1.feed_forward.experts.gate_up_proj"]
    parts = [exported[f"model.layers.1.feed_forward.experts.2.{name}_proj.weight"] for name in ("gate", "up")]
    assert torch.equal(torch.cat(parts), stacked[2])
    del exported["model.layers.3.mamba.A_log"]
    with pytest.raises(WeightsError, match=r"missing     model\.layers\.3\.mamba\.A_log"):
        load_weights(again, exported.items())


def test_the_kinds_of_all_32_layers():
    with torch.device("meta"):
        model = JambaForCausalLM(CONFIGS["mini"])
    for i, layer in enumerate(model.layers):
        assert hasattr(layer, "self_attn") == (i % 8 == 4)
        assert hasattr(layer, "mamba") == (i % 8 != 4)
        assert hasattr(layer, "block_sparse_moe") == (i % 2 == 1)
        assert hasattr(layer, "mlp") == (i % 2 == 0)


def test_the_logarithm_of_a_stays_float32_in_a_model_of_16_bits():
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = JambaForCausalLM(CONFIG)
    finally:
        torch.set_default_dtype(previous)
    kinds = {name.rpartition(".")[2]: p.dtype for name, p in model.named_parameters()}
    assert kinds.pop("A_log") == torch.float32
    assert set(kinds.values()) == {torch.bfloat16}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sliding_window", 128),
        ("hidden_act", "gelu"),
        ("attn_layer_offset", 8),
        ("num_experts_per_tok", 5),
        ("num_key_value_heads", 3),
        ("mamba_d_conv", 1),
        ("mamba_dt_rank", 0),
        ("model_type", "mamba"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_key(key: str, value: object):
    with pytest.raises(UsageError, match=key):
        JambaForCausalLM(CONFIG | {key: value})


def test_parameter_counts():
    for name, count in (("mini", 51_570_323_328), ("tiny", 328_492)):
        with torch.device("meta"):
            model = JambaForCausalLM(CONFIGS[name])
        assert sum(parameter.numel() for parameter in model.parameters()) == count
