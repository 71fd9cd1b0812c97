"""Qwen2.5-Omni's thinker in vLLM and transformers: an image, a clip and text in each prompt, greedy, exact
lengths.

vLLM takes images and clips as we do, and prepares them itself. transformers gets patches and mel frames that
were prepared before, which is kind to it: with a cache that grows, and with a static one, where it compiles
the decode step. No side finds an image or a clip of an earlier run again.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fastkernels.records import Size
from fastkernels.registry.workloads import TokenWorkload
from references import language, qwen_vl
from references.base import Comparison, Machine
from references.transformers_lm import filled

RATE = 16000
SIDES, SECONDS = {"full": (1024, 768), "tiny": (112, 84)}, {"full": 7.4, "tiny": 0.7}
MANY, BATCH, SINGLE = "scene-prompts", "scene-prompts-16", "scene-prompt-single"
# As the checkpoint's tokenizer calls its special ids, for the processor that vLLM uses.
SPECIAL = {
    "image_token": ("<|IMAGE|>", "image_token_index"),
    "audio_token": ("<|AUDIO|>", "audio_token_index"),
    "video_token": ("<|VIDEO|>", "video_token_index"),
    "vision_bos_token": ("<|vision_bos|>", "vision_start_token_id"),
    "vision_eos_token": ("<|vision_eos|>", "vision_end_token_id"),
    "audio_bos_token": ("<|audio_bos|>", "audio_start_token_id"),
    "audio_eos_token": ("<|audio_eos|>", "audio_end_token_id"),
}
IMAGES = {"min_pixels": 3136, "max_pixels": 12845056}
_seeds = itertools.count(20)


def workloads(size: Size) -> dict[str, TokenWorkload]:
    """Prompts with an image and a clip, alone and together; text alone."""
    return qwen_vl.workloads(size, SINGLE, BATCH, MANY)


def scenes(workload: TokenWorkload) -> list[tuple[np.ndarray, np.ndarray]]:
    """An image and a clip for each request, others in every run; none for a workload of text."""
    if workload.name == "text":
        return []
    generator, size = np.random.default_rng(next(_seeds)), workload.size
    samples = round(SECONDS[size] * RATE)
    return [
        (
            generator.integers(0, 256, (*SIDES[size], 3), dtype=np.uint8),
            generator.uniform(-0.5, 0.5, samples).astype(np.float32),
        )
        for _ in range(workload.requests)
    ]


def ids(workload: TokenWorkload, config: dict[str, Any], seen: int = 1, heard: int = 1) -> list[list[int]]:
    """seen, heard: placeholders of each image and of each clip."""
    text = language.prompts(workload, config["text_config"]["bos_token_id"])
    if workload.name == "text":
        return text
    see, end_see, hear, end_hear = (
        config[f"{name}_token_id"] for name in ("vision_start", "vision_end", "audio_start", "audio_end")
    )
    image, audio = [config["image_token_index"]] * seen, [config["audio_token_index"]] * heard
    return [[see, *image, end_see, hear, *audio, end_hear, *one] for one in text]


def prompts(workload: TokenWorkload, config: dict[str, Any]) -> list[dict[str, Any]]:
    asked: list[dict[str, Any]] = [{"prompt_token_ids": one} for one in ids(workload, config)]
    for one, (image, clip) in zip(asked, scenes(workload)):
        one["multi_modal_data"] = {"image": image, "audio": (clip, RATE)}
    return asked


class Ours(qwen_vl.Ours):
    prompts = staticmethod(prompts)


class Vllm(qwen_vl.Vllm):
    most_media: ClassVar[dict[str, int]] = {"image": 1, "video": 0, "audio": 1}
    prompts = staticmethod(prompts)

    def save(self, folder: Path, config: dict[str, Any]) -> None:
        """What vLLM reads beside weights: a configuration of the whole model, and a processor with a
        tokenizer that knows the special ids."""
        from transformers import WhisperFeatureExtractor

        whole = {
            "model_type": "qwen2_5_omni",
            "architectures": ["Qwen2_5OmniModel"],
            "thinker_config": config,
        }
        (folder / "config.json").write_text(json.dumps(whole))
        bands = config["audio_config"]["num_mel_bins"]
        hears = WhisperFeatureExtractor(feature_size=bands, chunk_length=300, return_attention_mask=True)
        patches = {"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}
        kinds = {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5OmniProcessor"}
        said = {**hears.to_dict(), **IMAGES, **patches, **kinds}
        (folder / "preprocessor_config.json").write_text(json.dumps(said))
        special = {name: config[key] for name, key in SPECIAL.values()}
        roles = {role: name for role, (name, _) in SPECIAL.items()}
        vocab_size = config["text_config"]["vocab_size"]
        qwen_vl.save_tokenizer(folder, vocab_size, special, extra_special_tokens=roles)


class Transformers(qwen_vl.Transformers):
    def __init__(self, machine: Machine) -> None:
        import transformers

        config = transformers.Qwen2_5OmniThinkerConfig(**machine.config)
        make = transformers.Qwen2_5OmniThinkerForConditionalGeneration._from_config
        self._model = filled(make, machine, config)
        self._machine, self.version = machine, transformers.__version__

    def _inputs(self, workload: TokenWorkload) -> dict[str, Any]:
        import torch
        from transformers import WhisperFeatureExtractor
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        device, config = self._machine.device, self._machine.config
        given, counts = {}, ()
        if found := scenes(workload):
            images, clips = map(list, zip(*found))
            seen = Qwen2VLImageProcessorPil(**IMAGES)(images, return_tensors="pt")
            # Padded to the longest clip, not to 300 s: less work for the reference.
            extractor = WhisperFeatureExtractor(feature_size=config["audio_config"]["num_mel_bins"])
            options = {"padding": "longest", "return_attention_mask": True, "return_tensors": "pt"}
            heard = extractor(clips, sampling_rate=RATE, **options)
            mask = heard["attention_mask"]
            counts = int(seen["image_grid_thw"][0].prod()) // 4, (int(mask[0].sum()) + 1) // 2 // 2
            given = {**seen, "input_features": heard["input_features"], "feature_attention_mask": mask}
        ids_BT = torch.tensor(ids(workload, config, *counts))
        given |= {"input_ids": ids_BT, "attention_mask": torch.ones_like(ids_BT)}
        return {name: value.to(device) for name, value in given.items()}


_BARS = {SINGLE: 1.05, BATCH: 1.05, MANY: 1.05, "text": 1.05}
COMPARISONS = [
    Comparison("qwen2_5_omni", "vllm", Ours, Vllm, workloads, bars=_BARS),
    Comparison("qwen2_5_omni", "transformers", Ours, Transformers, workloads),
]
