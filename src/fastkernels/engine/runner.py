"""The model step: a plan goes in, sampled ids come back one step late.

    plan -> one packed copy -> inputs from device rows -> model -> head and sampler -> ids to their rows ->
    ids to the host

Decode steps replay a captured graph where there is one (graphs.py); all others run eagerly. Everything is
ordered on one stream; the host waits for nothing but the ids of an earlier step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fastkernels.engine.graphs import DecodeGraphs
from fastkernels.engine.packet import Uploader
from fastkernels.engine.packing import pack, pack_decode, split
from fastkernels.engine.plan import Plan, Sampled
from fastkernels.engine.rows import DeviceRows, Inputs
from fastkernels.engine.sampler import Choice, RowVariants, Variant, choose
from fastkernels.engine.shaping import RowShapes
from fastkernels.nn.context import use_step


@dataclass(frozen=True, slots=True)
class Flight:
    """A launched step; `result()` waits until its ids have arrived."""

    plan: Plan
    parts: list[Tensor]
    arrived: torch.cuda.Event | None

    def result(self) -> Sampled:
        if self.arrived is not None:
            self.arrived.synchronize()
        return Sampled(*(part.numpy() for part in self.parts))


class ModelRunner:
    def __init__(self, model: nn.Module, rows: DeviceRows, graphs: DecodeGraphs) -> None:
        self.model, self.rows, self.graphs = model, rows, graphs
        self.device = rows.device
        self.num_steps = self.num_replays = 0
        self.eager_steps: Counter[str] = Counter()  # reason -> steps
        self._uploader = Uploader(self.device)
        self._variants = RowVariants(len(rows.tokens_RL))

    @torch.inference_mode()
    def launch(self, plan: Plan) -> Flight:
        variant = self._variants.of(plan)
        self.num_steps += 1
        size, reason = self.graphs.size_for(plan)
        choice = None
        if reason is None:
            choice, reason = self._replay(plan, size, variant)
        if choice is None:
            self.eager_steps[reason or "unknown"] += 1
            choice = self._eager(plan, variant)
        return self._to_host(plan, choice)

    def compute(self, inputs: Inputs, variant: Variant, sources: list[Tensor] | None = None) -> Choice | None:
        """Forward, head, sampler and write-back; None when no row samples. sources: encoder states of the
        requests that begin, where the model attends to them."""
        encoded = [torch.cat(sources)] if sources else []
        with use_step(inputs.step):
            hidden_TD = self.model(inputs.input_ids_T, inputs.positions_T, *encoded)
            if not len(inputs.rows_S):
                return None
            hidden_SD = hidden_TD if inputs.last_S is None else hidden_TD[inputs.last_S]
            choice = choose(self.model, hidden_SD, self.rows.sampling(inputs), variant)
        self.rows.write_back(inputs, choice.ids_S)
        return choice

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

    def _eager(self, plan: Plan, variant: Variant) -> Choice | None:
        packet, extent = pack(plan, self.shapes(variant))
        sections = split(self._uploader.send(packet), packet.sections)
        sources = [a.request.source for a in plan.admitted if a.request.source is not None]
        return self.compute(self.rows.inputs(sections, extent), variant, sources)

    def _replay(self, plan: Plan, size: int, variant: Variant) -> tuple[Choice | None, str | None]:
        """Replay the graph for this many rows, captured if it is the first such step; or why it cannot be."""
        captured, reason = self.graphs.get(self, size, int(plan.starts_B.max()) + 1, variant)
        if captured is None:
            return None, reason
        self._uploader.send(pack_decode(plan, size, self.shapes(variant)), into=captured.packet)
        captured.graph.replay()
        self.num_replays += 1
        return captured.choice.first(len(plan.rows_B)), None

    def _to_host(self, plan: Plan, choice: Choice | None) -> Flight:
        """Start the copy of what was sampled, on the compute stream: ahead of the next replay."""
        if choice is None:
            return Flight(plan, [torch.from_numpy(np.zeros(0, np.int64))], None)
        if self.device.type != "cuda":
            return Flight(plan, [tensor.clone() for tensor in choice.tensors], None)
        parts = []
        for tensor in choice.tensors:
            parts.append(torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True))
            parts[-1].copy_(tensor, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        return Flight(plan, parts, arrived)

    def forget_counts(self) -> None:
        self.num_steps = self.num_replays = 0
        self.eager_steps.clear()

    def stats(self) -> dict[str, object]:
        return {
            "steps": self.num_steps,
            "graph_replays": self.num_replays,
            "graphs": self.graphs.num_captured,
            "eager_steps": dict(self.eager_steps),
        }
