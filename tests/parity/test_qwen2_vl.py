"""Our Qwen2-VL against transformers, float32 on the CPU, a tiny model with randomised weights.

The reference computes a whole prompt with its answer at once. Ours takes images through the engine: towers,
rows spliced into prompts, prefill in chunks, decoding from the cache. Nothing is fetched.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
import pytest
import torch
from fastkernels.baseline.L4.qwen2_vl import Qwen2VLForConditionalGeneration
from torch import Tensor
from transformers import Qwen2VLConfig
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLForConditionalGeneration as HfQwen2VL

from fastkernels import LLM, SamplingParams, registry
from fastkernels.errors import UsageError
from fastkernels.loader.class_defaults import completed
from fastkernels.nn.merged_patches import Patching
from fastkernels.nn.weights import export_weights, load_weights
from tests.parity.seeing import farthest, spoken

TOLERANCE = 2e-5  # of rows, and of logits, whose std is about 1: from the architecture's fact sheet
TINY = registry.architecture("qwen2_vl").configs["tiny"].config
IMAGE, VIDEO = TINY["image_token_id"], TINY["video_token_id"]
START, END = TINY["vision_start_token_id"], TINY["vision_end_token_id"]
PREFIXES = {"visual.": "model.visual.", "model.": "model.language_model."}


@lru_cache
def engine(**options: Any) -> LLM:
    return LLM("qwen2_vl", size="tiny", device="cpu", max_num_seqs=8, **options)


@lru_cache
def reference() -> HfQwen2VL:
    config = Qwen2VLConfig(**TINY)
    model = HfQwen2VL._from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    model.load_state_dict(dict(map(renamed, export_weights(engine().model))), strict=True)
    return model


def renamed(weight: tuple[str, Tensor]) -> tuple[str, Tensor]:
    name, tensor = weight
    before = next((old for old in PREFIXES if name.startswith(old)), "")
    return PREFIXES.get(before, "") + name.removeprefix(before), tensor


def picture(height: int, width: int, seed: int = 0, frames: tuple[int, ...] = ()) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (*frames, height, width, 3), dtype=np.uint8)


def hf_patches(images: list[np.ndarray]) -> tuple[Tensor, Tensor]:
    processor = Qwen2VLImageProcessorPil(min_pixels=3136, max_pixels=12845056)
    made = processor(images, return_tensors="pt")
    return made["pixel_values"], made["image_grid_thw"]


def hf_video_patches(video: np.ndarray) -> tuple[Tensor, Tensor]:
    """By the reference's own patches of single frames, two of which make a step."""
    video = np.concatenate([video, video[-1:]] if len(video) % 2 else [video])
    singles, grids = hf_patches(list(video))
    steps = singles.unflatten(0, (len(video) // 2, 2, -1)).unflatten(-1, (3, 2, -1))
    pairs = torch.stack((steps[:, 0, :, :, 0], steps[:, 1, :, :, 0]), dim=3)
    grid = grids[:1].clone()
    grid[:, 0] = len(video) // 2
    return pairs.flatten(2).flatten(0, 1), grid


@torch.inference_mode()
def expected(
    ids: list[int], images: list[np.ndarray], videos: list[np.ndarray], answer: list[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Logits [S, V] and positions [3, S] of a prompt with a placeholder for each row, and of its answer."""
    answer = answer or []
    types = torch.tensor([[{IMAGE: 1, VIDEO: 2}.get(i, 0) for i in ids] + [0] * len(answer)])
    inputs: dict[str, Tensor] = {"input_ids": torch.tensor([ids + answer]), "mm_token_type_ids": types}
    if images:
        inputs["pixel_values"], inputs["image_grid_thw"] = hf_patches(images)
    if videos:
        parts = [hf_video_patches(video) for video in videos]
        inputs["pixel_values_videos"] = torch.cat([pixels for pixels, _ in parts])
        inputs["video_grid_thw"] = torch.cat([grid for _, grid in parts])
    grids = {name: inputs.get(name) for name in ("image_grid_thw", "video_grid_thw")}
    positions_31S, _ = reference().model.get_rope_index(inputs["input_ids"], types, **grids)
    return reference()(**inputs).logits[0], positions_31S[:, 0]


def spans(kinds: str) -> list[int]:
    """Text with a placeholder for each letter: i an image, v a video."""
    ids = [7, 8]
    for number, kind in enumerate(kinds):
        ids += [START, IMAGE if kind == "i" else VIDEO, END, *range(20 + number, 24 + 3 * number)]
    return ids


FRAME = (308, 336)  # frames of videos are not made smaller than 128 tokens
SIZES = [(56, 84), (84, 56), (28, 112), (112, 112)]
# Fewer steps than half of the longest side: there the reference's positions are the model's (fact sheet).
PROMPTS = {
    "text": ("", 0),
    "image": ("i", 0),
    "video": ("v", 1),
    "images": ("iii", 2),
    "mixed": ("ivi", 3),
    "last": ("ii", 1),
}


def request(name: str) -> tuple[list[int], list[np.ndarray], list[np.ndarray]]:
    kinds, seed = PROMPTS[name]
    images = [picture(*SIZES[(seed + n) % 4], seed + n) for n in range(kinds.count("i"))]
    videos = [picture(*FRAME, 50 + n, (3,)) for n in range(kinds.count("v"))]
    ids = spans(kinds)
    if name == "last":  # the first token of the answer follows an image
        ids = ids[: len(ids) - ids[::-1].index(IMAGE)]
    return ids, images, videos


def prompt(name: str) -> dict[str, Any]:
    ids, images, videos = request(name)
    return {"prompt_token_ids": ids, "multi_modal_data": {"image": images, "video": videos}}


def test_rows_of_images_and_videos():
    model, towers = engine().model, engine().beside
    images = [picture(*size, seed) for seed, size in enumerate(SIZES)]
    video = picture(*FRAME, 9, (5,))
    batching = model.stages()["encode"].batching
    media = model.media({})
    calls = [media["image"].item(torch.from_numpy(image)).call.args for image in images]
    calls.append(media["video"].item(torch.from_numpy(video)).call.args)
    with torch.inference_mode():
        rows = batching.divide(model.encode(*batching.join(calls)), calls)
        pixels, grids = hf_patches(images)
        wanted = torch.cat(reference().model.get_image_features(pixels, grids).pooler_output)
        moving = reference().model.get_video_features(*hf_video_patches(video)).pooler_output[0]
    assert towers is not None
    assert wanted.std() > 0.3, "weights too small for a strong test"
    torch.testing.assert_close(torch.cat(rows[:-1]), wanted, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(rows[-1], moving, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", PROMPTS)
def test_positions_are_those_of_the_reference(name: str):
    ids, brought = engine().beside.take(prompt(name)["prompt_token_ids"], prompt(name)["multi_modal_data"])
    _, wanted_3S = expected(ids, *request(name)[1:])
    if brought is None:
        assert (wanted_3S == torch.arange(len(ids))).all()
        return
    found_3S, shift = brought.positions_3S, brought.shift
    end = found_3S.shape[1]
    np.testing.assert_array_equal(found_3S, wanted_3S[:, :end])
    np.testing.assert_array_equal(np.tile(np.arange(end, len(ids)) + shift, (3, 1)), wanted_3S[:, end:])


def answers(llm: LLM, names: list[str]) -> list[Any]:
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=256, prompt_logprobs=0)
    return llm.generate([prompt(name) for name in names], params, use_tqdm=False)


def differences(output: Any, name: str) -> float:
    """The largest of all log-probabilities of the answer, and of the prompt's tokens."""
    answer = spoken(output, (IMAGE, VIDEO))
    logits_SV, _ = expected(output.prompt_token_ids, *request(name)[1:], answer)
    return farthest(output, answer, logits_SV)


ENGINES = {
    "together": {},
    "chunks": {"max_num_batched_tokens": 5},
    "preempted": {"num_kv_cache_blocks": 100, "block_size": 4},
}


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.usefixtures("nobody_grows")
def test_prefill_and_decoding_agree_with_the_reference(kind: str):
    """Chunks end in the middle of images; what was preempted is computed again."""
    llm = engine(**ENGINES[kind])
    names = list(PROMPTS)
    worst = {name: differences(output, name) for name, output in zip(names, answers(llm, names))}
    assert max(worst.values()) < TOLERANCE, worst
    assert kind != "preempted" or llm.stats()["preemptions"]


def test_prompts_without_media_are_those_of_qwen2():
    config = {**TINY, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e6}
    llm = LLM(config, device="cpu", max_num_seqs=2)
    text = [(n, w) for n, w in export_weights(engine().model) if not n.startswith("visual.")]
    load_weights(llm.model, text)
    ids = [1, 2, 3, 4]
    params = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
    ours, plain = (one.generate([ids], params, use_tqdm=False)[0].outputs[0] for one in (engine(), llm))
    assert ours.token_ids == plain.token_ids
    assert len({i for i, _ in groupby(ours.token_ids)}) > 3


@pytest.mark.parametrize(
    "wrong",
    ["quick_gelu", "sections", "raster order", "frames together", "text behind", "no bias", "rows unspliced"],
)
def test_what_is_wrong_would_be_noticed(wrong: str, monkeypatch: pytest.MonkeyPatch):
    """Each is off by ten times the tolerance."""
    config = {**TINY, "vision_config": dict(TINY["vision_config"])}
    if wrong == "quick_gelu":
        config["vision_config"]["hidden_act"] = "gelu"
    if wrong == "sections":
        config["rope_parameters"] = {**TINY["rope_parameters"], "mrope_section": [3, 3, 2]}
    llm = LLM(config, device="cpu", max_num_seqs=2)
    load_weights(llm.model, export_weights(engine().model))
    tower = llm.model.visual.forward
    if wrong == "raster order":
        raster = Patching(14, 1, 2)
        coords = llm.model.visual.patch_coords

        def by_rows(*given: Any) -> Tensor:
            llm.model.visual.patching, merged = raster, llm.model.visual.patching
            found = coords(*given)
            llm.model.visual.patching = merged
            return found

        monkeypatch.setattr(llm.model.visual, "patch_coords", by_rows)
    if wrong == "frames together":

        def together(pixels: Tensor, shapes: Tensor, starts: Tensor, longest: int) -> Tensor:
            blocks = llm.model.visual.blocks
            for block in blocks:
                attend = block.attention.forward
                ends = torch.tensor([0, len(pixels)], dtype=torch.int32)
                monkeypatch.setattr(
                    block.attention, "forward", lambda x, t, p, s, n, f=attend, e=ends: f(x, t, p, e, len(x))
                )
            return tower(pixels, shapes, starts, longest)

        monkeypatch.setattr(llm.model, "encode", together)
        llm.beside.graphs["encode"].function = together
    if wrong == "text behind":
        from fastkernels.engine.media import towers

        right = towers.positions_of
        monkeypatch.setattr(towers, "positions_of", lambda *given: (right(*given)[0], right(*given)[1] + 1))
    if wrong == "no bias":
        for layer in llm.model.layers:
            layer.self_attn.qkv_proj.linear.bias.zero_()
    if wrong == "rows unspliced":
        forward = llm.model.forward
        monkeypatch.setattr(llm.model, "forward", lambda ids, positions, *_: forward(ids, positions))
    (output,) = answers(llm, ["mixed"])
    assert differences(output, "mixed") > 10 * TOLERANCE


def test_every_name_of_the_checkpoint_has_a_place():
    """The reference's names at the real configuration, in the spelling of the hub and of newer files."""
    full = registry.architecture("qwen2_vl").configs["7b"].config
    with torch.device("meta"):
        model = Qwen2VLForConditionalGeneration(full)
        theirs = HfQwen2VL(Qwen2VLConfig(**full)).state_dict()
    assert sum(p.numel() for p in model.parameters()) == 8_291_375_616
    assert sum(p.numel() for p in model.visual.parameters()) == 675_759_104
    ours = dict(map(renamed, export_weights(model)))
    assert {name: x.shape for name, x in ours.items()} == {name: x.shape for name, x in theirs.items()}


def test_both_spellings_of_names_load():
    weights = dict(export_weights(engine().model))
    for spelled in (weights, dict(map(renamed, weights.items()))):
        model = Qwen2VLForConditionalGeneration(TINY)
        load_weights(model, spelled.items())
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, engine().model.get_parameter(name))


def test_configurations_of_files():
    """Flat as on the hub, and in sections as newer libraries save them."""
    nested = Qwen2VLConfig(**TINY).to_dict()
    flat = {**TINY, "rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}
    del flat["rope_parameters"]
    shapes = {name: p.shape for name, p in engine().model.named_parameters()}
    for config in (nested, completed(flat)):
        model = Qwen2VLForConditionalGeneration(config)
        assert {name: p.shape for name, p in model.named_parameters()} == shapes
        assert model.layers[0].self_attn.rotary_emb.mrope_section == [2, 3, 3]
    for key, value, says in (
        ("rope_parameters", {"rope_type": "default", "rope_theta": 1e6}, "mrope_section is missing"),
        ("rope_parameters", {**TINY["rope_parameters"], "mrope_section": [2, 3, 4]}, "half of head_dim"),
        ("use_sliding_window", True, "not supported"),
        ("vision_config", {**TINY["vision_config"], "num_heads": 5}, "embed_dim: 64 is no multiple"),
    ):
        with pytest.raises(UsageError, match=says):
            Qwen2VLForConditionalGeneration({**TINY, key: value})
