"""Models from folders, the Hugging Face Hub, the registry or a configuration: find, read, build, fill.

    find(model)          -> ModelSource   a folder, a Hub id, an architecture id, or a configuration
    load_model(source)   -> nn.Module     with the checkpoint's weights; without a folder seeded random ones

A folder holds `config.json` and weights (checkpoint.py), or the `model_index.json` of a diffusers pipeline
and such a folder for each of its parts. Their names stand before those of the tensors, and are the sections
of the configuration.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fastkernels import registry
from fastkernels.creation import creating
from fastkernels.errors import FileFormatError, NotFoundError, UsageError, WeightsError
from fastkernels.loader.checkpoint import misplaced, misplacement, read_tensors, tensor_files
from fastkernels.loader.class_defaults import completed
from fastkernels.loader.hub import PIPELINE, SCHEDULER, download, is_hub_id
from fastkernels.loader.materialize import differences, prepare
from fastkernels.loader.overlay import Overlay
from fastkernels.nn.config import text_config
from fastkernels.nn.misfits import MAX_REPORTED
from fastkernels.nn.partition import is_split
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.weights import load_weights
from fastkernels.records import Size
from fastkernels.registry.load import read_json
from fastkernels.registry.schema import Architecture

TOKENS = "tokens"  # the answer of a language model


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What a model is made from. folder: weights and tokenizer; None: seeded random weights."""

    name: str
    architecture: Architecture
    config: dict[str, Any]
    folder: Path | None

    def dtype(self, device: torch.device) -> torch.dtype:
        """`auto`: what the configuration says on a GPU; float32 on a CPU, where bfloat16 is emulated or
        slow."""
        named = self.config.get("dtype") or self.config.get("torch_dtype")
        if device.type == "cpu":
            return torch.float32
        if named is None:
            return torch.bfloat16
        dtype = getattr(torch, str(named).removeprefix("torch."), None)
        if not isinstance(dtype, torch.dtype):
            raise UsageError(f"{self.name}: config.json names the dtype {named!r}, which does not exist")
        return dtype

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what a request is answered with."""
        correctness = self.architecture.correctness
        return tuple(correctness.outputs) if correctness.kind == "program" else (TOKENS,)

    def require(self, answers: tuple[str, ...], asked_for: str) -> None:
        """UsageError unless these are among the model's outputs; without any, unless its answers are no
        tokens."""
        if not set(answers) <= set(self.outputs) if answers else self.outputs == (TOKENS,):
            raise UsageError(
                f"{self.name} answers with {' and '.join(self.outputs)}: {asked_for} serves models that "
                f"answer with {' and '.join(answers) or 'named outputs, and LLM those with tokens'}"
            )

    @property
    def parts(self) -> dict[str, Path]:
        """The folders with weights, by what stands before the names of their tensors."""
        if self.folder is None:
            return {}
        if not (self.folder / PIPELINE).is_file():
            return {"": self.folder}
        return {
            f"{part}.": self.folder / part for part in self.architecture.components if part in self.config
        }

    @property
    def files(self) -> dict[str, dict[Path, list[str] | None]]:
        """The files of weights, likewise; further ones that are not there leave their tensors missing."""
        found = {prefix: tensor_files(folder) for prefix, folder in self.parts.items()}
        for name, prefix in self.architecture.further_weights.items():
            if self.folder is not None and (self.folder / name).is_file():
                found[prefix] = {self.folder / name: None}
        return found

    @property
    def generation(self) -> tuple[Path, dict[str, Any]]:
        """The file that says how to continue a prompt, and its fields: generation_config.json where there is
        one, else config.json."""
        folder = self.folder or Path(self.name)
        if self.folder is not None and (path := folder / "generation_config.json").is_file():
            return path, read_json(path)
        return folder / "config.json", self.config

    @property
    def processor(self) -> dict[str, Any]:
        """Of its folder, how media are prepared: preprocessor_config.json; {} without one."""
        path = (self.folder or Path(self.name)) / "preprocessor_config.json"
        return read_json(path) if self.folder is not None and path.is_file() else {}

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """End-of-sequence ids, of `generation`; of config.json where that names none."""
        path, fields = self.generation
        found = fields.get("eos_token_id", text_config(self.config).get("eos_token_id"))
        ids = found if isinstance(found, list) else [] if found is None else [found]
        if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            problem = f"{found!r:.60}: expected a token id, or a list of them"
            raise FileFormatError(path, "eos_token_id", problem)
        return tuple(ids)


def find(
    model: str | os.PathLike[str] | dict[str, Any], config: str | None = None, size: Size = "tiny"
) -> ModelSource:
    """Resolve what a user named. `config` and `size` choose among the configurations of an architecture id.
    What any other configuration leaves out is what transformers takes for it (class_defaults.py).

    Raises NotFoundError (with the nearest architectures), UsageError (not a folder, not cached and offline,
    gated), FileFormatError (corrupt config.json).
    """
    if isinstance(model, dict):
        architecture = registry.architecture_for(model)
        return ModelSource("configuration", architecture, _served(completed(model), architecture), None)
    if not isinstance(model, (str, os.PathLike)):
        raise UsageError(f"model={model!r:.60}: expected an architecture, folder, Hugging Face id or dict")
    if Path(model).is_dir():
        return _from_folder(str(model), Path(model))
    name = str(model)
    architectures = {entry.id: entry for entry in registry.architectures()}
    if name in architectures:
        return _from_registry(architectures[name], config, size)
    if is_hub_id(name):
        return _from_folder(name, download(name))
    if "/" in name or os.sep in name:
        raise UsageError(f"No folder {name}: expected a Hugging Face folder with config.json and safetensors")
    raise NotFoundError(
        "architecture, folder or Hugging Face id", name, architectures, "fk list architectures"
    )


def without_weights(model: str) -> str | dict[str, Any]:
    """What `find` takes for the same model with random weights: of a folder or Hub id the configuration, and
    no file of weights is read. Raises as `find` does."""
    if Path(model).is_dir():
        return _config_of(Path(model))
    return _config_of(download(model, ["config.json"])) if is_hub_id(model) else model


def _config_of(folder: Path) -> dict[str, Any]:
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} holds no config.json: expected a Hugging Face folder")
    return registry.read_config(folder)


def _from_registry(entry: Architecture, config: str | None, size: Size) -> ModelSource:
    if size not in entry.default_config:
        raise UsageError(f"size={size!r}: expected {' or '.join(entry.default_config)}")
    name = str(config or entry.default_config[size])
    if name not in entry.configs:
        raise NotFoundError(f"configuration of {entry.id}", name, entry.configs, f"fk show {entry.id}")
    chosen = entry.configs[name]
    return ModelSource(f"{entry.id}:{name}", entry, {"dtype": chosen.dtype, **chosen.config}, None)


def _from_folder(name: str, folder: Path) -> ModelSource:
    if (folder / PIPELINE).is_file():
        return _from_pipeline(name, folder)
    config = _config_of(folder)
    architecture = registry.architecture_for(config, str(folder / "config.json"))
    return ModelSource(name, architecture, _served(completed(config), architecture), folder)


def _served(config: dict[str, Any], architecture: Architecture) -> dict[str, Any]:
    """The section that describes the served model, with what the whole says of its dtype and its ends."""
    section = config.get(architecture.text_section)
    if not isinstance(section, dict):
        return config
    return section | {key: config[key] for key in ("dtype", "torch_dtype", "eos_token_id") if key in config}


def _from_pipeline(name: str, folder: Path) -> ModelSource:
    """The parts that the model needs and that the index names; [null, null] stands for one that was not
    saved."""
    index = registry.read_config(folder / PIPELINE)
    architecture = registry.architecture_for(index, str(folder / PIPELINE))
    config = {key: index[key] for key in ("_class_name",) if key in index}
    files = {**dict.fromkeys(architecture.components, "config.json"), SCHEDULER: "scheduler_config.json"}
    for part, file in files.items():
        named = index.get(part)
        if not isinstance(named, (list, type(None))):
            raise FileFormatError(folder / PIPELINE, part, f"{named!r:.60}: expected [library, class]")
        if not any(named or ()):
            continue
        if not (folder / part / file).is_file():
            raise UsageError(
                f"{folder}: {PIPELINE} names the part {part}, but there is no {part}/{file}. "
                "Copy it from the repository, or give the folder of one part"
            )
        config[part] = registry.read_config(folder / part / file)
    if not config.keys() & set(architecture.components):
        raise FileFormatError(folder / PIPELINE, "", f"names no part of {', '.join(architecture.components)}")
    return ModelSource(name, architecture, completed(config), folder)


def build(source: ModelSource, overlay: Overlay, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The overlay's class for the architecture with uninitialised parameters."""
    entry = registry.task(source.architecture.task)
    cls = getattr(overlay.load(entry.module), entry.variants["default"])
    with creating(device, dtype):
        model = cls(source.config)
    return model.eval().requires_grad_(False)


