"""The weight map: packing, strictness, and what its errors say."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fastkernels.errors import WeightsError
from fastkernels.nn.weight_map import ZEROS, Source, WeightMap
from fastkernels.nn.weights import export_weights, load_weights


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(3, 8)
        self.out = nn.Linear(4, 3, bias=False)


class Model(nn.Module):
    def __init__(self, is_tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(3, 5, bias=False)
        if is_tied:
            self.head.weight = self.embed.weight
        self.weight_map = WeightMap(
            names={
                "tok.weight": "embed.weight",
                "layers.*.o.*": "blocks.*.out.*",
                "head.weight": "head.weight",
            },
            packed={"blocks.*.qkv.*": {"layers.*.q.*": 4, "layers.*.k.*": 2, "layers.*.v.*": 2}},
            ignored=("layers.*.rope.inv_freq",),
            repeated={"head.weight": "tok.weight"},
        )


def checkpoint(is_tied: bool = False) -> dict[str, Tensor]:
    shapes = {"tok.weight": (5, 3)} | ({} if is_tied else {"head.weight": (5, 3)})
    for i in range(2):
        for part, rows in (("q", 4), ("k", 2), ("v", 2)):
            shapes |= {f"layers.{i}.{part}.weight": (rows, 3), f"layers.{i}.{part}.bias": (rows,)}
        shapes[f"layers.{i}.o.weight"] = (3, 4)
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def test_packs_rows_in_order():
    model, tensors = Model(), checkpoint()
    load_weights(model, tensors.items())
    for i, block in enumerate(model.blocks):
        expected = torch.cat([tensors[f"layers.{i}.{part}.weight"] for part in "qkv"])
        assert torch.equal(block.qkv.weight, expected)
        assert torch.equal(block.qkv.bias[4:6], tensors[f"layers.{i}.k.bias"])
    assert torch.equal(model.embed.weight, tensors["tok.weight"])
    assert torch.equal(model.head.weight, tensors["head.weight"])


def test_order_of_the_checkpoint_does_not_matter():
    first, second = Model(), Model()
    load_weights(first, checkpoint().items())
    load_weights(second, reversed(checkpoint().items()))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("is_tied", [False, True])
def test_round_trip(is_tied: bool):
    model, tensors = Model(is_tied), checkpoint(is_tied)
    load_weights(model, tensors.items())
    exported = dict(export_weights(model))
    assert exported.keys() == tensors.keys()
    assert all(torch.equal(exported[name], tensors[name]) for name in tensors)


def test_casts_to_the_dtype_of_the_model():
    model, tensors = Model().to(torch.bfloat16), checkpoint()
    load_weights(model, tensors.items())
    assert torch.equal(model.embed.weight, tensors["tok.weight"].to(torch.bfloat16))


def test_tied_head_may_be_absent_or_repeated():
    tensors = checkpoint(is_tied=True)
    load_weights(Model(is_tied=True), tensors.items())
    load_weights(Model(is_tied=True), [*tensors.items(), ("head.weight", tensors["tok.weight"])])
    with pytest.raises(WeightsError, match=r"unexpected  head.bias \[5\]"):
        load_weights(Model(is_tied=True), [*tensors.items(), ("head.bias", torch.zeros(5))])


def test_declared_leftovers_are_ignored_and_others_are_not():
    leftovers = [("layers.1.rope.inv_freq", torch.ones(2))]
    load_weights(Model(), [*checkpoint().items(), *leftovers])
    with pytest.raises(WeightsError, match=r"rope\.extra\.inv_freq"):
        load_weights(Model(), [*checkpoint().items(), ("layers.1.rope.extra.inv_freq", torch.ones(2))])


@pytest.mark.parametrize("part", ["", "part."])
def test_names_may_begin_otherwise(part: str):
    model, tensors = Model(), checkpoint()
    model.weight_map = (model.weight_map.under("net.") | WeightMap(prefixes={"net.": ""})).under(part)
    usual = {f"{part}net.{name}": tensor for name, tensor in tensors.items()}
    for given in (usual, {f"{part}{name}": tensor for name, tensor in tensors.items()}):
        for parameter in model.parameters():
            parameter.data.zero_()
        load_weights(model, given.items())
        assert all(torch.equal(tensor, usual[name]) for name, tensor in export_weights(model))
    with pytest.raises(WeightsError, match=rf"{part}tok\.weight given twice"):
        load_weights(model, [*usual.items(), (f"{part}tok.weight", tensors["tok.weight"])])
    with pytest.raises(WeightsError, match=r"unexpected  other\.tok\.weight"):
        load_weights(model, [*usual.items(), ("other.tok.weight", tensors["tok.weight"])])


@pytest.mark.parametrize("part", ["", "part."])
@pytest.mark.parametrize("held", ["tok.weight", "head.weight", "both, equal", "both, rounded"])
def test_a_tied_parameter_is_filled_from_either_name(held: str, part: str):
    """Under each of its names alone, and from both, in any order."""
    model, tensors = Model(is_tied=True), checkpoint(is_tied=True)
    model.weight_map = model.weight_map.under(part)
    dtype, expected = torch.float32, tensors["tok.weight"]
    if held == "head.weight":
        tensors["head.weight"] = tensors.pop("tok.weight")
    elif held != "tok.weight":
        tensors["head.weight"] = expected.clone()
    if held == "both, rounded":  # equal as the model's dtype rounds them
        dtype, tensors["head.weight"] = torch.bfloat16, expected.to(torch.bfloat16)
    model.to(dtype)
    named = [(part + name, tensor) for name, tensor in tensors.items()]
    for order in (named, named[::-1]):
        model.embed.weight.data.zero_()
        load_weights(model, order)
        assert model.head.weight is model.embed.weight
        assert torch.equal(model.head.weight, expected.to(dtype))


@pytest.mark.parametrize("is_reversed", [False, True])
def test_tensors_that_contradict_a_tie_are_named(is_reversed: bool):
    tensors = checkpoint(is_tied=True)
    tensors["head.weight"] = tensors["tok.weight"].clone()
    tensors["head.weight"][4, 2] += 1e-3
    named = list(tensors.items())
    with pytest.raises(
        WeightsError, match=r"head\.weight differs from tok\.weight.*\"tie_word_embeddings\": false"
    ):
        load_weights(Model(is_tied=True), named[::-1] if is_reversed else named)
    tensors["head.weight"] = torch.zeros(6, 3)
    with pytest.raises(WeightsError, match=r"misshapen   head\.weight \[6, 3\], expected \[5, 3\]"):
        load_weights(Model(is_tied=True), tensors.items())
    del tensors["head.weight"], tensors["tok.weight"]
    with pytest.raises(WeightsError, match=r"1 missing\n  missing     tok\.weight, expected \[5, 3\]$"):
        load_weights(Model(is_tied=True), tensors.items())


def test_an_untied_model_asks_for_its_head_and_names_the_flag():
    with pytest.raises(
        WeightsError, match=r'missing     head\.weight.*"tie_word_embeddings": true.*tok\.weight'
    ):
        load_weights(Model(), checkpoint(is_tied=True).items())


def test_all_problems_are_reported_at_once():
    tensors = checkpoint()
    del tensors["layers.0.k.weight"], tensors["tok.weight"]
    tensors["layers.1.v.bias"] = torch.zeros(7)
    tensors["layers.0.o.weight"] = torch.zeros(3, 4).to(torch.int8)
    tensors["surprise"] = torch.zeros(2, 2)
    with pytest.raises(WeightsError) as caught:
        load_weights(Model(), [*tensors.items(), ("head.weight", tensors["head.weight"])])
    assert str(caught.value).splitlines() == [
        "The weights do not fit Model: 2 missing, 2 unexpected, 2 misshapen",
        "  misshapen   layers.0.o.weight holds torch.int8: quantised weights cannot be loaded",
        "  misshapen   layers.1.v.bias [7], expected [2]",
        "  missing     tok.weight, expected [5, 3]",
        "  missing     layers.0.k.weight, expected [2, 3]",
        "  unexpected  surprise [2, 2]",
        "  unexpected  head.weight given twice",
    ]


def test_a_long_report_is_cut_without_hiding_a_kind():
    strangers = [(f"stranger.{i}", torch.zeros(1)) for i in range(50)]
    with pytest.raises(WeightsError) as caught:
        load_weights(Model(), [*checkpoint().items(), *strangers][1:])
    lines = str(caught.value).splitlines()
    assert len(lines) == 1 + 20 + 1
    assert lines[0].endswith("1 missing, 50 unexpected")
    assert lines[1].startswith("  missing     tok.weight")
    assert lines[-1] == "  and 31 more"


def test_a_parameter_that_the_map_does_not_name_is_an_error():
    model = Model()
    model.extra = nn.Parameter(torch.zeros(2))
    with pytest.raises(WeightsError, match="any checkpoint tensor for parameter extra"):
        load_weights(model, checkpoint().items())
    with pytest.raises(WeightsError, match="no checkpoint name for extra"):
        dict(export_weights(model))


def test_packed_rows_must_add_up():
    model = Model()
    model.blocks[1].qkv = nn.Linear(3, 9)
    with pytest.raises(WeightsError, match=r"parameter blocks\.1\.qkv\.weight"):
        load_weights(model, checkpoint().items())


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stack = nn.Parameter(torch.zeros(2, 4, 3))
        self.gate = nn.Linear(3, 2, bias=False)
        self.weight_map = WeightMap(
            names={"router.weight": "gate.weight"},
            packed={"stack": {f"expert.{e}.{part}": 2 for e in range(2) for part in ("up", "down")}},
            spellings={"mlp.router": "gate.weight", "mlp.all_experts": "stack"},
        )


def experts() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    names = [f"expert.{e}.{part}" for e in range(2) for part in ("up", "down")]
    return {name: torch.randn(2, 3, generator=generator) for name in [*names, "router.weight"]}


def test_a_stack_consists_of_the_rows_of_its_matrices():
    model, tensors = Experts(), experts()
    load_weights(model, tensors.items())
    for e in range(2):
        expected = torch.cat([tensors[f"expert.{e}.up"], tensors[f"expert.{e}.down"]])
        assert torch.equal(model.stack[e], expected)
    exported = dict(export_weights(model))
    assert exported.keys() == tensors.keys()
    assert all(torch.equal(exported[name], tensors[name]) for name in tensors)


def test_other_spellings_fill_whole_parameters():
    first, second = Experts(), Experts()
    load_weights(first, experts().items())
    load_weights(
        second, [("mlp.all_experts", first.stack.detach()), ("mlp.router", first.gate.weight.detach())]
    )
    assert torch.equal(first.stack, second.stack)
    assert torch.equal(first.gate.weight, second.gate.weight)


def test_spellings_are_as_strict_as_names():
    stack = torch.zeros(2, 4, 3)
    with pytest.raises(WeightsError) as caught:
        load_weights(Experts(), [("mlp.all_experts", stack[:, :3]), ("expert.1.up", torch.zeros(2, 3))])
    assert str(caught.value).splitlines() == [
        "The weights do not fit Experts: 1 missing, 1 unexpected, 1 misshapen",
        "  misshapen   mlp.all_experts [2, 3, 3], expected [2, 4, 3]",
        "  missing     router.weight, expected [2, 3]",
        "  unexpected  expert.1.up given twice",
    ]
    with pytest.raises(WeightsError, match=r"unexpected  mlp\.all_experts given twice"):
        load_weights(Experts(), [*experts().items(), ("mlp.all_experts", stack)])


class Split(nn.Module):
    """One checkpoint tensor for two parameters, one of which other files hold by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = nn.Linear(3, 4, bias=False)
        self.q = nn.Linear(3, 2, bias=False)
        self.weight_map = WeightMap(
            split={"in_proj.weight": {"q.weight": 2, "kv.weight": 4}},
            spellings={"q_proj.weight": "q.weight", "kv_proj.weight": "kv.weight"},
        )


