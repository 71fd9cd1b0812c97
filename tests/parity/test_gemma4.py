"""Our Gemma 4 against transformers, float32 on the CPU: the tiny configuration, with five local layers before
the global one as in the real model, and randomised weights.

The weights are those of test_llama.py, layer scalars 0.5 to 1. Scores are not scaled, so roundings weigh more
than in other models: our float64 equations are 2.9e-5 off (the architecture's fact sheet).
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import pytest
import torch
from fastkernels.baseline.L1.embedding import ScaledEmbedding
from fastkernels.baseline.L4.gemma4 import Gemma4ForCausalLM
from torch import Tensor, nn
from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig
from transformers.models.gemma4.modeling_gemma4 import Gemma4ForCausalLM as HfGemma4

from fastkernels import LLM, SamplingParams, kernels, registry
from fastkernels.creation import creating
from fastkernels.errors import RequestError, UsageError, WeightsError
from fastkernels.loader.class_defaults import completed
from fastkernels.loader.weights import find
from fastkernels.nn.cache import cache_groups
from fastkernels.nn.fusion import apart
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.weights import destinations, export_weights, load_weights
from tests.parity.test_llama import run

TOLERANCE = 1e-4  # max abs error of a logit in float32, from the architecture's fact sheet
LAYERS = ["sliding_attention"] * 5 + ["full_attention"]
LENGTH = 40  # the window has 8
WHOLE = [{0: LENGTH}]
PIECES = [{0: 17}, {0: 1}, {0: 1}, {0: 12}, *[{0: 1}] * 9]
close = partial(torch.testing.assert_close, rtol=0, atol=TOLERANCE)


def config(size: str = "tiny", **changes: Any) -> dict[str, Any]:
    entry = registry.architecture("gemma4")
    layers = {"num_hidden_layers": 6, "layer_types": LAYERS} if size == "tiny" else {}
    return dict(entry.configs[entry.default_config[size]].config) | layers | changes


@lru_cache
def reference() -> HfGemma4:
    fields = config()
    del fields["model_type"], fields["architectures"]
    made = HfGemma4._from_config(
        Gemma4TextConfig(**fields), attn_implementation="eager", dtype=torch.float32
    ).eval()
    random_weights(made, seed=0)
    for index, layer in enumerate(made.model.layers):
        layer.layer_scalar.fill_(0.5 + 0.5 * index / 5)
    return made


def made(fields: dict[str, Any] | None = None) -> Gemma4ForCausalLM:
    model = Gemma4ForCausalLM(fields or config())
    load_weights(model, reference().state_dict().items())
    return model


ours = lru_cache(made)


def prompt(length: int = LENGTH, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (length,), generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def logits(model: Gemma4ForCausalLM, schedule: list[dict[int, int]] = WHOLE) -> Tensor:
    (hidden_TD,) = run(model, [prompt()], schedule)
    return model.compute_logits(hidden_TD)


@lru_cache
@torch.inference_mode()
def expected() -> Tensor:
    return reference()(prompt()[None]).logits[0]


@pytest.mark.parametrize("schedule", [WHOLE, PIECES], ids=["one forward", "chunks and decode steps"])
@pytest.mark.parametrize("parts", ["fused", "apart"])
def test_logits(parts: str, schedule: list[dict[int, int]]):
    assert expected().std() > 0.5, "weights too small for a strong test"
    if parts == "apart":
        with apart(ours()):
            actual_TV = logits(ours(), schedule)
    else:
        actual_TV = logits(ours(), schedule)
    assert actual_TV.dtype == torch.float32
    close(actual_TV, expected())
    assert torch.equal(actual_TV.argmax(-1), expected().argmax(-1))


@torch.inference_mode()
def test_hidden_states_of_every_layer():
    theirs = reference()(prompt()[None], output_hidden_states=True).hidden_states
    found: list[Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda module, args, result: found.append(result))
        for layer in ours().layers
    ]
    run(ours(), [prompt()], WHOLE)
    for hook in hooks:
        hook.remove()
    for actual_TD, expected_1TD in zip(found[:-1], theirs[1:-1], strict=True):  # theirs ends with the norm
        close(actual_TD, expected_1TD[0])


@pytest.mark.parametrize("implementation", ["reference", "torch"])
def test_every_cpu_implementation(implementation: str):
    with kernels.use(implementation):
        close(logits(ours(), PIECES), expected())


def test_a_batch_of_mixed_lengths_equals_single_runs():
    prompts = [prompt(length, seed=length) for length in (64, 1, 17, 33, 9)]
    schedule = [{0: 30, 1: 1, 2: 16}, {0: 33, 2: 1, 3: 20}, {0: 1, 3: 1, 4: 9}, {3: 12}]
    for ids_T, batched_TD in zip(prompts, run(ours(), prompts, schedule), strict=True):
        (alone_TD,) = run(ours(), [ids_T], [{0: len(ids_T)}])
        close(batched_TD, alone_TD)


def test_a_request_that_cannot_be_served_leaves_others_unharmed():
    """Also beside one longer than the window, whose blocks behind it are freed."""
    llm = LLM("gemma4", device="cpu", max_num_seqs=2, block_size=4, num_kv_cache_blocks=40)
    greedy = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    good = [prompt(40, seed=1).tolist(), prompt(3, seed=2).tolist()]
    alone = [llm.generate([ids], greedy)[0].outputs[0].token_ids for ids in good]
    found = llm.generate([good[0], [5, 256], good[1], [1] * 600], greedy, errors="return")
    assert [out.outputs[0].token_ids for out in (found[0], found[2])] == alone
    assert isinstance(found[1], RequestError)
    assert isinstance(found[3], RequestError)
    assert "256" in str(found[1])
    assert "512" in str(found[3])


# ---------------------------------------------------------------- what implementations get wrong


class Raw(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Shifted(nn.Module):
    """A norm whose weight counts from one."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        return kernels.rms_norm(x, 1 + self.weight, self.eps)


