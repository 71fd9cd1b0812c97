"""Several models in one evaluation, without processes: one that cannot be judged costs the others nothing."""

import random
import statistics
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fastkernels import registry
from fastkernels.engine.llm import LLM, SamplingParams
from fastkernels.errors import BaselineError, MachineError, NotFoundError, UsageError
from fastkernels.loader.candidates import discover
from fastkernels.progress import Progress
from fastkernels.records import EvalReport, Failure, ModelResult, UnfinishedModel, WorkloadResult
from fastkernels.registry.workloads import TokenWorkload
from fastkernels.report import exit_code, table
from fastkernels.runner.models import eval as eval_module
from fastkernels.runner.models.eval import run_eval
from fastkernels.runner.models.eval_request import EvalRequest
from fastkernels.runner.models.model_trial import ModelTrial
from fastkernels.score import calibrate
from fastkernels.score.macroeval import rescore
from fastkernels.score.timed_tokens import MOST_REPEATED, repeated


def result(model: str) -> ModelResult:
    failure = Failure(message="it broke")
    return calibrate.failed_model(model=model, category="LLM", size="tiny", config="tiny", failure=failure)


@pytest.fixture
def said() -> list[str]:
    """What was known before anything ran."""
    return []


@pytest.fixture
def evaluate(monkeypatch, said):
    """Trials of the models: what each gives or raises."""
    sides = SimpleNamespace(isolation=(), stays_root="", put_back=(), exclusive=False, close=lambda: None)
    monkeypatch.setattr(eval_module, "_sides", lambda *_: sides)

    def evaluate(trials: dict[str, BaseException | None], **asked) -> EvalReport:
        def run(trial: ModelTrial) -> ModelResult:
            if error := trials[trial.model]:
                raise error
            return result(trial.model)

        monkeypatch.setattr(ModelTrial, "run", run)
        flags = {"models": list(trials), "device": "cpu", "size": "tiny", "self_test": True, **asked}
        return run_eval(EvalRequest.parse(**flags), say=said.append)

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


def test_a_model_without_samples_of_that_size_costs_the_others_nothing(evaluate, monkeypatch):
    gla, find = registry.architecture("gla"), registry.find_architectures
    facts = gla.correctness.model_copy(update={"samples": {"full": gla.correctness.samples["full"]}})
    changed = {"gla": gla.model_copy(update={"correctness": facts})}
    monkeypatch.setattr(registry, "find_architectures", lambda *a: [changed.get(e.id, e) for e in find(*a)])
    report = evaluate({"llama": None, "gla": None})
    assert report.unevaluated == {"gla": "it has no samples of size tiny. Choose another --size"}


SUITE = {"suite": "smoke"}  # its workloads are of tokens


def test_a_model_that_nothing_can_be_asked_of_is_skipped_and_told(evaluate, said, capsys):
    report = evaluate({"llama": None, "flux": None, "siglip2": None}, **SUITE)
    assert [model.model for model in report.models] == ["llama"]
    assert {*report.skipped} == {"flux", "siglip2"}
    assert [line.partition(", ")[0] for line in said] == [
        "skipped: flux: its workloads are res-1024",
        "skipped: siglip2: its workloads are default-res",
    ]
    assert report.macroeval is not None, "the others are scored"
    assert (report.complete, report.unevaluated) == (True, {})
    table.show(report, sys.stdout)
    assert "Skipped: no part of the score\nflux: its workloads are res-1024" in capsys.readouterr().out


def test_no_model_is_left(evaluate):
    with pytest.raises(UsageError, match=r"flux: its workloads are res-1024, .* none of them was asked for"):
        evaluate({"flux": None, "siglip2": None}, **SUITE)


def test_a_model_without_that_size_or_with_too_few_positions_is_skipped(evaluate, monkeypatch, said):
    gla, mixtral = registry.architecture("gla"), registry.architecture("mixtral")
    short = mixtral.configs["tiny"].model_copy(
        update={"config": {**mixtral.configs["tiny"].config, mixtral.positions: 3}}
    )
    changed = {
        "gla": gla.model_copy(update={"default_config": {"full": gla.default_config["full"]}}),
        "mixtral": mixtral.model_copy(update={"configs": {"tiny": short}}),
    }
    find = registry.find_architectures
    monkeypatch.setattr(registry, "find_architectures", lambda *a: [changed.get(e.id, e) for e in find(*a)])
    report = evaluate({"llama": None, "gla": None, "mixtral": None})
    assert [model.model for model in report.models] == ["llama"]
    assert report.skipped["gla"] == "it has no configuration of size tiny. See: fk show gla"
    assert report.skipped["mixtral"].startswith("it has 3 positions")
    assert len(said) == 2


