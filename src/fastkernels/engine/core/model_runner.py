"""The model step: a plan goes in, sampled ids come back one step late.

    plan -> one packed copy -> inputs from device rows -> model -> head and sampler -> ids to their rows ->
    ids to the host

Decode steps replay one captured graph (decode_graphs.py), short steps with prefill rows replay their forward
in pieces (piecewise_graphs.py); all others run eagerly. Everything is ordered on one stream; the host waits
for nothing but the ids of an earlier step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from fastkernels.engine.core.decode_graphs import DecodeGraphs
from fastkernels.engine.core.graph_pool import GraphPool
from fastkernels.engine.core.packet import Uploader
from fastkernels.engine.core.packing import pack, pack_decode, split
from fastkernels.engine.core.piecewise_graphs import PieceGraphs
from fastkernels.engine.core.plan import Plan, Ranked, Sampled, Scored
from fastkernels.engine.core.rows import DeviceRows, Inputs
from fastkernels.engine.core.sampler import Choice, Ranking, RowVariants, Variant, choose, score
from fastkernels.engine.core.shaping import RowShapes
from fastkernels.engine.core.split_vocabulary import SplitVocabulary
from fastkernels.nn.context import use_step


@dataclass(frozen=True, slots=True)
class Flight:
    """A launched step; `result()` waits until its ids have arrived."""

    plan: Plan
    choice: Choice  # on the host, once it has arrived
    arrived: torch.cuda.Event | None
    alive: Callable[[], None] | None = None

    def result(self) -> Sampled:
        if self.arrived is not None:
            while self.alive is not None and not self.arrived.query():
                self.alive()
            self.arrived.synchronize()

        def ranked(ranking: Ranking | None) -> Ranked | None:
            return None if ranking is None else Ranked(*(part.numpy().copy() for part in ranking))

        # Their memory is given to a later step.
        choice = self.choice
        return Sampled(choice.ids_S.numpy().copy(), ranked(choice.ranking), ranked(choice.scores))


class ModelRunner:
    def __init__(
        self,
        model: nn.Module,
        rows: DeviceRows,
        pool: GraphPool,
        max_rows: int,
        max_tokens: int,
        split: SplitVocabulary | None = None,
        alive: Callable[[], None] | None = None,
    ) -> None:
        """split: of a model that is one rank's part. alive: raises where another rank has ended, for which
        the device would wait."""
        self.model, self.rows, self.pool = model, rows, pool
        self._split, self._alive = split, alive
        self.graphs = DecodeGraphs(pool, max_rows, rows.tokens_RL.shape[1])
        self.pieces = PieceGraphs(pool, max_tokens)
        self.device = rows.device
        self.num_steps = self.num_replays = self.num_piecewise = 0
        self.eager_steps: Counter[str] = Counter()  # reason -> steps
        self._uploader = Uploader(self.device)
        self._variants = RowVariants(len(rows.tokens_RL))

    @torch.inference_mode()
    def launch(self, plan: Plan) -> Flight:
        variant = self._variants.of(plan)
        self.num_steps += 1
        flight, reason = self._replay(plan, variant) if plan.is_decode else self._in_pieces(plan, variant)
        if flight is not None:
            return flight
        assert reason is not None
        self.eager_steps[reason] += 1
        return self._to_host(plan, self._compute(plan, variant))

    def compute(
        self,
        inputs: Inputs,
        variant: Variant,
        beside: Sequence[Tensor] = (),
        forward: Callable[..., Tensor] | None = None,
        scored: Scored | None = None,
    ) -> Choice | None:
        """Forward, head, sampler and write-back; None when no row samples or is scored. beside: what the
        forward takes behind ids and positions. forward: the model's, recorded."""
        with use_step(inputs.step):
            hidden_TD = (forward or self.model)(inputs.input_ids_T, inputs.positions_T, *beside)
            scores = None if scored is None else self._score(hidden_TD, scored)
            if not len(inputs.rows_S):
                return None if scores is None else Choice(inputs.rows_S, scores=scores)
            hidden_SD = hidden_TD if inputs.last_S is None else hidden_TD[inputs.last_S]
            choice = choose(self.model, hidden_SD, self.rows.sampling(inputs), variant, self._split)
        self.rows.write_back(inputs, choice.ids_S)
        return choice if scores is None else replace(choice, scores=scores)

    def _score(self, hidden_TD: Tensor, scored: Scored) -> Ranking:
        places_P, ids_P = (torch.from_numpy(part).to(self.device) for part in (scored.places_P, scored.ids_P))
        return score(self.model, hidden_TD, places_P, ids_P, scored.most, self._split)

    def compute_decode(
        self, packet: Tensor, sections: dict[str, slice], max_seq_len: int, variant: Variant
    ) -> Choice:
        """A padded decode step from a packet on the device: what a graph captures."""
        choice = self.compute(self.rows.decode_inputs(split(packet, sections), max_seq_len), variant)
        assert choice is not None
        return choice

    def shapes(self, variant: Variant) -> RowShapes | None:
        """What a step's packet tells of its rows' logits."""
        return self._variants.shapes if variant.is_shaped else None

    def upload(self, plan: Plan, shapes: RowShapes | None = None) -> Inputs:
        """Apply a plan to the rows on the device: what its step computes from, with exact lengths."""
        packet, extent = pack(plan, shapes)
        sections = split(self._uploader.send(packet), packet.sections)
        return self.rows.inputs(sections, extent)

    def _compute(
        self, plan: Plan, variant: Variant, forward: Callable[..., Tensor] | None = None
    ) -> Choice | None:
        inputs = self.upload(plan, self.shapes(variant))
        return self.compute(inputs, variant, _beside(plan, inputs), forward, plan.scored)

    def _in_pieces(self, plan: Plan, variant: Variant) -> tuple[Flight | None, str | None]:
        """Replay the forward for about as many tokens; or why it cannot be."""
        forward, reason = self.pieces.get(self, plan)
        if forward is None:
            return None, reason
        self.num_piecewise += 1
        return self._to_host(plan, self._compute(plan, variant, forward)), None

    def _replay(self, plan: Plan, variant: Variant) -> tuple[Flight | None, str | None]:
        """Replay the graph for as many rows; or why it cannot be."""
        captured, reason = self.graphs.get(self, len(plan.rows_B), int(plan.starts_B.max()) + 1, variant)
        if captured is None:
            return None, reason
        slot, count = self.rows.outbox.next_slot(), len(plan.rows_B)
        packet = pack_decode(plan, captured.size, self.shapes(variant), slot)
        self._uploader.send(packet, into=captured.packet)
        captured.graph.replay()
        self.num_replays += 1
        if variant.num_logprobs is None and self.device.type == "cuda":
            return Flight(plan, Choice(self.rows.outbox.ids(slot, count)), _now(), self._alive), None
        return self._to_host(plan, captured.choice.first(count)), None

    def _to_host(self, plan: Plan, choice: Choice | None) -> Flight:
        """Start the copy of what was sampled, on the compute stream: ahead of the next replay."""
        if choice is None:
            return Flight(plan, Choice(torch.from_numpy(np.zeros(0, np.int64))), None)
        there = Choice(
            _on_host(choice.ids_S),
            None if choice.ranking is None else Ranking(*map(_on_host, choice.ranking)),
            None if choice.scores is None else Ranking(*map(_on_host, choice.scores)),
        )
        return Flight(plan, there, _now() if self.device.type == "cuda" else None, self._alive)

    def forget_counts(self) -> None:
        self.num_steps = self.num_replays = self.num_piecewise = 0
        self.eager_steps.clear()

    def stats(self) -> dict[str, object]:
        return {
            "steps": self.num_steps,
            "graph_replays": self.num_replays,
            "piecewise_replays": self.num_piecewise,
            "graphs": len(self.graphs.captures),
            "recorded_forwards": len(self.pieces.captures),
            "eager_steps": dict(self.eager_steps),
        }


def _beside(plan: Plan, inputs: Inputs) -> list[Tensor]:
    """Encoder states of the requests that begin, where the model attends to them; or the rows of media that
    the step computes, and which token each stands for."""
    if plan.spliced is not None and plan.spliced.rows:
        assert inputs.media_T is not None
        return [torch.cat(plan.spliced.rows), inputs.media_T]
    sources = [a.request.source for a in plan.admitted if a.request.source is not None]
    return [torch.cat(sources)] if sources else []


def _on_host(tensor: Tensor) -> Tensor:
    """A copy that is on its way, where it comes from a GPU."""
    if tensor.device.type != "cuda":
        return tensor.clone()
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


def _now() -> torch.cuda.Event:
    """Behind what was launched so far."""
    event = torch.cuda.Event()
    event.record()
    return event
