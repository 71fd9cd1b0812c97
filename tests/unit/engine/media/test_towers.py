"""Models that see: images of any size in prompts, beside requests of text, and what is refused."""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from fastkernels import registry
from fastkernels.engine.llm import LLM, SamplingParams
from fastkernels.engine.media import towers
from fastkernels.errors import RequestError
from fastkernels.nn import merged_patches

Image: Any = pytest.importorskip("PIL.Image")
START, IMAGE, VIDEO, END = 252, 250, 251, 253
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=1)
LOOK = [START, IMAGE, END, 5, 6, 7]


def picture(seed: int, height: int = 56, width: int = 84) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def engine(**options: Any) -> LLM:
    return LLM("qwen2_vl", size="tiny", device="cpu", **{"max_num_seqs": 8, **options})


@lru_cache
def shared() -> LLM:
    return engine()


def seen(*images: Any, ids: list[int] | None = None) -> dict[str, Any]:
    return {"prompt_token_ids": ids or LOOK * len(images), "multi_modal_data": {"image": list(images)}}


def told(output: Any) -> tuple[list[int], list[float]]:
    (one,) = output.outputs
    return one.token_ids, [at[i].logprob for i, at in zip(one.token_ids, one.logprobs, strict=True)]


def answers(llm: LLM, prompts: list[Any]) -> list[tuple[list[int], list[float]]]:
    return [told(output) for output in llm.generate(prompts, GREEDY, use_tqdm=False)]


def same(found: Any, wanted: Any) -> None:
    for (ids, logprobs), (wanted_ids, wanted_logprobs) in zip(found, wanted, strict=True):
        assert ids == wanted_ids
        np.testing.assert_allclose(logprobs, wanted_logprobs, atol=2e-5)


PROMPTS: list[Any] = [
    seen(picture(0)),
    [1, 2, 3],
    seen(picture(1, 112, 112), picture(0)),
    seen(picture(2, 30, 200)),
    {"prompt_token_ids": [9, 8, 7, 6, 5]},
    seen(picture(3), picture(4, 140, 56), picture(5, 61, 77)),
]


@lru_cache
def alone() -> list[Any]:
    """Each request by itself, in an engine that keeps nothing of the others."""
    found = [answers(engine(max_num_seqs=1), [one])[0] for one in PROMPTS]
    assert len({tuple(ids[:3]) for ids, _ in found}) > 4, "the answers do not depend on the images"
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_seqs": 2},
        {"max_num_batched_tokens": 7},
        {"num_kv_cache_blocks": 26, "block_size": 4},
        {"enable_prefix_caching": True, "block_size": 4, "max_num_batched_tokens": 9},
    ],
    ids=["together", "few rows", "chunks", "preempted", "prefixes"],
)
@pytest.mark.usefixtures("nobody_grows")
def test_requests_together_equal_each_alone(options: dict[str, Any]):
    llm = engine(**options)
    same(answers(llm, PROMPTS), alone())
    assert (llm.stats()["preemptions"] > 0) == ("num_kv_cache_blocks" in options)
    same(answers(llm, PROMPTS[::-1]), alone()[::-1])
    counts = llm.stats()["encode"]
    assert (counts["asked"], counts["found"]) == (14, 8)  # 6 different images


def test_requests_that_come_later_and_go():
    llm, found = engine(max_num_seqs=3), {}
    for number, prompt in enumerate([*PROMPTS, PROMPTS[3]]):
        llm.add_request(prompt, GREEDY, request_id=str(number))
        found |= {output.request_id: told(output) for output in llm.step()}
        if number == 3:
            assert llm.abort("2")
    assert llm.abort("6")
    while llm.has_unfinished_requests():
        found |= {output.request_id: told(output) for output in llm.step()}
    same([found[name] for name in "01345"], [alone()[int(name)] for name in "01345"])


