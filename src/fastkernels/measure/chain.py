"""How many calls one captured chain holds, and what its links have in common.

One call of a few microseconds cannot be timed by itself: two events round it, its launch, its code and the
place of its tensors move the reading by 3 to 10 %, and by the process. In a chain of many calls, each with
its own module, inputs and results at places of their own, all that averages out, and a layer of a model
runs in no other way. From a cold L2 rms_norm of 8 rows reads 3.2 us alone, with medians of three processes
up to 15 % apart, and 1.84 us in a chain of 64, 0.1 % apart (one H200; docs/record/measured.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fastkernels.loader import views
from fastkernels.records import TensorSpec

CHAIN_S = 400e-6  # of calls at the speed of the device's memory: several times what surrounds them
MOST_LINKS = 64
# Of longer calls, too, places are to average out: one that reads 1 GB differs by 2 % from process to process.
LEAST_LINKS, MOST_S = 4, 2e-3  # so many, if they take no longer than this
MEMORY_SHARE = 1 / 16  # of the device's memory, for one side's inputs and parameters
LOOKUP_SHARE = 1 / 8  # a call that reads less of its parameters looks rows up


@dataclass(frozen=True, slots=True)
class ChainPlan:
    """`shares_parameters`: all links use one module, because each reads other rows of a large table."""

    links: int = 1
    shares_parameters: bool = False

    def links_of(self, tensor: str) -> int:
        """How often a tensor of the trial exists: `param.NAME` once where parameters are shared."""
        return 1 if self.shares_parameters and tensor.startswith("param.") else self.links


def of_ranks(ranks: int) -> ChainPlan:
    """A group of ranks has tensors as a chain has links; parameters are the same on all of them."""
    return ChainPlan(ranks, shares_parameters=ranks > 1)


def chain_plan(
    floor_s: float, read_bytes: int, parameter_bytes: int, other_bytes: int, memory_bytes: int, least: int = 1
) -> ChainPlan:
    """For calls that need `floor_s` each at least, in which they read `read_bytes` of their parameters
    (`parameter_bytes`) and of their other tensors (`other_bytes`), on a device with `memory_bytes`. `least`:
    links, however long calls take and however large they are."""
    shares = read_bytes < LOOKUP_SHARE * parameter_bytes
    link_bytes = other_bytes if shares else parameter_bytes + other_bytes
    floor_s = max(floor_s, CHAIN_S / MOST_LINKS)
    wanted = max(math.ceil(CHAIN_S / floor_s), min(LEAST_LINKS, int(MOST_S / floor_s)))
    fitting = int(memory_bytes * MEMORY_SHARE / max(link_bytes, 1))
    return ChainPlan(max(least, min(wanted, fitting)), shares)


def of_trial(specs: Mapping[str, TensorSpec], floor_s: float, read_bytes: int) -> ChainPlan:
    """On the current GPU, of calls that have these tensors, need `floor_s` and read so much of them."""
    stored = views.stored(specs)
    taken = {n: math.prod(spec.shape) * getattr(torch, spec.dtype).itemsize for n, spec in stored.items()}
    parameter_bytes = sum(size for name, size in taken.items() if name.startswith("param."))
    return chain_plan(
        floor_s=floor_s,
        read_bytes=read_bytes,
        parameter_bytes=parameter_bytes,
        other_bytes=sum(taken.values()) - parameter_bytes,
        memory_bytes=torch.cuda.get_device_properties(0).total_memory,
        least=len(views.alternating(2)) if views.are_in(specs) else 1,
    )
