"""Our GPT-OSS against transformers, float32 on the CPU, a tiny model with randomised weights.

Experts are random codes and scales; transformers gets them expanded by its own `convert_moe_packed_tensors`.
The first product is four times as large as it would be, so that clamps fire; sinks are N(0, 0.3).
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from fastkernels.baseline.L4.gpt_oss import GptOssForCausalLM
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import GptOssConfig, PreTrainedModel
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssForCausalLM as HfGptOss

from fastkernels import LLM, SamplingParams, kernels, registry
from fastkernels.errors import UsageError, WeightsError
from fastkernels.kernels.rope.tables import frequencies
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.weights import export_weights, load_weights
from tests.parity.test_llama import TOLERANCE, prompt, run

PROMPT = 40  # five windows
CONFIGS = registry.architecture("gpt_oss").configs
CONFIG = CONFIGS["tiny"].config
EXPERTS = "model.layers.{}.mlp.experts."


@lru_cache
def ours() -> GptOssForCausalLM:
    return randomised(GptOssForCausalLM(CONFIG))


def randomised(model: GptOssForCausalLM) -> GptOssForCausalLM:
    random_weights(model, seed=0)
    generator = torch.Generator().manual_seed(1)
    for layer in model.layers:
        layer.self_attn.attn.sinks.normal_(0, 0.3, generator=generator)
        layer.block_sparse_moe.experts.w13.weight_scale += 2
    return model


def expanded(checkpoint: dict[str, Tensor]) -> dict[str, Tensor]:
    """With experts' matrices as transformers expands them, inputs first."""
    found = dict(checkpoint)
    for name in checkpoint:
        if name.endswith("_blocks"):
            base = name.removesuffix("_blocks")
            blocks, scales = found.pop(name), found.pop(f"{base}_scales")
            found[base] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    return found


@lru_cache
def reference() -> PreTrainedModel:
    config = GptOssConfig(**{key: value for key, value in CONFIG.items() if key != "quantization_config"})
    model = HfGptOss._from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    model.load_state_dict(expanded(dict(export_weights(ours()))), strict=True)
    return model


@lru_cache
def expected(length: int = PROMPT, seed: int = 0) -> Tensor:
    """transformers' logits [T, V]."""
    with torch.inference_mode():
        return reference()(prompt(length, seed)[None]).logits[0]


def logits(model: nn.Module, schedule: Any = ({0: PROMPT},)) -> Tensor:
    with torch.inference_mode():
        (hidden_TD,) = run(model, [prompt(PROMPT)], schedule)
        return model.compute_logits(hidden_TD)  # pyright: ignore


def test_logits_and_that_the_clamps_fire():
    clamped: list[bool] = []

    def note(module: nn.Module, args: Any, result: Any) -> None:
        x = args[0]
        clamped.append(bool((x[..., ::2] > 7).any() and (x[..., 1::2].abs() > 7).any()))

    model = randomised(GptOssForCausalLM(CONFIG))
    for layer in model.layers:
        layer.block_sparse_moe.experts.act_fn.register_forward_hook(note)
    actual_TV = logits(model)  # in parts: a hooked part is called
    assert clamped == [True] * 4
    assert expected().std() > 0.5, "weights too small for a strong test"
    for found in (actual_TV, logits(ours())):
        assert (found - expected()).abs().max() <= TOLERANCE
        assert torch.equal(found.argmax(-1), expected().argmax(-1))


@pytest.mark.parametrize("implementation", ["reference", "torch"])
def test_every_cpu_implementation(implementation: str):
    """One forward, and chunks and decode steps beyond the window."""
    with kernels.use(implementation):
        for schedule in ([{0: PROMPT}], [{0: 17}, {0: 20}, {0: 1}, {0: 1}, {0: 1}]):
            assert (logits(ours(), schedule) - expected()).abs().max() <= TOLERANCE


@torch.inference_mode()
def test_a_batch_of_mixed_lengths_equals_single_runs():
    prompts = [prompt(length, seed=length) for length in (40, 1, 17, 33, 9)]
    schedule = [{0: 30, 1: 1, 2: 16}, {0: 9, 2: 1, 3: 20}, {0: 1, 3: 1, 4: 9}, {3: 12}]
    for ids_T, hidden_TD in zip(prompts, run(ours(), prompts, schedule), strict=True):
        logits_TV = reference()(ids_T[None]).logits[0]
        assert (ours().compute_logits(hidden_TD) - logits_TV).abs().max() <= TOLERANCE


