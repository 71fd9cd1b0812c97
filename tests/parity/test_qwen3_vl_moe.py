"""Our Qwen3-VL with experts against transformers (seeing.py), and the layouts of its checkpoints."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest
import torch
from fastkernels.baseline.L4.qwen3_vl_moe import Qwen3VLMoeForConditionalGeneration
from torch import Tensor, nn
from transformers import Qwen3VLMoeConfig
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import (
    Qwen3VLMoeForConditionalGeneration as HfQwen3VLMoe,
)

from fastkernels import LLM, registry
from fastkernels.errors import UsageError, WeightsError
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.weights import destinations, export_weights, load_weights
from tests.parity.seeing import PROMPTS, TOLERANCE, Seeing, answers

EACH = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


def stacked(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Experts as transformers holds them, [E, 2F, D] with gate first and [E, D, F]."""
    found: dict[str, dict[str, Tensor]] = defaultdict(dict)
    others = {}
    for name, tensor in weights.items():
        if match := EACH.fullmatch(name):
            found[match[1]][f"{match[2]}.{match[3]}"] = tensor
        else:
            others[name] = tensor
    for name, parts in found.items():
        each = range(len(parts) // 3)
        both = [torch.cat((parts[f"{e}.gate"], parts[f"{e}.up"])) for e in each]
        others[f"{name}.gate_up_proj"] = torch.stack(both)
        others[f"{name}.down_proj"] = torch.stack([parts[f"{e}.down"] for e in each])
    return others


def of_the_hub(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The stacks with inputs as rows, as the files have them."""
    stacks = stacked(weights)
    return {name: x.mT.contiguous() if ".experts." in name else x for name, x in stacks.items()}


MODEL = Seeing(
    "qwen3_vl_moe",
    Qwen3VLMoeConfig,
    HfQwen3VLMoe,
    lambda model: stacked(dict(export_weights(model))),
)
TINY = MODEL.config


def test_prefill_and_decoding_agree_with_the_reference():
    """In chunks, which end in the middle of images."""
    llm = MODEL.engine(max_num_batched_tokens=90)
    names = list(PROMPTS)
    worst = {name: MODEL.difference(output, name) for name, output in zip(names, answers(llm, names))}
    assert max(worst.values()) < TOLERANCE, worst


@pytest.mark.parametrize("wrong", ["transposed", "interleaved", "not renormalised", "no levels", "top 1"])
def test_what_is_wrong_would_be_noticed(wrong: str, monkeypatch: pytest.MonkeyPatch):
    config = TINY
    if wrong == "not renormalised":
        config = {**TINY, "text_config": {**TINY["text_config"], "norm_topk_prob": False}}
    if wrong == "top 1":
        config = {**TINY, "text_config": {**TINY["text_config"], "num_experts_per_tok": 1}}
    llm = LLM(config, device="cpu", max_num_seqs=2)
    weights = dict(export_weights(MODEL.llm.model))
    if wrong == "transposed":  # a square matrix: nothing but the numbers shows it
        stacks = of_the_hub(weights)
        weights = {n: x.mT if n.endswith("gate_up_proj") else x for n, x in stacks.items()}
    if wrong == "interleaved":
        stacks = stacked(weights)
        weights = {
            n: (x.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2) if n.endswith("gate_up_proj") else x).mT
            if ".experts." in n
            else x
            for n, x in stacks.items()
        }
    load_weights(llm.model, weights.items())
    if wrong == "no levels":
        forward, size = llm.model.forward, llm.model.hidden_size

        def alone(ids: Tensor, positions: Tensor, *rows: Tensor) -> Tensor:
            if rows:
                rows = (nn.functional.pad(rows[0][:, :size], (0, rows[0].shape[1] - size)), rows[1])
            return forward(ids, positions, *rows)

        monkeypatch.setattr(llm.model, "forward", alone)
    (output,) = answers(llm, ["image"])
    assert MODEL.difference(output, "image") > 10 * TOLERANCE


def test_layouts_of_checkpoints_load():
    """A matrix for each expert and part, and stacks with inputs as rows; not both, and none without one."""
    weights = dict(export_weights(MODEL.llm.model))
    hub = of_the_hub(weights)
    for spelled in (weights, hub):
        model = Qwen3VLMoeForConditionalGeneration(TINY)
        load_weights(model, spelled.items())
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, MODEL.llm.model.get_parameter(name)), name
    model = Qwen3VLMoeForConditionalGeneration(TINY)
    gone = next(name for name in hub if name.endswith("down_proj"))
    with pytest.raises(WeightsError, match=r"missing .*layers\.0\.mlp\.experts\.0\.down_proj\.weight"):
        load_weights(model, [(name, x) for name, x in hub.items() if name != gone])
    with pytest.raises(WeightsError, match="given twice"):
        load_weights(model, [*hub.items(), *weights.items()])
    with pytest.raises(WeightsError, match="misshapen"):
        load_weights(model, [(name, x.mT if name == gone else x) for name, x in hub.items()])


def test_every_name_of_the_checkpoint_has_a_place():
    """Three layers of the real widths, with all experts; and all layers' parameters counted."""
    full = registry.architecture("qwen3_vl_moe").configs["235b-a22b"].config
    with torch.device("meta"):
        whole = Qwen3VLMoeForConditionalGeneration(full)
        assert sum(p.numel() for p in whole.parameters()) == 235_670_022_896
        cut = {**full, "text_config": {**full["text_config"], "num_hidden_layers": 3}}
        model = Qwen3VLMoeForConditionalGeneration(cut)
        theirs = HfQwen3VLMoe(Qwen3VLMoeConfig(**cut)).state_dict()
    assert not destinations(model)[1]
    ours = stacked(dict(export_weights(model)))
    assert {name: x.shape for name, x in ours.items()} == {name: x.shape for name, x in theirs.items()}
    experts = {name: list(x.shape) for name, x in of_the_hub(dict(export_weights(model))).items()}
    prefix = "model.language_model.layers.2.mlp.experts"
    assert experts[f"{prefix}.gate_up_proj"] == [128, 4096, 3072]
    assert experts[f"{prefix}.down_proj"] == [128, 1536, 4096]


def test_configurations_of_files():
    saved = Qwen3VLMoeForConditionalGeneration(Qwen3VLMoeConfig(**TINY).to_dict())
    shapes = {name: p.shape for name, p in MODEL.llm.model.named_parameters()}
    assert {name: p.shape for name, p in saved.named_parameters()} == shapes
    for values, says in (
        ({"mlp_only_layers": [1]}, "mlp_only_layers"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step"),
        ({"num_experts_per_tok": 9}, "9 of 8 experts cannot be chosen"),
        ({"quantization_config": {"quant_method": "awq"}}, "'awq' is not supported; supported: fp8"),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 64]}},
            "must be two equal numbers",
        ),
    ):
        with pytest.raises(UsageError, match=says):
            Qwen3VLMoeForConditionalGeneration({**TINY, "text_config": {**TINY["text_config"], **values}})


FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def of_eight_bits(weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Of projections and experts the codes and scales of a file, each block by its largest; and all weights
    as these say."""
    held, said = {}, {}
    for name, tensor in weights.items():
        said[name] = held[name] = tensor
        if not re.search(r"(self_attn\.[qkvo]_proj\.weight|experts\.\w+)$", name):
            continue
        blocks = tensor.unflatten(-1, (-1, 128)).unflatten(-3, (-1, 128))
        scales = blocks.abs().amax((-1, -3)) / 448
        codes = (blocks / scales[..., None, :, None]).to(torch.float8_e4m3fn)
        said[name] = (codes.float() * scales[..., None, :, None]).flatten(-2).flatten(-3, -2)
        held[name] = codes.flatten(-2).flatten(-3, -2)
        held[f"{name}_scale_inv"] = scales
    return held, said


def test_weights_of_eight_bits_are_expanded_exactly():
    text = {
        **TINY["text_config"],
        "hidden_size": 256, "moe_intermediate_size": 128, "head_dim": 128, "num_attention_heads": 2,
        "num_key_value_heads": 1, "num_experts": 4, "num_hidden_layers": 3,
        "rope_parameters": {**TINY["text_config"]["rope_parameters"], "mrope_section": [24, 20, 20]},
    }  # fmt: skip
    vision = {**TINY["vision_config"], "out_hidden_size": 256}
    config = {**TINY, "text_config": text, "vision_config": vision}
    plain, quantised = (
        Qwen3VLMoeForConditionalGeneration(one) for one in (config, {**config, "quantization_config": FP8})
    )
    random_weights(plain, 3)
    held, said = of_eight_bits(of_the_hub(dict(export_weights(plain))))
    assert held["model.language_model.layers.0.mlp.experts.gate_up_proj_scale_inv"].shape == (4, 2, 2)
    load_weights(plain, said.items())
    load_weights(quantised, held.items())
    for name, parameter in plain.named_parameters():
        assert torch.equal(quantised.get_parameter(name), parameter), name
    some = "model.language_model.layers.1.self_attn.k_proj.weight"
    for wrong, says in (
        ({name: x for name, x in held.items() if name != f"{some}_scale_inv"}, f"missing .*{some}_scale_inv"),
        (
            {name: x for name, x in held.items() if name != some},
            f"unexpected  {some}_scale_inv without codes",
        ),
        ({**held, f"{some}_scale_inv": torch.ones(2, 2)}, r"scale_inv \[2, 2\], expected \[1, 2\]"),
    ):
        with pytest.raises(WeightsError, match=says):
            load_weights(quantised, wrong.items())
    with pytest.raises(WeightsError, match="quantised weights cannot be loaded"):
        load_weights(plain, held.items())