def test_a_split_tensor_fills_its_parameters_first_rows_first():
    model, whole = Split(), torch.arange(18.0).view(6, 3)
    load_weights(model, [("in_proj.weight", whole)])
    assert torch.equal(model.q.weight, whole[:2])
    assert torch.equal(model.kv.weight, whole[2:])
    assert torch.equal(dict(export_weights(model))["in_proj.weight"], whole)
    with pytest.raises(WeightsError, match=r"in_proj.weight \[5, 3\], expected \[6, 3\]"):
        load_weights(model, [("in_proj.weight", whole[:5])])


def test_parts_of_a_split_tensor_may_come_by_themselves():
    model, whole = Split(), torch.arange(18.0).view(6, 3)
    parts = [("q_proj.weight", whole[:2]), ("kv_proj.weight", whole[2:])]
    load_weights(model, parts)
    assert torch.equal(model.kv.weight, whole[2:])
    with pytest.raises(WeightsError, match=r"missing     in_proj.weight"):
        load_weights(Split(), parts[:1])
    with pytest.raises(WeightsError, match=r"in_proj\.weight given twice"):
        load_weights(Split(), [*parts, ("in_proj.weight", whole)])


def test_maps_of_parts_join_under_their_names():
    one = WeightMap({"w.*": "a.*"}, {"b.weight": {"q": 2, ZEROS: 1}}, ignored=("old.*",))
    both = one.under("left.", "l.") | Split().weight_map.under("right.")
    assert both.sources("l.a.x", 5) == [Source("left.w.x", 5)]
    assert both.sources("l.b.weight", 3) == [Source("left.q", 2), Source(ZEROS, 1)]
    assert both.sources("kv.weight", 4) == [Source("right.in_proj.weight", 4, first=2)]
    assert both.respelled("right.q_proj.weight") == "q.weight"
    assert both.ignores("left.old.bias")
    assert not both.ignores("right.old.bias")
    assert both.sources("a.x", 5) == []
