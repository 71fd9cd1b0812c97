"""Images of any resolution through one packed pass, and graphs of stateless calls with a replay that computes
eagerly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fastkernels.engine.encoder import Encoder
from fastkernels.engine.llm import LLM
from fastkernels.engine.programs.batch_stage import BatchStage
from fastkernels.engine.programs.call_graphs import CallGraphs
from fastkernels.engine.programs.program import Engine
from fastkernels.errors import RequestError, UsageError
from fastkernels.nn.batching import Crossing, words_of
from fastkernels.nn.program import Call

CPU = torch.device("cpu")


@dataclass
class EagerReplay:
    """Stands for a CUDA graph: computes from its static arguments into its static result."""

    function: Any
    result: Any

    def replay(self) -> None:
        for old, new in zip(tree_leaves(self.result), tree_leaves(self.function())):
            old.copy_(new)


class EagerGraphs(CallGraphs):
    """Decides as on CUDA, without capturing."""

    def __init__(self, function: Any) -> None:
        super().__init__(function, CPU)
        self.pool.disabled = None
        self.pool.capture = self._recorded  # type: ignore[assignment]

    def _recorded(self, function: Any) -> tuple[EagerReplay, Any]:
        result = function()
        return EagerReplay(function, result), result


def replaying(face: Any) -> Any:
    """The face, its graphs replayed as on CUDA."""
    for name, stage in face.stages.items():
        face.graphs[name] = stage.function = EagerGraphs(face.graphs[name].function)
    return face


def images(sizes: list[tuple[int, int]], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 256, (*size, 3), generator=generator, dtype=torch.uint8) for size in sizes]


def encoder(**options: Any) -> Encoder:
    return Encoder("siglip2", config="tiny", device="cpu", **options)


MIXED = [(48, 48), (48, 64), (48, 48), (8, 8), (16, 104), (48, 48)]


def test_mixed_resolutions_share_a_pass_and_equal_single_passes():
    together, alone = encoder(), encoder(max_batch=1)
    features = together.encode(images(MIXED))
    assert together.stages["forward"].batch_sizes == [6]
    torch.testing.assert_close(features, alone.encode(images(MIXED)), rtol=0, atol=1e-5)
    assert alone.stages["forward"].batch_sizes == [1] * 6
    assert features.shape == (6, 64)
    assert features.std(0).min() > 0.05, "features must tell images apart"


def test_patches_are_rows_columns_channels_in_raster_order():
    (image,) = images([(16, 24)])
    batching = encoder().stages["forward"].batching
    pixels_TP, shapes_B2, starts_B1, longest = batching.join([(image,)])
    assert shapes_B2.tolist() == [[2, 3]]
    assert starts_B1.tolist() == [0, 6]
    assert longest == 6
    for row in range(2):
        for column in range(3):
            patch = image[8 * row : 8 * row + 8, 8 * column : 8 * column + 8].flatten().float() / 127.5 - 1
            torch.testing.assert_close(pixels_TP[3 * row + column], patch)


@pytest.mark.parametrize(
    ("image", "says"),
    [
        (torch.zeros(48, 48, 3), "uint8"),
        (torch.zeros(48, 48, dtype=torch.uint8), "uint8"),
        (torch.zeros(48, 48, 4, dtype=torch.uint8), "4 channels.*Convert"),
        (torch.zeros(48, 48, 1, dtype=torch.uint8), "1 channels.*Convert"),
        (b"no image", "request 1: .*not bytes"),
        (None, "not NoneType"),
        (torch.zeros(48, 44, 3, dtype=torch.uint8), "48 x 44 pixels"),
        (torch.zeros(0, 48, 3, dtype=torch.uint8), "0 x 48 pixels is empty"),
        (torch.zeros(1, 1, 3, dtype=torch.uint8).expand(4100, 4096, 3), "at most 16777216.*Resize"),
    ],
)
def test_refused_images_do_no_harm(image: object, says: str):
    one = encoder()
    good = images([(48, 48)])
    with pytest.raises(RequestError, match=says):
        one.encode([*good, image])
    assert one.stages["forward"].batch_sizes == [], "nothing is computed before all are known to be right"
    (expected,) = one.encode(good)
    first, refused, last = one.encode([*good, image, *good], errors="return")
    assert isinstance(refused, RequestError)
    for feature in (first, last):
        torch.testing.assert_close(feature, expected, rtol=0, atol=1e-5)
    assert one.encode([]).shape == (0, 64)
    assert one.encode([], errors="return") == []


def test_errors_are_raised_or_returned():
    with pytest.raises(UsageError, match="errors='ignore': there are 'raise' and 'return'"):
        encoder().encode([], errors="ignore")  # type: ignore[call-overload]
    with pytest.raises(RequestError, match="requests come in a list: None is none"):
        encoder().encode(None)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "wrong", [{"max_batch": -1}, {"max_batch": 0}, {"max_batch": "8"}, {"seed": -1}], ids=str
)
def test_wrong_arguments_are_named(wrong: dict[str, Any]):
    (name,) = wrong
    with pytest.raises(UsageError, match=f"{name}=.*: must"):
        encoder(**wrong)


def test_each_face_serves_its_kind_of_answer():
    with pytest.raises(UsageError, match="siglip2:tiny answers with features: LLM serves"):
        LLM("siglip2", size="tiny")
    with pytest.raises(UsageError, match="llama:tiny answers with tokens: Encoder serves"):
        Encoder("llama", size="tiny")


def test_second_call_of_a_signature_is_captured_and_later_ones_replay_with_their_own_inputs():
    calls = []

    def function(x_BN: Tensor, scale: int) -> Tensor:
        calls.append(len(x_BN))
        return x_BN * scale

    graphs = EagerGraphs(function)
    stage = BatchStage(graphs)

    def program(values: list[float], scale: int):
        return (yield Call("net", torch.tensor(values), scale))

    def run(size: int, scale: int) -> list[list[float]]:
        needs = [[float(i), float(size + i)] for i in range(size)]
        found = Engine({"net": stage}).run(program(need, scale) for need in needs)
        assert [x.tolist() for x in found] == [[scale * v for v in need] for need in needs]
        return found

    first = run(3, 2)
    assert graphs.stats()["graphs"] == 0
    run(3, 2)
    assert (graphs.stats()["graphs"], graphs.num_replays) == (1, 1)
    kept = run(3, 2)
    again = run(3, 2)
    assert graphs.num_replays == 3
    assert all(torch.equal(a, b) for a, b in zip(kept, again))
    assert kept[0].data_ptr() != again[0].data_ptr(), "a replay must not write into earlier results"
    run(4, 2)  # another shape
    run(3, 5)  # another argument
    assert graphs.num_replays == 3
    assert graphs.stats()["eager_calls"] == {"first call of its shapes": 3}
    assert [x.tolist() for x in first] == [[2.0 * i, 2.0 * (3 + i)] for i in range(3)]


def test_results_of_a_replay_outlive_the_next():
    graphs = EagerGraphs(lambda x_N: x_N + 1)
    kept = [graphs(torch.full((2,), float(i))) for i in range(4)]
    assert [x[0].item() for x in kept] == [1.0, 2.0, 3.0, 4.0]
    assert graphs.num_replays == 3


def test_a_replay_reads_what_crosses_now():
    """Arrays of one buffer, bfloat16 among them, beside an argument that is none of them."""
    graphs = EagerGraphs(lambda x_N, ids_M, times: (times * x_N.float(), ids_M + 1))
    for i in range(4):
        crossing = Crossing(CPU, ((3,), torch.bfloat16), ((2, 1), torch.int32))
        x_N, ids_M = crossing.arrays()
        x_N[...] = words_of(torch.tensor([0.5, -1.0, i], dtype=torch.float64), torch.bfloat16)
        ids_M[...] = i
        scaled_N, raised_M = graphs(crossing, 2)
        assert scaled_N.tolist() == [1.0, -2.0, 2.0 * i]
        assert raised_M.tolist() == [[i + 1]] * 2
    assert graphs.num_replays == 3


def test_graphs_serve_other_grids_of_the_same_extent():
    """T, B and the longest image are the signature; the grids themselves are data."""
    plain, replayed = encoder(), replaying(encoder())
    for seed, sizes in enumerate(([(48, 48), (8, 16)], [(48, 48), (16, 8)], [(16, 8), (72, 32)])):
        expected = plain.encode(images(sizes, seed))
        torch.testing.assert_close(replayed.encode(images(sizes, seed)), expected, rtol=0, atol=1e-5)
    assert replayed.stats()["forward"]["graph_replays"] == 2


def test_failed_capture_is_counted_with_its_reason_and_harms_nothing():
    class Failing(EagerGraphs):
        def _recorded(self, function: Any) -> tuple[EagerReplay, Any]:
            raise RuntimeError("operation not permitted\nwhen stream is capturing")

    graphs = Failing(lambda x_N: 2 * x_N)
    for i in range(4):
        assert graphs(torch.full((2,), float(i))).tolist() == [2.0 * i] * 2
    assert graphs.stats()["eager_calls"] == {
        "first call of its shapes": 1,
        "capture failed: operation not permitted": 3,
    }


def test_a_loop_replays_each_turn():
    graphs = EagerGraphs(lambda x_BN, step: x_BN * step)

    def program(x: float):
        return (yield Call("denoise", torch.tensor([x]), torch.tensor([2.0]), loop=5))

    stage = BatchStage(graphs)
    assert [r.item() for r in Engine({"denoise": stage}).run([program(1.0), program(3.0)])] == [32.0, 96.0]
    assert graphs.num_replays == 4


def test_no_graphs_on_a_cpu_is_said():
    one = encoder()
    one.encode(images([(48, 48)]))
    assert one.stats()["forward"]["eager_calls"] == {"no graphs on cpu": 1}
    assert one.stats()["requests"] == 1
