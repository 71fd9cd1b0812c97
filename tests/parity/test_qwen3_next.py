"""Our Qwen3-Next against transformers, float32 on the CPU, the tiny configuration with randomised weights.

transformers' initial weights of norms are zero and its routers tiny, which hides mistakes: everything is
drawn here. It takes flash-linear-attention's kernels where they are installed, which need a GPU: its own
functions have their place again.
"""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import Any

import pytest
import torch
from fastkernels.baseline.L4.qwen3_next import Qwen3NextForCausalLM
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen3NextConfig
from transformers.models.qwen3_next import modeling_qwen3_next as theirs_module
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextForCausalLM as HfQwen3Next

from fastkernels import LLM, SamplingParams, kernels, registry
from fastkernels.errors import UsageError, WeightsError
from fastkernels.kernels.delta_rule.reference import widened
from fastkernels.nn.cache import cache_owners
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.weights import destinations, export_weights, load_weights
from tests.mamba_cases import delta
from tests.parity.continuation import continuation
from tests.parity.test_llama import places_of, prompt, run

ATOL, RTOL = 2e-4, 1e-4  # of logits with a std of about 1, from the architecture's fact sheet
STATE_TOLERANCE = 1e-5  # relative L2
PROMPT, STEPS = 37, 5
CONFIGS = {name: config.config for name, config in registry.architecture("qwen3_next").configs.items()}
TINY: dict[str, Any] = CONFIGS["tiny"]
VARIANTS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "sheet": {"rms_norm_eps": 1e-6},
    # Three heads of values for one of keys, keys unlike values, attention first, weights not renormalised.
    "other": {
        "num_hidden_layers": 3,
        "layer_types": ["full_attention", "linear_attention", "linear_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 24,
        "linear_conv_kernel_dim": 3,
        "norm_topk_prob": False,
        "shared_expert_intermediate_size": 48,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        "tie_word_embeddings": True,
    },
}
for name in ("chunk_gated_delta_rule", "recurrent_gated_delta_rule"):
    name = f"torch_{name}"
    setattr(theirs_module, name, inspect.unwrap(getattr(theirs_module, name)))


@lru_cache
def reference(name: str = "tiny") -> PreTrainedModel:
    fields = {key: value for key, value in (TINY | VARIANTS[name]).items() if key != "architectures"}
    config = Qwen3NextConfig(**fields)
    model = HfQwen3Next._from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    random_weights(model, seed=0)
    generator = torch.Generator().manual_seed(1)
    for key, parameter in model.named_parameters():
        # Their norms add one; steps and rates from short memories to long ones.
        ranges = {"norm.weight": (-0.5, 0.5), "A_log": (-2.0, 1.5), "dt_bias": (-3.0, 1.0)}
        for end, (low, high) in ranges.items():
            if key.endswith(end):
                shift = 1 if key.endswith("linear_attn.norm.weight") else 0
                parameter.data.uniform_(low + shift, high + shift, generator=generator)
    return model


def loaded(name: str = "tiny", dtype: torch.dtype = torch.float32) -> Qwen3NextForCausalLM:
    model = Qwen3NextForCausalLM(TINY | VARIANTS[name]).to(dtype).eval().requires_grad_(False)
    load_weights(model, reference(name).state_dict().items())
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


def chosen_experts(model: nn.Module, ends: str, call: Any, top_k: int = 2) -> list[Tensor]:
    """Sorted ids [T, k] of every router while `call` runs."""
    found: list[Tensor] = []

    def note(module: nn.Module, args: Any, result: Any) -> None:
        logits_TE = result[0] if isinstance(result, tuple) else result
        found.append(logits_TE.topk(top_k, -1).indices.sort(-1).values)

    hooks = [m.register_forward_hook(note) for name, m in model.named_modules() if name.endswith(ends)]
    call()
    for hook in hooks:
        hook.remove()
    return found


@torch.inference_mode()
def test_the_same_experts_are_chosen_and_all_of_them():
    ids_T = prompt(100)
    theirs = chosen_experts(reference(), "mlp.gate", lambda: reference()(ids_T[None]))
    mine = chosen_experts(ours(), "mlp.gate", lambda: run(ours(), [ids_T], [{0: 100}]))
    assert len(mine) == len(theirs) == 4
    for a, b in zip(mine, theirs, strict=True):
        assert torch.equal(a, b)
        assert a.unique().tolist() == list(range(8))


