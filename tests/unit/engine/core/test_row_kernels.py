"""The Triton kernels of a decode step against index operations, in the interpreter; compiled for Hopper."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
from triton.compiler import ASTSource

from fastkernels.engine.core import row_kernels
from fastkernels.kernels.policy import interpreting
from tests.row_cases import MAX_LEN, SIZES, check_decode_step, device_rows
from tests.unit.kernels.hopper import HOPPER

IN_TRITON = pytest.mark.skipif(not interpreting(), reason="runs in the interpreter, below")
COMPILED = pytest.mark.skipif(interpreting(), reason="the interpreter compiles nothing")


@pytest.fixture
def filled():
    """torch.empty gives NaN and the largest integers: what a kernel leaves out differs."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@IN_TRITON
@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(
    ("count", "padded", "bound"),
    [(1, 1, 64), (1, 2, 2048), (5, 8, 257), (6, 6, MAX_LEN), (0, 4, 2048), (130, 130, 30)],
)
def test_kernels_do_what_index_operations_do(sizes, count, padded, bound):
    check_decode_step("cpu", sizes, count, padded, bound, seed=count)


@IN_TRITON
def test_ids_may_be_a_column_or_one_for_all_rows():
    """A candidate's sampler may return any strides; another shape is refused, not read past its end."""
    rows = device_rows(4, [16], "cpu", seed=0)
    rows.frozen_R.zero_()
    inputs = make_inputs(rows)
    rows.write_back(inputs, torch.tensor([[5, 0], [6, 0]], dtype=torch.int32)[:, 0])
    assert rows.tokens_RL[[1, 2], [10, 20]].tolist() == [5, 6]
    rows.write_back(inputs, torch.tensor([8]))
    assert rows.tokens_RL[[1, 2], [10, 20]].tolist() == [8, 8]
    with pytest.raises(RuntimeError, match="expand"):
        rows.write_back(inputs, torch.tensor([1, 2, 3]))


def make_inputs(rows):
    packet = {"rows": torch.tensor([1, 2]), "starts": torch.tensor([9, 19]), "slot": torch.tensor([1])}
    none = dict.fromkeys(("table0.rows", "table0.indices", "table0.blocks"), torch.zeros(2))
    return rows.decode_inputs({name: part.int() for name, part in {**packet, **none}.items()}, 32)


def test_in_the_interpreter() -> None:
    if interpreting():
        return
    here = Path(__file__).parent
    files = [str(here / name) for name in ("test_row_kernels.py", "test_rows.py")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "-rs", *files],
        cwd=here.parents[2],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "runs in the interpreter" not in done.stdout


class Recorder:
    """In place of a kernel: keeps the arguments of its launch."""

    def __getitem__(self, grid):
        return self

    def __call__(self, *args, **constants):
        self.args, self.constants = args, constants


def signature_of(value):
    """What a launch makes of an argument: its type, for tuples by element."""
    if isinstance(value, tuple):
        return tuple(map(signature_of, value))
    if isinstance(value, int):
        return "i32"
    return {
        torch.int32: "*i32",
        torch.int64: "*i64",
        torch.float32: "*fp32",
        torch.bool: "*i1",
    }[value.dtype]


def aligned(signature, path):
    """Pointers are multiples of 16 bytes."""
    if isinstance(signature, tuple):
        return {k: v for i, part in enumerate(signature) for k, v in aligned(part, (*path, i)).items()}
    return {path: [["tt.divisibility", 16]]} if signature.startswith("*") else {}


@COMPILED
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_kernels_compile_for_hopper(sizes, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    rows = device_rows(6, sizes, "cpu", seed=0)
    parts = (
        "rows",
        "starts",
        "slot",
        *(f"table{g}.{n}" for g in range(3) for n in ("rows", "indices", "blocks")),
    )
    recorders = {}
    for name in ("_decode_inputs", "_write_back"):
        recorders[name] = getattr(row_kernels, name), Recorder()
        monkeypatch.setattr(row_kernels, name, recorders[name][1])
    made = row_kernels.decode_inputs(rows, dict.fromkeys(parts, torch.zeros(512, dtype=torch.int32)), 2048)
    row_kernels.write_back(rows, made, made.rows_S)
    for kernel, launch in recorders.values():
        values = dict(zip(kernel.arg_names, launch.args))
        signature = {name: signature_of(value) for name, value in values.items()}
        attributes = {k: v for i, t in enumerate(signature.values()) for k, v in aligned(t, (i,)).items()}
        signature |= dict.fromkeys(launch.constants, "constexpr")
        constants = {(kernel.arg_names.index(name),): value for name, value in launch.constants.items()}
        built = triton.compile(ASTSource(kernel, signature, constants, attributes), target=HOPPER)
        assert ".local" not in built.asm["ptx"], "registers are spilled"
