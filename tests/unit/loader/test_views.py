"""Inputs lie packed or as in the model, beside what is nobody's; the baseline takes both."""

from __future__ import annotations

import random

import pytest
import torch

from fastkernels import registry
from fastkernels.loader import views
from fastkernels.loader.inputs import draw_links, trial_specs
from fastkernels.loader.materialize import bind, build_module
from fastkernels.loader.overlay import Overlay
from fastkernels.records import Case, TensorSpec, View

BASELINE = Overlay.over_baseline()
LINKS = 3
SPECS = {
    "arg.x": TensorSpec(shape=(4,), dtype="float32"),
    "arg.q": TensorSpec(shape=(3, 4), dtype="float32", view=View(storage="q", size=40, strides=(12, 1))),
    "arg.k": TensorSpec(
        shape=(3, 2), dtype="float32", view=View(storage="q", size=40, strides=(12, 1), offset=4)
    ),
    "param.weight": TensorSpec(shape=(4,), dtype="float32"),
}
TINY = [
    case
    for entry in registry.tasks()
    for case in registry.cases(entry, size="tiny")
    if views.are_in(views.arguments(case))
]


def drawn(links: int = LINKS) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(links, *spec.shape, generator=generator) for name, spec in SPECS.items()}


def test_a_storage_travels_in_the_place_of_what_lies_in_it() -> None:
    stored = views.stored(SPECS)
    assert set(stored) == {"arg.x", "param.weight", "storage.q"}
    assert stored["storage.q"].shape == (70,), "packed, the second begins at the next multiple of 256 bytes"
    assert views.stored({"arg.x": SPECS["arg.x"]}) == {"arg.x": SPECS["arg.x"]}


@pytest.mark.parametrize("strided", [False, True])
def test_arguments_are_seen_with_their_values_and_the_strides_of_the_layout(strided: bool) -> None:
    values = drawn()
    laid = views.laid(SPECS, values, views.of_all(strided))
    for link in range(LINKS):
        sent = {"arg.x": values["arg.x"][link], "storage.q": laid["storage.q"][link]}
        seen = views.seen(SPECS, sent, strided)
        assert seen.keys() == {"arg.x", "arg.q", "arg.k"}
        assert all(torch.equal(seen[name], values[name][link]) for name in seen)
        assert [seen[name].stride() for name in ("arg.q", "arg.k")] == (
            [(12, 1), (12, 1)] if strided else [(4, 1), (2, 1)]
        )
        offsets = [seen[name].storage_offset() % 70 for name in ("arg.q", "arg.k")]
        assert offsets == ([0, 4] if strided else [0, 64])


def test_packed_tensors_of_a_call_are_laid_as_in_the_model() -> None:
    packed = {name: values[0] for name, values in drawn().items()}
    laid = views.as_in_model(SPECS, packed)
    assert laid.keys() == packed.keys()
    assert all(torch.equal(laid[name], packed[name]) for name in packed)
    assert laid["arg.q"].stride() == laid["arg.k"].stride() == (12, 1)
    assert laid["arg.q"].untyped_storage().data_ptr() == laid["arg.k"].untyped_storage().data_ptr()


def test_neighbouring_links_of_a_chain_alternate() -> None:
    values = drawn()
    laid = views.laid(SPECS, values, views.in_chain())
    for link in range(LINKS):
        seen = views.seen(SPECS, {"storage.q": laid["storage.q"][link]}, views.is_strided(link))
        assert torch.equal(seen["arg.k"], values["arg.k"][link])
    assert views.alternating(LINKS) == [[0, 2], [1]]
    assert [views.is_strided(link) for link in range(LINKS)] == [False, True, False]


@pytest.mark.parametrize("strided", [False, True])
def test_what_lies_beside_arguments_is_no_number_and_known(strided: bool) -> None:
    laid = views.laid(SPECS, drawn(), views.of_all(strided))["storage.q"]
    held = 3 * 4 + 3 * 2
    assert (~laid.isnan()).sum(1).tolist() == [held] * LINKS
    assert torch.equal(views.beside(laid), laid.isnan())


def test_a_place_of_an_argument_is_one() -> None:
    laid = views.laid(SPECS, drawn(1), views.of_all(strided=True))["storage.q"][0]
    places = random.Random(1)
    found = {views.somewhere(SPECS, "storage.q", True, places) for _ in range(500)}
    assert found == {4 * int(element) for element in (~laid.isnan()).nonzero()}, "each of them, and no other"


def test_who_takes_a_view_for_packed_reads_its_neighbours() -> None:
    values = {name: value[0] for name, value in drawn(1).items()}
    misread = views.misread(SPECS, values, "arg.q")
    assert torch.equal(misread[0], values["arg.q"][0])
    assert torch.equal(misread[1, :2], values["arg.k"][0])
    assert misread[1, 2:].isnan().all()


def test_values_are_what_mathematics_knows() -> None:
    values = drawn()
    assert views.values(values | views.laid(SPECS, values, views.of_all(True))).keys() == SPECS.keys()


@pytest.mark.parametrize("case", TINY, ids=lambda case: f"{case.task}:{case.id}")
def test_the_baseline_takes_inputs_as_models_have_them(case: Case) -> None:
    """The same results as of packed ones; neighbours are not written, and no argument lies on another."""
    module = build_module(BASELINE, case, "cpu")
    specs = trial_specs(case, module)
    results = []
    for strided in (False, True):
        values = draw_links(specs, case, 1, lambda name: 1)
        laid = views.laid(specs, values, views.of_all(strided))
        sent = {name: (values | laid)[name][0].clone() for name in views.stored(specs)}
        seen = views.seen(specs, sent, strided)
        inputs = {name for name in seen if specs[name].view is not None}
        assert inputs
        assert all(torch.equal(seen[name], values[name][0]) for name in inputs)
        results.append(bind(module, case, seen).invoke())
        for name, storage in laid.items():
            assert torch.equal(sent[name].view(torch.uint8), storage[0].view(torch.uint8)), name
    packed, as_in_the_model = results
    for name, right in packed.items():
        torch.testing.assert_close(as_in_the_model[name], right, rtol=1e-5, atol=1e-5)