@torch.inference_mode()
def test_two_prompts_and_decode_steps_beside_each_other():
    """Each as transformers answers it alone; then caches and states are its own."""
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
    assert len(owners) == len(cache.layers) == 4
    for (name, owner), theirs in zip(owners, cache.layers, strict=True):
        if name.endswith(".attn"):
            for mine, pairs in ((owner.k_cache, theirs.keys), (owner.v_cache, theirs.values)):
                same(mine[1:].flatten(0, 1)[: PROMPT + STEPS], pairs[0].transpose(0, 1))
        else:
            same(owner.conv_state[row], theirs.conv_states[0][0, :, -3:].T)
            same(owner.state[row], theirs.recurrent_states[0][0])


@pytest.mark.parametrize("implementation", ["reference", "torch"])
@pytest.mark.parametrize("chunks", [(24, 16), (1, 2, 66, 1, 1), (1,) * 20])
@torch.inference_mode()
def test_chunks_and_decode_steps_equal_one_forward_in_float64(chunks: tuple[int, ...], implementation: str):
    """The chunked form and the recurrence; more than one chunk of a kernel, and pieces shorter than a
    convolution's past."""
    model, ids_T = ours("other", dtype=torch.float64), prompt(sum(chunks))
    with kernels.use("reference"):
        (whole_TD,) = run(model, [ids_T], [{0: len(ids_T)}], dtype=torch.float64)
    with kernels.use("reference", chunk_delta_rule=implementation):
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


def mixer(change: Any) -> Any:
    return lambda model: change(model.layers[1].linear_attn)


def attention(change: Any) -> Any:
    return lambda model: change(model.layers[3].self_attn)


def moe(change: Any) -> Any:
    return lambda model: change(model.layers[2].mlp)


def rolled(parameter: str, start: int, stop: int, by: int) -> Any:
    """Rows `start` to `stop` of a parameter of a mixer, in another order."""

    def change(m: Any) -> None:
        rows = m.get_parameter(parameter)[start:stop]
        rows.copy_(rows.roll(by, 0))

    return mixer(change)


def halves(m: Any) -> None:
    """All queries before all gates."""
    rows = m.qkv_proj.linear.weight[: m.qkv_sizes[0]]
    rows.copy_(rows.unflatten(0, (m.num_heads, 2, m.head_dim)).transpose(0, 1).flatten(0, 2))


def tiled(m: Any) -> None:
    """Heads of values as if every second one had the first one's keys."""
    chunk = m.chunk.forward
    m.chunk.forward = lambda q, k, *rest: chunk(q.repeat(1, 2, 1), k.repeat(1, 2, 1), *rest)


def without_rotation(m: Any) -> None:
    m.rotary_emb.cos_sin_PR = torch.cat((torch.ones(512, 4), torch.zeros(512, 4)), 1)


def all_rotated(m: Any) -> None:
    parameters = {"rope_type": "default", "rope_theta": 1e7}
    m.rotary_emb.cos_sin_PR = kernels.rotary_table(32, 512, parameters)


def recurrence(m: Any, reads_decayed: bool = True, has_directions: bool = True) -> None:
    """The delta rule one token at a time, as it is or with a mistake in it."""

    def forward(q, k, v, g, beta, A_log, dt_bias, state, rows, starts, longest):
        scale = m.chunk.scale
        x = widened(torch.float32, q, k, v, g, beta, A_log, dt_bias, scale)
        if not has_directions:
            x = x._replace(q_THK=q.repeat_interleave(2, 1) * scale, k_THK=k.repeat_interleave(2, 1))
        s, out = torch.zeros(v.shape[1], q.shape[2], v.shape[2]), []
        for q_HK, k_HK, v_HV, log_decay_H1, beta_H1 in zip(*x):
            decayed = s * log_decay_H1.exp()[..., None]
            read_HV = torch.einsum("hk,hkv->hv", k_HK, decayed if reads_decayed else s)
            s = decayed + k_HK[..., None] * (beta_H1 * (v_HV - read_HV))[:, None]
            out.append(torch.einsum("hk,hkv->hv", q_HK, s))
        return torch.stack(out)

    m.chunk.forward = forward


def norms(change: Any) -> Any:
    def all_of_them(model: nn.Module) -> None:
        for module in model.modules():
            if type(module).__name__ == "GemmaRMSNorm":
                change(module)

    return all_of_them


