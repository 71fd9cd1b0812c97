"""The second look of the gate: what a rounding of the inputs moves is no error; what is wrong stays wrong."""

import functools

import pytest
import torch

from fastkernels import registry
from fastkernels.judge import bounds, compare, distance
from fastkernels.judge.conditioning import conditioning, step
from fastkernels.judge.distance import Errors
from fastkernels.judge.movements import of_values
from fastkernels.judge.oracle import Oracle
from fastkernels.loader.inputs import draw, trial_specs
from fastkernels.loader.materialize import build_module
from fastkernels.loader.overlay import Overlay


def case_of(task: str, dtype: str | None = None):
    cases = registry.cases(task, size="tiny")
    case = next(c for c in cases if (c.timed and c.batch is not None) or (task.startswith("L1") and c.timed))
    return case if dtype is None else case.model_copy(update={"dtype": dtype})


def measuring(truth):
    """What measures outputs by these, or by others."""
    names = [name for name, value in truth.items() if value.is_floating_point()]

    def measure(outputs, others=None):
        right = truth if others is None else others
        return {name: distance.distances(outputs[name], right[name]) for name in names}

    return measure


@pytest.fixture(scope="module", params=["L1/rms_norm", "L3/decoder_layer"])
def trial(request):
    case = case_of(request.param)
    overlay = Overlay.over_baseline()
    inputs = draw(trial_specs(case, build_module(overlay, case, "meta")), case, 3, "normal", "cpu")
    oracle = Oracle(case, overlay, "cpu")
    truth = oracle(inputs)
    return (
        case,
        inputs,
        oracle,
        truth,
        conditioning(oracle, oracle.plain, measuring(truth), inputs, case, seed=5),
    )


def largest(moves, case):
    """m of every output."""
    dtype = getattr(torch, case.dtype)
    errors = {name: [each.errors(dtype) for each in found] for name, found in moves.items()}
    return {name: functools.reduce(Errors.worst, found) for name, found in errors.items()}


def excused(candidate, baseline, truth, moves):
    """As a trial judges it: loosened where the first look finds it wrong."""
    standard = compare.Standard(baseline, truth)
    found = standard.compare(candidate)
    is_wrong = found.verdict.label == "WRONG(value)"
    return standard.loosened(found, standard.excuses(moves)) if is_wrong else found


def test_a_rounding_moves_a_well_conditioned_answer_by_about_a_rounding(trial):
    case, _, _, truth, moves = trial
    eps = torch.finfo(torch.float32).eps
    assert set(moves) == {name for name, value in truth.items() if value.is_floating_point()}
    assert all(eps / 100 < m.whole < 30 * eps for m in largest(moves, case).values())


def test_what_is_wrong_stays_wrong(trial):
    _, _, _, truth, moves = trial
    baseline = {name: value.float() if value.is_floating_point() else value for name, value in truth.items()}

    def judged(change):
        ours = {**baseline, "out.0": change(baseline["out.0"].clone())}
        return excused(ours, baseline, truth, moves)

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
    inputs = {"arg.x": torch.tensor([[1.0, 1.0 + 1e-6]])}

    def oracle(tensors):
        x = tensors["arg.x"].double()
        return {"out.0": x[:, 1:] - x[:, :1]}

    truth = oracle(inputs)
    lucky = {"out.0": truth["out.0"].float()}
    honest = {"out.0": truth["out.0"].float() * (1 + 0.02)}
    wrong = {"out.0": truth["out.0"].float() * 2}
    moves = conditioning(oracle, oracle, measuring(truth), inputs, case, seed=1)
    assert compare.Standard(lucky, truth).compare(honest).verdict.label == "WRONG(value)"
    assert excused(honest, lucky, truth, moves).passed
    assert excused(wrong, lucky, truth, moves).verdict.label == "WRONG(value)"


def normed(tensors):
    """Each row less 1, normed: of next to nothing, what a rounding of the inputs decides."""
    y = tensors["arg.x"].double() - 1
    return {"out.0": y / y.square().mean(-1, keepdim=True).sqrt()}