def test_different_images_share_no_blocks_and_equal_ones_do():
    llm = engine(enable_prefix_caching=True, block_size=4)
    first, other, again = (
        llm.generate([seen(picture(seed, 112, 112))], GREEDY, use_tqdm=False)[0] for seed in (1, 2, 1)
    )
    assert first.prompt_token_ids == other.prompt_token_ids
    assert other.num_cached_tokens == 0
    assert again.num_cached_tokens == 20
    same([told(again)], [told(first)])
    assert told(other)[0] != told(first)[0]
    plain = engine().generate([seen(picture(2, 112, 112))], GREEDY, use_tqdm=False)[0]
    same([told(other)], [told(plain)])


def tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{i}": i for i in range(250)}
    made = Tokenizer(models.WordLevel(words | {"<i>": IMAGE, "<s>": START, "<e>": END}, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made)


def test_prompts_of_text_ids_and_ids_for_each_row():
    llm = engine(tokenizer=tokenizer())
    image = picture(0)
    rows = [START, *[IMAGE] * 6, END, 5, 6, 7]
    data = {"multi_modal_data": {"image": image}}
    prompts = [seen(image), seen(image, ids=rows), {"prompt": "<s> <i> <e> w5 w6 w7", **data}]
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == [rows] * 3
    same([told(output) for output in outputs], [told(outputs[0])] * 3)


def test_images_in_all_their_forms():
    """Colours as the processor's conversion makes them."""
    rgb = picture(0)
    alpha = np.dstack([rgb, rgb[:, :, :1]])
    forms = [Image.fromarray(rgb), torch.from_numpy(rgb), rgb[:, ::-1].copy()[:, ::-1], alpha]
    forms += [Image.fromarray(alpha, "RGBA")]
    same(answers(shared(), [seen(form) for form in forms]), [alone()[0]] * 5)
    grey = rgb[:, :, 0]
    forms = [np.dstack([grey] * 3), grey, grey[..., None], Image.fromarray(grey, "L")]
    same(answers(shared(), [seen(form) for form in forms]), answers(shared(), [seen(forms[0])]) * 4)
    palette = Image.fromarray(rgb).convert("P")
    same(answers(shared(), [seen(palette)]), answers(shared(), [seen(np.asarray(palette.convert("RGB")))]))


def test_images_of_extreme_sizes():
    sizes = [(1, 1), (1, 150), (15, 2000), (3, 4)]
    outputs = shared().generate([seen(picture(1, *size)) for size in sizes], GREEDY, use_tqdm=False)
    assert [len(output.prompt_token_ids) - len(LOOK) + 1 for output in outputs] == [4, 25, 71, 6]


def unreadable() -> Any:
    """A file that ends in the middle, which shows when its pixels are read."""
    file = io.BytesIO()
    Image.effect_noise((64, 48), 90).convert("RGB").save(file, "png")
    return Image.open(io.BytesIO(file.getvalue()[:2000]))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (seen(np.zeros((0, 4, 3), np.uint8)), r"image 0: an image \[0, 4, 3\] is empty"),
        (seen(picture(0), unreadable()), "image 1: a PIL image cannot be read: .*truncated"),
        (seen(picture(0, 20, 10_000)), "image 0: an image of 20 x 10000 pixels: one side may be 200 times"),
        (seen(picture(0).astype(np.float32)), "not float32"),
        (seen("picture.png"), "not str"),
        (seen(None), "not NoneType"),
        (
            seen(picture(0), ids=[1, 2]),
            r"1 of image in multi_modal_data, and 0 placeholders of it \(id 250\)",
        ),
        (seen(picture(0), ids=[IMAGE, 3, IMAGE]), "1 of image in multi_modal_data, and 2 placeholders"),
        (seen(picture(0), ids=[*[IMAGE] * 3, 3, *[IMAGE] * 3]), "6 placeholders .* must stand together"),
        (
            [1, IMAGE, 2],
            r"0 of image in multi_modal_data, and 1 placeholders of it \(id 250\) in the prompt$",
        ),
        ([1, VIDEO, 2], "0 of video in multi_modal_data, and 1 placeholders"),
        (
            {"prompt_token_ids": LOOK, "multi_modal_data": {"audio": [1]}},
            r"must be \{'image': \[...\], 'video'.*, not keys \['audio'\]",
        ),
        ({"prompt_token_ids": LOOK, "multi_modal_data": picture(0)}, "multi_modal_data must be"),
        (seen(picture(0, 50, 10_000)), "719 prompt tokens leave no room"),
        (seen(picture(0, 700, 800)), "730 prompt tokens leave no room for 1 more: max_model_len is 512"),
    ],
)
def test_what_is_refused_leaves_others_alone(given: Any, says: str):
    llm = shared()
    with pytest.raises(RequestError, match=f"request 1: .*{says}"):
        llm.generate([PROMPTS[0], given], GREEDY, use_tqdm=False)
    with pytest.raises(RequestError, match=says):
        llm.add_request(given, GREEDY)
    found = llm.generate([PROMPTS[0], given, PROMPTS[1]], GREEDY, use_tqdm=False, errors="return")
    assert isinstance(found[1], RequestError)
    same([told(found[0]), told(found[2])], alone()[:2])


