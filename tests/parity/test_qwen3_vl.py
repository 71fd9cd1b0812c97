"""Our Qwen3-VL against transformers (seeing.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fastkernels.baseline.L4.qwen3_vl import Qwen3VLForConditionalGeneration
from torch import Tensor
from transformers import Qwen3VLConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLForConditionalGeneration as HfQwen3VL

from fastkernels import LLM, registry
from fastkernels.errors import UsageError
from fastkernels.kernels.mrope_table import axes
from fastkernels.nn.weights import export_weights, load_weights
from tests.parity.seeing import FRAME, PROMPTS, SIZES, TOLERANCE, Seeing, answers, picture, prompt

MODEL = Seeing("qwen3_vl", Qwen3VLConfig, HfQwen3VL)
TINY = MODEL.config


def test_rows_of_images_and_videos_on_all_levels():
    """Grids that are not square among them, and smaller and larger than the table."""
    images = [picture(*size, seed) for seed, size in enumerate([*SIZES, (64, 1024)])]
    found, wanted = MODEL.rows(images, picture(*FRAME, 9, (5,)))
    assert found.shape[1] == 4 * TINY["text_config"]["hidden_size"]
    assert all(level.std() > 0.3 for level in wanted.split(64, dim=1)), "weights too small for a strong test"
    torch.testing.assert_close(found, wanted, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", [name for name in PROMPTS if name != "text"])
def test_positions_are_those_of_the_reference(name: str):
    ids, brought = MODEL.llm.beside.take(*prompt(name).values())
    _, wanted_3S = MODEL.expected(name)
    found_3S, shift = brought.positions_3S, brought.shift
    end = found_3S.shape[1]
    np.testing.assert_array_equal(found_3S, wanted_3S[:, :end])
    np.testing.assert_array_equal(np.tile(np.arange(end, len(ids)) + shift, (3, 1)), wanted_3S[:, end:])


ENGINES = {
    "together": {},
    "chunks": {"max_num_batched_tokens": 50},
    "preempted": {"num_kv_cache_blocks": 208, "block_size": 4},
}


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.usefixtures("nobody_grows")
def test_prefill_and_decoding_agree_with_the_reference(kind: str):
    """Chunks end in the middle of images; what was preempted is computed again."""
    llm = MODEL.engine(**ENGINES[kind])
    names = list(PROMPTS)
    worst = {name: MODEL.difference(output, name) for name, output in zip(names, answers(llm, names))}
    assert max(worst.values()) < TOLERANCE, worst
    assert kind != "preempted" or llm.stats()["preemptions"]


def changed(section: str, **values: Any) -> dict[str, Any]:
    return {**TINY, section: {**TINY[section], **values}}


def wrong_engine(wrong: str, monkeypatch: pytest.MonkeyPatch) -> LLM:
    config = TINY
    if wrong == "exact gelu in blocks":
        config = changed("vision_config", hidden_act="gelu")
    rope = TINY["text_config"]["rope_parameters"]
    if wrong == "sections":
        config = changed("text_config", rope_parameters={**rope, "mrope_section": [6, 1, 1]})
    llm = LLM(config, device="cpu", max_num_seqs=2)
    load_weights(llm.model, export_weights(MODEL.llm.model))
    model, tower = llm.model, llm.model.visual
    if wrong == "axes not interleaved":
        for layer in model.layers:
            layer.self_attn.rotary_emb.mrope_interleaved = False
    if wrong == "corners not aligned":
        sample = tower.patch_embed.sample
        edge = 0.5 / tower.patch_embed.side
        monkeypatch.setattr(
            sample, "forward", lambda at, table: type(sample)()(at * (1 - 2 * edge) + edge, table)
        )
    if wrong == "levels of one image":
        swapped = model.visual.forward

        def turned(*given: Any) -> Tensor:
            first, *levels = swapped(*given).split(model.hidden_size, dim=1)
            return torch.cat((first, *[level.flip(0) for level in levels]), dim=1)

        llm.beside.graphs["encode"].function = turned
    if wrong == "no levels":
        split = model.forward
        D = model.hidden_size

        def alone(
            ids: Tensor, positions: Tensor, rows: Tensor | None = None, index: Tensor | None = None
        ) -> Tensor:
            if rows is not None:
                rows = torch.cat((rows[:, :D], torch.zeros_like(rows[:, D:])), dim=1)
            return split(ids, positions, rows, index)

        monkeypatch.setattr(model, "forward", alone)
    if wrong == "heads not normed":
        for layer in model.layers:
            layer.self_attn.q_norm.weight.fill_(1.0)
    if wrong == "shift":
        from fastkernels.engine.media import towers

        right = towers.positions_of
        monkeypatch.setattr(towers, "positions_of", lambda *given: (right(*given)[0], right(*given)[1] + 1))
    return llm


@pytest.mark.parametrize(
    "wrong",
    [
        "exact gelu in blocks",
        "sections",
        "axes not interleaved",
        "corners not aligned",
        "levels of one image",
        "no levels",
        "heads not normed",
        "shift",
    ],
)
def test_what_is_wrong_would_be_noticed(wrong: str, monkeypatch: pytest.MonkeyPatch):
    """Each is off by ten times the tolerance."""
    (output,) = answers(wrong_engine(wrong, monkeypatch), ["image"])
    assert MODEL.difference(output, "image") > 10 * TOLERANCE


def test_axes_of_frequencies():
    """The real configuration's: turns of three, and the last four are temporal. They are too slow for tiny
    prompts to show it."""
    assert axes([24, 20, 20], interleaved=True) == [0, 1, 2] * 20 + [0] * 4


def test_every_name_of_the_checkpoint_has_a_place():
    full = registry.architecture("qwen3_vl").configs["8b"].config
    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration(full)
        theirs = HfQwen3VL(Qwen3VLConfig(**full)).state_dict()
    assert sum(p.numel() for p in model.parameters()) == 8_767_123_696
    assert sum(p.numel() for p in model.visual.parameters()) == 576_388_336
    ours = dict(export_weights(model))
    assert {name: x.shape for name, x in ours.items()} == {name: x.shape for name, x in theirs.items()}


def test_configurations_of_files():
    """As newer libraries save them, and what is not supported."""
    shapes = {name: p.shape for name, p in MODEL.llm.model.named_parameters()}
    saved = Qwen3VLForConditionalGeneration(Qwen3VLConfig(**TINY).to_dict())
    assert {name: p.shape for name, p in saved.named_parameters()} == shapes
    rope = {"rope_type": "default", "rope_theta": 1e6}
    for section, values, says in (
        ("text_config", {"rope_parameters": rope}, "mrope_section is missing"),
        ("text_config", {"num_hidden_layers": 2}, "num_hidden_layers: 2 are less than 3 taps"),
        ("vision_config", {"num_heads": 5}, "hidden_size: 64 is no multiple"),
        ("vision_config", {"deepstack_visual_indexes": [0, 4]}, "a growing list of blocks below 4"),
        ("vision_config", {"num_position_embeddings": 60}, "60 make no square"),
    ):
        with pytest.raises(UsageError, match=says):
            Qwen3VLForConditionalGeneration(changed(section, **values))
