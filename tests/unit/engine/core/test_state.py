"""States in the engine itself: a small model with a paged cache and two kinds of states, chunked, preempted
and run ahead, against the same model over each whole sequence at once. Float64: every choice is the same.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fastkernels.baseline.L1.sampling import Sampler
from fastkernels.baseline.L2.gated_linear_attention import GatedLinearAttention
from fastkernels.baseline.L2.paged_attention import PagedAttention
from torch import Tensor, nn

from fastkernels.engine.core.arrivals import Arrivals
from fastkernels.engine.core.build import Machinery, Options, build
from fastkernels.engine.core.memory import Limits, rows_for_states
from fastkernels.engine.core.request import Request
from fastkernels.engine.core.rows import DeviceRows
from fastkernels.engine.core.sampling_params import SamplingParams
from fastkernels.errors import MachineError, UsageError
from fastkernels.nn.cache import allocate, allocate_states
from fastkernels.nn.context import use_step
from fastkernels.nn.random_weights import random_weights
from tests.helpers import make_positions, make_step
from tests.unit.engine.fake_device import Trial, serve

CPU, F64 = torch.device("cpu"), torch.float64
VOCABULARY, WIDTH, BLOCK_SIZE, MAX_LEN = 61, 16, 4, 64


class Hybrid(nn.Module):
    """Softmax attention between two layers of linear attention with states of unlike shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.first = GatedLinearAttention(WIDTH, num_heads=2, key_dim=4, value_dim=8)
        self.attention = PagedAttention(num_heads=2, head_size=8, scale=0.3, num_kv_heads=2)
        self.second = GatedLinearAttention(WIDTH, num_heads=1, key_dim=8, value_dim=16)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.sampler = Sampler()

    def forward(self, ids_T: Tensor, positions_T: Tensor) -> Tensor:
        x_TD = self.embed(ids_T)
        x_TD = x_TD + self.first(x_TD)
        x_TD = x_TD + self.attention(x_TD, x_TD, x_TD)
        return x_TD + self.second(x_TD)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return self.head(hidden)


def hybrid() -> Hybrid:
    previous = torch.get_default_dtype()
    torch.set_default_dtype(F64)
    try:
        model = Hybrid().eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(previous)
    random_weights(model, seed=1)
    return model


def alone(model: Hybrid, request: Request) -> list[int]:
    """The greedy ids of a request, each from one prefill of everything before it."""
    ids = list(request.prompt)
    while len(ids) < len(request.prompt) + request.max_tokens:
        allocate(model, 20, BLOCK_SIZE, F64, "cpu")
        allocate_states(model, 2, F64, "cpu")
        with torch.inference_mode(), use_step(make_step([len(ids)], [len(ids)], BLOCK_SIZE, 20)):
            hidden_TD = model(torch.tensor(ids), make_positions([len(ids)], [len(ids)]))
        ids.append(int(model.compute_logits(hidden_TD[-1:]).argmax()))
    return ids[len(request.prompt) :]


def engine(rows: int = 5, tokens: int = 16, blocks: int = 18, prefixes: bool = False) -> Machinery:
    options = Options(0.9, blocks, enforce_eager=False, enable_prefix_caching=prefixes)
    return build(hybrid(), VOCABULARY, Limits(rows, MAX_LEN, tokens, BLOCK_SIZE), F64, CPU, options)


def run(seed: int) -> tuple[dict[int, list[int]], dict[int, list[int]], int]:
    """(ids of the engine, ids of lone runs, preemptions) of random greedy requests."""
    rng = np.random.default_rng(seed)
    requests = [
        Request(
            serial,
            rng.integers(0, VOCABULARY, int(rng.integers(1, 30))).tolist(),
            SamplingParams(temperature=0.0),
            seed=0,
            max_tokens=int(rng.integers(1, 14)),
        )
        for serial in range(12)
    ]
    expected = {request.serial: alone(hybrid(), request) for request in requests}
    made = engine()
    arrivals = Arrivals(made.scheduler.ledger)
    trial = Trial(made.scheduler, arrivals, made.runner, requests, [None], rng, 0.0)  # pyright: ignore[reportArgumentType]
    return serve(trial, ahead=seed % 2), expected, made.scheduler.ledger.num_preemptions


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.usefixtures("nobody_grows")
def test_ids_are_those_of_lone_runs(seed):
    found, expected, preemptions = run(seed)
    assert found == expected
    assert preemptions > 0, "nothing was preempted: the test lost its strength"


def not_zeroed(monkeypatch):
    admit = DeviceRows._admit

    def keep(self, sections, extent):
        states, self.states = self.states, []
        admit(self, sections, extent)
        self.states = states

    monkeypatch.setattr(DeviceRows, "_admit", keep)


def changed_step(monkeypatch, change):
    inputs = DeviceRows.inputs

    def changed(self, sections, extent):
        made = inputs(self, sections, extent)
        change(self, made.step)
        return made

    monkeypatch.setattr(DeviceRows, "inputs", changed)


def of_another_row(monkeypatch):
    def change(rows, step):
        step.rows_B = torch.arange(1, len(step.rows_B) + 1)

    changed_step(monkeypatch, change)


def lost_between_chunks(monkeypatch):
    def change(rows, step):
        for state in rows.states:
            state.index_fill_(1, step.rows_B[step.num_decodes :], 0)

    changed_step(monkeypatch, change)


@pytest.mark.parametrize("bug", [not_zeroed, of_another_row, lost_between_chunks])
def test_a_seeded_bug_is_caught(bug, monkeypatch):
    bug(monkeypatch)
    found, expected, _ = run(0)
    assert found != expected


def test_states_lie_in_one_pool_for_each_group_and_only_taken_rows_are_zeroed():
    rows = engine(rows=5).runner.rows
    assert [tuple(state.shape) for state in rows.states] == [(1, 6, 2, 4, 8), (1, 6, 1, 8, 16)]
    assert all(state.dtype == F64 for state in rows.states)
    model = nn.Sequential(*(GatedLinearAttention(8, 1, 4, 8) for _ in range(3))).to(torch.bfloat16)
    (state,) = allocate_states(model, 7, torch.bfloat16, "cpu")
    assert tuple(state.shape) == (3, 7, 1, 4, 8)
    assert state.dtype == torch.float32
    assert [part.state.data_ptr() for part in model] == [state[i].data_ptr() for i in range(3)]


def test_prefix_caching_is_refused_and_says_why():
    with pytest.raises(UsageError, match=r"enable_prefix_caching: .* state for each request"):
        engine(prefixes=True)


def test_rows_are_as_many_as_have_room_for_their_states(monkeypatch):
    model = hybrid()  # 192 float64 values a row
    monkeypatch.setattr("fastkernels.engine.core.memory.available_bytes", lambda device: 192 * 8 * 21)
    assert rows_for_states(model, 256, False, F64, CPU, 0.9) == 9, "half of the room, less the null row"
    assert rows_for_states(model, 4, False, F64, CPU, 0.9) == 4
    assert rows_for_states(model, 20, True, F64, CPU, 0.9) == 20
    with pytest.raises(MachineError, match="lower max_num_seqs"):
        rows_for_states(model, 21, True, F64, CPU, 0.9)
    assert rows_for_states(nn.Linear(2, 2), 256, False, F64, CPU, 0.9) == 256