def test_rows_do_not_pile_up(monkeypatch: pytest.MonkeyPatch):
    """Towers wait while requests hold many rows, and go on whenever nothing else can."""
    monkeypatch.setitem(towers.HELD_BYTES, "cpu", 10_000)  # of 6 rows of 64 numbers each image has 1,536
    monkeypatch.setattr(merged_patches, "MOST_PATCHES", 100)  # four images
    llm = engine(max_num_seqs=2)
    for seed in range(30):
        llm.add_request(seen(picture(100 + seed), picture(200 + seed)), GREEDY)
    most = 0
    while llm.has_unfinished_requests():
        llm.step()
        most = max(most, llm.stats()["encode"]["held_bytes"])
    assert 10_000 < most < 20_000
    assert llm.stats()["encode"]["held_bytes"] <= 5_000  # of the store alone
    assert llm.stats()["encode"]["calls"] == 15


def test_models_without_towers_take_no_images():
    with pytest.raises(RequestError, match="this model takes no image"):
        LLM("llama", size="tiny", device="cpu").generate([seen(picture(0))])


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen3_vl", "qwen3_vl_moe"])
def test_media_of_workloads_and_samples_are_as_many_tokens_as_declared(name: str):
    architecture = registry.architecture(name)
    facts = architecture.correctness
    assert facts.kind == "tokens"
    medium = LLM(name, size="tiny", device="cpu", max_num_seqs=1).model.media({})["image"]
    for size in architecture.default_config:
        asked = [*registry.workloads(architecture.workloads, size), facts.samples[size]]
        shapes = [shape for one in asked for shape in one.shapes if shape]
        counts = [
            medium.item(torch.zeros(shape["height"], shape["width"], 3, dtype=torch.uint8)).num_tokens
            for shape in shapes
        ]
        assert max(counts) <= facts.media_tokens[size]


def test_an_image_may_be_changed_once_its_request_is_there():
    llm = engine()
    image = torch.from_numpy(picture(0))
    llm.add_request(seen(image), GREEDY)
    image.zero_()
    found = []
    while llm.has_unfinished_requests():
        found += llm.step()
    same([told(output) for output in found], [alone()[0]])


def test_positions_ahead_of_places_stay_within_the_model(monkeypatch: pytest.MonkeyPatch):
    """A video whose steps are far apart in time; how far the tokens behind it may go is said at once."""
    right = merged_patches.grid_offsets
    monkeypatch.setattr(merged_patches, "grid_offsets", lambda *grid: right(*grid, pace=400))
    frames = np.random.default_rng(0).integers(0, 256, (4, 308, 336, 3), dtype=np.uint8)
    prompt = {"prompt_token_ids": [START, VIDEO, END, 5], "multi_modal_data": {"video": frames}}
    for most, is_served in ((90, True), (120, False)):
        params = SamplingParams(temperature=0.0, max_tokens=most, ignore_eos=True)
        (found,) = shared().generate([prompt], params, use_tqdm=False, errors="return")
        assert isinstance(found, RequestError) != is_served
        assert is_served or "positions up to 524 behind the prompt's media" in str(found)
