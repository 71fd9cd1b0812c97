"""Programs over stages: several stages, lists of needs, batching by key, loops and failures."""

from __future__ import annotations

import pytest
import torch

from fastkernels.engine.core.cache import BlockCache
from fastkernels.engine.core.request import Request
from fastkernels.engine.core.sampling_params import SamplingParams
from fastkernels.engine.core.scheduler import Scheduler
from fastkernels.engine.programs.batch_stage import BatchStage
from fastkernels.engine.programs.program import Engine, Tokens
from fastkernels.engine.programs.token_stage import TokenStage
from fastkernels.errors import RequestError
from fastkernels.nn.program import Call
from tests.unit.engine.fake_device import BlockGroup, FakeDevice, sequential


def encoder() -> BatchStage:
    return BatchStage(lambda x_BN, scale: x_BN * scale)


def language_model() -> TokenStage:
    group = BlockGroup(5, 64, 60, 4)

    def make(serial: int, need: Tokens) -> Request:
        if not need.tokens:
            raise RequestError("empty")
        return Request(serial, need.tokens, need.sampling, seed=0, max_tokens=need.sampling.max_tokens)

    return TokenStage(Scheduler(BlockCache([group]), 4, 64, 16), FakeDevice([group]), make)


def test_equal_keys_share_a_launch():
    stage = encoder()

    def program(size, scale):
        return (yield Call("encoder", torch.full((size,), 2.0), scale))

    sizes = [(3, 1), (3, 1), (4, 1), (3, 5), (3, 1)]
    results = Engine({"encoder": stage}).run(program(*s) for s in sizes)
    assert [r.tolist() for r in results] == [[2.0 * scale] * size for size, scale in sizes]
    assert sorted(stage.batch_sizes) == [1, 1, 3]


def test_batch_has_a_limit():
    stage = BatchStage(lambda x_BN: x_BN + 1, max_batch=4)

    def program(value):
        return (yield Call("net", torch.tensor([value])))

    results = Engine({"net": stage}).run(program(float(i)) for i in range(10))
    assert [r.item() for r in results] == [i + 1.0 for i in range(10)]
    assert stage.batch_sizes == [4, 4, 2]


def test_loop_feeds_the_result_back_and_keeps_the_other_arguments():
    stage = BatchStage(lambda x_BN, pair: x_BN * pair[0] + pair[1])

    def program(x):
        return (yield Call("denoise", torch.tensor([x]), [torch.tensor([2.0]), torch.tensor([1.0])], loop=3))

    assert [r.item() for r in Engine({"denoise": stage}).run([program(0.0), program(1.0)])] == [7.0, 15.0]
    assert stage.batch_sizes == [2]


def test_program_over_an_encoder_and_a_language_model():
    lm = language_model()

    def program(patches):
        features = yield [Call("encoder", torch.tensor([float(p)]), 3) for p in patches]
        tokens = [int(f.item()) for f in features]
        request = yield Tokens("lm", tokens, SamplingParams(max_tokens=5))
        return tokens, request.output

    inputs = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10], [11], [12, 13]]
    results = Engine({"encoder": encoder(), "lm": lm}).run(program(p) for p in inputs)
    for patches, (tokens, output) in zip(inputs, results):
        assert tokens == [3 * p for p in patches]
        assert output == sequential(Request(0, tokens, SamplingParams(), 0, 5), [None])


def test_refused_request_does_not_harm_the_others():
    def program(tokens):
        return (yield [Tokens("lm", part, SamplingParams(max_tokens=3)) for part in tokens])

    lm, done = language_model(), []
    results = Engine({"lm": lm}).run([program([[1, 2]]), program([[5], []]), program([[3]])], done.append)
    assert isinstance(results[1], RequestError)
    assert [len(results[i][0].output) for i in (0, 2)] == [3, 3]
    assert sorted(done) == [0, 1, 2]
    assert lm.ledger.is_idle


def test_program_can_handle_a_refusal_itself():
    def program():
        try:
            yield Tokens("lm", [], SamplingParams())
        except RequestError:
            return "refused"

    assert Engine({"lm": language_model()}).run([program()]) == ["refused"]


def test_cancelled_program_leaves_nothing_behind():
    """One in the middle of a text, one in a batch that waits, one that has ended."""
    lm, net = language_model(), BatchStage(lambda x_BN: x_BN + 1, max_batch=1)
    engine, closed = Engine({"net": net, "lm": lm}), []

    def text(tokens):
        try:
            return (yield Tokens("lm", tokens, SamplingParams(max_tokens=9)))
        finally:
            closed.append(tokens)

    def call(value):
        return (yield [Call("net", torch.tensor([value])) for _ in range(3)])

    numbers = [engine.start(program) for program in (text([1, 2]), text([3]), call(1.0), call(5.0))]
    ended = engine.step() + engine.step()
    engine.cancel(numbers[0])
    engine.cancel(numbers[2])
    assert closed == [[1, 2]]
    while not engine.is_idle:
        ended += engine.step()
    values = dict(ended)
    assert set(values) == {numbers[1], numbers[3]}
    assert len(values[numbers[1]].output) == 9
    assert [float(x) for x in values[numbers[3]]] == [6.0] * 3
    assert sum(net.batch_sizes) < 6, "calls that nobody waits for are not made"
    engine.cancel(numbers[1])
    assert lm.ledger.is_idle
    assert lm.ledger.cache.num_free == [59]


def test_refused_list_takes_its_other_needs_back():
    lm = language_model()

    def program():
        return (yield [Tokens("lm", [1], SamplingParams(max_tokens=5)), Tokens("lm", [], SamplingParams())])

    engine = Engine({"lm": lm})
    engine.start(program())
    ((_, error),) = engine.step()
    assert isinstance(error, RequestError)
    assert lm.ledger.is_idle


def test_failure_of_a_stage_empties_the_engine():
    calls = []

    def fails(x_BN):
        calls.append(len(x_BN))
        if len(calls) == 1:
            raise ArithmeticError("kernel")
        return x_BN

    def program(value):
        yield Tokens("lm", [1, 2], SamplingParams(max_tokens=2))
        return (yield Call("net", torch.tensor([value])))

    engine = Engine({"net": BatchStage(fails), "lm": language_model()})
    with pytest.raises(ArithmeticError):
        engine.run(program(float(i)) for i in range(3))
    assert [r.item() for r in engine.run(program(float(i)) for i in range(3))] == [0.0, 1.0, 2.0]


def test_program_without_needs_and_empty_list():
    def nothing():
        return 5
        yield

    def empty():
        return (yield [])

    assert Engine({}).run([nothing(), empty()]) == [5, []]


def test_unknown_stage_is_named():
    def program():
        yield Call("vae", 1)

    with pytest.raises(KeyError, match="No stage 'vae'; there are lm"):
        Engine({"lm": language_model()}).run([program()])