@pytest.mark.parametrize("ill", [1, 3])
def test_a_few_rows_that_move_too_far_excuse_no_other(ill):
    """A head's norm of almost nothing is a sign, which a rounding decides: no kernel has a digit there."""
    case = case_of("L3/decoder_layer")
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(32, 8, generator=generator)
    x[:ill] *= 2e-7
    inputs = {"arg.x": 1 + x}
    truth = normed(inputs)
    lucky = {"out.0": truth["out.0"].float()}

    def off(rows, factor):
        y = lucky["out.0"].clone()
        y[rows] *= factor
        return {"out.0": y}

    moves = conditioning(normed, normed, measuring(truth), inputs, case, seed=1)
    few = ill <= bounds.FEW * 32
    assert excused(off(slice(0, ill), 1.1), lucky, truth, moves).passed
    assert excused(off(slice(ill, None), 1.01), lucky, truth, moves).passed is not few


def test_rows_that_move_far_excuse_themselves_only():
    """Two of forty are differences of nearly equal numbers; a rounding moves them by a percent."""
    case = case_of("L3/decoder_layer")
    x = torch.randn(40, 16, generator=torch.Generator().manual_seed(4))
    x[:2] *= 1e-5
    inputs = {"arg.x": 1 + x}
    truth = normed(inputs)
    lucky = {"out.0": truth["out.0"].float()}
    moves = conditioning(normed, normed, measuring(truth), inputs, case, seed=1)
    for row, passes in ((0, True), (-1, False)):
        y = lucky["out.0"].clone()
        y[row] *= 1 + 2e-3
        assert excused({"out.0": y}, lucky, truth, moves).passed is passes


def test_a_row_that_is_one_number_may_be_rounded_twice_beside_a_lucky_baseline():
    """silu(a) b rounded once, and after silu as well, as torch's operators do: seen of 8 rows on an H200."""
    case = case_of("L1/glu", "bfloat16")
    a, b = torch.randn(2, 4000, generator=torch.Generator().manual_seed(2)).bfloat16()
    right = torch.nn.functional.silu(a.double()) * b.double()
    once, twice = right.bfloat16(), torch.nn.functional.silu(a) * b
    off = [((y.double() - right) / right).abs() for y in (once, twice)]
    (lucky, *_) = torch.nonzero((off[0] < 0.0005) & (off[1] > 0.004)).flatten().tolist()

    def row(values):
        return {"out.0": values[lucky].reshape(1, 1)}

    def oracle(tensors):
        return {"out.0": torch.nn.functional.silu(tensors["a"].double()) * tensors["b"].double()}

    def plain(tensors):
        return {name: value.bfloat16() for name, value in oracle(tensors).items()}

    inputs = {"a": row(a)["out.0"], "b": row(b)["out.0"]}
    moves = conditioning(oracle, plain, measuring(oracle(inputs)), inputs, case, seed=1)
    assert compare.Standard(row(once), row(right)).compare(row(twice)).verdict.label == "WRONG(value)"
    assert excused(row(twice), row(once), row(right), moves).passed
    assert largest(moves, case)["out.0"].row < bounds.floor(torch.bfloat16)
    for wrong in (once * 1.02, once * 0.98, torch.zeros_like(once)):
        assert excused(row(wrong), row(once), row(right), moves).verdict.label == "WRONG(value)"


def test_equal_values_are_rounded_alike():
    """The mean of equal numbers moves as each of them does; of different ones, hardly."""
    case = case_of("L3/decoder_layer")

    def mean(tensors):
        return {"out.0": tensors["arg.x"].double().mean(-1, keepdim=True)}

    def moved(x):
        inputs = {"arg.x": x}
        moves = conditioning(mean, mean, measuring(mean(inputs)), inputs, case, seed=1)
        return largest(moves, case)["out.0"].whole

    eps = torch.finfo(torch.float32).eps
    assert moved(torch.full((1, 4096), 1.7)) > eps / 10
    assert moved(1.7 + torch.rand(1, 4096, generator=torch.Generator().manual_seed(1))) < eps / 10


