"""Our BitNet against transformers, float32 on the CPU, tiny models with randomised weights: as it is trained,
and with each of the three quantised linear layers there.

Logits of std about 1, matrices 1/sqrt(fan in), norms 0.5 to 1.5. A code of eight bits that lies on a half may
go either way between two right models. Where none does, logits differ by 3e-7 of their size; of seeds 0 to 7
four have such a code in one of the three comparisons, which moved them by 2e-4 to 1e-2. SEED is one of the
others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from fastkernels.baseline.L1.bitnet_linear import BitLinear
from fastkernels.baseline.L4.bitnet import PROJECTIONS, BitNetForCausalLM
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import BitNetConfig, PreTrainedModel
from transformers.integrations import bitnet as theirs
from transformers.models.bitnet.modeling_bitnet import BitNetForCausalLM as HfBitNet

from fastkernels import LLM, SamplingParams, kernels, registry
from fastkernels.errors import UsageError, WeightsError
from fastkernels.kernels import ternary
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.weights import destinations, export_weights, load_weights
from tests.parity.test_llama import PROMPT, close, prompt, run

QUANTISED_TOLERANCE, LEAST_AGREEMENT = 1e-3, 0.99  # of the fact sheet: relative L2, equal argmax
CONFIGS = registry.architecture("bitnet").configs
CONFIG: dict[str, Any] = CONFIGS["tiny"].config
FLOAT = {key: value for key, value in CONFIG.items() if key != "quantization_config"}
KINDS = ("offline", "online", "packed")
SEED = 6


@lru_cache
def trained() -> PreTrainedModel:
    """transformers' model with ordinary matrices."""
    model = HfBitNet._from_config(BitNetConfig(**FLOAT), attn_implementation="eager", dtype=torch.float32)
    random_weights(model.eval().requires_grad_(False), seed=SEED)
    return model


def projections(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in PROJECTIONS:
            assert isinstance(module, nn.Linear)
            yield name, module


def ternarised(weight_NK: Tensor) -> tuple[Tensor, Tensor]:
    """(T, omega) by the definition."""
    omega = weight_NK.abs().mean().clamp(min=1e-5)
    return (weight_NK / omega).round().clamp(-1, 1), omega.view(1)


@lru_cache
def checkpoint(packed: bool = True) -> dict[str, Tensor]:
    """What the real files hold: packed matrices and scales, or ordinary matrices."""
    tensors = {name: tensor.clone() for name, tensor in trained().state_dict().items()}
    del tensors["lm_head.weight"]
    for name, module in projections(trained()) if packed else ():
        values, omega = ternarised(module.weight)
        tensors[f"{name}.weight"], tensors[f"{name}.weight_scale"] = theirs.pack_weights(values), omega
    return tensors


@lru_cache
def quantised(kind: str) -> PreTrainedModel:
    """transformers' model with one of its linear layers in the place of each projection."""
    model = HfBitNet._from_config(BitNetConfig(**FLOAT), attn_implementation="eager", dtype=torch.float32)
    model.load_state_dict(trained().state_dict())
    for name, module in list(projections(model)):
        values, omega = ternarised(module.weight.detach())
        sizes = module.in_features, module.out_features
        if kind == "packed":
            layer = theirs.BitLinear(*sizes, bias=False, dtype=torch.float32)
            layer.weight.copy_(theirs.pack_weights(values))
            layer.weight_scale.copy_(1 / omega)
        else:
            layer = theirs.AutoBitLinear(*sizes, bias=False, online_quant=kind == "online")
            layer.weight.data.copy_(module.weight if kind == "online" else values)
            if kind == "offline":
                layer.weight_scale.copy_(omega)
        model.set_submodule(name, layer)
    return model.eval().requires_grad_(False)


@lru_cache
def expected(kind: str, length: int = PROMPT, seed: int = 0) -> Tensor:
    # Their layers are compiled; as they are written they need no compiler.
    with torch.compiler.set_stance("force_eager"), torch.inference_mode():
        return quantised(kind)(prompt(length, seed)[None]).logits[0]


def loaded(tensors: dict[str, Tensor], config: dict[str, Any] = CONFIG) -> BitNetForCausalLM:
    model = BitNetForCausalLM(config).eval().requires_grad_(False)
    load_weights(model, tensors.items())
    return model


@lru_cache
def ours() -> BitNetForCausalLM:
    return loaded(checkpoint())


@torch.inference_mode()
def logits(model: BitNetForCausalLM, schedule: list[dict[int, int]] | None = None) -> Tensor:
    (hidden_TD,) = run(model, [prompt(PROMPT)], schedule or [{0: PROMPT}])
    return model.compute_logits(hidden_TD)


def distance(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).norm() / truth.norm())


