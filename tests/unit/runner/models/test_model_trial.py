"""A whole-model trial on two simulated engines: order, clock, audit, account, and failures of either side."""

import itertools
import math
import random
from types import SimpleNamespace
from typing import Any

import pytest

from fastkernels import registry
from fastkernels.errors import BaselineError, MachineError, UsageError
from fastkernels.progress import Progress
from fastkernels.records import Failure
from fastkernels.registry.workloads import TokenWorkload
from fastkernels.runner.models import model_trial as model_module
from fastkernels.runner.models.model_trial import ModelTrial, amdahl, passed_over
from fastkernels.runner.models.replies import MOST_CHARACTERS, Proof
from fastkernels.runner.models.sides import SideFailure
from fastkernels.runner.models.token_answers import TokenAnswers
from tests.unit.runner.fake_sides import FakeSides

VOCABULARY = 50
WORKLOADS = [
    TokenWorkload(name="many", kind="throughput", size="tiny", requests=4, input_len=5, output_len=6),
    TokenWorkload(name="one", kind="latency", size="tiny", requests=1, input_len=3, output_len=4),
]


def continuation(prompt: list[int], length: int) -> list[int]:
    return [(sum(prompt) * 7 + i * i) % VOCABULARY for i in range(length)]


class FakeSide:
    """Answers like a ModelSide. `seconds` passes on the fake clock; `lies` changes what it generates
    unforced.
    """

    def __init__(self, trial: "TokenSides", side: str, seconds: float, wrong: int = 0, lies: int = 0) -> None:
        self.trial, self.side, self.seconds, self.wrong, self.lies = trial, side, seconds, wrong, lies
        self.short, self.lazy_s, self.threads, self.lies_alone = 0, 0.0, 1, 0

    def call(self, do: str, **arguments: Any) -> dict[str, Any]:
        self.trial.log.append((self.side, do))
        return getattr(self, do)(**arguments)

    def sites(self) -> dict[str, Any]:
        return {"sites": self.trial.sites}

    def proof(self, sites: dict[str, list[str]], prompts: list[list[int]]) -> dict[str, Any]:
        return {
            "calls": {t: 8 * len(n) for t, n in sites.items()},
            "site_s": self.seconds / 2,
            "total_s": 2 * self.seconds,
            "put_back": [f"what {self.side} imports"],
        }

    def generate(self, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        self.trial.now += self.seconds
        self._tokens = [
            [
                (t + self.lies + self.lies_alone * (len(prompts) == 1)) % VOCABULARY
                for t in continuation(p, max_tokens - self.short)
            ]
            for p in prompts
        ]
        return {"requests": len(prompts)}

    def stats(self) -> dict[str, Any]:
        return _stats(self.threads)

    def outputs(self) -> dict[str, Any]:
        self.trial.now += self.lazy_s
        return {"token_ids": self._tokens}

    def forced(self, prompts: list[list[int]], continuations: list[list[int]], top: int) -> dict[str, Any]:
        right = [continuation(p, len(c)) for p, c in zip(prompts, continuations, strict=True)]
        argmax = [[(t + self.wrong) % VOCABULARY for t in ids] for ids in right]
        # The best token, and another one that is e^3 times less likely.
        tops = [[{str(t): -0.1, str((t + 1) % VOCABULARY): -3.1} for t in ids] for ids in argmax]
        return {"argmax": argmax, "top": tops}


def _stats(threads: int) -> dict[str, Any]:
    return {"engine": {}, "passed_over": {}, "settings": {"torch's number of threads": str(threads)}}


class TokenSides(FakeSides):
    def __init__(self, **candidate: Any) -> None:
        super().__init__(FakeSide, **candidate)
        self.sites = {"L1/rms_norm": ["layers.0.norm", "layers.1.norm"]}


def made(
    sides: TokenSides,
    monkeypatch: pytest.MonkeyPatch,
    self_test: bool = False,
    extra_s: float = 6.0,
    restarts: bool = False,
) -> ModelTrial:
    monkeypatch.setattr(model_module.time, "perf_counter", lambda: sides.now)
    candidates = (
        None if self_test else SimpleNamespace(files={"L1/rms_norm": "x.py"}, layers=(), shadowed=lambda: ())
    )
    rng = random.Random(1)
    facts = registry.architecture("llama").correctness
    assert facts.kind == "tokens"
    return ModelTrial(
        architecture=registry.architecture("llama"),
        model="m",
        config="tiny",
        size="tiny",
        answers=TokenAnswers(facts, "tiny", {"vocab_size": VOCABULARY}, rng),
        workloads=WORKLOADS,
        candidates=candidates,
        sides=sides,
        rounds=4,  # type: ignore[arg-type]
        extra_s=extra_s,
        restarts=restarts,
    )


def run(sides: TokenSides, monkeypatch: pytest.MonkeyPatch, **how: Any) -> Any:
    return made(sides, monkeypatch, **how).run()


def test_a_faster_and_right_candidate(monkeypatch):
    sides = TokenSides(seconds=0.2)
    result = run(sides, monkeypatch)
    assert result.valid
    assert result.correctness == 1.0
    assert result.throughput_speedup == pytest.approx(2.0)
    assert result.latency_speedup == pytest.approx(2.0)
    assert (result.swap.sites, result.swap.calls) == (2, 16)
    assert len(result.noise_d) == 3
    assert len({str(change) for change in sides.changes}) == 3


def test_the_sides_alternate_and_swap_their_order(monkeypatch):
    sides = TokenSides(seconds=0.2)
    run(sides, monkeypatch)
    begin = sides.log.index(("baseline", "generate"))
    timed = [side for side, do in sides.log[begin:] if do == "generate"][:10]
    # The warm-ups, A B, then B A, A B, B A.
    assert timed == ["baseline", "candidate"] + 2 * ["baseline", "candidate", "candidate", "baseline"]


def test_a_round_of_processes_of_its_own_starts_and_warms_both_and_times_abba(monkeypatch):
    sides = TokenSides(seconds=0.2)
    many, one = run(sides, monkeypatch, restarts=True, extra_s=0.0).workloads
    assert (len(many.baseline), len(one.baseline)) == (4, 6)
    begin = sides.log.index(("all", "close"))
    events = [side for side, do in sides.log[begin:] if do in ("generate", "close")]
    ab, ba = ["baseline", "candidate"], ["candidate", "baseline"]
    assert events[:14] == ["all", *ab, *ab, *ba, "all", *ba, *ba, *ab]


def test_what_processes_differ_by_for_as_long_as_they_live_is_in_the_interval(monkeypatch):
    """Every process has a speed of its own, up to 4 % apart, and no other noise."""
    luck = random.Random(5)

    def measured(restarts: bool) -> Any:
        sides = TokenSides(seconds=0.4)
        for side in sides.sides.values():
            monkeypatch.setattr(side, "generate", _lucky(side, luck))
        return run(sides, monkeypatch, self_test=True, restarts=restarts).workloads

    lives_on = [workload for _ in range(5) for workload in measured(restarts=False)]
    anew = [workload for _ in range(5) for workload in measured(restarts=True)]
    assert max(workload.half_width for workload in lives_on) < 1e-9
    assert not any(workload.ratio_ci[0] <= 1 <= workload.ratio_ci[1] for workload in lives_on)
    assert all(workload.ratio_ci[0] <= 1 <= workload.ratio_ci[1] for workload in anew)
    assert all(0.01 < workload.half_width < 0.05 for workload in anew)


def test_intervals_hold_beside_a_busy_neighbour_or_the_row_says_unstable(monkeypatch):
    """A neighbour whose load drifts (autocorrelation 0.8 from run to run) slows both sides, and every process
    has a speed of its own. 0.92 is 0.95 less two standard errors of a share of 200."""
    chance = random.Random(11)

    def measured(load: float) -> Any:
        sides, drift = TokenSides(seconds=0.4), [0.0]

        def generate(side: FakeSide, lucky: Any) -> Any:
            def run_it(**arguments: Any) -> Any:
                drift[0] = 0.8 * drift[0] + 0.6 * chance.gauss(0, load)
                sides.now += side.seconds * (math.exp(drift[0]) - 1)
                return lucky(**arguments)

            return run_it

        for side in sides.sides.values():
            monkeypatch.setattr(side, "generate", generate(side, _lucky(side, chance)))
        return run(sides, monkeypatch, self_test=True, restarts=True).workloads

    for load, most_unstable in ((0.03, 0.1), (0.3, 1.0)):
        rows = [workload for _ in range(100) for workload in measured(load)]
        held = [row.ratio_ci[0] <= 1 <= row.ratio_ci[1] for row in rows]
        assert sum(held) / len(rows) >= 0.92
        assert sum(row.unstable for row in rows) / len(rows) <= most_unstable


def _lucky(side: FakeSide, luck: random.Random) -> Any:
    """generate(): in each process as fast as chance has it."""
    honest = side.generate

    def generate(**arguments: Any) -> Any:
        if not side.warmed & {workload.name for workload in WORKLOADS}:
            side.seconds = 0.4 * luck.uniform(0.98, 1.02)
        return honest(**arguments)

    return generate


def test_a_process_that_starts_for_its_turn_is_not_timed_cold(monkeypatch):
    """Two models that do not fit the device together: every turn is a new process."""
    sides = TokenSides(seconds=0.2)
    sides.exclusive = True
    for side in sides.sides.values():
        monkeypatch.setattr(side, "generate", _slow_at_first(sides, side))
    result = run(sides, monkeypatch)
    assert result.valid
    assert result.throughput_speedup == pytest.approx(2.0)
    assert result.latency_speedup == pytest.approx(2.0)
    begin = sides.log.index(("baseline", "generate"))
    timed = [side for side, do in sides.log[begin:] if do == "generate"][:7]
    # Candidate and baseline have two turns each behind the first A B, but one process each for the two.
    assert timed == ["baseline"] * 2 + ["candidate"] * 3 + ["baseline"] * 2


def test_a_turn_that_loads_a_model_answers_a_latency_workload_three_times(monkeypatch):
    """The median counts, so that one answer in three that met a busy host decides nothing."""
    sides = TokenSides(seconds=0.2)
    sides.exclusive = True
    candidate = sides.sides["candidate"]
    honest, alone = candidate.generate, [0]

    def generate(prompts: list[list[int]], max_tokens: int) -> Any:
        if len(prompts) == 1:
            alone[0] += 1
            sides.now += 5 * (alone[0] % 3 == 0)
        return honest(prompts=prompts, max_tokens=max_tokens)

    monkeypatch.setattr(candidate, "generate", generate)
    many, one = run(sides, monkeypatch).workloads
    assert (len(many.candidate), len(one.candidate)) == (4, 4)
    assert one.candidate == pytest.approx([0.2] * 4)
    warm_ups = 2  # B A, A B: the candidate's four turns are those of two processes
    assert alone[0] == 4 * model_module.TURN_RUNS + warm_ups


def _slow_at_first(sides: TokenSides, side: FakeSide) -> Any:
    """generate(): in a process that has warmed up for nothing yet, ten times slower."""
    honest = side.generate

    def generate(**arguments: Any) -> Any:
        sides.now += 0 if side.warmed - {"swap proof"} else 9 * side.seconds
        return honest(**arguments)

    return generate


def test_settings_are_read_from_the_process_that_was_timed(monkeypatch):
    """A process that is started anew for the question would show those that it begins with."""
    sides = TokenSides(seconds=0.2)
    sides.exclusive = True
    candidate = sides.sides["candidate"]
    monkeypatch.setattr(candidate, "stats", lambda: _stats(threads=4 if candidate.warmed else 1))
    result = run(sides, monkeypatch)
    assert not result.valid
    assert "torch's number of threads is 4, not 1" in result.failure.message


def test_a_model_whose_answers_are_all_alike_judges_nobody(monkeypatch):
    """Nothing lies between noise and ruin, and no candidate is to blame."""
    sides = TokenSides(seconds=0.2)
    monkeypatch.setitem(globals(), "continuation", lambda prompt, length: list(range(length)))
    with pytest.raises(BaselineError, match=r"m: noise cannot be told from ruin: .* Another --seed"):
        run(sides, monkeypatch)


def test_rounds_go_on_until_the_ratio_is_known(monkeypatch):
    sides = TokenSides(seconds=0.2)
    steady = run(sides, monkeypatch)
    assert [len(w.baseline) for w in steady.workloads] == [4, 6]
    noisy = TokenSides(seconds=0.2)
    wild = random.Random(3)
    candidate = noisy.sides["candidate"]
    honest = candidate.generate

    def generate(**arguments: Any) -> Any:
        candidate.seconds = wild.choice([0.05, 0.2, 0.8])
        return honest(**arguments)

    candidate.generate = generate  # type: ignore[method-assign]
    trial = made(noisy, monkeypatch)
    steps: list[Progress] = []
    trial.show = steps.append
    result = trial.run()
    assert all(len(w.baseline) > 6 for w in result.workloads)
    done = [step.done for step in steps]
    assert done == sorted(done), "more rounds than planned are no more steps"
    assert {step.total for step in steps} == {trial.steps} == {1 + 4 + 6 + 1 + 3}
    assert set(done) == set(range(trial.steps))
    assert any(w.unstable for w in result.workloads)
    noisy.now = 0.0
    assert [len(w.baseline) for w in run(noisy, monkeypatch, extra_s=0.0).workloads] == [4, 6]


def test_tokens_that_are_made_when_they_are_asked_for_are_timed(monkeypatch):
    sides = TokenSides(seconds=1e-6)
    sides.sides["candidate"].lazy_s = 0.4
    assert run(sides, monkeypatch).throughput_speedup == pytest.approx(1.0, rel=1e-3)


def test_a_candidate_that_sets_the_whole_process_is_a_failure(monkeypatch):
    sides = TokenSides(seconds=0.2)
    sides.sides["candidate"].threads = 4
    result = run(sides, monkeypatch)
    assert not result.valid
    assert "torch's number of threads is 4, not 1" in result.failure.message


@pytest.mark.parametrize("how", ["lives on", "restarts", "exclusive"])
def test_every_process_has_its_first_pass_before_a_graph_could_be_captured(monkeypatch, how: str):
    """Settings that an import within it changes are put back then."""
    sides = TokenSides(seconds=0.2)
    sides.exclusive = how == "exclusive"
    for side in sides.sides.values():
        monkeypatch.setattr(side, "generate", _proved(side))
    assert run(sides, monkeypatch, restarts=how == "restarts").valid
    assert sides.put_back == ["what candidate imports"]


def _proved(side: FakeSide) -> Any:
    honest = side.generate

    def generate(**arguments: Any) -> Any:
        assert "swap proof" in side.warmed
        return honest(**arguments)

    return generate


def test_a_wrong_candidate_is_invalid_and_has_no_speedup(monkeypatch):
    result = run(TokenSides(seconds=0.1, wrong=1, lies=1), monkeypatch)
    assert not result.valid
    assert result.speedup is None
    assert result.correctness < 0.1


def test_being_right_only_while_compared_does_not_help(monkeypatch):
    result = run(TokenSides(seconds=0.1, lies=1), monkeypatch)
    assert not result.valid
    assert max(result.d) == 1.0


def test_being_wrong_in_one_workload_is_invalid_however_few_answers_it_has(monkeypatch):
    sides = TokenSides(seconds=0.2)
    sides.sides["candidate"].lies_alone = 1
    result = run(sides, monkeypatch)
    many, one = result.workloads
    assert set(result.d[: -len(one.audited_d)]) == set(many.audited_d) == {0.0}
    assert not result.valid
    assert any("one: its answers in a timed round are wrong" in note for note in result.notes)


def test_being_wrong_in_most_rounds_is_invalid_whichever_they_are(monkeypatch):
    """A speed-up is a median: where one round in secret is looked at, the others are free."""
    sides = TokenSides(seconds=0.2)
    candidate = sides.sides["candidate"]
    honest = candidate.generate
    calls = itertools.count()

    def generate(**arguments: Any) -> Any:
        candidate.lies = int(next(calls) % 5 < 3)
        candidate.seconds = 0.01 if candidate.lies else 0.4
        return honest(**arguments)

    monkeypatch.setattr(candidate, "generate", generate)
    result = run(sides, monkeypatch)
    for workload in result.workloads:
        assert set(workload.audited_d) == {0.0, 1.0}
        assert len(workload.audited_d) >= len(workload.baseline), "of every round at least one answer"
    assert not result.valid


def test_a_text_that_begins_with_anything_is_wrong_although_it_goes_on_as_it_must(monkeypatch):
    """From the second token on each is what the model says behind those before it."""
    sides = TokenSides(seconds=0.2)
    candidate, baseline = sides.sides["candidate"], sides.sides["baseline"]
    honest = baseline.forced

    def repeat(prompts: list[list[int]], max_tokens: int) -> Any:
        sides.now += 0.01
        candidate._tokens = [[7] * max_tokens for _ in prompts]
        return {"requests": len(prompts)}

    def forced(prompts: list[list[int]], continuations: list[list[int]], top: int) -> Any:
        found = honest(prompts=prompts, continuations=continuations, top=top)
        for ids, argmax, tops in zip(continuations, found["argmax"], found["top"]):
            if ids == [7] * len(ids):
                argmax[1:] = ids[1:]
                tops[1:] = [{"7": -0.1, "8": -3.1}] * (len(ids) - 1)
        return found

    monkeypatch.setattr(candidate, "generate", repeat)
    monkeypatch.setattr(baseline, "forced", forced)
    result = run(sides, monkeypatch)
    assert {d for workload in result.workloads for d in workload.audited_d} == {1.0}
    assert not result.valid


def test_answers_that_repeat_themselves_are_told(monkeypatch):
    monkeypatch.setitem(globals(), "continuation", lambda prompt, length: [sum(prompt) % VOCABULARY] * length)
    result = run(TokenSides(seconds=0.2), monkeypatch)
    assert any("many: 67 % of the baseline's tokens repeat the last ones" in note for note in result.notes)


def test_too_few_tokens_are_a_failure(monkeypatch):
    sides = TokenSides(seconds=0.1)
    sides.sides["candidate"].short = 1
    result = run(sides, monkeypatch)
    assert not result.valid
    # The warm-up sees it.
    assert "asked for 4 x 6 tokens" in result.failure.message


def test_a_candidate_that_reaches_no_site_earns_no_coverage(monkeypatch):
    sides = TokenSides(seconds=0.2)
    sides.sites = {}
    result = run(sides, monkeypatch)
    assert not result.valid
    assert result.swap.unused == ("L1/rms_norm",)
    assert any("no candidate was reached" in note for note in result.notes)


def test_a_failing_candidate_is_a_value_and_a_failing_baseline_an_exception(monkeypatch):
    sides = TokenSides(seconds=0.2)

    def fails(side: str) -> Any:
        def forced(**_: Any) -> Any:
            raise SideFailure(side, Failure(message="out of tiles", file="rms_norm.py", line=7))

        return forced

    sides.sides["candidate"].forced = fails("candidate")
    result = run(sides, monkeypatch)
    assert (result.valid, result.failure.line) == (False, 7)
    sides.sides["baseline"].forced = fails("baseline")
    with pytest.raises(BaselineError, match="out of tiles"):
        run(sides, monkeypatch)


@pytest.mark.parametrize(
    ("error", "raised", "says"),
    [
        (("WeightsError", "1 missing"), UsageError, "^m: 1 missing$"),
        (("FileFormatError", "x.safetensors: corrupt"), UsageError, "^m: x.safetensors: corrupt$"),
        (("MachineError", "80 GiB"), MachineError, "^m: 80 GiB$"),
        (("RuntimeError", "a bug"), BaselineError, "^m: the baseline failed: RuntimeError: a bug$"),
        (None, BaselineError, "the process exited"),
    ],
)
def test_a_model_that_neither_side_loads_is_no_candidates_failure(monkeypatch, error, raised, says):
    sides = TokenSides(seconds=0.2)
    message = "the process exited" if error is None else ": ".join(error)

    def use(side: str) -> Any:
        raise SideFailure(side, Failure(message=message), error)

    monkeypatch.setattr(sides, "use", use)
    with pytest.raises(raised, match=says):
        run(sides, monkeypatch)


def test_a_candidate_that_does_not_load_is_a_value(monkeypatch):
    sides = TokenSides(seconds=0.2)

    def use(side: str) -> Any:
        if side == "baseline":
            return sides.sides[side]
        raise SideFailure(side, Failure(message="WeightsError: 1 missing"), ("WeightsError", "1 missing"))

    monkeypatch.setattr(sides, "use", use)
    result = run(sides, monkeypatch)
    assert not result.valid
    assert "1 missing" in result.failure.message


def test_a_self_test_needs_no_sites(monkeypatch):
    sides = TokenSides(seconds=0.4)
    sides.sites = {}
    result = run(sides, monkeypatch, self_test=True)
    assert result.valid
    assert result.speedup == pytest.approx(1.0)


def interrupted(sides: TokenSides, after: int) -> Any:
    """A `use` of the sides that ends the run, as Ctrl-C does, when the candidate has generated so often."""
    use = sides.use

    def counting(side: str) -> Any:
        if sum(entry == ("candidate", "generate") for entry in sides.log) >= after:
            raise KeyboardInterrupt
        return use(side)

    return counting


@pytest.mark.parametrize(
    ("after", "rounds"), [(0, {}), (3, {"many": 1}), (5, {"many": 3}), (8, {"many": 4, "one": 1})]
)
def test_an_interrupted_trial_has_the_rounds_until_then(monkeypatch, after, rounds):
    """Those that both sides have ended. The first run of a workload is a warm-up."""
    sides = TokenSides(seconds=0.2)
    monkeypatch.setattr(sides, "use", interrupted(sides, after))
    trial = made(sides, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        trial.run()
    found = trial.unfinished()
    assert len(found) == bool(rounds)
    workloads = found[0].workloads if found else ()
    assert {w.name: len(w.baseline) for w in workloads} == rounds
    assert all(len(w.candidate) == len(w.baseline) for w in workloads)
    assert all(w.ratio == pytest.approx(2.0) for w in workloads)


def test_an_implementation_that_is_passed_over_is_one_note():
    baseline = {"linear:gemv: serves one row, not 128": 64, "linear:gemv: serves one row, not 9": 32}
    candidate = {"linear:gemv: serves one row, not 128": 48, "glu:triton: needs CUDA: none here": 1}
    assert passed_over({"baseline": baseline, "candidate": candidate}) == [
        "linear:gemv passed over: serves one row, not 128 (baseline 64, candidate 48 calls); "
        "serves one row, not 9 (baseline 32 calls)",
        "glu:triton passed over: needs CUDA: none here (candidate 1 calls)",
    ]


def test_amdahl_account():
    one, other = Proof(calls={}, total_s=1.0, site_s=0.4), Proof(calls={}, total_s=0.9, site_s=0.2)
    account = amdahl({"baseline": [one], "candidate": [other]})
    assert account["predicted"] == pytest.approx(1.25)
    assert account["measured"] == pytest.approx(1 / 0.9)
    assert account["transfer"] == pytest.approx((1 / 0.9 - 1) / 0.25)
    same = amdahl({"baseline": [one], "candidate": [one]})
    assert same["transfer"] is None


GARBLED = {
    "sites": [{}, {"sites": None}, {"sites": {"L1/rms_norm": "norm"}}, {"sites": {}, "more": 1}],
    "proof": [
        {},
        {"calls": {}, "site_s": 0.1, "total_s": 1.0},
        {"calls": {"L1/rms_norm": -1}, "site_s": 0.1, "total_s": 1.0},
        {"calls": {"L1/rms_norm": 1}, "site_s": float("nan"), "total_s": 1.0},
        {"calls": {"L1/rms_norm": 1}, "site_s": 0.1, "total_s": 0.0},
    ],
    "outputs": [
        {},
        {"token_ids": None},
        {"token_ids": [None] * 4},
        {"token_ids": [[1.0] * 6] * 4},
        {"token_ids": [[-1] * 6] * 4},
        {"token_ids": [[VOCABULARY] * 6] * 4},
        {"token_ids": [[10**30] * 6] * 4},
    ],
    "stats": [{}, {"engine": {}, "passed_over": {"x": "y"}, "settings": {}}],
    "forced": [
        {},
        {"argmax": [], "top": []},
        {"argmax": [[1]] * 99, "top": [[]] * 99},
        {"argmax": None, "top": None},
    ],
}


@pytest.mark.parametrize(("do", "reply"), [(do, reply) for do, bad in GARBLED.items() for reply in bad])
def test_a_garbled_answer_is_the_candidates_failure(do, reply, monkeypatch):
    sides = TokenSides(seconds=0.2)
    monkeypatch.setattr(sides.sides["candidate"], do, lambda **_: reply)
    result = run(sides, monkeypatch)
    assert not result.valid
    assert result.failure.message.startswith(f"garbled answer to '{do}': ")
    assert len(result.failure.message) <= MOST_CHARACTERS


def test_log_probabilities_of_other_positions_are_garbled(monkeypatch):
    sides = TokenSides(seconds=0.2)
    candidate = sides.sides["candidate"]
    forced = candidate.forced
    monkeypatch.setattr(candidate, "forced", lambda **asked: {**forced(**asked), "top": [[{"1": 0.0}]] * 99})
    assert "of other positions" in run(sides, monkeypatch).failure.message