class _Activation(nn.Module):
    """The activation with one mistake."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.mistake = mistake

    def forward(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1) if self.mistake == "halves" else (x[..., ::2], x[..., 1::2])
        if self.mistake != "no clamp":
            gate, up = gate.clamp(max=7), up.clamp(-7, 7)
        more = 0 if self.mistake == "no +1" else 1
        return (up + more) * gate * torch.sigmoid((1 if self.mistake == "silu" else 1.702) * gate)


def test_the_right_activation_in_its_own_words():
    """So that what the others are off by is their mistake."""
    assert (logits(_with_activation("none")) - expected()).abs().max() <= TOLERANCE


def _with_activation(mistake: str) -> nn.Module:
    model = randomised(GptOssForCausalLM(CONFIG))
    for layer in model.layers:
        layer.block_sparse_moe.experts.act_fn = _Activation(mistake)
    return model


def _wrong(mistake: str) -> nn.Module:
    """A model with one mistake."""
    if mistake in ("halves", "no clamp", "no +1", "silu"):
        return _with_activation(mistake)
    rope, types = CONFIG["rope_parameters"], CONFIG["layer_types"]
    changes = {
        "window on odd layers": {"layer_types": types[::-1]},
        "window of one more": {"sliding_window": 9},
        "no window": {"layer_types": ["full_attention"] * 4},
        "rounded yarn bounds": {"rope_parameters": rope | {"truncate": True}},
        "no yarn factor on scores": {"rope_parameters": rope | {"attention_factor": 1.0}},
        "no yarn": {"rope_parameters": {"rope_type": "default", "rope_theta": 150000.0}},
        "three experts": {"num_experts_per_tok": 3},
        "other epsilon": {"rms_norm_eps": 1e-3},
    }.get(mistake, {})
    model = randomised(GptOssForCausalLM(CONFIG | changes))
    for layer in model.layers:
        attention, moe = layer.self_attn, layer.block_sparse_moe
        if mistake == "no sinks":
            attention.attn.sinks = None
        elif mistake == "scaled sinks":
            attention.attn.sinks *= CONFIG["head_dim"] ** -0.5
        elif mistake == "no o bias":
            attention.o_proj.linear.bias.zero_()
        elif mistake == "no qkv bias":
            attention.qkv_proj.linear.bias.zero_()
        elif mistake == "no router bias":
            moe.gate.bias.zero_()
        elif mistake == "no first bias":
            moe.experts.w13.bias.zero_()
        elif mistake == "no second bias":
            moe.experts.w2.bias.zero_()
        elif mistake == "not renormalised":
            moe.topk.renormalize = False
        elif mistake == "high nibble first":
            codes = moe.experts.w2.weight
            codes.copy_((codes >> 4) | (codes << 4))
    return model


MISTAKES = [
    "halves", "no clamp", "no +1", "silu", "window on odd layers", "window of one more", "no window",
    "rounded yarn bounds", "no yarn factor on scores", "no yarn", "three experts", "other epsilon",
    "no sinks", "scaled sinks", "no o bias", "no qkv bias", "no router bias", "no first bias",
    "no second bias", "not renormalised", "high nibble first",
]  # fmt: skip


def test_a_wrong_model_would_be_noticed():
    """A gate that is clamped from below changes an activation by 4e-4 at most: the test of clamped_glu
    notices it."""
    errors = {mistake: (logits(_wrong(mistake)) - expected()).abs().max().item() for mistake in MISTAKES}
    assert min(errors.values()) > 10 * TOLERANCE, errors


def test_yarn_frequencies_are_those_of_the_library():
    f, amplitude = frequencies(64, CONFIGS["20b"].config["rope_parameters"])
    listed = {
        8: 5.081327e-2,
        9: 3.170570e-2,
        12: 6.794959e-3,
        17: 1.293187e-4,
        18: 3.830881e-5,
        31: 3.023511e-7,
    }
    for j, value in listed.items():
        assert f[j].item() == pytest.approx(value, rel=1e-6)
    assert amplitude == pytest.approx(0.1 * math.log(32) + 1)


def test_positions_of_older_files_and_of_none():
    """`rope_scaling` beside `rope_theta`, as published; those of transformers' class where there are none."""
    rope = dict(CONFIG["rope_parameters"])
    without = {key: value for key, value in CONFIG.items() if key != "rope_parameters"}
    older = without | {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    with torch.device("meta"):
        found, wanted = (
            GptOssForCausalLM(config).layers[0].self_attn.rotary_emb.cos_sin_PR for config in (older, CONFIG)
        )
        real = GptOssForCausalLM(without).layers[0].self_attn.rotary_emb.cos_sin_PR
    assert found.shape == wanted.shape == (2048, 16)
    assert real.shape == (32 * 4096, 16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("impl", ["reference", "torch"])
def test_weights_are_expanded_as_transformers_does(impl: str, dtype: torch.dtype):
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(256, (5, 24, 3, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(90, 160, (5, 24, 3), generator=generator, dtype=torch.uint8)
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=dtype)
    assert torch.equal(kernels.low_bit_dequant(blocks, scales, dtype, impl=impl).transpose(1, 2), theirs)


# ---------------------------------------------------------------- checkpoints


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gpt_oss")
    save_file(
        {name: tensor.contiguous() for name, tensor in export_weights(ours())}, path / "model.safetensors"
    )
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


@pytest.mark.usefixtures("nobody_grows")
def test_greedy_text_of_a_folder_beyond_its_window(folder: Path):
    """Batched, chunked and preempted, with requests many windows long; transformers generates each alone."""
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(3, 256, (n,), generator=generator).tolist() for n in (5, 33, 2, 64)]
    llm = LLM(folder, device="cpu", max_num_batched_tokens=24, num_kv_cache_blocks=30, block_size=4)
    params = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True)
    texts = [out.outputs[0].token_ids for out in llm.generate(prompts, params, use_tqdm=False)]
    for ids, text in zip(prompts, texts, strict=True):
        with torch.inference_mode():
            both = reference().generate(
                torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                do_sample=False, max_new_tokens=32, eos_token_id=None, pad_token_id=0,
            )  # fmt: skip
        assert both[0, len(ids) :].tolist() == list(text)
    assert llm.stats()["preemptions"] > 0


def test_every_name_of_the_real_checkpoint():
    """As the published files list them: those of transformers' model, with packed experts."""
    with torch.device("meta"):
        model = GptOssForCausalLM(CONFIGS["20b"].config)
        config = {key: v for key, v in CONFIGS["20b"].config.items() if key != "quantization_config"}
        theirs = HfGptOss(GptOssConfig(**config)).state_dict()
    names = {name: list(tensor.shape) for name, tensor in theirs.items()}
    for i in range(24):
        base = EXPERTS.format(i)
        for name, rows in (("gate_up_proj", 5760), ("down_proj", 2880)):
            assert names.pop(base + name) == [32, 2880, rows]
            names[f"{base}{name}_blocks"] = [32, rows, 90, 16]
            names[f"{base}{name}_scales"] = [32, rows, 90]
    exported = {name: list(tensor.shape) for name, tensor in export_weights(model)}
    assert exported == names


@pytest.mark.parametrize(("config", "billions"), [("20b", 20.915), ("120b", 116.829)])
def test_parameter_counts_of_real_configurations(config: str, billions: float):
    with torch.device("meta"):
        model = GptOssForCausalLM(CONFIGS[config].config)
    count = 0
    for name, parameter in model.named_parameters():
        if not name.endswith("weight_scale"):
            count += parameter.numel() * (2 if parameter.dtype == torch.uint8 else 1)
    assert count / 1e9 == pytest.approx(billions, abs=5e-4)


def checkpoint() -> dict[str, Tensor]:
    return dict(export_weights(ours()))


def refused(tensors: dict[str, Tensor], message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        load_weights(GptOssForCausalLM(CONFIG), tensors.items())


def test_scales_that_are_missing_or_of_another_block_size_are_named():
    blocks, scales = (EXPERTS.format(2) + f"down_proj_{part}" for part in ("blocks", "scales"))
    tensors = checkpoint()
    del tensors[scales]
    refused(tensors, r"missing +model\.layers\.2\.mlp\.experts\.down_proj_scales, expected \[8, 64, 2\]")
    twice = checkpoint()[scales].repeat_interleave(2, -1)
    why = "it has a scale for every 16 weights, MXFP4 one for every 32"
    refused(checkpoint() | {scales: twice}, rf"down_proj_scales \[8, 64, 4\], expected \[8, 64, 2\]; {why}")
    halves = checkpoint()[blocks].view(8, 64, 4, 8)
    refused(checkpoint() | {blocks: halves, scales: twice}, rf"down_proj_blocks \[8, 64, 4, 8\].*; {why}")
    refused(
        checkpoint() | {scales: checkpoint()[scales].float()},
        "holds torch.float32: the model keeps it as torch.uint8",
    )
    refused(
        checkpoint() | {blocks: checkpoint()[blocks][:, :60]}, r"\[8, 60, 2, 16\], expected \[8, 64, 2, 16\]$"
    )


def test_expanded_experts_are_refused():
    refused(expanded(checkpoint()), r"unexpected +model\.layers\.\d\.mlp\.experts\.")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantization_config": None}, "quantization_config: is missing: experts that are not in MXFP4"),
        ({"quantization_config": {"quant_method": "awq"}}, "quant_method: 'awq' is not supported"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok: 9 of 8 experts cannot be chosen"),
        ({"hidden_size": 72}, "hidden_size: 72 is no multiple of the 32"),
        ({"layer_types": ["full_attention"]}, "layer_types: must be a list of 4 names"),
        ({"layer_types": ["chunked_attention"] * 4}, "layer_types: 'chunked_attention' is not supported"),
        ({"attention_bias": False}, "attention_bias: must be true"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings: True is not supported"),
    ],
)
def test_what_is_not_supported_says_so(changes: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=message):
        GptOssForCausalLM(CONFIG | changes)


def test_a_request_longer_than_all_positions_is_refused_and_others_are_served(folder: Path):
    llm = LLM(folder, device="cpu")
    ids = [[7] * 2049, [5, 6, 7]]
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    with pytest.raises(UsageError, match="2048"):
        llm.generate(ids, params, use_tqdm=False)
    (out,) = llm.generate(ids[1:], params, use_tqdm=False)
    assert len(out.outputs[0].token_ids) == 4
