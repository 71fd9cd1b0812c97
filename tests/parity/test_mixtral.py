"""Our Mixtral against transformers, float32 on the CPU, tiny models with randomised weights.

Weights and schedules are those of test_llama.py: logits of std about 1, matrices 1/sqrt(fan in), norms 0.5 to
1.5. The text that it generates is compared in test_generation.py.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch
from fastkernels.baseline.L4.mixtral import MixtralForCausalLM
from torch import Tensor, nn
from transformers import MixtralConfig, PreTrainedModel
from transformers.models.mixtral.modeling_mixtral import MixtralForCausalLM as HfMixtral

from fastkernels import kernels
from fastkernels.errors import UsageError, WeightsError
from fastkernels.loader.class_defaults import completed
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.weights import export_weights, load_weights
from tests.parity.test_llama import PROMPT, TINY, TOLERANCE, close, prompt, run

ROPE = {"rope_type": "default", "rope_theta": 1e6}
MODELS = {
    "top-2": {"num_local_experts": 4},
    "top-1": {"num_local_experts": 4, "num_experts_per_tok": 1},
    "top-3": {"num_local_experts": 8, "num_experts_per_tok": 3},
    "window": {"num_local_experts": 4, "sliding_window": 8},
    "head-dim": {"num_local_experts": 4, "head_dim": 32},
    "tied": {"num_local_experts": 4, "tie_word_embeddings": True},
}


@lru_cache
def reference(name: str = "top-2") -> PreTrainedModel:
    config = MixtralConfig(**TINY | MODELS[name], rms_norm_eps=1e-5, rope_parameters=dict(ROPE))
    model = HfMixtral._from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    random_weights(model, seed=0)
    return model


@lru_cache
def ours(name: str = "top-2") -> MixtralForCausalLM:
    model = MixtralForCausalLM(reference(name).config.to_dict())
    load_weights(model, reference(name).state_dict().items())
    return model


def routed_to(name: str, ids_T: Tensor) -> list[set[int]]:
    """The experts that transformers chooses, for each layer."""
    found: list[set[int]] = []

    def note(module: nn.Module, args: Any, result: tuple[Tensor, Tensor, Tensor]) -> None:
        found.append(set(result[2].flatten().tolist()))

    hooks = [
        layer.mlp.gate.register_forward_hook(note)  # pyright: ignore
        for layer in reference(name).model.layers
    ]
    reference(name)(ids_T[None])
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_hidden_states_and_logits(name: str):
    ids_T = prompt(PROMPT)
    expected_TD = reference(name).model(ids_T[None]).last_hidden_state[0]
    logits_TV = reference(name)(ids_T[None]).logits[0]
    assert logits_TV.std() > 0.5, "weights too small for a strong test"
    (hidden_TD,) = run(ours(name), [ids_T], [{0: PROMPT}])
    close(hidden_TD, expected_TD)
    actual_TV = ours(name).compute_logits(hidden_TD)
    assert actual_TV.dtype == torch.float32
    close(actual_TV, logits_TV)
    assert torch.equal(actual_TV.argmax(-1), logits_TV.argmax(-1))


@torch.inference_mode()
def test_every_expert_is_used():
    experts = set(range(4))
    assert routed_to("top-2", prompt(PROMPT)) == [experts] * 3


@pytest.mark.parametrize("implementation", ["reference", "torch"])
@torch.inference_mode()
def test_every_cpu_implementation(implementation: str):
    ids_T = prompt(PROMPT)
    expected_TD = reference().model(ids_T[None]).last_hidden_state[0]
    with kernels.use(implementation):
        for schedule in ([{0: PROMPT}], [{0: 41}, {0: 20}, {0: 1}, {0: 1}, {0: 1}]):
            (hidden_TD,) = run(ours(), [ids_T], schedule)
            close(hidden_TD, expected_TD)


@torch.inference_mode()
def test_a_batch_of_mixed_lengths_equals_single_runs():
    """Rows of other requests meet in an expert's product and change nothing."""
    prompts = [prompt(length, seed=length) for length in (64, 1, 17, 33, 9)]
    schedule = [{0: 30, 1: 1, 2: 16}, {0: 33, 2: 1, 3: 20}, {0: 1, 3: 1, 4: 9}, {3: 12}]
    together = run(ours(), prompts, schedule)
    for ids_T, batched_TD in zip(prompts, together, strict=True):
        (alone_TD,) = run(ours(), [ids_T], [{0: len(ids_T)}])
        close(batched_TD, alone_TD)


