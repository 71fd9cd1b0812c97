"""A rank's part of a model: the values of the whole one at the same places, and nothing else is read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fastkernels.errors import UsageError, WeightsError
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.weights import find, load_model
from fastkernels.nn.partition import Part, Partition, part_of, use_partition
from fastkernels.nn.weights import export_weights, load_weights

# What is added to the tiny configuration of an architecture, and how experts are split.
MODELS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "biases in all projections": ("llama", {"attention_bias": True, "mlp_bias": True}, False),
    "tied weights": ("llama", {"tie_word_embeddings": True}, False),
    "slices of experts": ("mixtral", {}, False),
    "whole experts": ("mixtral", {}, True),
}


def made(name: str, partition: Partition | None = None, seed: int = 3) -> torch.nn.Module:
    architecture, more, _ = MODELS[name]
    source = find(architecture, "tiny")
    source = replace(source, config={**source.config, **more})
    with use_partition(partition or Partition()):
        return load_model(source, Overlay.over_baseline(), torch.device("cpu"), torch.float32, seed)


def parts(name: str, size: int, seed: int = 3) -> list[torch.nn.Module]:
    return [made(name, Partition(rank, size, MODELS[name][2]), seed) for rank in range(size)]


def assert_are_of(models: list[torch.nn.Module], whole: torch.nn.Module) -> None:
    """Each has its places of the whole, and together they have all of it."""
    theirs = dict(whole.named_parameters())
    for rank, model in enumerate(models):
        for name, parameter in model.named_parameters():
            part = part_of(parameter)
            if part is not None and not part.runs:
                assert rank > 0
                assert not parameter.any()
            else:
                assert torch.equal(parameter, theirs[name] if part is None else part.of(theirs[name])), name
    for name, parameter in theirs.items():
        found = [part_of(dict(model.named_parameters())[name]) for model in models]
        if all(part is not None for part in found):
            places = {place for part in found for run in part.runs for place in run}  # pyright: ignore
            assert places == set(range(parameter.shape[found[0].dim])), name  # pyright: ignore


class Read:
    """A tensor of a file, of which only slices are read."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self.read = tensor, 0
        self.shape, self.dtype = tensor.shape, tensor.dtype

    def __getitem__(self, places: Any) -> Tensor:
        found = self._tensor[places]
        self.read += found.numel()
        return found


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_parts_are_of_the_whole_model(name: str, size: int) -> None:
    whole = made(name)
    assert_are_of(parts(name, size), whole)
    others = parts(name, size, seed=4)
    read = []
    for model in others:
        tensors = {key: Read(tensor) for key, tensor in export_weights(whole)}
        load_weights(model, tensors.items())  # pyright: ignore[reportArgumentType]
        read.append(sum(tensor.read for tensor in tensors.values()))
        assert read[-1] <= sum(parameter.numel() for parameter in model.parameters())
    assert_are_of(others, whole)


def test_experts_in_stacks_are_read_by_rank() -> None:
    """As transformers 5 writes them."""
    whole = made("whole experts")
    theirs = dict(export_weights(whole))
    for layer, block in enumerate(whole.layers):  # pyright: ignore
        for spelled, stack in (("gate_up_proj", "w13"), ("down_proj", "w2")):
            weight = getattr(block.block_sparse_moe.experts, stack).weight
            theirs[f"model.layers.{layer}.mlp.experts.{spelled}"] = weight.detach()
    theirs = {key: tensor for key, tensor in theirs.items() if ".experts.0" not in key}
    theirs = {
        key: tensor
        for key, tensor in theirs.items()
        if not key.endswith(("w1.weight", "w2.weight", "w3.weight"))
    }
    for name in ("whole experts", "slices of experts"):
        models = parts(name, 2, seed=4)
        for model in models:
            load_weights(model, theirs.items())
        assert_are_of(models, whole)


def test_misfits_are_told_in_the_shapes_of_the_whole_tensor() -> None:
    (model, _), whole = parts("whole experts", 2), made("whole experts")
    theirs = dict(export_weights(whole))
    theirs["model.layers.0.self_attn.o_proj.weight"] = torch.zeros(64, 32)
    elsewhere = "model.layers.1.block_sparse_moe.experts.3.w2.weight"
    theirs[elsewhere] = torch.zeros(64, 3)
    with pytest.raises(WeightsError) as error:
        load_weights(model, theirs.items())
    assert "o_proj.weight [64, 32], expected [64, 64]" in str(error.value)
    assert f"{elsewhere} [64, 3], expected [64, 160]" in str(error.value)


def test_what_cannot_be_divided_is_named() -> None:
    with pytest.raises(UsageError, match="tensor_parallel_size=8: 4 attention heads are no multiple of it"):
        made("tied weights", Partition(0, 8))
    with pytest.raises(UsageError, match="tensor_parallel_size=3: 64 experts"):
        Partition(0, 3).share(64, "experts")


def test_key_heads_are_repeated_where_there_are_more_ranks() -> None:
    found = [Partition(rank, 8).heads(32, 2) for rank in range(8)]
    assert [list(heads) for heads, _ in found] == [list(range(4 * r, 4 * r + 4)) for r in range(8)]
    assert [list(keys) for _, keys in found] == [[0]] * 4 + [[1]] * 4
    with pytest.raises(UsageError, match="6 key and value heads"):
        Partition(0, 4).heads(12, 6)


def test_places_as_rows_of_a_stack() -> None:
    stack = torch.arange(3 * 4 * 2).view(3, 4, 2)
    for dim, runs in ((0, [range(1, 3)]), (1, [range(1, 2), range(3, 4)]), (2, [range(1, 2)])):
        part = Part((3, 4, 2), dim, tuple(runs))
        rows = part.rows()
        assert torch.equal(rows.of(stack.flatten(0, 1)), part.of(stack).flatten(0, 1))
        cut = rows.within(4, 4)
        expected = Part((4, 2), 0, (range(4),)) if dim == 0 else Part((4, 2), max(dim - 1, 0), tuple(runs))
        assert torch.equal(cut.of(stack[1]), expected.of(stack[1]))
