"""The second look of the gate: what a rounding of the inputs moves is no error; what is wrong stays wrong."""

import pytest
import torch

from fastkernels import registry
from fastkernels.judge import compare
from fastkernels.judge.conditioning import conditioning, step
from fastkernels.judge.oracle import Oracle
from fastkernels.loader.inputs import draw, trial_specs
from fastkernels.loader.materialize import build_module
from fastkernels.loader.overlay import Overlay


def case_of(task: str, dtype: str | None = None):
    cases = registry.cases(task, size="tiny")
    case = next(c for c in cases if (c.timed and c.batch is not None) or (task.startswith("L1") and c.timed))
    return case if dtype is None else case.model_copy(update={"dtype": dtype})


@pytest.fixture(scope="module", params=["L1/rms_norm", "L3/decoder_layer"])
def trial(request):
    case = case_of(request.param)
    overlay = Overlay.over_baseline()
    inputs = draw(trial_specs(case, build_module(overlay, case, "meta")), case, 3, "normal", "cpu")
    oracle = Oracle(case, overlay, "cpu")
    truth = oracle(inputs)
    return case, inputs, oracle, truth, conditioning(oracle, oracle.plain, inputs, truth, case, seed=5)


def test_a_rounding_moves_a_well_conditioned_answer_by_about_a_rounding(trial):
    _, _, _, truth, moves = trial
    eps = torch.finfo(torch.float32).eps
    assert set(moves) == {name for name, value in truth.items() if value.is_floating_point()}
    assert all(eps / 100 < m.whole < 30 * eps for m in moves.values())


def test_what_is_wrong_stays_wrong(trial):
    _, _, _, truth, moves = trial
    baseline = {name: value.float() if value.is_floating_point() else value for name, value in truth.items()}

    def judged(change):
        ours = {**baseline, "out.0": change(baseline["out.0"].clone())}
        return compare.compare(ours, baseline, truth, moves)

    def without_last_row(y):
        y[-1] = 0
        return y

    assert judged(lambda y: y).passed
    for change in (
        lambda y: y.bfloat16().float(),
        lambda y: y.half().float(),
        torch.zeros_like,
        without_last_row,
    ):
        assert judged(change).verdict.label == "WRONG(value)"


def test_an_ill_conditioned_answer_allows_what_its_inputs_allow():
    case = case_of("L3/decoder_layer")
    # A difference of nearly equal numbers: a rounding of x moves it by a tenth.
    inputs = {"arg.x": torch.tensor([[1.0, 1.0 + 1e-6]], dtype=torch.float64)}

    def oracle(tensors):
        x = tensors["arg.x"]
        return {"out.0": x[:, 1:] - x[:, :1]}

    truth = oracle(inputs)
    lucky = {"out.0": truth["out.0"].float()}
    honest = {"out.0": truth["out.0"].float() * (1 + 0.02)}
    wrong = {"out.0": truth["out.0"].float() * 2}
    moves = conditioning(oracle, oracle, inputs, truth, case, seed=1)
    assert compare.compare(honest, lucky, truth).verdict.label == "WRONG(value)"
    assert compare.compare(honest, lucky, truth, moves).passed
    assert compare.compare(wrong, lucky, truth, moves).verdict.label == "WRONG(value)"


def test_equal_values_are_rounded_alike():
    """The mean of equal numbers moves as each of them does; of different ones, hardly."""
    case = case_of("L3/decoder_layer")

    def mean(tensors):
        return {"out.0": tensors["arg.x"].double().mean(-1, keepdim=True)}

    def moved(x):
        inputs = {"arg.x": x}
        return conditioning(mean, mean, inputs, mean(inputs), case, seed=1)["out.0"].whole

    eps = torch.finfo(torch.float32).eps
    assert moved(torch.full((1, 4096), 1.7)) > eps / 10
    assert moved(1.7 + torch.rand(1, 4096, generator=torch.Generator().manual_seed(1))) < eps / 10


def test_a_single_operation_may_add_up_in_any_order():
    """Equal values without their mean are what the sum was rounded by. That they move together hides it."""

    def centred(tensors):
        x = tensors["arg.x"].double()
        return {"out.0": 1 + 1e3 * (x - x.mean(-1, keepdim=True))}

    def moved(task):
        inputs = {"arg.x": torch.full((1, 64), 1.7)}
        return conditioning(centred, centred, inputs, centred(inputs), case_of(task), seed=1)["out.0"].whole

    one_after_another = torch.full((64,), 1.7).cumsum(0)[-1] / 64 - 1.7
    assert abs(float(one_after_another)) * 1e3 < 2 * moved("L1/rms_norm") < 1e-2
    assert moved("L3/decoder_layer") < 1e-9


def test_plain_arithmetic_in_the_same_dtype_is_right():
    """A sum of many numbers that cancel: one order of adding is lucky, another is not."""
    case = case_of("L3/decoder_layer")
    inputs = {"arg.x": torch.randn(1, 100_000, generator=torch.Generator().manual_seed(2))}

    def oracle(tensors):
        return {"out.0": tensors["arg.x"].double().sum(-1, keepdim=True)}

    def plain(tensors):
        return {"out.0": tensors["arg.x"].float().cumsum(-1)[:, -1:]}  # one after another

    truth = oracle(inputs)
    error = compare.errors(plain(inputs)["out.0"], truth["out.0"]).whole
    assert conditioning(oracle, plain, inputs, truth, case, seed=1)["out.0"].whole >= error > 0


def test_a_single_operation_is_granted_float32_whatever_its_dtype():
    assert step(case_of("L1/rms_norm", "bfloat16")) == torch.finfo(torch.float32).eps
    assert step(case_of("L3/decoder_layer", "bfloat16")) == torch.finfo(torch.bfloat16).eps