MISTAKES = {
    "weights of norms as they are": norms(lambda n: n.weight.sub_(1)),
    "one added behind the delta rule, too": mixer(lambda m: m.norm.weight.add_(1)),
    "another epsilon": norms(lambda n: setattr(n, "eps", 1e-2)),
    "queries before gates": attention(halves),
    "no gate of attention": attention(lambda m: m.qkv_proj.linear.weight[32:64].zero_()),
    "no rotation": attention(without_rotation),
    "all features rotated": attention(all_rotated),
    "keys before queries": rolled("in_proj.linear.weight", 0, 64, 32),
    "b and a exchanged": rolled("in_proj.linear.weight", 192, 200, 4),
    "another head's decay": rolled("in_proj.linear.weight", 196, 200, 1),
    "tiled heads of keys": mixer(tiled),
    "no bias of the step": mixer(lambda m: m.dt_bias.zero_()),
    "A without its exponential": mixer(lambda m: m.A_log.abs_().log_()),
    "read before the decay": mixer(lambda m: recurrence(m, reads_decayed=False)),
    "keys and queries of any length": mixer(lambda m: recurrence(m, has_directions=False)),
    "not renormalised": moe(lambda m: setattr(m.topk, "renormalize", False)),
    "no gate of the shared expert": moe(lambda m: m.shared_expert_gate.weight.zero_()),
}


@torch.inference_mode()
def test_the_recurrence_that_mistakes_are_made_in_is_right():
    model = loaded()
    recurrence(model.layers[1].linear_attn)
    (hidden_TD,) = run(model, [prompt(PROMPT)], [{0: PROMPT}])
    close(model.compute_logits(hidden_TD), expected())


@pytest.mark.parametrize("mistake", MISTAKES)
@torch.inference_mode()
def test_a_wrong_model_would_be_noticed(mistake: str):
    wrong = loaded()
    MISTAKES[mistake](wrong)
    (hidden_TD,) = run(wrong, [prompt(PROMPT)], [{0: PROMPT}])
    assert (wrong.compute_logits(hidden_TD) - expected()).abs().max() > 10 * ATOL


@pytest.mark.parametrize("implementation", ["reference", "torch"])
def test_the_delta_rule_is_that_of_transformers(implementation: str):
    """Its recurrence over one row: gates and sigmoids are computed before it there."""
    case = delta((37,))
    (q, k, v, g, beta), (a_log, bias, _) = case.tokens, case.others
    log_decay = -a_log.exp() * torch.nn.functional.softplus(g + bias)
    q, k = (x.repeat_interleave(2, 1) for x in (q, k))
    given = (x[None] for x in (q, k, v, log_decay, beta.sigmoid()))
    theirs, left = theirs_module.torch_recurrent_gated_delta_rule(
        *given, initial_state=case.state[case.rows_B], output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    o, state = case.run(implementation)
    torch.testing.assert_close(o, theirs[0], rtol=1e-4, atol=1e-5)
    same(state[case.rows_B], left)


# ---------------------------------------------------------------- generation


LENGTHS, NEW_TOKENS = (5, 17, 33, 2, 48, 1), 16
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)