class AfterTheNorm(nn.Module):
    """Values of normed keys: of a layer whose values are its keys."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.norm = attention.unscaled_k_norm
        self.attention = [attention]

    def forward(self, x: Tensor) -> Tensor:
        return self.attention[0].v_norm_itself(self.norm(x))


def wrong(mistake: str) -> Gemma4ForCausalLM:
    model = made()
    for layer in model.layers:
        attention, router = layer.self_attn, layer.router
        if mistake == "norms of 1 + w":
            layer.post_attention_layernorm = Shifted(layer.post_attention_layernorm)
        elif mistake == "scores divided by sqrt(K)":
            for part in (attention.attn.decode, attention.attn.prefill):
                part.scale = attention.head_dim**-0.5
        elif mistake == "no norm of values":
            attention.v_norm = Raw()
        elif mistake == "values of normed keys" and attention.k_eq_v:
            attention.v_norm_itself = attention.v_norm
            attention.v_norm = AfterTheNorm(attention)
        elif mistake == "no layer scalar":
            layer.layer_scalar.fill_(1)
        elif mistake == "layer scalar of the branch alone":
            layer.post_feedforward_layernorm.weight.mul_(layer.layer_scalar)
            layer.layer_scalar.fill_(1)
        elif mistake == "no scale of experts":
            router.topk.per_expert_scale.fill_(1)
        elif mistake == "router without its factor":
            router.topk.logit_scale = 1.0
        elif mistake == "router reads what the dense block reads":
            router.norm.weight.copy_(layer.pre_feedforward_layernorm.weight)
        elif mistake == "gate and up of experts exchanged":
            layer.experts.w13.weight.copy_(layer.experts.w13.weight.roll(32, dims=1))
        elif mistake == "window one longer" and attention.attn.prefill.sliding_window:
            attention.attn.prefill.sliding_window = 9
    if mistake == "no soft cap":
        model.softcap = None
    elif mistake == "embedding not scaled":
        model.embed_tokens.embed_scale = 1.0
    elif mistake in ROPES:
        head = model.layers[-1].self_attn.rotary_emb
        head.cos_sin_PR = kernels.rotary_table(32, 512, ROPES[mistake])
    return model


GLOBAL = {"rope_theta": 1e6, "partial_rotary_factor": 0.25}
ROPES = {
    "the first quarter rotated": GLOBAL | {"rope_type": "default"},
    "all of a head rotated": {"rope_theta": 1e6, "rope_type": "default"},
}
MISTAKES = [
    "norms of 1 + w", "scores divided by sqrt(K)", "no norm of values", "values of normed keys",
    "no layer scalar", "layer scalar of the branch alone", "no scale of experts",
    "router without its factor", "router reads what the dense block reads",
    "gate and up of experts exchanged", "window one longer", "no soft cap", "embedding not scaled", *ROPES,
]  # fmt: skip


def test_a_wrong_model_would_be_noticed():
    near = {
        mistake: gap
        for mistake in MISTAKES
        if (gap := (logits(wrong(mistake)) - expected()).abs().max().item()) < 10 * TOLERANCE
    }
    assert not near


@torch.inference_mode()
def test_the_router():
    """The scale of experts comes behind the renormalisation. In a whole layer the norm behind the experts
    hides the other order, which is off by a factor of each token."""
    h_TD = torch.randn(LENGTH, 64, generator=torch.manual_seed(1)) * 3
    router = ours().layers[2].router
    _, theirs_TK, their_ids_TK = reference().model.layers[2].router(h_TD)
    weights_TK, ids_TK = router(h_TD)
    assert torch.equal(ids_TK.long(), their_ids_TK)
    torch.testing.assert_close(weights_TK, theirs_TK, rtol=0, atol=2e-6)
    scaled_before_TK = theirs_TK / theirs_TK.sum(-1, keepdim=True)
    assert (scaled_before_TK - theirs_TK).abs().max() > 10 * 2e-6


def test_the_factor_of_embeddings_is_rounded():
    """sqrt(2816) is 53.066; in bfloat16 it is 53."""
    for dtype, factor in ((torch.bfloat16, 53.0), (torch.float32, 2816**0.5)):
        with creating("cpu", dtype):
            embedding = ScaledEmbedding(3, 2, 2816**0.5)
        embedding.weight.fill_(1)
        assert embedding(torch.tensor([1])).flatten().tolist() == pytest.approx([factor] * 2, rel=1e-7)


# ---------------------------------------------------------------- checkpoints and configurations


def test_every_name_of_the_real_checkpoint_has_a_place():
    fields = config("full")
    del fields["model_type"], fields["architectures"]
    with torch.device("meta"):
        theirs = HfGemma4(Gemma4TextConfig(**fields)).state_dict()
    with creating("meta", torch.bfloat16):
        model = Gemma4ForCausalLM(config("full"))
    places, unnamed = destinations(model)
    assert not unnamed
    assert {name: place.shape for name, place in places.items()} == {
        name: list(tensor.shape) for name, tensor in theirs.items() if name != "lm_head.weight"
    }
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert round(sum(sizes.values()) / 1e6) == 25_233
    assert round(sum(size for name, size in sizes.items() if ".experts." in name) / 1e6) == 22_838


def test_the_file_of_the_model_that_sees_images():
    exported = {
        name.replace("model.", "model.language_model.", 1): tensor for name, tensor in export_weights(ours())
    }
    towers = {
        "model.vision_tower.encoder.layers.0.self_attn.q_proj.linear.weight": torch.zeros(2, 2),
        "model.vision_tower.patch_embedder.position_embedding_table": torch.zeros(2, 2),
        "model.embed_vision.embedding_projection.weight": torch.zeros(2, 2),
    }
    model = Gemma4ForCausalLM(config())
    load_weights(model, (exported | towers).items())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), ours().parameters(), strict=True))
    del exported["model.language_model.layers.2.layer_scalar"]
    with pytest.raises(WeightsError, match=r"missing     model\.layers\.2\.layer_scalar, expected \[1\]"):
        load_weights(Gemma4ForCausalLM(config()), exported.items())


def test_the_section_of_a_configuration_that_describes_the_text_model():
    whole = {"model_type": "gemma4", "text_config": config(architectures=None), "eos_token_id": [1, 106]}
    source = find(whole | {"architectures": ["Gemma4ForConditionalGeneration"], "dtype": "bfloat16"})
    assert source.architecture.id == "gemma4"
    assert source.config["vocab_size"] == 256
    assert source.stop_ids == (1, 106)
    assert Gemma4ForCausalLM(source.config).layers[5].self_attn.head_dim == 32


def test_a_configuration_that_transformers_saved():
    saved = reference().config.to_dict()
    assert "global_head_dim" not in saved
    saved["per_layer_config"] = {str(key): value for key, value in saved["per_layer_config"].items()}
    actual = Gemma4ForCausalLM(completed(saved))
    for layer, wanted in zip(actual.layers, ours().layers, strict=True):
        for name in ("num_kv_heads", "head_dim", "k_eq_v"):
            assert getattr(layer.self_attn, name) == getattr(wanted.self_attn, name)
    by_default = Gemma4ForCausalLM(config(layer_types=None, num_hidden_layers=8))
    assert [layer.self_attn.head_dim for layer in by_default.layers] == [16] * 5 + [32, 16, 32]
    without = config(attention_k_eq_v=False)
    assert Gemma4ForCausalLM(without).layers[5].self_attn.num_kv_heads == 2


def test_layers_have_caches_by_their_kind():
    local, whole = cache_groups(ours())
    assert (local.shape, local.window, whole.shape, whole.window) == ((2, 16), 8, (1, 32), None)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("top_k_experts", 9, "9 of 8 experts"),
        ("enable_moe_block", False, "without experts is not supported"),
        ("hidden_size_per_layer_input", 256, "256 is not supported"),
        ("num_kv_shared_layers", 2, "2 is not supported"),
        ("use_bidirectional_attention", "all", "'all' is not supported"),
        ("hidden_activation", "silu", "'silu' is not supported"),
        ("layer_types", ["sliding_attention"] * 6, "the last layer must be 'full_attention'"),
        ("layer_types", ["full_attention"], "must be a list of 6 names"),
        ("num_global_key_value_heads", 3, "3 does not divide num_attention_heads, 4"),
        ("rope_parameters", {"sliding_attention": {"rope_theta": 1.0}}, "full_attention: is missing"),
    ],
)
def test_what_is_not_supported_says_so(key: str, value: Any, message: str):
    with pytest.raises(UsageError, match=message):
        Gemma4ForCausalLM(config(**{key: value}))
