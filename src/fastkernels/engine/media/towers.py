"""The towers of a model that sees: media to the rows that stand in a prompt in the place of placeholders.

    <image> what is this <image>         one placeholder for each medium, as a chat template writes it
    <image> <image> <image> what ...     one for each of its rows: what the model gets
    <0.5 s> <video> <video> <2.5 s> ..   rows in runs, each behind a text, where a model says so (nn/media)

A request is calls of towers, then tokens (loop.language_model). Calls of many requests are one launch, apart
from the decoder's steps; media of equal content are encoded once, and kept for later requests.
"""

from __future__ import annotations

import numbers
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from fastkernels.engine.core.cache import Ints
from fastkernels.engine.core.ledger import Ledger
from fastkernels.engine.core.splice import Span, Splice, positions_of
from fastkernels.engine.media.arrays import picture_of
from fastkernels.engine.programs.batch_stage import BatchStage
from fastkernels.engine.programs.call_graphs import CallGraphs
from fastkernels.engine.programs.program import Stage, Tokens
from fastkernels.engine.programs.remembering import Remembering
from fastkernels.errors import RequestError
from fastkernels.nn.context import in_a_step
from fastkernels.nn.media import Item, Medium, content_of
from fastkernels.nn.program import Bounded, Call, Place

# Rows that requests and the store of earlier media hold before the towers wait for requests to end; half of
# them the store keeps alone. On a GPU 1,100 images of 512 tokens of a 7 B model.
HELD_BYTES = {"cuda": 4 << 30, "cpu": 256 << 20}


@dataclass(frozen=True, slots=True)
class Media:
    """The items of a prompt, where their runs begin, in the order of their places, and the positions of the
    first of these."""

    items: list[Item]
    starts: list[int]
    positions_3S: Ints
    shift: int

    @property
    def calls(self) -> list[Call]:
        return [item.call for item in self.items]

    def added(self, need: Tokens, results: list[Any]) -> Tokens:
        spans = tuple(self._spans(results))
        return replace(need, splice=Splice(spans, self.positions_3S, self.shift))

    def _spans(self, results: list[Any]) -> Iterator[Span]:
        starts = iter(self.starts)
        for item, rows_ND in zip(self.items, results, strict=True):
            first = 0
            for offsets_3N in item.runs:
                end = first + offsets_3N.shape[1]
                # Runs of a medium are told apart: the ids between them may be equal.
                digest = item.digest + first.to_bytes(4, "little")
                yield Span(next(starts), rows_ND[first:end], digest, rows_ND)
                first = end


@dataclass(frozen=True, slots=True)
class _Placed:
    """What a placeholder begins: a run of an item, with a placeholder for each row, or an item, which has one
    placeholder."""

    item: Item
    run: int
    is_whole: bool = False