def near(found_TV: Tensor, truth_TV: Tensor) -> None:
    assert truth_TV.std() > 0.5, "weights too small for a strong test"
    assert distance(found_TV, truth_TV) <= QUANTISED_TOLERANCE
    assert (found_TV.argmax(-1) == truth_TV.argmax(-1)).float().mean() >= LEAST_AGREEMENT


@torch.inference_mode()
def test_a_model_that_is_not_quantised():
    model = loaded(checkpoint(packed=False), FLOAT)
    truth_TV = trained()(prompt(PROMPT)[None]).logits[0]
    assert truth_TV.std() > 0.5
    close(logits(model), truth_TV)
    close(logits(model, [{0: 41}, {0: 20}, {0: 1}, {0: 1}, {0: 1}]), truth_TV)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_every_quantised_layer(kind: str):
    found_TV = logits(ours())
    assert found_TV.dtype == torch.float32
    near(found_TV, expected(kind))


@pytest.mark.parametrize("implementation", ["reference", "torch", "int_mm"])
def test_every_cpu_implementation(implementation: str):
    """A step of one row has no products of int8 in PyTorch."""
    is_short = implementation != "int_mm"
    schedule = [{0: 41}, {0: 22}, {0: 1}] if is_short else [{0: 41}, {0: 23}]
    with kernels.use(bitnet_linear=implementation):
        near(logits(ours(), schedule), expected("offline"))


@torch.inference_mode()
def test_a_batch_of_mixed_lengths_equals_single_runs():
    """The codes of a token are its own. A code on a half moves its token and those behind it, not most."""
    lengths = (64, 1, 17, 33, 9)
    schedule = [{0: 30, 1: 1, 2: 16}, {0: 33, 2: 1, 3: 20}, {0: 1, 3: 1, 4: 9}, {3: 12}]
    prompts = [prompt(length, seed=length) for length in lengths]
    for length, hidden_TD in zip(lengths, run(ours(), prompts, schedule), strict=True):
        found_TV = ours().compute_logits(hidden_TD)
        truth_TV = expected("packed", length, length)
        by_token_T = (found_TV - truth_TV).norm(dim=-1) / truth_TV.norm(dim=-1)
        assert by_token_T.median() <= 1e-5


# ---------------------------------------------------------------- where implementations go wrong


def inverted_scales(model: BitNetForCausalLM) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith("weight_scale"):
            parameter.copy_(1 / parameter)


def one_scale_for_three(model: BitNetForCausalLM) -> None:
    for layer in model.layers:
        scales = layer.self_attn.qkv_proj.linear.weight_scale
        scales.fill_(float(scales[0]))


def interleaved_positions(model: BitNetForCausalLM) -> None:
    """As if query rows lay in pairs, and key rows in halves."""
    layer = model.layers[0].self_attn.qkv_proj.linear
    rows_NK = torch.cat([ternary.unpack(p, torch.int8) for p in layer.weight.split([20, 4, 4])])
    pairs_HPK = rows_NK[:80].unflatten(0, (5, 2, 8)).transpose(1, 2).flatten(0, 2)
    layer.weight[:20] = ternary.pack(pairs_HPK)


