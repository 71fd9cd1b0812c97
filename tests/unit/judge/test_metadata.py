"""judge/metadata.py: shape, dtype, strides, aliases, plain tensors, and inputs that changed."""

import pytest
import torch

from fastkernels.judge.metadata import Description, Fingerprint, check, describe, mutated
from fastkernels.runner.results import Results

X = torch.randn(4, 8)


def verdict_of(
    candidate: object, baseline: torch.Tensor | None = None, strides: tuple[str, ...] = ()
) -> str | None:
    expected = {"out.0": describe(torch.empty(4, 8) if baseline is None else baseline, {"arg.x": X})}
    found = check({"out.0": describe(candidate, {"arg.x": X})}, expected, strides)
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


def test_strides_where_the_contract_says_so():
    assert verdict_of(torch.empty(8, 4).T, strides=("out.0",)) == "WRONG(stride)"
    assert verdict_of(torch.empty(4, 8), strides=("out.0",)) is None


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


def test_descriptions_travel_as_json():
    one = describe(X, {"arg.x": X})
    assert Description.model_validate_json(one.model_dump_json()) == one


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.bool]
)
def test_fingerprints_see_every_element(dtype):
    x = torch.arange(35).reshape(5, 7).to(dtype)
    prints = Fingerprint(seed=11)
    before = prints(x)
    assert prints(x.clone()) == before
    for index in range(0, 35, 6):
        changed = x.clone()
        changed.view(-1)[index] = not x.view(-1)[index] if dtype is torch.bool else x.view(-1)[index] + 1
        assert prints(changed) != before


def test_fingerprints_see_order_strides_and_several_slices(monkeypatch):
    x = torch.randn(6, 10)
    prints = Fingerprint(seed=1)
    assert prints(x) != prints(x.flip(0))
    assert prints(x.T) == prints(x.T.contiguous())
    monkeypatch.setattr("fastkernels.judge.metadata._SLICE_WORDS", 16)
    sliced = Fingerprint(seed=1)
    swapped = torch.cat([x.view(-1)[16:32], x.view(-1)[:16], x.view(-1)[32:]])
    assert sliced(x) != sliced(swapped)
    assert sliced(x) == sliced(x.clone())
    assert sliced(torch.empty(0)) == 0


def test_fingerprints_depend_on_the_secret_seed():
    assert Fingerprint(1)(X) != Fingerprint(2)(X)


def test_a_changed_input_is_named_unless_declared():
    prints = Fingerprint(3)
    tensors = {"arg.x": X.clone(), "arg.k_cache": X.clone()}
    before = prints.all(tensors)
    assert mutated(before, prints.all(tensors)) is None
    tensors["arg.k_cache"][0, 0] += 1
    assert mutated(before, prints.all(tensors), declared=["arg.k_cache"]) is None
    found = mutated(before, prints.all(tensors))
    assert found.label == "WRONG(mutated_input)"
    assert "arg.k_cache" in found.failure.message
    assert mutated(before, {}).label == "WRONG(mutated_input)"
