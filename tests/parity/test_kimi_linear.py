"""Our Kimi Linear against transformers, float32 on the CPU, the tiny configuration with randomised weights.

transformers' initial routers and their bias are zero, which hides mistakes: everything is drawn here. It
takes flash-linear-attention's kernels where they are installed, which need a GPU: its own functions have
their place again (test_kimi_delta_attention.py).
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from fastkernels.baseline.L4.kimi_linear import KimiLinearForCausalLM
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearForCausalLM as HfKimiLinear

from fastkernels import LLM, SamplingParams, kernels, registry
from fastkernels.errors import UsageError
from fastkernels.nn.cache import cache_owners
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.weights import destinations, load_weights
from tests.parity import test_kimi_delta_attention  # noqa: F401 transformers' own functions
from tests.parity.continuation import continuation
from tests.parity.test_llama import places_of, prompt, run

ATOL, RTOL = 2e-4, 1e-4  # of logits with a std of about 1, from the architecture's fact sheet
STATE_TOLERANCE = 1e-5  # relative L2
PROMPT, STEPS = 37, 5
CONFIGS = {name: config.config for name, config in registry.architecture("kimi_linear").configs.items()}
TINY: dict[str, Any] = CONFIGS["tiny"]
LINEAR = TINY["linear_attn_config"]
VARIANTS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "sheet": {"rms_norm_eps": 1e-5},
    # Two dense blocks, latent attention before the last layer, weights not renormalised, two shared experts.
    "other": {
        "linear_attn_config": LINEAR | {"kda_layers": [1, 2, 4], "full_attn_layers": [3], "head_dim": 8},
        "first_k_dense_replace": 2,
        "moe_renormalize": False,
        "num_shared_experts": 2,
        "qk_nope_head_dim": 8,
        "v_head_dim": 24,
    },
}


@lru_cache
def reference(name: str = "tiny") -> PreTrainedModel:
    outside = ("architectures", "model_type")
    fields = {key: value for key, value in (TINY | VARIANTS[name]).items() if key not in outside}
    config = KimiLinearConfig(**fields)
    model = HfKimiLinear._from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    random_weights(model, seed=0)
    generator = torch.Generator().manual_seed(1)
    drawn = {"A_log": (-2.0, 1.5), "dt_bias": (-3.0, 1.0), "e_score_correction_bias": (-0.1, 0.1)}
    for key, tensor in (*model.named_parameters(), *model.named_buffers()):
        for end, (low, high) in drawn.items():
            if key.endswith(end):
                tensor.data.uniform_(low, high, generator=generator)
    return model


@lru_cache
def saved(name: str = "tiny") -> Path:
    """A folder with the checkpoint, under the names that checkpoints have."""
    import atexit
    import shutil
    import tempfile

    path = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, path)
    reference(name).save_pretrained(path)
    return path


def loaded(name: str = "tiny", dtype: torch.dtype = torch.float32) -> KimiLinearForCausalLM:
    model = KimiLinearForCausalLM(TINY | VARIANTS[name]).to(dtype).eval().requires_grad_(False)
    load_weights(model, load_file(saved(name) / "model.safetensors").items())
    return model


ours = lru_cache(loaded)


@lru_cache
@torch.inference_mode()
def expected(name: str = "tiny", length: int = PROMPT, seed: int = 0) -> Tensor:
    """Logits of transformers on the prompt of this length."""
    return reference(name)(prompt(length, seed)[None]).logits[0]


def close(actual: Tensor, truth: Tensor) -> None:
    torch.testing.assert_close(actual, truth, rtol=RTOL, atol=ATOL)


def same(mine: Tensor, theirs: Tensor) -> None:
    assert mine.shape == theirs.shape
    assert (mine - theirs).norm() / theirs.norm() < STATE_TOLERANCE


@pytest.mark.parametrize(
    ("name", "length"), [("tiny", 1), ("tiny", 100), ("sheet", PROMPT), ("other", PROMPT)]
)
@torch.inference_mode()
def test_logits(name: str, length: int):
    """100 tokens are more than one chunk."""
    assert expected(name).std() > 0.5, "weights too small for a strong test"
    (hidden_TD,) = run(ours(name), [prompt(length)], [{0: length}])
    actual_TV = ours(name).compute_logits(hidden_TD)
    assert actual_TV.dtype == torch.float32
    close(actual_TV, expected(name, length))


@torch.inference_mode()
def test_all_experts_are_chosen():
    found: list[Tensor] = []
    topks = [
        module.topk
        for name, module in ours().named_modules()
        if name.endswith(".mlp") and hasattr(module, "topk")
    ]
    hooks = [topk.register_forward_hook(lambda module, args, out: found.append(out[1])) for topk in topks]
    run(ours(), [prompt(100)], [{0: 100}])
    for hook in hooks:
        hook.remove()
    assert [ids.unique().tolist() for ids in found] == [list(range(8))] * 3


@torch.inference_mode()
def test_two_prompts_and_decode_steps_beside_each_other():
    """Each as transformers answers it alone; then states are its own."""
    prompts = [prompt(PROMPT + STEPS, seed) for seed in (0, 1)]
    schedule = [{0: PROMPT, 1: PROMPT}, *[{0: 1, 1: 1}] * STEPS]
    found = run(ours(), prompts, schedule, seed=None)
    for seed, hidden_TD in enumerate(found):
        close(ours().compute_logits(hidden_TD), expected(length=PROMPT + STEPS, seed=seed))
    cache = reference()(prompts[0][None, :PROMPT], use_cache=True).past_key_values
    for i in range(PROMPT, PROMPT + STEPS):
        cache = reference()(
            prompts[0][None, i : i + 1], past_key_values=cache, use_cache=True
        ).past_key_values
    row, owners = places_of(prompts)[0], cache_owners(ours())
    assert len(owners) == 4
    for (name, owner), theirs in zip(owners, cache.layers, strict=True):
        if name.endswith(".attn"):
            assert owner.kv_cache.shape[-1] == 40
        else:
            same(owner.conv_state[row], theirs.conv_states[0][0, :, -3:].T)
            same(owner.state[row], theirs.recurrent_states[0][0])


@pytest.mark.parametrize("chunks", [(24, 16), (1, 2, 66, 1, 1), (1,) * 20])
@torch.inference_mode()
def test_chunks_and_decode_steps_equal_one_forward_in_float64(chunks: tuple[int, ...]):
    model, ids_T = ours("other", dtype=torch.float64), prompt(sum(chunks))
    with kernels.use("reference", chunk_delta_rule="torch"):
        (whole_TD,) = run(model, [ids_T], [{0: len(ids_T)}], dtype=torch.float64)
        (hidden_TD,) = run(model, [ids_T], [{0: n} for n in chunks], dtype=torch.float64)
    torch.testing.assert_close(hidden_TD, whole_TD, rtol=0, atol=1e-10)


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


# ---------------------------------------------------------------- where implementations go wrong


def moe(change: Any) -> Any:
    return lambda model: change(model.layers[2].mlp)


def mla(change: Any) -> Any:
    return lambda model: change(model.layers[3].self_attn)


def biased_weights(m: Any) -> None:
    topk = m.topk.forward
    m.topk.forward = lambda scores, choice: topk(choice, choice)


def scaled_before(m: Any) -> None:
    """The scale comes before renormalisation, which undoes it."""
    m.topk.scale = 1.0


def in_halves(m: Any) -> None:
    """All keys before all values."""
    rows = m.kv_b_weight.unflatten(0, (m.num_heads, 2, 16))
    m.kv_b_weight.copy_(rows.transpose(0, 1).flatten(0, 2))


MISTAKES = {
    "no bias in the choice": moe(lambda m: m.e_score_correction_bias.zero_()),
    "the bias in the weights": moe(biased_weights),
    "not scaled": moe(scaled_before),
    "not renormalised": moe(lambda m: setattr(m.topk, "renormalize", False)),
    "no shared expert": moe(lambda m: m.shared_experts.down_proj.linear.weight.zero_()),
    "keys and values in halves": mla(in_halves),
    "no shared part of the keys": mla(lambda m: m.fused_qkv_a_proj.weight[-8:].zero_()),
    "no norm of the latents": mla(lambda m: setattr(m, "kv_a_layernorm", nn.Identity())),
    "another scale": mla(lambda m: setattr(m.attn.prefill, "scale", 16**-0.5)),
    "a gate of silu": lambda model: setattr(model.layers[1].self_attn.o_norm, "activation", "silu"),
    "another epsilon": lambda model: setattr(model.layers[1].input_layernorm, "eps", 1e-2),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@torch.inference_mode()
def test_a_wrong_model_would_be_noticed(mistake: str):
    wrong = loaded()
    MISTAKES[mistake](wrong)
    (hidden_TD,) = run(wrong, [prompt(PROMPT)], [{0: PROMPT}])
    assert (wrong.compute_logits(hidden_TD) - expected()).abs().max() > 10 * ATOL


# ---------------------------------------------------------------- generation


LENGTHS, NEW_TOKENS = (5, 17, 33, 2, 48, 1), 16
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)


@lru_cache
def text(length: int) -> list[int]:
    """transformers' greedy continuation of the prompt of this length."""
    return continuation(reference(), prompt(length), NEW_TOKENS)