class Towers:
    """`model` has `stages` and `media` (nn/media.py). processor: as its `media` takes it. encode: what stands
    with runs of rows, to ids."""

    def __init__(
        self,
        model: Any,
        device: torch.device,
        dtype: torch.dtype,
        enforce_eager: bool,
        processor: Mapping[str, Any],
        encode: Callable[[str], list[int]],
    ) -> None:
        model.place = Place(device, dtype)
        self._media: dict[str, Medium] = model.media(processor)
        self._declared, self._held = model.stages(), HELD_BYTES[device.type]
        self._device, self._encode = device, encode
        self.graphs = {
            name: CallGraphs(in_a_step(getattr(model, name)), device, enforce_eager)
            for name in self._declared
        }
        self._remembering: dict[str, Remembering] = {}

    def stages(self, ledger: Ledger) -> dict[str, Stage]:
        """Encodes while there is room for rows, and whenever nothing else can go on."""

        def has_room() -> bool:
            return ledger.is_idle or sum(one.bytes for one in self._remembering.values()) < self._held

        for name, stage in self._declared.items():
            encoding = BatchStage(self.graphs[name], stage.batching, stage.most, has_room)
            self._remembering[name] = Remembering(encoding, content_of, self._held // 2)
        return {**self._remembering}

    @torch.inference_mode()
    def largest(self) -> list[Any]:
        """The largest launch of each tower, beside as many rows as are held."""
        held = torch.empty(self._held, dtype=torch.uint8, device=self._device)
        bounded = {name: stage.batching for name, stage in self._declared.items()}
        return [held] + [
            self.graphs[name].function(*batching.largest())
            for name, batching in bounded.items()
            if isinstance(batching, Bounded)
        ]

    def take(self, ids: list[int], given: Any) -> tuple[list[int], Media | None]:
        """The ids with a placeholder for each row, and the items in the order of their places."""
        left = {
            self._media[name].placeholder: self._placed(name, items, ids)
            for name, items in self._items(given).items()
        }
        whole: list[int] = []
        items: list[Item] = []
        starts: list[int] = []
        place = 0
        while place < len(ids):
            id = ids[place]
            place += 1
            if id not in left:
                whole.append(id)
                continue
            placed = left[id].popleft()
            item = placed.item
            if not placed.run:
                items.append(item)
            elif item is not items[-1]:
                raise RequestError(f"other media stand between the placeholders (id {id}) of one medium")
            if not placed.is_whole:
                width = item.runs[placed.run].shape[1]
                if ids[place - 1 : place - 1 + width] != [id] * width:
                    raise RequestError(f"{width} placeholders (id {id}) of one medium must stand together")
                starts.append(len(whole))
                whole += [id] * width
                place += width - 1
            elif item.said is None:
                starts.append(len(whole))
                whole += [id] * item.num_tokens
            else:
                assert item.said.texts is not None
                before, behind = item.said.around
                if whole[-1:] == [before] and ids[place : place + 1] == [behind]:
                    whole.pop()
                    place += 1
                for text, offsets_3N in zip(item.said.texts, item.runs, strict=True):
                    whole += [*self._encode(text), before]
                    starts.append(len(whole))
                    whole += [*[id] * offsets_3N.shape[1], behind]
        if not items:
            return ids, None
        positions = positions_of(starts, [offsets_3N for item in items for offsets_3N in item.runs])
        return whole, Media(items, starts, *positions)

    def stats(self) -> dict[str, Any]:
        """Of each tower its launches, and of its media those that were asked for and found again."""
        return {
            name: {**graphs.stats(), **self._remembering[name].stats()}
            for name, graphs in self.graphs.items()
        }

    def _items(self, given: Any) -> dict[str, list[Item]]:
        """The caller's media by kind, all kinds of the model among them."""
        given = {} if given is None else given
        if not isinstance(given, Mapping) or given.keys() - self._media.keys():
            kinds = ", ".join(f"'{name}': [...]" for name in self._media)
            told = f"keys {list(given)}" if isinstance(given, Mapping) else f"{given!r:.60}"
            raise RequestError(f"multi_modal_data must be {{{kinds}}}, or some of it, not {told}")
        return {name: self._of_kind(name, given.get(name)) for name in self._media}

    def _of_kind(self, name: str, given: Any) -> list[Item]:
        is_one = not isinstance(given, (list, tuple)) or _is_pair(given)
        listed = [] if given is None else [given] if is_one else given
        items = []
        for index, one in enumerate(listed):
            try:
                one, about = one if isinstance(one, tuple) and len(one) == 2 else (one, None)
                items.append(self._media[name].item(picture_of(one), about))
            except RequestError as error:
                raise RequestError(f"{name} {index}: {error}") from error
        return items

    def _placed(self, name: str, items: list[Item], ids: list[int]) -> deque[_Placed]:
        """What the placeholders of the prompt begin, in order."""
        count, rows = ids.count(self._media[name].placeholder), sum(item.num_tokens for item in items)
        if count == len(items) != rows:
            silent = [i for i, item in enumerate(items) if item.said is not None and item.said.texts is None]
            if silent:
                raise RequestError(
                    f"{name} {silent[0]}: nothing says when its frames were taken. Give (frames, {{'fps': "
                    "frames of a second}), or a placeholder for each row in the prompt"
                )
            return deque(_Placed(item, 0, is_whole=True) for item in items)
        if count == rows:
            return deque(_Placed(item, run) for item in items for run in range(len(item.runs)))
        rule = f": there is one for each {name}, or one for each of their {rows} tokens" if items else ""
        raise RequestError(
            f"{len(items)} of {name} in multi_modal_data, and {count} placeholders of it "
            f"(id {self._media[name].placeholder}) in the prompt{rule}"
        )


def _is_pair(given: Any) -> bool:
    """A medium with what is said of it, a rate or a mapping; two media are no pair."""
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], (numbers.Real, Mapping))
