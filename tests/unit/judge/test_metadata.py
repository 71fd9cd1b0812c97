"""judge/metadata.py: shape, dtype, strides, aliases, and plain tensors."""

import pytest
import torch

from fastkernels.judge.metadata import Description, check, describe
from fastkernels.runner.inside.results import Results

X = torch.randn(4, 8)


def verdict_of(candidate: object, baseline: torch.Tensor | None = None) -> str | None:
    expected = {"out.0": describe(torch.empty(4, 8) if baseline is None else baseline, {"arg.x": X})}
    found = check({"out.0": describe(candidate, {"arg.x": X})}, expected)
    return found.label if found else None


class Lazy(torch.Tensor):
    pass


class Mute(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *_: object) -> None:
        raise RuntimeError("asked")


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        (torch.empty(4, 8), None),
        (torch.nn.Parameter(torch.empty(4, 8)), None),
        (torch.empty(8, 4).T, None),  # strides are not part of this contract
        (torch.empty(4, 9), "WRONG(shape)"),
        (torch.empty(32), "WRONG(shape)"),
        (torch.empty(4, 8, dtype=torch.float64), "WRONG(dtype)"),
        (torch.empty(4, 8, device="meta"), "WRONG(dtype)"),
        (torch.empty(4, 8).as_subclass(Lazy), "WRONG(dtype)"),
        (torch.empty(4, 8).as_subclass(Mute), "WRONG(dtype)"),
        (torch.eye(4, 8).to_sparse(), "WRONG(dtype)"),
        (torch._neg_view(torch.empty(4, 8)), "WRONG(dtype)"),
        (torch._efficientzerotensor((4, 8)), "WRONG(dtype)"),
        (torch.nested.nested_tensor([torch.empty(2, 8)], layout=torch.jagged), "WRONG(dtype)"),
        (None, "WRONG(dtype)"),
        (X, "WRONG(alias)"),
        (X.clone(), None),
        (X[:, :].as_strided((4, 8), (8, 1)), "WRONG(alias)"),
        (torch.zeros(1, 8).expand(4, 8), "WRONG(alias)"),
    ],
)
def test_differences_from_the_contract(candidate, expected):
    assert verdict_of(candidate) == expected


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_has_no_shape():
    nested = torch.nested.nested_tensor([torch.empty(2, 8), torch.empty(1, 8)])
    assert verdict_of(nested) == "WRONG(dtype)"
    (found,) = Results.describe({"out.0": nested}, {"arg.x": X}).values()
    assert (found.bytes, found.description.type_name) == (0, "Tensor (nested)")


def test_memory_that_is_read_otherwise_is_no_result():
    x = torch.empty(4, 8, dtype=torch.complex64)
    for lazy, told in ((x.conj(), "conjugated view"), (x.conj().imag, "negated view")):
        (found,) = Results.describe({"out.0": lazy}, {}).values()
        assert (found.bytes, found.description.type_name) == (0, f"Tensor ({told})")


def test_an_alias_that_the_baseline_declares_is_allowed():
    assert verdict_of(X, baseline=X) is None
    assert verdict_of(torch.empty(4, 8), baseline=X) is None


def test_neighbours_in_one_buffer_do_not_alias():
    buffer = torch.zeros(10)
    assert describe(buffer[5:], {"a": buffer[:5]}).aliases == ()
    assert describe(buffer[4:], {"a": buffer[:5]}).aliases == ("a",)


def test_missing_and_extra_outputs():
    one = describe(X.clone(), {})
    assert check({}, {"out.0": one}).label == "WRONG(shape)"
    assert "nothing" in check({}, {"out.0": one}).failure.message
    assert check({"out.0": one, "out.1": one}, {"out.0": one}).label == "WRONG(shape)"
    trailing = check({"out.0": one, "out.1": describe(None, {})}, {"out.0": one})
    assert (trailing.label, "out.1 (NoneType)" in trailing.failure.message) == ("WRONG(shape)", True)
    listed = check({"out.0": describe([X, X], {})}, {"out.0": one, "out.1": one})
    assert (listed.label, "a list" in listed.failure.message) == ("WRONG(dtype)", True)


def test_descriptions_travel_as_json():
    one = describe(X, {"arg.x": X})
    assert Description.model_validate_json(one.model_dump_json()) == one
