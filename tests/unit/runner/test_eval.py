"""Several models in one evaluation, without processes: one that cannot be judged costs the others nothing."""

import sys
from types import SimpleNamespace

import pytest

from fastkernels.errors import BaselineError, FastKernelsError, MachineError, UsageError
from fastkernels.records import EvalReport, Failure, ModelResult
from fastkernels.report import exit_code, table
from fastkernels.runner import eval as eval_module
from fastkernels.runner.eval import EvalRequest, run_eval
from fastkernels.runner.model import ModelTrial
from fastkernels.score import calibrate
from fastkernels.score.macroeval import rescore


def result(model: str) -> ModelResult:
    failure = Failure(message="it broke")
    return calibrate.failed_model(model=model, category="LLM", size="tiny", config="tiny", failure=failure)


@pytest.fixture
def evaluate(monkeypatch):
    """Trials of the models: what each gives or raises."""
    sides = SimpleNamespace(isolation=(), stays_root="", put_back=(), close=lambda: None)
    monkeypatch.setattr(eval_module, "_sides", lambda *_: sides)

    def evaluate(trials: dict[str, FastKernelsError | None]) -> EvalReport:
        def run(trial: ModelTrial) -> ModelResult:
            if error := trials[trial.model]:
                raise error
            return result(trial.model)

        monkeypatch.setattr(ModelTrial, "run", run)
        return run_eval(EvalRequest.parse(models=list(trials), self_test=True, device="cpu", size="tiny"))

    return evaluate


def test_the_others_are_evaluated_and_the_reason_is_told(evaluate, capsys):
    report = evaluate({"llama": None, "mixtral": MachineError("mixtral: 94 GB of weights"), "gla": None})
    assert [model.model for model in report.models] == ["llama", "gla"]
    assert report.unevaluated == {"mixtral": "94 GB of weights"}
    assert report.complete
    assert report.macroeval is None, "a model's absence must not raise the score"
    assert rescore(report).macroeval is None
    assert exit_code(report) == 3
    table.show(report, sys.stdout)
    assert "Not evaluated\nmixtral: 94 GB of weights" in capsys.readouterr().out


def test_without_any_result_the_first_error_is_raised(evaluate):
    with pytest.raises(BaselineError, match="its kernels"):
        evaluate({"llama": BaselineError("llama: its kernels"), "gla": MachineError("gla: no memory")})


@pytest.mark.parametrize("preparation", ["_sides", "_answers"])
def test_a_model_that_cannot_even_be_prepared_costs_the_others_nothing(evaluate, monkeypatch, preparation):
    prepared = getattr(eval_module, preparation)

    def fails_for_gla(request, target, *rest):
        if target.model == "gla":
            raise UsageError("gla: its configuration says nothing of a vocabulary")
        return prepared(request, target, *rest)

    monkeypatch.setattr(eval_module, preparation, fails_for_gla)
    report = evaluate({"llama": None, "gla": None})
    assert [model.model for model in report.models] == ["llama"]
    assert report.unevaluated == {"gla": "its configuration says nothing of a vocabulary"}