@lru_cache
def text(length: int) -> list[int]:
    """transformers' greedy continuation of the prompt of this length."""
    return continuation(reference(), prompt(length), NEW_TOKENS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("qwen3_next")
    reference().save_pretrained(path)
    return path


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
def test_greedy_text_is_that_of_transformers(folder, engine: dict[str, int]):
    """One model with both kinds of caches; preemptions come from a lack of blocks."""
    llm = LLM(folder, device="cpu", **engine)
    outputs = llm.generate([prompt(n).tolist() for n in LENGTHS], GREEDY)
    assert [out.outputs[0].token_ids for out in outputs] == [text(n) for n in LENGTHS]
    stats = llm.stats()
    assert (stats["preemptions"] > 0) == ("num_kv_cache_blocks" in engine)
    assert stats["state_bytes"] > 0
    assert stats["free_cache_blocks"] == [blocks - 1 for blocks in stats["cache_blocks"]]


def test_bad_requests_are_named_and_the_others_unharmed(folder):
    llm = LLM(folder, device="cpu")
    for bad, problem in (([], "empty"), ([256], "256"), (list(range(200)) * 3, "600")):
        with pytest.raises(UsageError, match=problem):
            llm.generate([prompt(5).tolist(), bad], GREEDY)
    (out,) = llm.generate([prompt(5).tolist()], GREEDY)
    assert out.outputs[0].token_ids == text(5)


def test_a_prefix_cannot_be_kept_of_states_that_the_next_token_overwrites(folder):
    with pytest.raises(UsageError, match="enable_prefix_caching"):
        LLM(folder, device="cpu", enable_prefix_caching=True)


# ---------------------------------------------------------------- weights and configuration


def names_of_the_sheet(layers: int, experts: int) -> set[str]:
    gated = [f"{part}_proj.weight" for part in ("gate", "up", "down")]
    every = ["input_layernorm.weight", "post_attention_layernorm.weight"]
    every += ["mlp.gate.weight", "mlp.shared_expert_gate.weight"]
    every += [f"mlp.shared_expert.{name}" for name in gated]
    every += [f"mlp.experts.{e}.{name}" for e in range(experts) for name in gated]
    linear = ["in_proj_qkvz.weight", "in_proj_ba.weight", "conv1d.weight", "A_log", "dt_bias", "norm.weight"]
    full = [f"{part}.weight" for part in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")]
    found = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    for i in range(layers):
        parts = [f"self_attn.{name}" for name in full]
        if (i + 1) % 4:
            parts = [f"linear_attn.{name}" for name in (*linear, "out_proj.weight")]
        found |= {f"model.layers.{i}.{part}" for part in (*every, *parts)}
    return found


@lru_cache
def real() -> Qwen3NextForCausalLM:
    with torch.device("meta"):
        return Qwen3NextForCausalLM(CONFIGS["80b-a3b"])


def test_every_tensor_of_the_real_checkpoint_has_its_place():
    places, unnamed = destinations(real())
    shapes = {name: place.shape for name, place in places.items()}
    assert shapes.keys() == names_of_the_sheet(48, 512)
    assert unnamed == []
    fields = {key: value for key, value in CONFIGS["80b-a3b"].items() if key != "architectures"}
    with torch.device("meta"):
        theirs = HfQwen3Next(Qwen3NextConfig(**fields)).state_dict()
    alike = {name: list(tensor.shape) for name, tensor in theirs.items() if ".mlp.experts." not in name}
    assert {name: shape for name, shape in shapes.items() if ".mlp.experts." not in name} == alike
    assert shapes["model.layers.47.mlp.experts.511.up_proj.weight"] == [512, 2048]
    assert real().weight_map.ignores("mtp.layers.0.mlp.experts.3.down_proj.weight")


def test_parameter_counts():
    assert sum(parameter.numel() for parameter in real().parameters()) == 79_674_391_296
    assert sum(parameter.numel() for parameter in ours().parameters()) == 341_960


def test_both_spellings_of_a_checkpoint_load_alike():
    exported = dict(export_weights(ours()))
    assert exported["model.layers.3.mlp.experts.7.down_proj.weight"].shape == (64, 32)
    theirs = reference().state_dict()
    for name in ("in_proj_qkvz", "in_proj_ba", "conv1d"):
        name = f"model.layers.1.linear_attn.{name}.weight"
        assert torch.equal(exported[name], theirs[name])
    again = Qwen3NextForCausalLM(TINY)
    load_weights(again, exported.items())
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), ours().parameters(), strict=True))
    del exported["model.layers.1.linear_attn.in_proj_ba.weight"]
    exported["model.layers.0.linear_attn.in_proj_qkvz.weight"] = torch.zeros(200, 64)
    exported["model.layers.4.mlp.gate.weight"] = torch.zeros(8, 64)
    with pytest.raises(WeightsError) as found:
        load_weights(again, exported.items())
    for line in (
        "missing     model.layers.1.linear_attn.in_proj_ba.weight, expected [8, 64]",
        "misshapen   model.layers.0.linear_attn.in_proj_qkvz.weight [200, 64], expected [192, 64]",
        "unexpected  model.layers.4.mlp.gate.weight",
    ):
        assert line in str(found.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "gelu"),
        ("attention_bias", True),
        ("mlp_only_layers", [1]),
        ("decoder_sparse_step", 2),
        ("num_experts_per_tok", 9),
        ("num_key_value_heads", 3),
        ("linear_num_value_heads", 3),
        ("linear_conv_kernel_dim", 1),
        ("layer_types", ["full_attention"]),
        ("partial_rotary_factor", None),
        ("model_type", "qwen3"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_key(key: str, value: object):
    changed = {key: value}
    if key == "partial_rotary_factor":
        changed = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e7, key: 0.3}}
    with pytest.raises(UsageError, match=key):
        Qwen3NextForCausalLM(TINY | changed)