@pytest.mark.parametrize(
    "engine",
    [
        {},
        {"max_num_batched_tokens": 16, "max_num_seqs": 3},
        {"num_kv_cache_blocks": 22, "block_size": 4, "max_num_batched_tokens": 24},
    ],
    ids=["batched", "chunked", "preempted"],
)
@pytest.mark.usefixtures("nobody_grows")
def test_greedy_text_is_that_of_transformers(engine: dict[str, int]):
    """States and latents in one model; preemptions come from a lack of blocks."""
    llm = LLM(saved(), device="cpu", **engine)
    outputs = llm.generate([prompt(n).tolist() for n in LENGTHS], GREEDY)
    assert [out.outputs[0].token_ids for out in outputs] == [text(n) for n in LENGTHS]
    stats = llm.stats()
    assert (stats["preemptions"] > 0) == ("num_kv_cache_blocks" in engine)
    assert stats["free_cache_blocks"] == [blocks - 1 for blocks in stats["cache_blocks"]]


# ---------------------------------------------------------------- weights and configuration


def names_of_the_sheet() -> set[str]:
    full, experts = {4, 8, 12, 16, 20, 24, 27}, range(256)
    gated = [f"{part}_proj.weight" for part in ("gate", "up", "down")]
    delta = [f"{part}_proj.weight" for part in ("q", "k", "v", "f_a", "f_b", "g_a", "g_b", "b", "o")]
    delta += [*(f"{part}_conv1d.weight" for part in "qkv"), "A_log", "dt_bias", "o_norm.weight"]
    latent = ["q_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj"]
    sparse = ["gate.weight", "gate.e_score_correction_bias", *(f"shared_experts.{name}" for name in gated)]
    sparse += [f"experts.{e}.{part}.weight" for e in experts for part in ("w1", "w2", "w3")]
    found = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    for i in range(27):
        parts = ["input_layernorm.weight", "post_attention_layernorm.weight"]
        parts += [
            f"self_attn.{name}" for name in (delta if i + 1 not in full else [f"{n}.weight" for n in latent])
        ]
        parts += [f"block_sparse_moe.{name}" for name in sparse] if i else [f"mlp.{name}" for name in gated]
        found |= {f"model.layers.{i}.{part}" for part in parts}
    return found


