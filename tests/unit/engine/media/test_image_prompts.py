"""Prompts as ids, as features and in words: what goes through the text encoders, and what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fastkernels import registry
from fastkernels.engine.image_pipeline import ImagePipeline, ImageRequest
from fastkernels.errors import RequestError, UsageError
from fastkernels.nn.weights import export_weights
from tests.helpers import nested, quantized
from tests.tiny_tokenizers import save_tokenizers

CONFIG = registry.architecture("flux").configs["tiny"].config


def pipeline(**options: Any) -> ImagePipeline:
    return ImagePipeline("flux", config="tiny", device="cpu", **options)


def by_ids(seed: int, tokens: int = 9) -> ImageRequest:
    generator = torch.Generator().manual_seed(seed)
    t5_ids, clip_ids = (torch.randint(100, (length,), generator=generator) for length in (tokens, 77))
    return ImageRequest(t5_ids, clip_ids, 64, 64, steps=2, seed=seed, output="latent")


def by_features(one: ImagePipeline, request: ImageRequest) -> ImageRequest:
    """The same request after its encoders."""
    with torch.inference_mode():
        text = one.model.text_encoder_2(request.text[None])[0]
        pooled = one.model.text_encoder(request.pooled[None])[0]
    return replace(request, text=text, pooled=pooled)


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


def test_ids_go_through_the_encoders_in_common_launches():
    one = pipeline()
    requests = [by_ids(0), by_ids(1), by_ids(2, tokens=5), by_ids(3)]
    found = one.generate(requests)
    sizes = {name: one.engine.stages[name].batch_sizes for name in ("text_encoder_2", "text_encoder")}
    assert sizes == {"text_encoder_2": [3, 1], "text_encoder": [4]}
    for latents, wanted in zip(found, pipeline().generate([by_features(one, each) for each in requests])):
        close(latents, wanted)
    assert (found[0] - found[1]).abs().max() > 0.5, "prompts must count"


def test_one_side_may_come_as_features():
    one, request = pipeline(), by_ids(0)
    both = by_features(one, request)
    (wanted,) = one.generate([request])
    for mixed in (replace(request, text=both.text), replace(request, pooled=both.pooled)):
        (found,) = one.generate([mixed])
        close(found, wanted)


@pytest.mark.parametrize("side", ["text", "pooled"])
def test_every_side_of_a_prompt_counts(side: str):
    one, request = pipeline(), by_ids(0)
    (base,), (other,) = (
        one.generate([request]),
        one.generate([replace(request, **{side: getattr(by_ids(5), side)})]),
    )
    assert (other - base).abs().max() > 0.01


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"text": torch.tensor([3, 100])}, "id 100 for T5: its vocabulary has 100"),
        ({"text": torch.tensor([-1, 4])}, "id -1 for T5"),
        ({"pooled": torch.tensor([100])}, "id 100 for CLIP"),
        ({"text": torch.zeros(0, dtype=torch.int64)}, r"ids \[0\] for T5: expected 1 to 512"),
        ({"pooled": torch.zeros(0, dtype=torch.int64)}, r"ids \[0\] for CLIP: expected 1 to 77"),
        ({"text": torch.zeros(513, dtype=torch.int64)}, r"ids \[513\] for T5"),
        ({"pooled": torch.zeros(78, dtype=torch.int64)}, r"ids \[78\] for CLIP"),
        ({"text": torch.zeros(1, 5, dtype=torch.int64)}, r"ids \[1, 5\] for T5"),
        ({"text": torch.zeros(3, dtype=torch.int64).to_sparse()}, "text is a sparse_coo tensor"),
        ({"pooled": torch.zeros(3, dtype=torch.int64, device="meta")}, "pooled is a meta tensor"),
        ({"text": nested()}, "text is a nested tensor"),
        ({"pooled": quantized()}, "pooled is a quantized tensor"),
        ({"text": torch.empty(8, dtype=torch.bits8)}, "text is bits8: token ids are integers"),
        ({"pooled": torch.empty(8, dtype=torch.float4_e2m1fn_x2)}, "pooled is float4_e2m1fn_x2"),
        ({"pooled": torch.zeros(8, dtype=torch.bool)}, "pooled is bool"),
        ({"pooled": None}, "two tensors"),
        ({"text": "a cat"}, "no `pooled` beside it"),
        ({"text": "a cat", "pooled": None}, "flux:tiny lacks some of them"),
    ],
)
def test_refused_prompts_do_no_harm(change: dict[str, Any], says: str):
    one = pipeline()
    with pytest.raises(RequestError, match=says):
        one.generate([by_ids(0), replace(by_ids(1), **change)])
    assert len(one.generate([by_ids(0)])) == 1


def test_ids_and_features_of_any_width():
    """PyTorch compares no unsigned ids but uint8, and no float8."""
    one, request = pipeline(), by_ids(0)
    narrow = replace(request, text=request.text.to(torch.uint16), pooled=request.pooled.to(torch.uint64))
    assert torch.equal(one.generate([narrow])[0], one.generate([request])[0])
    features = by_features(one, request)
    (found,) = one.generate([replace(features, text=features.text.to(torch.float8_e4m3fn))])
    assert found.isfinite().all()


def test_features_that_carry_a_gradient_are_features():
    one = pipeline()
    features = by_features(one, by_ids(0))
    learned = replace(features, text=features.text.clone().requires_grad_() * 1)
    (found,) = one.generate([learned])
    assert torch.equal(found, one.generate([features])[0])
    assert not found.requires_grad


def test_a_model_without_text_encoders_takes_features():
    alone = {key: CONFIG[key] for key in ("architectures", "model_type", "transformer", "vae")}
    one = ImagePipeline(alone, device="cpu")
    assert set(one.engine.stages) == {"denoise", "to_pixels"}
    assert len(one.generate([by_features(pipeline(), by_ids(0))])) == 1
    with pytest.raises(RequestError, match="has no text encoders"):
        one.generate([by_ids(0)])


@pytest.mark.parametrize(
    ("section", "change", "says"),
    [
        ("text_encoder", None, "text_encoder: is missing, but text_encoder_2 is there"),
        ("text_encoder_2", None, "text_encoder_2: is missing, but text_encoder is there"),
        (
            "text_encoder",
            {"hidden_size": 48},
            r"text_encoder\.hidden_size: 48, but .* pooled_projection_dim is 24",
        ),
        ("text_encoder_2", {"d_model": 64}, r"text_encoder_2\.d_model: 64, but .* joint_attention_dim is 32"),
    ],
)
def test_encoders_must_fit_the_transformer(section: str, change: dict[str, int] | None, says: str):
    changed = None if change is None else CONFIG[section] | change
    with pytest.raises(UsageError, match=says):
        ImagePipeline(CONFIG | {section: changed}, device="cpu")


# ---------------------------------------------------------------- folders


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline as diffusers saves it."""
    root = tmp_path_factory.mktemp("flux")
    weights = dict(export_weights(pipeline(seed=3).model))
    index: dict[str, Any] = {"_class_name": "FluxPipeline", "scheduler": [None, None]}
    for part in ("transformer", "vae", "text_encoder", "text_encoder_2"):
        (root / part).mkdir()
        (root / part / "config.json").write_text(json.dumps(CONFIG[part]))
        own = {
            n.removeprefix(f"{part}."): t.contiguous() for n, t in weights.items() if n.startswith(f"{part}.")
        }
        save_file(own, root / part / "model.safetensors")
        index[part] = ["library", "Class"]
    (root / "model_index.json").write_text(json.dumps(index))
    save_tokenizers(root)
    return root