def test_what_is_misspelt_is_an_error_whatever_else_is_asked(evaluate):
    with pytest.raises(NotFoundError, match="Did you mean balanced"):
        evaluate({"llama": None, "flux": None}, workloads=["balance"])
    with pytest.raises(NotFoundError, match="category"):
        evaluate({"llama": None}, category="no such")


def test_a_category_narrows_the_models(evaluate):
    report = evaluate({"siglip2": None, "llama": None}, category=registry.architecture("llama").category)
    assert [model.model for model in report.models] == ["llama"]


def candidate(folder: Path, *files: str) -> dict:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("from fastkernels.baseline.L1.glu import GeluAndMul\n")
    return {"candidate_paths": [folder], "self_test": False}


def test_a_candidate_that_no_chosen_model_imports_is_told_before_anything_runs(evaluate, tmp_path):
    mine = candidate(tmp_path / "mine", "L1/layer_norm.py")
    told = "mine replaces L1/layer_norm, which llama or gla never imports. Models that do: .*siglip2"
    with pytest.raises(UsageError, match=told):
        evaluate({"llama": AssertionError("it ran"), "gla": AssertionError("it ran")}, **mine)


def test_what_some_models_leave_out_is_told_before_anything_runs(evaluate, said, tmp_path):
    mine = candidate(tmp_path / "mine", "L1/layer_norm.py", "L1/conv.py", "L1/glu.py", "L1/gluu.py")
    report = evaluate({"llama": None, "siglip2": None}, **mine)
    assert len(report.models) == 2, "a model that is not reached counts: it has no coverage"
    assert [line.rpartition("/mine/")[2] for line in said] == [
        "L1/gluu.py is no registered task and is not used. See: fk check",
        "llama never imports L1/conv, L1/layer_norm",
        "llama has cases of L1/glu:default, the candidate has gelu",
        "siglip2 never imports L1/conv",
    ]


def test_a_higher_file_of_the_candidate_counts_as_the_models(tmp_path):
    mine = candidate(tmp_path / "mine", "L1/layer_norm.py", "L2/gated_mlp.py")
    (tmp_path / "mine" / "L2" / "gated_mlp.py").write_text("from ..L1.layer_norm import LayerNorm\n")
    (found,) = discover(mine["candidate_paths"])
    assert {*found.imported_by("L4/llama")} == {"L1/layer_norm", "L2/gated_mlp"}
    assert {*found.imported_by("L4/convnextv2")} == {"L1/layer_norm"}


TIMED = WorkloadResult(
    name="balanced",
    kind="throughput",
    unit="out tok/s",
    baseline=(4.0,),
    candidate=(8.0,),
    throughput_ratio=2,
)


@pytest.fixture
def timed(monkeypatch):
    """Every trial that does not end has timed this."""

    def unfinished(trial: ModelTrial) -> list[UnfinishedModel]:
        return [UnfinishedModel(model=trial.model, config="tiny", size="tiny", workloads=(TIMED,))]

    monkeypatch.setattr(ModelTrial, "unfinished", unfinished)


def test_an_interrupted_run_shows_what_was_timed(evaluate, timed, capsys):
    report = evaluate({"llama": None, "gla": KeyboardInterrupt(), "mixtral": None})
    assert [model.model for model in report.models] == ["llama"]
    assert [(model.model, model.workloads) for model in report.unfinished] == [("gla", (TIMED,))]
    assert exit_code(report) == 130
    table.show(report, sys.stdout)
    shown = capsys.readouterr().out
    assert "INTERRUPTED: what was finished until then" in shown
    line = next(line for line in shown.splitlines() if line.startswith("gla"))
    assert line.split() == ["gla", "balanced", "4", "8", "out", "tok/s", "2.000", "rounds:", "1"]


