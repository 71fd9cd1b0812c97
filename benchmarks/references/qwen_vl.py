"""Qwen2-VL and Qwen3-VL in vLLM and transformers: an image and text in each prompt, greedy, exact lengths.

vLLM takes images as we do, and prepares them itself. transformers gets patches that were prepared before,
which is kind to it: with a cache that grows, and with a static one, where it compiles the decode step. No
side finds an image of an earlier run again.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fastkernels import registry
from fastkernels.nn.config import text_config
from fastkernels.records import Size
from fastkernels.registry.workloads import TokenWorkload
from references import language
from references.base import Comparison, Machine
from references.transformers_lm import filled

SIDES = {"full": (1024, 768), "tiny": (112, 84)}
TEXT, MAX_MODEL_LEN = {"full": 64, "tiny": 16}, {"full": 4096, "tiny": 512}
MANY, BATCH, SINGLE = "image-prompts", "image-prompts-16", "image-prompt-single"
_seeds = itertools.count(20)


class Processor(NamedTuple):
    """Of a model_type: its processor's name, the side of a patch, pixels of an image, the means of its
    colours and their deviations (None: those of the processor itself)."""

    name: str
    patch_size: int
    least: int
    most: int
    colours: list[float] | None = None

    @property
    def options(self) -> dict[str, Any]:
        given = {"patch_size": self.patch_size, "temporal_patch_size": 2, "merge_size": 2}
        given |= {"min_pixels": self.least, "max_pixels": self.most}
        return (
            given if self.colours is None else given | {"image_mean": self.colours, "image_std": self.colours}
        )


QWEN3 = Processor("Qwen3VL", 16, 256 * 256, 4096 * 4096, [0.5] * 3)
PROCESSORS = {
    "qwen2_vl": Processor("Qwen2VL", 14, 56 * 56, 14 * 14 * 4 * 16384),
    "qwen3_vl": QWEN3,
    "qwen3_vl_moe": QWEN3,
}
# The 471 GB of Qwen3-VL MoE are more than one GPU holds: both sides get 12 of its 94 layers, at their real
# widths: 63 GB, which 80 GB hold.
LAYERS = {"qwen3_vl_moe": 12}


def workloads(
    size: Size, single: str = SINGLE, batch: str = BATCH, many: str = MANY
) -> dict[str, TokenWorkload]:
    """Prompts with media, alone and together, by these names; text alone."""
    lengths = {single: (1, 128), batch: (16, 128), many: (64, 128)}
    if size == "tiny":
        lengths = {name: (min(count, 4), 8) for name, (count, _) in lengths.items()}
    found = {name: language.workload(name, n, TEXT[size], m, size) for name, (n, m) in lengths.items()}
    requests, text, answer = (64, 512, 128) if size == "full" else (4, 32, 8)
    return {**found, "text": language.workload("text", requests, text, answer, size)}


def images(workload: TokenWorkload) -> list[np.ndarray]:
    """Others in every run; none for a workload of text."""
    if workload.name == "text":
        return []
    generator = np.random.default_rng(next(_seeds))
    shape = (workload.requests, *SIDES[workload.size], 3)
    return list(generator.integers(0, 256, shape, dtype=np.uint8))


def ids(workload: TokenWorkload, config: dict[str, Any], tokens: int = 1) -> list[list[int]]:
    """tokens: placeholders of each image."""
    text = language.prompts(workload, min(config["image_token_id"], text_config(config)["bos_token_id"]))
    if workload.name == "text":
        return text
    start, image, end = (config[f"{name}_token_id"] for name in ("vision_start", "image", "vision_end"))
    return [[start, *[image] * tokens, end, *one] for one in text]


def prompts(workload: TokenWorkload, config: dict[str, Any]) -> list[dict[str, Any]]:
    asked: list[dict[str, Any]] = [{"prompt_token_ids": one} for one in ids(workload, config)]
    for one, image in zip(asked, images(workload)):
        one["multi_modal_data"] = {"image": image}
    return asked


class Ours(language.Ours):
    prompts = staticmethod(prompts)

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine, max_model_len=MAX_MODEL_LEN[machine.size])
        self._config = machine.config

    def prepare(self, workload: TokenWorkload, setting: str) -> Callable[[], int]:
        return lambda: language.count(
            self.generate(self.prompts(workload, self._config), workload.output_len)
        )


class Vllm:
    settings: ClassVar[tuple[str, ...]] = ("engine",)
    most_media: ClassVar[dict[str, int]] = {"image": 1, "video": 0}  # of a prompt
    prompts = staticmethod(prompts)

    def __init__(self, machine: Machine) -> None:
        import vllm

        self._config, self.version = machine.config, vllm.__version__
        self._folder = tempfile.TemporaryDirectory()  # its processor is read at the first image
        self.save(Path(self._folder.name), self._config)
        self._llm = vllm.LLM(
            model=self._folder.name, load_format="dummy", dtype=machine.dtype, seed=0,
            max_model_len=MAX_MODEL_LEN[machine.size], gpu_memory_utilization=machine.memory,
            enable_prefix_caching=False, mm_processor_cache_gb=0, limit_mm_per_prompt=self.most_media,
        )  # fmt: skip

    def prepare(self, workload: TokenWorkload, setting: str) -> Callable[[], int]:
        import vllm
        from PIL import Image

        params = vllm.SamplingParams(
            temperature=0.0, ignore_eos=True, max_tokens=workload.output_len, detokenize=False
        )

        def run() -> int:
            asked = self.prompts(workload, self._config)
            for one in asked:
                if media := one.get("multi_modal_data"):
                    media["image"] = Image.fromarray(media["image"])
            return language.count(self._llm.generate(asked, params, use_tqdm=False))

        return run

    def save(self, folder: Path, config: dict[str, Any]) -> None:
        """What vLLM reads beside weights: its processor needs a tokenizer that knows the special ids."""
        (folder / "config.json").write_text(json.dumps(config))
        processor = PROCESSORS[config["model_type"]]
        kinds = {
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": f"{processor.name}Processor",
        }
        (folder / "preprocessor_config.json").write_text(json.dumps({**processor.options, **kinds}))
        special = {
            "<|vision_start|>": config["vision_start_token_id"],
            "<|vision_end|>": config["vision_end_token_id"],
            "<|image_pad|>": config["image_token_id"],
            "<|video_pad|>": config["video_token_id"],
        }
        save_tokenizer(folder, text_config(config)["vocab_size"], special)


def save_tokenizer(folder: Path, vocab_size: int, special: dict[str, int], **options: Any) -> None:
    """Words without meaning, and special ones by their ids."""
    from tokenizers import AddedToken, Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(vocab_size) if i not in special.values()}
    tokenizer = Tokenizer(models.WordLevel({**words, **special}, unk_token="w0"))
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options).save_pretrained(folder)


class Transformers:
    settings: ClassVar[tuple[str, ...]] = ("default", "static")

    def __init__(self, machine: Machine) -> None:
        import transformers

        kind, (name,) = machine.config["model_type"], machine.config["architectures"]
        config = transformers.AutoConfig.for_model(**machine.config)
        self._model = filled(getattr(transformers, name)._from_config, machine, config)
        self._processor = PROCESSORS[kind]
        self._machine, self.version = machine, transformers.__version__

    def prepare(self, workload: TokenWorkload, setting: str) -> Callable[[], int]:
        import torch

        torch.compiler.reset()
        given = self._inputs(workload)
        options: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        options |= {} if setting == "default" else {"cache_implementation": "static"}

        def run() -> int:
            length = workload.output_len
            out_BT = self._model.generate(**given, max_new_tokens=length, min_new_tokens=length, **options)
            return out_BT[:, given["input_ids"].shape[1] :].numel()

        return run

    def _inputs(self, workload: TokenWorkload) -> dict[str, Any]:
        import torch
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        device, config = self._machine.device, self._machine.config
        listed = images(workload)
        if not listed:
            return {"input_ids": torch.tensor(ids(workload, config), device=device)}
        made = Qwen2VLImageProcessorPil(**self._processor.options)(listed, return_tensors="pt").to(device)
        tokens = int(made["image_grid_thw"][0].prod()) // 4
        ids_BT = torch.tensor(ids(workload, config, tokens), device=device)
        types_BT = (ids_BT == config["image_token_id"]).int()
        return {"input_ids": ids_BT, "mm_token_type_ids": types_BT, **made}


_BARS = {SINGLE: 1.05, BATCH: 1.05, MANY: 1.05, "text": 1.05}
REFERENCES = {"vllm": (Vllm, _BARS), "transformers": (Transformers, {})}


def _changes(model: str) -> dict[str, Any]:
    """With so many of its layers."""
    if model not in LAYERS:
        return {}
    entry = registry.architecture(model)
    text = entry.configs[entry.default_config["full"]].config["text_config"]
    return {"text_config": {**text, "num_hidden_layers": LAYERS[model]}}


COMPARISONS = [
    Comparison(model, name, Ours, theirs, workloads, bars=bars, changes=_changes(model))
    for model in PROCESSORS
    for name, (theirs, bars) in REFERENCES.items()
]
