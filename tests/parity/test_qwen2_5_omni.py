"""Our Qwen2.5-Omni (thinker) against transformers, float32 on the CPU, a tiny model with randomised weights.

The reference computes a whole prompt with its answer at once. Ours takes images, videos and clips through the
engine: towers, rows spliced into prompts, prefill in chunks, decoding from the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from fastkernels.baseline.L4.qwen2_5_omni import Qwen2_5OmniThinkerForConditionalGeneration
from torch import Tensor
from transformers import Qwen2_5OmniThinkerConfig, WhisperFeatureExtractor
from transformers import Qwen2_5OmniThinkerForConditionalGeneration as HfThinker
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.vision_utils import get_vision_window_index

from fastkernels import LLM, SamplingParams, registry
from fastkernels.errors import UsageError
from fastkernels.loader.class_defaults import completed
from fastkernels.nn.patch_windows import count_windows, window_order
from fastkernels.nn.weights import export_weights, load_weights
from tests.parity.seeing import farthest, spoken

TOLERANCE = 2e-5  # of rows, and of logits, whose std is about 1: from the architecture's fact sheet
TINY = registry.architecture("qwen2_5_omni").configs["tiny"].config
AUDIO, IMAGE, VIDEO = (TINY[f"{kind}_token_index"] for kind in ("audio", "image", "video"))
SEE, SEEN, HEAR, HEARD = 252, 253, 254, 255
UNUSED = "audio_tower.audio_bos_eos_token.weight"


@lru_cache
def engine(**options: Any) -> LLM:
    return LLM("qwen2_5_omni", size="tiny", device="cpu", max_num_seqs=8, **options)


@lru_cache
def reference() -> HfThinker:
    config = Qwen2_5OmniThinkerConfig(**TINY)
    model = HfThinker._from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    found = model.load_state_dict(dict(export_weights(engine().model)), strict=False)
    assert (found.missing_keys, found.unexpected_keys) == ([UNUSED], [])
    return model


def picture(height: int, width: int, seed: int = 0, frames: tuple[int, ...] = ()) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (*frames, height, width, 3), dtype=np.uint8)


def clip(samples: int, seed: int = 0) -> np.ndarray:
    """Louder towards its end, so that the frame behind it is among the loudest."""
    generator = np.random.default_rng(seed)
    wave = np.sin(np.arange(samples) * generator.uniform(0.05, 0.8)) + generator.normal(size=samples) / 9
    return (wave * np.linspace(0.01, 0.8, samples)).clip(-1, 1).astype(np.float32)


@lru_cache
def extractor(seconds: int) -> WhisperFeatureExtractor:
    return WhisperFeatureExtractor(feature_size=TINY["audio_config"]["num_mel_bins"], chunk_length=seconds)


def hf_features(clips: list[np.ndarray], seconds: int = 2) -> dict[str, Tensor]:
    options = {"padding": "max_length", "return_attention_mask": True, "return_tensors": "pt"}
    made = extractor(seconds)(clips, sampling_rate=16000, **options)
    return {"input_features": made["input_features"], "feature_attention_mask": made["attention_mask"]}


def hf_patches(images: list[np.ndarray]) -> tuple[Tensor, Tensor]:
    made = Qwen2VLImageProcessorPil(min_pixels=3136, max_pixels=12845056)(images, return_tensors="pt")
    return made["pixel_values"], made["image_grid_thw"]


def hf_video_patches(video: np.ndarray) -> tuple[Tensor, Tensor]:
    """By the reference's own patches of single frames, two of which make a step."""
    singles, grids = hf_patches(list(video))
    steps = singles.unflatten(0, (len(video) // 2, 2, -1)).unflatten(-1, (3, 2, -1))
    pairs = torch.stack((steps[:, 0, :, :, 0], steps[:, 1, :, :, 0]), dim=3)
    grid = grids[:1].clone()
    grid[:, 0] = len(video) // 2
    return pairs.flatten(2).flatten(0, 1), grid


FRAME = (308, 336)  # frames of videos are not made smaller than 128 tokens
SIZES = [(56, 84), (140, 196), (28, 112), (168, 84)]
SAMPLES = [4 * 3200 + 1, 3200 * 2 - 210, 7520, 3200]  # 81, 39, 47 and 20 frames: chunks have 20
FPS = 5.0  # of videos: a step is 0.4 s, 10 positions
PROMPTS = {
    "text": ("", 0),
    "clip": ("a", 0),
    "image": ("i", 1),
    "clips": ("aaa", 1),
    "mixed": ("aiva", 3),
    "last": ("ia", 2),
}


def request(name: str) -> tuple[list[int], dict[str, list[Any]]]:
    """Text with a placeholder for each letter."""
    kinds, seed = PROMPTS[name]
    given: dict[str, list[Any]] = {"image": [], "video": [], "audio": []}
    ids = [7, 8]
    for number, kind in enumerate(kinds):
        turn = (seed + number) % 4
        if kind == "a":
            given["audio"].append(clip(SAMPLES[turn], turn))
            ids += [HEAR, AUDIO, HEARD]
        elif kind == "i":
            given["image"].append(picture(*SIZES[turn], turn))
            ids += [SEE, IMAGE, SEEN]
        else:
            given["video"].append(picture(*FRAME, 50, (6,)))
            ids += [SEE, VIDEO, SEEN]
        ids += range(20 + number, 24 + 3 * number)
    if name == "last":  # the first token of the answer follows a clip
        ids = ids[: len(ids) - ids[::-1].index(AUDIO)]
    return ids, given


def prompt(name: str) -> dict[str, Any]:
    ids, given = request(name)
    video = [(frames, {"fps": FPS}) for frames in given["video"]]
    audio = [(samples, 16000) for samples in given["audio"]]
    return {"prompt_token_ids": ids, "multi_modal_data": {**given, "video": video, "audio": audio}}


@torch.inference_mode()
def expected(ids: list[int], given: dict[str, list[Any]], answer: list[int]) -> tuple[Tensor, Tensor]:
    """Logits [S, V] and positions [3, S] of a prompt with a placeholder for each row, and of its answer."""
    inputs: dict[str, Any] = {"input_ids": torch.tensor([ids + answer])}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    where: dict[str, Any] = {"attention_mask": inputs["attention_mask"]}
    if given["audio"]:
        inputs |= hf_features(given["audio"])
        where["audio_seqlens"] = inputs["feature_attention_mask"].sum(1)
    if given["image"]:
        inputs["pixel_values"], inputs["image_grid_thw"] = hf_patches(given["image"])
        where["image_grid_thw"] = inputs["image_grid_thw"]
    if given["video"]:
        (video,) = given["video"]
        inputs["pixel_values_videos"], inputs["video_grid_thw"] = hf_video_patches(video)
        where["video_grid_thw"] = inputs["video_grid_thw"]
        where["second_per_grids"] = inputs["video_second_per_grid"] = torch.tensor([2 / FPS])
    positions_31S, _ = reference().get_rope_index(inputs["input_ids"], **where)
    reference().rope_deltas = None
    return reference()(**inputs).logits[0], positions_31S[:, 0]


def answers(llm: LLM, names: list[str]) -> list[Any]:
    params = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True, logprobs=256, prompt_logprobs=0)
    return llm.generate([prompt(name) for name in names], params, use_tqdm=False)


def difference(output: Any, name: str) -> float:
    """The largest of all log-probabilities of the answer, and of the prompt's tokens."""
    answer = spoken(output, range(AUDIO, 256))
    logits_SV, _ = expected(output.prompt_token_ids, request(name)[1], answer)
    return farthest(output, answer, logits_SV)


@torch.inference_mode()
def heard(clips: list[np.ndarray]) -> Tensor:
    """Rows of our audio tower, of clips in one launch."""
    model = engine().model
    batching, medium = model.stages()["listen"].batching, model.media({})["audio"]
    calls = [medium.item(torch.from_numpy(samples)).call.args for samples in clips]
    return torch.cat(list(batching.divide(model.listen(*batching.join(calls)), calls)))


def test_rows_of_clips():
    """1, 19, 20 and 21 frames beyond whole chunks, odd numbers of rows; all in one launch, and each alone."""
    frames = ((81, 0), (19, 7), (60, 1), (41, 159), (3, 0))
    clips = [clip(160 * count - short, count) for count, short in frames]
    with torch.inference_mode():
        wanted = reference().get_audio_features(**hf_features(clips)).last_hidden_state
    assert wanted.std() > 0.3, "weights too small for a strong test"
    torch.testing.assert_close(heard(clips), wanted, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(torch.cat([heard([one]) for one in clips]), wanted, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("samples", [7520, 3 * 16000 + 77])
def test_features_are_those_of_the_feature_extractor(samples: int):
    """Which pads a clip to 300 s. Its frame behind the end is louder than those that are taken."""
    sound = clip(samples)
    made = hf_features([sound], seconds=300)
    frames = int(made["feature_attention_mask"].sum())
    model = engine().model
    batching, medium = model.stages()["listen"].batching, model.media({})["audio"]
    item = medium.item(torch.from_numpy(sound), 16000)
    raw, index, *_ = batching.join([item.call.args])
    found_FM = model.audio_tower.features(raw)[index[index >= 0]]
    assert len(found_FM) == frames == -(-samples // 160)
    assert item.num_tokens == ((frames - 1) // 2 + 1 - 2) // 2 + 1
    torch.testing.assert_close(found_FM.T, made["input_features"][0, :, :frames], rtol=0, atol=2e-6)


@torch.inference_mode()
def test_rows_of_images_and_videos():
    model = engine().model
    images = [picture(*size, seed) for seed, size in enumerate([*SIZES, (280, 112), (56, 56)])]
    video = picture(*FRAME, 9, (4,))
    batching, media = model.stages()["encode"].batching, model.media({})
    calls = [media["image"].item(torch.from_numpy(image)).call.args for image in images]
    calls.append(media["video"].item(torch.from_numpy(video)).call.args)
    rows = model.encode(*batching.join(calls))
    parts = [hf_patches(images), hf_video_patches(video)]
    wanted = torch.cat([reference().visual(*part).pooler_output for part in parts])
    assert wanted.std() > 0.3, "weights too small for a strong test"
    torch.testing.assert_close(rows, wanted, rtol=0, atol=TOLERANCE)


def test_windows_are_those_of_the_reference():
    grids = [(6, 10), (4, 4), (8, 8), (10, 14), (2, 2), (10, 14)]
    starts = torch.tensor([0, *np.cumsum([h * w for h, w in grids])], dtype=torch.int32)
    windows, blocks = count_windows(grids, 2, 4), int(starts[-1]) // 4
    order, ends = window_order(torch.tensor(grids), starts, blocks, windows, 2, 4)
    wanted, edges = get_vision_window_index(torch.tensor([(1, *grid) for grid in grids]), 2, 112, 14)
    assert torch.equal(order, wanted)
    assert torch.equal(ends, edges)


@pytest.mark.parametrize("name", PROMPTS)
def test_positions_are_those_of_the_reference(name: str):
    ids, brought = engine().beside.take(*prompt(name).values())
    # The reference takes a token behind the last medium for granted.
    wanted_3S = expected(ids, request(name)[1], [5])[1][:, :-1]
    if brought is None:
        assert (wanted_3S == torch.arange(len(ids))).all()
        return
    found_3S, shift = brought.positions_3S, brought.shift
    end = found_3S.shape[1]
    np.testing.assert_array_equal(found_3S, wanted_3S[:, :end])
    np.testing.assert_array_equal(np.tile(np.arange(end, len(ids)) + shift, (3, 1)), wanted_3S[:, end:])


ENGINES = {
    "together": {},
    "chunks": {"max_num_batched_tokens": 9},
    "preempted": {"num_kv_cache_blocks": 140, "block_size": 4},
}


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.usefixtures("nobody_grows")
def test_prefill_and_decoding_agree_with_the_reference(kind: str):
    """Chunks end in the middle of images and clips; what was preempted is computed again."""
    llm = engine(**ENGINES[kind])
    names = list(PROMPTS)
    worst = {name: difference(output, name) for name, output in zip(names, answers(llm, names))}
    assert max(worst.values()) < TOLERANCE, worst
    assert kind != "preempted" or llm.stats()["preemptions"]


def wrong_engine(wrong: str, patch: pytest.MonkeyPatch) -> LLM:
    llm = LLM(TINY, device="cpu", max_num_seqs=2)
    load_weights(llm.model, export_weights(engine().model))
    visual, hears = llm.model.visual, llm.model.audio_tower
    if wrong == "rope in raster order":
        coords = visual.rotary_pos_emb.forward
        patch.setattr(visual.rotary_pos_emb, "forward", lambda at: coords(at.flip(0)))
    if wrong == "no windows":
        visual.full = frozenset(range(2))
    if wrong == "windows everywhere":
        visual.full = frozenset()
    if wrong == "merged rows in window order":
        patch.setattr(Tensor, "argsort", lambda order: torch.arange(len(order)))
    if wrong == "no vision bias":
        visual.blocks[0].mlp.down_proj.linear.bias.zero_()
    if wrong == "no bias of queries":
        hears.layers[0].self_attn.qkv_proj.linear.bias[:64] = 0
    if wrong == "positions go on":
        stem, rows = hears.stem, torch.arange(64)[:, None]
        angles = rows * 10000.0 ** -(torch.arange(32) / 31)
        whole = torch.cat((angles.sin(), angles.cos()), dim=1)

        def going_on(features: Tensor, index: Tensor, starts: Tensor, count: int) -> Tensor:
            at = torch.arange(count) - torch.repeat_interleave(starts[:-1], starts.diff())
            return type(stem).forward(stem, features, index, starts, count) - whole[at] + whole[:count]

        patch.setattr(stem, "forward", going_on)
    if wrong == "chunks attend to each other":
        for layer in hears.layers:
            inner = layer.forward
            patch.setattr(layer, "forward", lambda x, s, n, f=inner: f(x, s[[0, -1]], len(x)))
    if wrong == "padding before the second convolution":
        stem = hears.stem
        patch.setattr(
            stem, "forward", lambda x, i, s, n: type(stem).forward(stem, x, i.where(i >= 0, i.max()), s, n)
        )
    if wrong == "pooling of other pairs":
        pool: Callable[..., Tensor] = hears.pooler.forward
        patch.setattr(hears.pooler, "forward", lambda x, pairs: pool(x, pairs.clamp(max=len(x) - 2) + 1))
    if wrong == "a step of a video is one position":
        llm.beside._media["video"].per_second = 2.5  # type: ignore[union-attr]
    return llm


@pytest.mark.parametrize(
    ("wrong", "shown"),
    [
        ("rope in raster order", "image"),
        ("no windows", "image"),
        ("windows everywhere", "image"),
        ("merged rows in window order", "image"),
        ("no vision bias", "image"),
        ("no bias of queries", "clip"),
        ("positions go on", "clip"),
        ("chunks attend to each other", "clip"),
        ("padding before the second convolution", "clips"),
        ("pooling of other pairs", "clip"),
        ("a step of a video is one position", "mixed"),
    ],
)
def test_what_is_wrong_would_be_noticed(wrong: str, shown: str, monkeypatch: pytest.MonkeyPatch):
    """Each is off by ten times the tolerance."""
    (output,) = answers(wrong_engine(wrong, monkeypatch), [shown])
    monkeypatch.undo()
    assert difference(output, shown) > 10 * TOLERANCE


def test_every_name_of_the_checkpoint_has_a_place():
    """The reference's names at the real configuration, as the thinker has them and as the whole model does;
    what speaks is left out."""
    full = registry.architecture("qwen2_5_omni").configs["7b"].config
    with torch.device("meta"):
        model = Qwen2_5OmniThinkerForConditionalGeneration(full)
        theirs = HfThinker(Qwen2_5OmniThinkerConfig(**full))
    assert sum(p.numel() for p in theirs.parameters()) == 8_931_813_888
    assert sum(p.numel() for p in model.visual.parameters()) == 676_550_144
    ours = {name: x.shape for name, x in export_weights(model)}
    wanted = {name: x.shape for name, x in theirs.state_dict().items()}
    assert model.weight_map.ignores(UNUSED)
    del wanted[UNUSED]
    assert ours == wanted


def test_files_of_the_whole_model_load():
    weights = dict(export_weights(engine().model))
    whole = {f"thinker.{name}": weight for name, weight in weights.items()}
    whole |= {f"thinker.{UNUSED}": torch.ones(2, 64)}
    whole |= {"talker.model.layers.0.mlp.up_proj.weight": torch.ones(1), "token2wav.a.b.c": torch.ones(1)}
    nested = {"model_type": "qwen2_5_omni", "architectures": ["Qwen2_5OmniModel"], "thinker_config": TINY}
    llm = LLM(completed(nested), device="cpu", max_num_seqs=2)
    load_weights(llm.model, whole.items())
    for name, weight in export_weights(llm.model):
        assert torch.equal(weight, weights[name])
    assert llm.vocabulary == 256


@pytest.mark.parametrize(
    ("section", "values", "says"),
    [
        ("vision_config", {"num_heads": 5}, "hidden_size: 64 is no multiple"),
        ("vision_config", {"window_size": 20}, "is less than a block, 28 pixels"),
        ("vision_config", {"fullatt_block_indexes": "all"}, "must be a list of blocks"),
        ("audio_config", {"encoder_attention_heads": 5}, "d_model: 64 is no multiple"),
        ("audio_config", {"scale_embedding": True}, "not supported"),
    ],
)
def test_configurations_that_are_refused(section: str, values: dict[str, Any], says: str):
    with pytest.raises(UsageError, match=says):
        Qwen2_5OmniThinkerForConditionalGeneration({**TINY, section: {**TINY[section], **values}})
