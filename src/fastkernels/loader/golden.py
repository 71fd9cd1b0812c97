"""A golden folder: what the routers of a model really got and chose, as `fk capture` recorded it.

    provenance.json      records.Capture: which model, which prompts, where and when; written last
    calls.jsonl          every distinct call of a task: shapes, dtypes, strides, how often
    golden.safetensors   gate [L, E, D]  the routers' weights; and for both phases, `decode.load` and so on,
      load [L, E]               int64, how often each expert was chosen over the whole run
      steps [N]                 int32, the step of the run that each of the first N tokens belongs to
      expert_ids [L, N, k]      int32, falling by logit
      router_logits [L, N, E]   in the dtype of the model, as below
      hidden_states [L, M, D]   of the first M tokens: hidden_states gate^T = router_logits

A case that replays it takes a window: T consecutive tokens of one layer and phase, in an order drawn anew, so
that experts which are hot together stay so. Windows do not overlap; where fewer than T tokens were kept they
repeat. Only windows are drawn that reach as many experts as the median window: the work of a case is the same
in every iteration, and the roofline counts exactly this. L layers with a router · N, M tokens · k experts of
a token · E experts · D hidden · T tokens of a case · W windows
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import get_args

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Generator, Tensor

from fastkernels.errors import FileFormatError, UsageError
from fastkernels.records import Capture, Golden, TokenPhase

PROVENANCE, TENSORS, CALLS = "provenance.json", "golden.safetensors", "calls.jsonl"
PHASES: tuple[TokenPhase, ...] = get_args(TokenPhase)


@dataclass(frozen=True)
class GoldenValues:
    capture: Capture
    tensors: dict[str, Tensor]  # on the CPU

    def of(self, phase: TokenPhase, what: str) -> Tensor:
        return self.tensors[f"{phase}.{what}"]


@dataclass(frozen=True)
class Windows:
    """What a case of T tokens may replay. Row w is `tokens_WT[w]` of layer `layers_W[w]`."""

    reached: int  # experts with a token, in each window
    layers_W: Tensor
    tokens_WT: Tensor


@lru_cache(maxsize=8)
def read(folder: str) -> GoldenValues:
    """Both files, checked. UsageError for what is no golden folder, FileFormatError for a damaged one."""
    capture = _provenance(Path(folder))
    path = Path(folder) / TENSORS
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FileFormatError(path, "", f"{error.strerror}. {_again(capture)}") from error
    if hashlib.sha256(content).hexdigest() != capture.digest:
        problem = f"not what was captured: its digest differs from that in {PROVENANCE}. {_again(capture)}"
        raise FileFormatError(path, "", problem)
    try:
        tensors = load(content)
    except SafetensorError as error:
        raise FileFormatError(path, "header", f"{error}. {_again(capture)}") from error
    _check(path, capture, tensors)
    return GoldenValues(capture, tensors)


def ids(golden: Golden, tokens: int, generator: Generator) -> Tensor:
    """int64 [T, k]: the experts of a window's tokens."""
    return _window(golden, "expert_ids", tokens, generator).long()


def logits(golden: Golden, tokens: int, generator: Generator) -> Tensor:
    """[T, E]: what the router gave for the same tokens, with a generator of the same state."""
    return _window(golden, "router_logits", tokens, generator)


def reached(golden: Golden, tokens: int) -> int:
    """Experts that have a token in every window of T tokens."""
    return windows(golden.folder, golden.phase, tokens).reached


@lru_cache(maxsize=64)
def windows(folder: str, phase: TokenPhase, tokens: int) -> Windows:
    values = read(folder)
    ids_LNK = values.of(phase, "expert_ids").long()
    layers, kept = ids_LNK.shape[:2]
    each = max(1, kept // tokens)
    tokens_WT = torch.arange(each * tokens).view(each, tokens) % kept
    has_token_WE = torch.zeros(layers * each, values.capture.experts, dtype=torch.bool)
    has_token_WE.scatter_(1, ids_LNK[:, tokens_WT].view(layers * each, -1), True)
    reached_W = has_token_WE.sum(1)
    typical = reached_W.median()
    (chosen_W,) = (reached_W == typical).nonzero(as_tuple=True)
    return Windows(int(typical), chosen_W // each, tokens_WT[chosen_W % each])


def _window(golden: Golden, what: str, tokens: int, generator: Generator) -> Tensor:
    found = windows(golden.folder, golden.phase, tokens)
    w = int(torch.randint(len(found.layers_W), (), generator=generator))
    order_T = torch.randperm(tokens, generator=generator)
    values_LN = read(golden.folder).of(golden.phase, what)
    return values_LN[int(found.layers_W[w]), found.tokens_WT[w, order_T]]


# ---------------------------------------------------------------- files


def _provenance(folder: Path) -> Capture:
    path = folder / PROVENANCE
    if not path.is_file():
        raise UsageError(
            f"{folder} is no golden folder: it holds no {PROVENANCE}. "
            f"Make one: fk capture --model MODEL --out {folder}"
        )
    try:
        return Capture.model_validate_json(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise FileFormatError(path, "", "not UTF-8 text") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise FileFormatError(path, ".".join(map(str, first["loc"])), first["msg"]) from None


def _check(path: Path, capture: Capture, tensors: dict[str, Tensor]) -> None:
    """Everything is there with the shapes that the provenance says, and the ids are distinct experts."""
    layers, experts = len(capture.layers), capture.experts
    expected: dict[str, tuple[int | None, ...]] = {"gate": (layers, experts, None)}
    for phase in PHASES:
        tokens = capture.tokens[phase]
        expected |= {
            f"{phase}.load": (layers, experts),
            f"{phase}.steps": (tokens.kept,),
            f"{phase}.expert_ids": (layers, tokens.kept, capture.top_k),
            f"{phase}.router_logits": (layers, tokens.kept, experts),
            f"{phase}.hidden_states": (layers, tokens.hidden, None),
        }
    for name, shape in expected.items():
        if name not in tensors:
            raise FileFormatError(path, f"tensor {name}", f"is missing. {_again(capture)}")
        found = tuple(tensors[name].shape)
        if len(found) != len(shape) or any(want not in (None, have) for want, have in zip(shape, found)):
            raise FileFormatError(path, f"tensor {name}", f"is {found}, not {shape}. {_again(capture)}")
    for phase in PHASES:
        ids_LNK = tensors[f"{phase}.expert_ids"].sort(-1).values
        repeats = (ids_LNK[..., 1:] == ids_LNK[..., :-1]).any()
        if not ids_LNK.numel() or ids_LNK.min() < 0 or ids_LNK.max() >= experts or repeats:
            problem = f"not {capture.top_k} distinct experts of {experts} for each token. {_again(capture)}"
            raise FileFormatError(path, f"tensor {phase}.expert_ids", problem)


def _again(capture: Capture) -> str:
    return f"Capture it again: fk capture --model {capture.model}"


def write(folder: Path, capture: Capture, tensors: dict[str, Tensor], calls: list[dict]) -> Capture:
    """All three files; the provenance last, with the digest of the tensors. OSError if they cannot be."""
    content = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    capture = capture.model_copy(update={"digest": hashlib.sha256(content).hexdigest()})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TENSORS).write_bytes(content)
    (folder / CALLS).write_text("".join(json.dumps(call) + "\n" for call in calls), encoding="utf-8")
    text = capture.model_dump_json(indent=1, by_alias=True) + "\n"
    (folder / PROVENANCE).write_text(text, encoding="utf-8")
    return capture