def one_after_another(x):
    """The sums of rows as a loop adds them up in float32; PyTorch's cumsum on a CPU does it in float64."""
    total = torch.zeros_like(x[:, :1])
    for element in x.split(1, dim=1):
        total = total + element
    return total


@pytest.mark.parametrize("task", ["L1/rms_norm", "L3/decoder_layer"])
@pytest.mark.parametrize("width", [64, 1152])
def test_equal_values_may_be_added_up_in_any_order_where_a_norm_is(task, width):
    """Equal values without their mean are what the sum was rounded by: the same way until it doubles."""

    def centred(tensors):
        x = tensors["arg.x"].double()
        return {"out.0": 1 + (x - x.mean(-1, keepdim=True))}

    for value in (1.7, 0.3, -2.9):
        inputs = {"arg.x": torch.full((1, width), value)}
        truth = centred(inputs)
        case = case_of(task)
        moves = conditioning(centred, centred, measuring(truth), inputs, case, seed=1)
        moved = largest(moves, case)["out.0"].whole
        x = inputs["arg.x"]
        naive = (one_after_another(x) / width - x).abs().max()
        assert 0 < naive < bounds.K * moved < width / 2 * torch.finfo(torch.float32).eps * abs(value)


def test_without_a_norm_equal_values_move_together():
    def centred(tensors):
        x = tensors["arg.x"].double()
        return {"out.0": 1 + (x - x.mean(-1, keepdim=True))}

    inputs = {"arg.x": torch.full((1, 64), 1.7)}
    case = case_of("L3/decoder_layer").model_copy(update={"task": "L2/gated_mlp"})
    moves = conditioning(centred, centred, measuring(centred(inputs)), inputs, case, seed=1)
    assert largest(moves, case)["out.0"].whole < 1e-14


def test_rows_of_different_values_in_a_module_move_as_values_only():
    """A walk along them would double what is allowed, and a missing epsilon be lost in it."""

    def centred(tensors):
        x = tensors["arg.x"].double()
        return {"out.0": 1 + (x - x.mean(-1, keepdim=True))}

    inputs = {"arg.x": torch.randn(2, 64, generator=torch.Generator().manual_seed(3))}

    def moved(task):
        case = case_of("L3/decoder_layer").model_copy(update={"task": task})
        moves = conditioning(centred, centred, measuring(centred(inputs)), inputs, case, seed=1)
        return largest(moves, case)["out.0"]

    assert moved("L3/decoder_layer") == moved("L2/gated_mlp")


def test_a_lucky_run_of_plain_arithmetic_is_not_the_only_one():
    """Exact on these inputs, wrong by a hundredth one rounding away."""
    case = case_of("L3/decoder_layer")
    inputs = {"arg.x": torch.full((1, 8), 1.5)}

    def oracle(tensors):
        return {"out.0": tensors["arg.x"].double()}

    def plain(tensors):
        x = tensors["arg.x"]
        assert x.dtype == torch.float32
        return {"out.0": x if torch.equal(x, inputs["arg.x"]) else x * 1.01}

    moves = conditioning(oracle, plain, measuring(oracle(inputs)), inputs, case, seed=1)
    found = largest(moves, case)["out.0"]
    assert found.whole == pytest.approx(0.01, rel=1e-3)


def test_plain_arithmetic_is_held_against_the_right_answer_of_its_inputs():
    """Exact everywhere: how far the answer moves counts once, not again as an error of plain arithmetic."""
    case = case_of("L3/decoder_layer", "bfloat16")
    inputs = {"arg.x": torch.randn(64, 256, generator=torch.Generator().manual_seed(0)).bfloat16()}

    def exact(tensors):
        return {"out.0": tensors["arg.x"].double()}

    moves = conditioning(exact, exact, measuring(exact(inputs)), inputs, case, seed=1)["out.0"]
    by_half_a_unit = torch.finfo(torch.bfloat16).eps / 2
    assert by_half_a_unit / 3 < largest({"out.0": moves}, case)["out.0"].whole < by_half_a_unit
    assert sum(float(each.error_R.sum()) == 0 for each in moves) == 4  # plain: here, and where values moved