@lru_cache
def real() -> KimiLinearForCausalLM:
    with torch.device("meta"):
        return KimiLinearForCausalLM(CONFIGS["48b-a3b"])


def test_every_tensor_of_the_real_checkpoint_has_its_place():
    places, unnamed = destinations(real())
    assert places.keys() == names_of_the_sheet()
    assert unnamed == []
    for name, shape in {
        "layers.0.self_attn.q_conv1d.weight": [4096, 1, 4],
        "layers.0.self_attn.A_log": [1, 1, 32, 1],
        "layers.3.self_attn.kv_a_proj_with_mqa.weight": [576, 2304],
        "layers.3.self_attn.kv_b_proj.weight": [8192, 512],
        "layers.26.block_sparse_moe.experts.255.w2.weight": [2304, 1024],
    }.items():
        assert places[f"model.{name}"].shape == shape


def test_parameter_counts():
    """The sheet's counts leave out the biases of the choice, which transformers has as buffers."""
    for model, layers, experts, count in ((real(), 26, 256, 49_122_675_072), (ours(), 3, 8, 300_892)):
        assert sum(parameter.numel() for parameter in model.parameters()) - layers * experts == count


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "gelu"),
        ("q_lora_rank", 16),
        ("mla_use_nope", False),
        ("moe_router_activation_func", "softmax"),
        ("num_expert_group", 2),
        ("num_experts_per_token", 9),
        ("first_k_dense_replace", 4),
        ("full_attn_layers", LINEAR | {"full_attn_layers": [3, 4]}),
        ("model_type", "qwen3_next"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_key(key: str, value: object):
    changed = {"linear_attn_config": value} if key == "full_attn_layers" else {key: value}
    with pytest.raises(UsageError, match=key):
        KimiLinearForCausalLM(TINY | changed)