def test_a_baseline_that_fails_at_the_end_costs_no_times(evaluate, timed):
    report = evaluate({"llama": BaselineError("llama: a noise run failed")})
    assert [model.workloads for model in report.unfinished] == [(TIMED,)]
    assert report.unevaluated == {"llama": "a noise run failed"}
    assert (report.models, exit_code(report)) == ((), 3)


def test_a_model_that_is_finished_is_kept_when_its_processes_are_interrupted(evaluate, monkeypatch):
    def close() -> None:
        raise KeyboardInterrupt

    sides = SimpleNamespace(isolation=(), stays_root="", put_back=(), close=close)
    monkeypatch.setattr(eval_module, "_sides", lambda *_: sides)
    report = evaluate({"llama": None, "gla": None})
    assert [model.model for model in report.models] == ["llama"]
    assert not report.complete


def test_an_interruption_while_the_score_is_computed_costs_the_score_alone(evaluate, monkeypatch):
    def interrupted(report: EvalReport) -> EvalReport:
        raise KeyboardInterrupt

    monkeypatch.setattr(eval_module, "with_score", interrupted)
    report = evaluate({"llama": None})
    assert [model.model for model in report.models] == ["llama"]
    assert exit_code(report) == 130


TOKENS = [w for w in registry.workloads(size="tiny") if isinstance(w, TokenWorkload)]
SPEAK = [
    entry
    for entry in registry.architectures()
    if entry.correctness.kind == "tokens" and not entry.correctness.media
]


@pytest.mark.parametrize("entry", SPEAK, ids=lambda entry: entry.id)
def test_greedy_texts_by_the_weights_of_a_tiny_configuration_repeat_little(entry):
    """Where they do not, record another `seed` in the configuration: such texts are no evidence."""
    config = entry.default_config["tiny"]
    workloads = [w for w in TOKENS if w.name in entry.workloads]
    longest = max(workloads, key=lambda w: w.output_len)
    seed, length = entry.configs[config].seed, longest.input_len + longest.output_len
    llm = LLM(entry.id, config=config, device="cpu", seed=seed, max_num_seqs=16, max_model_len=length)
    rng = random.Random(1)
    prompts = [[rng.randrange(llm.vocabulary) for _ in range(longest.input_len)] for _ in range(16)]
    greedy = SamplingParams(temperature=0.0, max_tokens=longest.output_len, ignore_eos=True)
    texts = [output.outputs[0].token_ids for output in llm.generate(prompts, greedy, use_tqdm=False)]
    for workload in workloads:
        share = statistics.fmean(repeated(text[: workload.output_len]) for text in texts)
        assert share <= MOST_REPEATED / 2, workload.name


def test_models_that_cannot_be_split_are_left_out_with_the_reason(evaluate):
    report = evaluate({"llama": None, "gla": None, "siglip2": None}, tp=2)
    assert [model.model for model in report.models] == ["llama"]
    assert report.models[0].notes[-1].startswith("each engine ran on 2 ranks")
    assert report.request["tp"] == 2
    assert "Not written for several yet: L1/activation" in report.skipped["gla"]
    assert "only models that answer with tokens" in report.skipped["siglip2"]
    with pytest.raises(UsageError, match="llama: tensor_parallel_size=8: 4 attention heads"):
        evaluate({"llama": None}, tp=8)
    with pytest.raises(UsageError, match="--ep 4: experts are split over the ranks of --tp 2"):
        evaluate({"mixtral": None}, tp=2, ep=4)


def test_steps_are_those_of_all_models(evaluate, monkeypatch):
    steps: list[Progress] = []

    def run(trial: ModelTrial) -> ModelResult:
        trial.show(Progress(3, 10, "balanced, round 2"))
        return result(trial.model)

    evaluate({"llama": None})  # replaces what starts processes
    monkeypatch.setattr(ModelTrial, "run", run)
    asked = {"models": ["llama", "gla"], "device": "cpu", "size": "tiny", "self_test": True}
    run_eval(EvalRequest.parse(**asked), steps.append)
    assert steps == [
        Progress(3, 20, "llama: balanced, round 2"),
        Progress(13, 20, "gla: balanced, round 2"),
    ]