def test_plain_arithmetic_in_the_same_dtype_is_right():
    """A sum of many numbers that cancel: one order of adding is lucky, another is not."""
    case = case_of("L3/decoder_layer")
    inputs = {"arg.x": torch.randn(1, 100_000, generator=torch.Generator().manual_seed(2))}

    def oracle(tensors):
        return {"out.0": tensors["arg.x"].double().sum(-1, keepdim=True)}

    def plain(tensors):
        return {"out.0": tensors["arg.x"].float().cumsum(-1)[:, -1:]}  # one after another

    truth = oracle(inputs)
    error = distance.errors(plain(inputs)["out.0"], truth["out.0"]).whole
    moves = conditioning(oracle, plain, measuring(truth), inputs, case, seed=1)
    assert largest(moves, case)["out.0"].whole >= error > 0


def test_a_single_operation_is_granted_float32_whatever_its_dtype():
    assert step(case_of("L1/rms_norm", "bfloat16")) == torch.finfo(torch.float32).eps
    assert step(case_of("L3/decoder_layer", "bfloat16")) == torch.finfo(torch.bfloat16).eps / 2
    assert step(case_of("L3/decoder_layer", "float32")) == torch.finfo(torch.float32).eps


def test_no_value_moves_farther_than_rounding_moves_it():
    x = torch.empty(1 << 16, dtype=torch.float64).uniform_(-4, 4, generator=torch.Generator().manual_seed(0))
    lost = ((x.bfloat16() - x) / x).abs().max()
    size = step(case_of("L3/decoder_layer", "bfloat16"))
    moved = (of_values(x.bfloat16(), size, 0) / x.bfloat16() - 1).abs()
    assert 0.95 * lost < moved.max() <= torch.finfo(torch.bfloat16).eps / 2


def test_what_decides_which_values_are_taken_is_not_moved():
    """Boxes of a detector: among near ties a rounding chooses others, and then any boxes would be right."""
    (case,) = [
        c for c in registry.cases("L1/detection", size="tiny") if c.id.startswith("top-yolov10-tiny-B4")
    ]
    overlay = Overlay.over_baseline()
    inputs = draw(trial_specs(case, build_module(overlay, case, "meta")), case, 3, "normal", "cpu")
    crowded = torch.linspace(0, 1e-7, inputs["arg.logits"].numel()).view_as(inputs["arg.logits"])
    inputs = {**inputs, "arg.logits": crowded}
    oracle = Oracle(case, overlay, "cpu")
    truth = oracle(inputs)
    moves = conditioning(oracle, oracle.plain, measuring(truth), inputs, case, seed=1)
    assert largest(moves, case)["out.0"].whole < 1e-6
    right = {name: value.float() if value.is_floating_point() else value for name, value in truth.items()}
    wrong = {**right, "out.0": 1.01 * right["out.0"]}
    assert excused(wrong, right, truth, moves).verdict.label == "WRONG(value)"


def test_an_input_is_moved_by_no_more_than_its_own_rounding():
    """A float32 timestep of 999.3 in a model of bfloat16: a rounding of bfloat16 would be any other phase."""
    case = case_of("L3/decoder_layer", "bfloat16")
    inputs = {"arg.t": torch.tensor([[999.3]]), "arg.x": torch.randn(1, 64).bfloat16()}

    def oracle(tensors):
        return {"out.0": tensors["arg.x"].double() * torch.sin(tensors["arg.t"].double())}

    moves = conditioning(oracle, oracle, measuring(oracle(inputs)), inputs, case, seed=1)
    eps = torch.finfo(torch.bfloat16).eps
    assert eps / 4 < largest(moves, case)["out.0"].whole < eps