def weights_bytes(source: ModelSource, dtype: torch.dtype) -> int:
    """Bytes of the baseline's parameters, without allocating them."""
    model = build(source, Overlay.over_baseline(), torch.device("meta"), dtype)
    return sum(p.numel() * p.element_size() for p in model.parameters())


def load_model(
    source: ModelSource, overlay: Overlay, device: torch.device, dtype: torch.dtype, seed: int
) -> nn.Module:
    """Build and fill the model; inside `use_partition` one rank's part of it, and no more is read or drawn.
    WeightsError, FileFormatError and UsageError say what does not fit."""
    files = source.files
    model = build(source, overlay, device, dtype)
    if source.folder is None:
        if len(overlay.layers) > 1:
            _require_the_baselines_parameters(model, source, dtype)
        random_weights(model, seed)
    else:
        _load_checkpoint(model, source, files)
    prepare(model)
    return model


def _require_the_baselines_parameters(model: nn.Module, source: ModelSource, dtype: torch.dtype) -> None:
    """WeightsError, as of a checkpoint, where random weights would not be the baseline's."""
    baseline = build(source, Overlay.over_baseline(), torch.device("meta"), dtype)
    problems = differences(dict(model.named_parameters()), dict(baseline.named_parameters()))
    if problems:
        more = [f"and {len(problems) - MAX_REPORTED} more"] if len(problems) > MAX_REPORTED else []
        said = "; ".join([*problems[:MAX_REPORTED], *more])
        raise WeightsError(f"{type(model).__name__}: parameters differ from the baseline's: {said}")


def _load_checkpoint(
    model: nn.Module, source: ModelSource, files: dict[str, dict[Path, list[str] | None]]
) -> None:
    """Raises for all tensors that do not fit, and for those that are not where an index places them."""
    lost = [one for found in files.values() for one in misplaced(found)]
    try:
        load_weights(model, _tensors(files, is_split(model)))
    except WeightsError as error:
        if lost:
            raise misplacement(lost, str(error)) from error
        raise WeightsError(f"{source.name}: {error}") from error
    if lost:
        raise misplacement(lost)


def _tensors(files: dict[str, dict[Path, list[str] | None]], in_slices: bool) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of all parts, under its name in the whole model."""
    for prefix, found in files.items():
        for name, tensor in read_tensors(found, in_slices):
            yield prefix + name, tensor
