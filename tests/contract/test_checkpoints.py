"""What every architecture promises of a checkpoint folder: it loads, and what does not fit is named at once.

Generated from registry/architectures: a new one is tested by being listed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from fastkernels import registry
from fastkernels.errors import WeightsError
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.weights import find, load_model
from fastkernels.nn.weights import export_weights
from fastkernels.registry.schema import Architecture

CPU = torch.device("cpu")
each = pytest.mark.parametrize("entry", registry.architectures(), ids=lambda entry: entry.id)


def load(model: object) -> torch.nn.Module:
    source = find(model, size="tiny")  # type: ignore[arg-type]
    return load_model(source, Overlay.over_baseline(), CPU, torch.float32, seed=0)


def checkpoint(entry: Architecture) -> dict[str, Tensor]:
    return read(load(entry.id))


def read(model: torch.nn.Module) -> dict[str, Tensor]:
    return {
        name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in export_weights(model)
    }


def write(folder: Path, entry: Architecture, tensors: dict[str, Tensor]) -> Path:
    (folder / "config.json").write_text(json.dumps(entry.configs[entry.default_config["tiny"]].config))
    save_file(tensors, folder / "model.safetensors")
    return folder


@each
def test_a_folder_gives_the_model_that_it_was_written_from(entry: Architecture, tmp_path: Path):
    before = checkpoint(entry)
    after = read(load(write(tmp_path, entry, before)))
    assert before.keys() == after.keys()
    assert [name for name in before if not torch.equal(before[name], after[name])] == []


@each
def test_what_does_not_fit_is_named_at_once_with_the_expected_shape(entry: Architecture, tmp_path: Path):
    tensors = checkpoint(entry)
    weights = [name for name in tensors if name.endswith("weight")]
    if len(weights) < 5:  # two that are missing and two that are misshapen
        pytest.skip(f"{entry.id} has {len(weights)} tensors; its parity test names those that do not fit")
    missing, misshapen = [weights[1], weights[-2]], [weights[0], weights[len(weights) // 2]]
    expected = {name: list(tensors[name].shape) for name in (*missing, *misshapen)}
    for name in missing:
        del tensors[name]
    for name in misshapen:
        tensors[name] = torch.zeros(3, *expected[name])
    tensors["no.such.tensor"] = torch.zeros(2)
    with pytest.raises(WeightsError) as raised:
        load(write(tmp_path, entry, tensors))
    told = {" ".join(line.split()) for line in str(raised.value).splitlines()}
    assert told >= {f"missing {name}, expected {expected[name]}" for name in missing}
    assert told >= {
        f"misshapen {name} {[3, *expected[name]]}, expected {expected[name]}" for name in misshapen
    }
    assert "unexpected no.such.tensor [2]" in told
    assert "2 missing, 1 unexpected, 2 misshapen" in str(raised.value)


@each
def test_at_most_twenty_are_named(entry: Architecture, tmp_path: Path):
    tensors = {f"no.such.{i}": torch.zeros(2) for i in range(30)}
    with pytest.raises(WeightsError) as raised:
        load(write(tmp_path, entry, tensors))
    head, *lines, last = str(raised.value).splitlines()
    assert "30 unexpected" in head
    assert len(lines) == 20
    assert last.split()[0] == "and"
