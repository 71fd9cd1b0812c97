"""Drawn clouds of voxels, whose fields fit each other and the case."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fastkernels import kernels, registry
from fastkernels.loader.inputs import draw, trial_specs
from fastkernels.loader.materialize import build_module
from fastkernels.loader.overlay import Overlay


def drawn(task: str, variant: str, **init: Any) -> tuple[Any, dict[str, Tensor]]:
    """The first tiny case of the variant with these init arguments, and its tensors."""
    case = next(
        case
        for case in registry.cases(task)
        if (case.variant, case.size) == (variant, "tiny")
        and case.provenance.architecture == "point_transformer_v3"
        and init.items() <= case.init.items()
    )
    specs = trial_specs(case, build_module(Overlay.over_baseline(), case, "meta"))
    found = draw({name: spec for name, spec in specs.items() if name.startswith("arg.")}, case, seed=3)
    return case, {name.removeprefix("arg."): value for name, value in found.items()}


@pytest.mark.parametrize("held_out", [False, True])
def test_clouds_have_as_many_voxels_at_each_level_as_the_case_says(held_out: bool):
    cases = [case for case in registry.cases("L4/point_transformer_v3") if case.size == "tiny"]
    case = next(case for case in cases if case.timed != held_out)
    specs = trial_specs(case, build_module(Overlay.over_baseline(), case, "meta"))
    found = draw({name: specs[name] for name in ("arg.grid_coord", "arg.offset")}, case, seed=1)
    grid, ends = found["arg.grid_coord"], found["arg.offset"].tolist()
    assert int(grid.min()) >= 0
    assert int(grid.max()) < 1 << case.inputs["depth"]
    clouds = grid.tensor_split(ends[:-1])
    counts = [len((cloud >> level).unique(dim=0)) for level in range(3) for cloud in clouds]
    assert tuple(counts) == case.inputs["counts"]


def test_tables_of_a_block_fit_each_other():
    case, found = drawn("L3/point_block", "default", channels=64)
    order, inverse, neighbors = (found[name] for name in ("order", "inverse", "neighbors"))
    assert torch.equal(order[inverse], torch.arange(len(inverse)))
    assert case.batch.num_tokens == len(order) > len(inverse)
    assert case.inputs["max_seqlen"] >= max(case.batch.query_lens)
    middle = neighbors.shape[1] // 2
    assert torch.equal(neighbors[:, middle], torch.arange(len(neighbors), dtype=torch.int32))
    assert 2 < float((neighbors >= 0).sum(1).float().mean()) < 20
    n, tap = (neighbors >= 0).nonzero().unbind(1)
    assert torch.equal(neighbors[neighbors[n, tap].long(), neighbors.shape[1] - 1 - tap], n.int())


def test_clusters_are_those_of_their_codes():
    case, found = drawn("L1/serialization", "coarsen")
    assert len((found["code"][0] >> 3).unique()) == case.inputs["clusters"]
    kernels.coarsen(found["code"], found["order"], case.inputs["clusters"], impl="reference")
    _, pooled = drawn("L1/segment", "default")
    lengths = pooled["indptr"].diff()
    assert 1 == int(lengths.min()) < int(lengths.max()) <= 8
    assert pooled["indices"].sort().values.tolist() == list(range(len(pooled["src"])))