def without_attention_norm(model: BitNetForCausalLM) -> None:
    model.layers[2].self_attn.attn_sub_norm = None


def without_mlp_norm(model: BitNetForCausalLM) -> None:
    model.layers[0].mlp.ffn_sub_norm = nn.Identity()


def norm_over_heads(model: BitNetForCausalLM) -> None:
    norm = model.layers[0].self_attn.attn_sub_norm
    weight_D = norm.weight
    norm.forward = lambda x_TD: (
        kernels.rms_norm(x_TD.unflatten(-1, (5, 16)), torch.ones(16), norm.eps).flatten(-2) * weight_D
    )


def square_of_both(model: BitNetForCausalLM) -> None:
    def forward(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return gate.relu().square() * up.relu().square()

    model.layers[1].mlp.act_fn.forward = forward


def codes_of_a_whole_tensor(model: BitNetForCausalLM) -> None:
    layer = model.layers[0].self_attn.qkv_proj.linear
    forward = layer.forward
    # The largest value of all tokens, put beside each token's own.
    layer.forward = lambda x_TK: forward((x_TK / x_TK.abs().amax() * 127).round() * x_TK.abs().amax() / 127)


def unquantised_activations(model: BitNetForCausalLM) -> None:
    layer = model.layers[1].mlp.down_proj.linear
    weight_NK = ternary.unpack(layer.weight, torch.float32) * layer.weight_scale
    layer.forward = lambda x_TK: x_TK @ weight_NK.T


WRONG: tuple[Callable[[BitNetForCausalLM], None], ...] = (
    inverted_scales,
    one_scale_for_three,
    interleaved_positions,
    without_attention_norm,
    without_mlp_norm,
    norm_over_heads,
    square_of_both,
    codes_of_a_whole_tensor,
)


@pytest.mark.parametrize("change", WRONG, ids=lambda change: change.__name__)
@torch.inference_mode()
def test_a_wrong_model_would_be_noticed(change: Callable[[BitNetForCausalLM], None]):
    model = loaded(checkpoint())
    change(model)
    assert distance(logits(model), expected("packed")) > 10 * QUANTISED_TOLERANCE


@torch.inference_mode()
def test_activations_without_codes_would_be_noticed():
    """They are nearer to the model than any mistake: by the tolerance of one that computes the same."""
    model = loaded(checkpoint())
    unquantised_activations(model)
    assert distance(logits(model), expected("packed")) > 10 * distance(logits(ours()), expected("packed"))


# ---------------------------------------------------------------- layouts


def test_packing_is_that_of_the_files():
    values = torch.tensor([[-1, 0], [0, 1], [1, -1], [1, 1], [0, 0], [-1, -1], [1, 0], [0, 1]])
    assert ternary.pack(values).tolist() == [[152, 81], [73, 138]]
    values = torch.randint(-1, 2, (64, 48), generator=torch.Generator().manual_seed(0))
    assert torch.equal(ternary.pack(values), theirs.pack_weights(values.clone()))
    with torch.compiler.set_stance("force_eager"):
        assert torch.equal(theirs.unpack_weights(ternary.pack(values), torch.int8), values.to(torch.int8))
    assert torch.equal(ternary.unpack(ternary.pack(values), torch.int8), values.to(torch.int8))
    with pytest.raises(ValueError, match="6 rows: four are packed together"):
        ternary.pack(values[:6])


@torch.inference_mode()
def test_matrices_packed_together_are_those_alone():
    x_TK = torch.randn(9, 80, generator=torch.Generator().manual_seed(1))
    for fused, names in (("self_attn.qkv_proj", "qkv"), ("mlp.gate_up_proj", ("gate", "up"))):
        layer, block = ours().layers[1].get_submodule(fused).linear, fused.partition(".")[0]
        alone = []
        for name in names:
            source = f"model.layers.1.{block}.{name}_proj"
            weight = checkpoint()[f"{source}.weight"]
            one = BitLinear(80, 4 * len(weight))
            one.weight.copy_(weight)
            one.weight_scale.copy_(checkpoint()[f"{source}.weight_scale"])
            alone.append(one(x_TK))
        assert torch.equal(layer(x_TK), torch.cat(alone, dim=-1))


def test_interleaved_rows_and_pairs_give_the_same_scores():
    """The other layout of the model's files: rows in pairs, pairs rotated as complex numbers."""
    rotary = ours().layers[0].self_attn.rotary_emb
    generator = torch.Generator().manual_seed(2)
    q_THK, k_THK = torch.randn(2, 12, 1, 16, generator=generator)
    positions = torch.arange(3, 15)
    ours_q, ours_k = kernels.rope(positions, q_THK, k_THK, rotary.cos_sin_PR)
    angles_TP = positions[:, None].double() * CONFIG["rope_parameters"]["rope_theta"] ** (
        -torch.arange(8).double() / 8
    )
    rotated = [
        torch.view_as_complex(x_THK.double().unflatten(-1, (2, 8)).transpose(-1, -2).contiguous())
        * torch.polar(torch.ones_like(angles_TP), angles_TP)[:, None]
        for x_THK in (q_THK, k_THK)
    ]
    pairs_q, pairs_k = (torch.view_as_real(x).flatten(-2)[:, 0] for x in rotated)
    scores = (ours_q[:, 0] @ ours_k[:, 0].T).double()
    torch.testing.assert_close(scores, pairs_q @ pairs_k.T, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------- checkpoints


def test_ordinary_matrices_become_the_packed_ones():
    config = CONFIG | {"quantization_config": CONFIGS["2b-master"].config["quantization_config"]}
    model = loaded(checkpoint(packed=False), config)
    for (name, made), given in zip(model.named_parameters(), ours().parameters(), strict=True):
        if name.endswith("weight_scale"):
            torch.testing.assert_close(made, given, rtol=1e-6, atol=0)
        else:
            assert torch.equal(made, given), name


def test_scales_to_divide_by():
    """Of a file for transformers' other class."""
    section = {"quant_method": "bitnet", "linear_class": "bitlinear"}
    scales = {name: 1 / t if name.endswith("_scale") else t for name, t in checkpoint().items()}
    model = loaded(scales, CONFIG | {"quantization_config": section})
    near(logits(model), expected("packed"))


def test_export_is_what_was_loaded():
    exported = dict(export_weights(ours()))
    assert exported.keys() == checkpoint().keys()
    assert all(torch.equal(exported[name], tensor) for name, tensor in checkpoint().items())


def test_every_tensor_of_the_real_files_has_a_place():
    """Of both files, with the shapes of the sheet."""
    with torch.device("meta"):
        real = {key: v for key, v in CONFIGS["2b"].config.items() if key != "quantization_config"}
        names = {name: list(t.shape) for name, t in HfBitNet(BitNetConfig(**real)).state_dict().items()}
        model = BitNetForCausalLM(CONFIGS["2b"].config)
    del names["lm_head.weight"]  # tied
    assert len(names) == 2 + 30 * 11
    for name, shape in list(names.items()):
        if name.split(".")[-2] in PROJECTIONS:
            names[name] = [shape[0] // 4, shape[1]]
            names[f"{name}_scale"] = [1]
    places, unnamed = destinations(model)
    assert not unnamed
    assert {name: place.shape for name, place in places.items()} == names
    assert names["model.layers.7.mlp.up_proj.weight"] == [1728, 2560]
    assert names["model.layers.29.self_attn.v_proj.weight"] == [160, 2560]
    packed = [p for p in model.parameters() if p.dtype == torch.uint8]
    assert sum(4 * p.numel() for p in packed) == 2_084_044_800


Q, SCALE = (f"model.layers.1.self_attn.q_proj.weight{end}" for end in ("", "_scale"))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({SCALE: None}, rf"missing +{SCALE}, expected \[1\]"),
        ({Q: None}, rf"missing +{Q}, expected \[20, 80\]"),
        ({SCALE: torch.ones(80)}, rf"misshapen +{SCALE} \[80\], expected \[1\]"),
        ({SCALE: torch.ones(())}, rf"misshapen +{SCALE} \[\], expected \[1\]"),
        ({SCALE: torch.zeros(1)}, rf"{SCALE}: its scale is no positive number"),
        ({SCALE: torch.tensor([torch.nan])}, rf"{SCALE}: its scale is no positive number"),
        ({Q: torch.full((20, 80), 0b11, dtype=torch.uint8)}, rf"{Q} holds the code 3"),
        ({Q: torch.zeros(20, 80, dtype=torch.int8)}, rf"{Q} holds torch.int8: .* keeps it as torch.uint8"),
        ({Q: torch.zeros(80, 80, dtype=torch.uint8)}, rf"misshapen +{Q} \[80, 80\], expected \[20, 80\]"),
        ({Q: torch.randn(80, 80)}, rf"unexpected +{SCALE} given twice"),
        ({Q: torch.randn(81, 80)}, rf"misshapen +{Q} \[81, 80\], expected \[20, 80\]"),
        (
            {"model.layers.0.mlp.gate_proj.bias": torch.ones(192)},
            "unexpected +model.layers.0.mlp.gate_proj.bias",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit(change: dict[str, Tensor | None], problem: str):
    tensors = {name: t for name, t in (checkpoint() | change).items() if t is not None}
    with pytest.raises(WeightsError, match=problem):
        loaded(tensors)


def test_a_packed_checkpoint_for_a_model_that_is_not_quantised():
    with pytest.raises(WeightsError, match=r"q_proj.weight \[20, 80\], expected \[80, 80\]"):
        loaded(checkpoint(), FLOAT)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"quant_method": "gptq"}, "quantization_config.quant_method: 'gptq' is not supported"),
        ({"linear_class": "linear"}, "quantization_config.linear_class: 'linear' is not supported"),
        ({"quantization_mode": "later"}, "quantization_config.quantization_mode: 'later' is not supported"),
        ({"use_rms_norm": True}, "quantization_config.use_rms_norm: True is not supported"),
        ({"modules_to_not_convert": ["o_proj"]}, "quantization_config.modules_to_not_convert"),
    ],
)
def test_another_quantisation_is_named(change: dict[str, Any], problem: str):
    with pytest.raises(UsageError, match=problem):
        BitNetForCausalLM(CONFIG | {"quantization_config": CONFIG["quantization_config"] | change})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"hidden_act": "silu"}, "hidden_act: 'silu' is not supported"),
        ({"attention_bias": True}, "attention_bias: True is not supported"),
        ({"intermediate_size": 190}, "intermediate_size: 190 is no multiple of 4"),
    ],
)
def test_another_configuration_is_named(change: dict[str, Any], problem: str):
    with pytest.raises(UsageError, match=problem):
        BitNetForCausalLM(CONFIG | change)


# ---------------------------------------------------------------- the engine


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The checkpoint as it is published; the file's class is the one that its scales are for."""
    path = tmp_path_factory.mktemp("bitnet")
    save_file({name: t.contiguous() for name, t in checkpoint().items()}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(CONFIG | {"dtype": "bfloat16"}))
    return path


def test_the_text_is_that_of_transformers(folder: Path):
    """Greedy, from a folder, each request against its own prompt alone."""
    prompts = [prompt(length, seed=length).tolist() for length in (5, 33, 17)]
    llm = LLM(str(folder), max_num_seqs=2, max_num_batched_tokens=24)
    outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True))
    with torch.compiler.set_stance("force_eager"), torch.inference_mode():
        for ids, output in zip(prompts, outputs, strict=True):
            text = output.outputs[0].token_ids
            logits_TV = quantised("offline")(torch.tensor([ids + text[:-1]])).logits[0, len(ids) - 1 :]
            assert (logits_TV.argmax(-1) == torch.tensor(text)).float().mean() >= LEAST_AGREEMENT