def test_a_prompt_in_words_is_tokenised_for_both(folder: Path):
    one = ImagePipeline(folder, device="cpu")
    t5_ids, clip_ids = one.prompts.checked("a cat on the mat", None)
    assert t5_ids.tolist() == [10, 11, 12, 13, 14, 1, *[0] * 506]
    assert clip_ids.tolist() == [98, 10, 11, 12, 13, 14, *[99] * 71]
    request = ImageRequest("a cat on the mat", None, 64, 64, steps=2, output="latent")
    (found,), (wanted,) = (
        one.generate([request]), pipeline(seed=3).generate([replace(request, text=t5_ids, pooled=clip_ids)])
    )  # fmt: skip
    close(found, wanted)


def test_a_long_text_is_cut_for_clip_and_refused_where_t5_cannot_read_it(folder: Path):
    prompts = ImagePipeline(folder, device="cpu").prompts
    t5_ids, clip_ids = prompts.checked("cat " * 500, None)
    assert (len(t5_ids), clip_ids[-1], clip_ids[-2]) == (512, 99, 11)
    with pytest.raises(RequestError, match="a prompt of 601 tokens: T5 reads 512"):
        prompts.checked("cat " * 600, None)
    with pytest.raises(RequestError, match=r"the tokenizer refuses '\\ud800'"):
        prompts.checked("\ud800", None)


def test_a_tokenizer_that_cannot_be_loaded_refuses_words_alone(folder: Path, tmp_path: Path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{")
    one = ImagePipeline(tmp_path, device="cpu")
    refused, served = one.generate([ImageRequest("a cat", None, 64, 64, steps=1), by_ids(0)], errors="return")
    assert "tokenizer cannot be loaded: " in str(refused)
    assert isinstance(served, torch.Tensor)


def test_words_without_a_tokenizer(folder: Path, tmp_path: Path):
    for name in ("transformer", "vae", "text_encoder", "text_encoder_2", "model_index.json", "tokenizer"):
        (tmp_path / name).symlink_to(folder / name)
    one = ImagePipeline(tmp_path, device="cpu")
    with pytest.raises(RequestError, match=r"tokenizer_2; .* lacks some of them"):
        one.generate([ImageRequest("a cat", None, 64, 64)])