@torch.inference_mode()
def test_experts_split_along_their_features_add_up():
    """What two GPUs of one tensor-parallel group compute: half of the intermediate features of every
    expert."""
    block, x_TD = ours().layers[0].block_sparse_moe, torch.randn(33, 64, generator=torch.manual_seed(0))
    weights, ids = block.topk(block.gate(x_TD))
    order, starts = kernels.moe_align(ids, 4)
    w13_EFD, w2_EDF = block.experts.w13.weight, block.experts.w2.weight
    total_TD = torch.zeros_like(x_TD)
    for half in (slice(0, 80), slice(80, 160)):
        rank13 = torch.cat([w13_EFD[:, :160][:, half], w13_EFD[:, 160:][:, half]], dim=1)
        active = kernels.glu(kernels.grouped_linear(x_TD, rank13, order, starts), "silu")
        rank2 = w2_EDF[:, :, half].contiguous()
        weighted = kernels.grouped_linear(active, rank2, order, starts, weights.flatten())
        total_TD += kernels.moe_sum(weighted.view(33, 2, 64))
    torch.testing.assert_close(total_TD, block(x_TD), rtol=0, atol=1e-5)


def test_both_spellings_of_a_checkpoint_load_alike():
    exported = dict(export_weights(ours()))
    assert "model.layers.2.block_sparse_moe.experts.3.w2.weight" in exported
    again = MixtralForCausalLM(reference().config.to_dict())
    load_weights(again, exported.items())
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), ours().parameters(), strict=True))
    stacked = reference().state_dict()["model.layers.1.mlp.experts.gate_up_proj"]
    for e in range(4):
        w1, w3 = (
            exported[f"model.layers.1.block_sparse_moe.experts.{e}.{name}.weight"] for name in ("w1", "w3")
        )
        assert torch.equal(torch.cat([w1, w3]), stacked[e])


def test_a_missing_expert_is_missing():
    exported = dict(export_weights(ours()))
    del exported["model.layers.1.block_sparse_moe.experts.3.w3.weight"]
    with pytest.raises(WeightsError, match=r"missing     model\.layers\.1.*experts\.3\.w3\.weight"):
        load_weights(MixtralForCausalLM(reference().config.to_dict()), exported.items())
    twice = [*reference().state_dict().items(), *list(export_weights(ours()))[-6:-3]]
    with pytest.raises(WeightsError, match="given twice"):
        load_weights(MixtralForCausalLM(reference().config.to_dict()), twice)


@pytest.mark.parametrize("mistake", ["no renormalisation", "top 1", "gate and up exchanged"])
@torch.inference_mode()
def test_a_wrong_model_would_be_noticed(mistake: str, monkeypatch: pytest.MonkeyPatch):
    ids_T = prompt(PROMPT)
    (right_TD,) = run(ours(), [ids_T], [{0: PROMPT}])
    other = MixtralForCausalLM(reference().config.to_dict())
    load_weights(other, reference().state_dict().items())
    for layer in other.layers:
        block = layer.block_sparse_moe
        if mistake == "no renormalisation":
            block.topk.renormalize = False
        elif mistake == "top 1":
            block.topk.top_k = 1
        else:
            block.experts.w13.weight.copy_(block.experts.w13.weight.roll(160, dims=1))
    (wrong_TD,) = run(other, [ids_T], [{0: PROMPT}])
    assert (right_TD - wrong_TD).abs().max() > 100 * TOLERANCE


def test_what_is_not_supported_says_so():
    config = reference().config.to_dict()
    for key, value, message in (
        ("num_experts_per_tok", 5, "5 of 4 experts"),
        ("router_jitter_noise", 0.1, "not supported"),
        ("hidden_act", "gelu", "not supported"),
    ):
        with pytest.raises(UsageError, match=message):
            MixtralForCausalLM(config | {key: value})


def test_rope_theta_defaults_as_in_transformers():
    config = {k: v for k, v in reference().config.to_dict().items() if k != "rope_parameters"}
    rotary = MixtralForCausalLM(completed(config)).layers[0].self_attn.rotary_emb
    assert torch.equal(rotary.cos_sin_PR, ours().layers[0].self_attn.rotary_emb.cos_sin_PR)


def test_parameter_counts_of_real_configurations():
    def count(config: dict[str, Any]) -> tuple[int, int]:
        """All parameters, and those of experts."""
        with torch.device("meta"):
            model = MixtralForCausalLM(completed(config))
        sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
        return sum(sizes.values()), sum(size for name, size in sizes.items() if ".experts." in name)

    real = {
        "model_type": "mixtral",
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 32768,
    }
    assert count(real) == (46_702_792_704, 45_097_156_608)
    assert count(reference().config.to_dict())[0] == 439_488
