"""Run a model on the meta device and note every call of a task: its init arguments and its inputs.

Nothing is computed and no memory is used, so the real configuration is walked, with the shapes of serving.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fastkernels.creation import creating
from fastkernels.nn.cache import allocate, allocate_states, cache_groups, has_source
from fastkernels.nn.context import Step, use_step
from fastkernels.records import Batch
from fastkernels.registry.schema import TaskEntry

RowKind = Literal["tokens", "clips", "latents"]
Load = Callable[[str], ModuleType]  # "L1.rms_norm" -> the module
signature_of = lru_cache(inspect.signature)  # of a hundred functions, at each of 70,000 calls of modules


@dataclass(frozen=True)
class TaskCall:
    """One forward of one module; tensors among the arguments are on the meta device."""

    task: TaskEntry
    variant: str
    module: nn.Module
    init: dict[str, Any]
    arguments: dict[str, Any]


class Walk:
    """A model on the meta device that notes the calls of its task modules."""

    def __init__(
        self, load: Load, tasks: list[TaskEntry], model_task: TaskEntry, config: dict[str, Any], dtype: str
    ):
        self._classes = {
            getattr(load(entry.module), name): (entry, variant)
            for entry in tasks
            for variant, name in entry.variants.items()
        }
        self._dtype = getattr(torch, dtype)
        self._calls: list[TaskCall] = []
        name = model_task.variants["default"]
        with _init_arguments(list(self._classes)) as self._inits, creating("meta", self._dtype):
            self.model: nn.Module = getattr(load(model_task.module), name)(config=config)
        for module in self.model.modules():
            if type(module) in self._classes:
                module.register_forward_pre_hook(self._note, with_kwargs=True)

    def step(self, batch: Batch, with_head: bool, of_what: RowKind = "tokens") -> list[TaskCall]:
        """The calls of one step, in order; with the head: logits, their softmax and sampling of every row.
        of_what: the rows are audio clips for the model's encoder, or the images latents for its decoder."""
        self._calls = []
        if batch.grids:
            run = _denoise if batch.text else _encode_images
            run(self.model, batch, self._dtype)
            return self._calls
        if of_what == "clips":
            _encode_clips(self.model, batch)
            return self._calls
        if batch.images:
            run = _decode if of_what == "latents" else _detect
            run(self.model, batch.images, self._dtype)
            return self._calls
        tokens, rows = batch.num_tokens, len(batch.seq_lens)
        blocks = 1 + sum(-(-seq_len // batch.block_size) for seq_len in batch.seq_lens)
        allocate(self.model, blocks, batch.block_size, self._dtype, "meta")
        allocate_states(self.model, rows + 1, self._dtype, "meta")
        made = _meta_step(batch, len(cache_groups(self.model)), has_source(self.model))
        with torch.device("meta"), use_step(made):
            ids, positions = (torch.empty(tokens, dtype=torch.int64) for _ in range(2))
            sources = [] if made.begun_A is None else [_encoder_states(self.model, made.begun_A, self._dtype)]
            hidden = self.model(ids, positions, *sources)
            if with_head:
                _sample(self.model, hidden[:rows])
        return self._calls

    def encode_prompts(self, batch: Batch, part: str) -> list[TaskCall]:
        """The calls of a pass of one of the model's text encoders over prompts of one length."""
        self._calls = []
        (length,) = set(batch.seq_lens)
        with torch.device("meta"), use_step(None):
            getattr(self.model, part)(torch.empty(len(batch.seq_lens), length, dtype=torch.int64))
        return self._calls

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bound = signature_of(type(module).forward).bind(module, *args, **kwargs)
        del bound.arguments["self"]
        task, variant = self._classes[type(module)]
        self._calls.append(TaskCall(task, variant, module, self._inits[id(module)], dict(bound.arguments)))


def _encode_images(model: Any, batch: Batch, dtype: torch.dtype) -> None:
    """A pass over packed images."""
    images, values = len(batch.seq_lens), model.num_channels * model.patch_size**2
    with torch.device("meta"), use_step(None):
        pixels_TP = torch.empty(batch.num_tokens, values, dtype=dtype)
        shapes_B2 = torch.empty(images, 2, dtype=torch.int64)
        starts_B1 = torch.empty(images + 1, dtype=torch.int32)
        model(pixels_TP, shapes_B2, starts_B1, max(batch.seq_lens))


def _encode_clips(model: Any, batch: Batch) -> None:
    """A pass over audio clips."""
    with torch.device("meta"), use_step(None):
        model.encode(torch.empty(len(batch.seq_lens), model.encoder.num_samples, dtype=torch.float32))


def _encoder_states(model: Any, begun_A: Tensor, dtype: torch.dtype) -> Tensor:
    """What the requests that begin in a step bring along, [A*S, D]."""
    rows = begun_A.shape[0] * model.encoder.num_states
    return torch.empty(rows, model.encoder.layer_norm.weight.shape[0], dtype=dtype)


def _denoise(model: Any, batch: Batch, dtype: torch.dtype) -> None:
    """One step of images of one size, each with a prompt."""
    ((images, rows, columns),) = batch.grids
    with torch.device("meta"), use_step(None):
        latents_BLC = torch.empty(images, rows * columns, model.in_channels, dtype=dtype)
        text_BSJ = torch.empty(images, batch.text, model.text_features, dtype=dtype)
        pooled_BP = torch.empty(images, model.pooled_features, dtype=dtype)
        timestep_B = torch.empty(images, dtype=torch.float32)
        guidance_B = torch.empty(images, dtype=torch.float32) if model.has_guidance else None
        img_ids, txt_ids = (torch.empty(n, 3, dtype=torch.int64) for n in (rows * columns, batch.text))
        model(latents_BLC, text_BSJ, pooled_BP, timestep_B, guidance_B, img_ids, txt_ids)


def _detect(model: Any, images: tuple[int, int, int], dtype: torch.dtype) -> None:
    """A pass over images of one size, and what chooses among its boxes."""
    with torch.device("meta"), use_step(None):
        boxes_BN4, logits_BNC = model(torch.empty(*images, model.num_channels, dtype=dtype))
        model.select(boxes_BN4, logits_BNC)


def _decode(model: Any, latents: tuple[int, int, int], dtype: torch.dtype) -> None:
    """From latents of images of one size to their pixels."""
    with torch.device("meta"), use_step(None):
        model.decode(torch.empty(*latents, model.latent_channels, dtype=dtype))


def _sample(model: Any, hidden_BD: Tensor) -> None:
    """What follows a decode step: logits, and tokens drawn from all or from the best by top-k and top-p."""
    logits_BV = model.compute_logits(hidden_BD)
    rows = logits_BV.shape[0]
    model.softmax(logits_BV)
    temperature_B, top_p_B = (torch.empty(rows, dtype=torch.float32) for _ in range(2))
    seeds_B, positions_B = (torch.empty(rows, dtype=torch.int64) for _ in range(2))
    top_k_B = torch.empty(rows, dtype=torch.int32)
    model.sampler(logits_BV, temperature_B, None, None, seeds_B, positions_B)
    model.sampler(logits_BV, temperature_B, top_k_B, top_p_B, seeds_B, positions_B)


def _meta_step(batch: Batch, groups: int, with_source: bool) -> Step:
    begun = sum(query == seq for query, seq in zip(batch.query_lens, batch.seq_lens)) if with_source else 0
    rows, tokens = len(batch.seq_lens), batch.num_tokens
    width = -(-max(batch.seq_lens) // batch.block_size)
    return Step(
        query_starts_B1=torch.empty(rows + 1, dtype=torch.int32),
        seq_lens_B=torch.empty(rows, dtype=torch.int32),
        rows_B=torch.empty(rows, dtype=torch.int64),
        block_tables_GBN=[torch.empty(rows, width, dtype=torch.int32) for _ in range(groups)],
        slots_GT=[torch.empty(tokens, dtype=torch.int64) for _ in range(groups)],
        num_decodes=batch.num_decodes,
        max_query_len=max(batch.query_lens[batch.num_decodes :], default=0),
        max_seq_len=max(batch.seq_lens),
        begun_A=torch.empty(begun, dtype=torch.int64) if begun else None,
    )


@contextmanager
def _init_arguments(classes: list[type[nn.Module]]) -> Iterator[dict[int, dict[str, Any]]]:
    """Within the body, note the arguments that instances of these classes are made with, by id(instance)."""
    noted: dict[int, dict[str, Any]] = {}
    own = {cls: vars(cls).get("__init__") for cls in classes}
    wrapped = {cls: _noting(cls, noted) for cls in classes}
    for cls, init in wrapped.items():
        cls.__init__ = init
    try:
        yield noted
    finally:
        for cls, init in own.items():
            if init is None:
                del cls.__init__
            else:
                cls.__init__ = init


def _noting(cls: type[nn.Module], noted: dict[int, dict[str, Any]]) -> Callable[..., None]:
    init = cls.__init__
    signature = inspect.signature(init)
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    # A class without parameters inherits nn.Module's `(self, *args, **kwargs)`.
    named = [name for name, parameter in signature.parameters.items() if parameter.kind not in variadic][1:]

    def __init__(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        if type(self) is cls:
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            noted[id(self)] = {name: bound.arguments[name] for name in named}
        init(self, *args, **kwargs)

    return __init__
