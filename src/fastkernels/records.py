"""What crosses borders: records that are read from files, sent between processes or stored in reports.

All are frozen pydantic models without torch, so that listing and scoring stay light. Units are in the names.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

DType = Literal["float64", "float32", "bfloat16", "float16", "int64", "int32", "bool"]
Size = Literal["tiny", "full"]
Contract = Literal["graph", "eager", "host"]
Skew = Literal["uniform", "zipf"]
TokenPhase = Literal["prefill", "decode"]

RANDOM_IDS = "random ids"  # prompts of a capture without a file of text
UNSTABLE_HALF_WIDTH = 0.05  # an interval wider than 5 % to one side: no number is claimed


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


# ---------------------------------------------------------------- a case: one concrete use of a task


class TensorSpec(Record):
    """A tensor argument. `draw` says where its values come from:

    normal        floats of the iteration's distribution (what activations, parameters and caches hold)
    ids           indices, uniform in [0, high); the first and the last always occur
    integers      uniform in [low, high), as they fall: seeds, which no two calls may have in common
    uniform       floats, uniform in [low, high)
    routing.FIELD ids, order or starts: which experts the tokens choose (loader/routing.py); logits: what
                  a router gave for them, in cases that replay a golden folder
    routed        as normal, with a direction in each row that a router recognises
    router        the gate that recognises it
    step.FIELD    the batch's positions, query_starts, seq_lens, rows, begun, block_tables, slots or grids
                  (loader/inputs.py)
    cache         a paged pool [blocks, block_size, ...] of the batch's size, values as normal
    state         a pool [rows, ...] of states of the batch's size, values as normal
    kept          the same after the layer has stored what a request begins with
    by_place      a bias of scores [..., S, S] by the places of two tokens in rows of up to S tokens
    log_decay     logarithms of decays, at most 0: a log-sigmoid of what normal gives
    """

    shape: tuple[int, ...]
    dtype: DType
    draw: str = "normal"
    low: float = 0
    high: float = 1
    row: int | None = None  # elements of what a distribution takes for a row; None: the last dimension


class Batch(Record):
    """The requests behind a call, as runs `(count, query_len, seq_len)`; seq_len includes the query.

    Decode rows (query_len 1, seq_len > 1) come first. Block tables are shuffled: blocks of a row are never
    contiguous. A batch of images has `grids` instead, runs `(count, rows, columns)` of patches: an image is
    a row whose tokens are all there, behind `text` tokens of its prompt. Images of one size that are not cut
    into patches are `images`, one `(count, height, width)` in pixels.
    """

    rows: tuple[tuple[int, int, int], ...] = ()
    block_size: int = 16
    grids: tuple[tuple[int, int, int], ...] = ()
    text: int = 0
    images: tuple[int, int, int] | None = None

    @model_validator(mode="before")
    @classmethod
    def _images_are_rows(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("grids") and not data.get("rows"):
            text = data.get("text", 0)
            return {**data, "rows": [(n, text + h * w, text + h * w) for n, h, w in data["grids"]]}
        if isinstance(data, dict) and data.get("images") and not data.get("rows"):
            count, height, width = data["images"]
            return {**data, "rows": [(count, height * width, height * width)]}
        return data

    @model_validator(mode="after")
    def _ordered(self) -> Batch:
        if not self.rows or any(min(grid) < 1 for grid in self.grids):
            raise ValueError("a batch needs rows, or grids of at least one patch, or images")
        lengths = [(count, self.text + h * w) for count, h, w in self.grids]
        if self.grids and self.rows != tuple((count, length, length) for count, length in lengths):
            raise ValueError("rows differ from what the grids give")
        for count, query_len, seq_len in self.rows:
            if count < 1 or not 1 <= query_len <= seq_len:
                raise ValueError(
                    f"row run ({count}, {query_len}, {seq_len}): need count >= 1, 1 <= query <= seq"
                )
        decode = [query == 1 and seq > 1 for _, query, seq in self.rows]
        if decode != sorted(decode, reverse=True):
            raise ValueError("decode rows (query_len 1) must come before prefill rows")
        return self

    @property
    def query_lens(self) -> list[int]:
        return [query for count, query, _ in self.rows for _ in range(count)]

    @property
    def seq_lens(self) -> list[int]:
        return [seq for count, _, seq in self.rows for _ in range(count)]

    @property
    def num_tokens(self) -> int:
        return sum(count * query for count, query, _ in self.rows)

    @property
    def num_decodes(self) -> int:
        return sum(count for count, query, seq in self.rows if query == 1 and seq > 1)


class Golden(Record):
    """Values that a model really had, which a case replays: the folder that `fk capture` wrote, and of which
    tokens."""

    folder: str
    phase: TokenPhase


class Routing(Record):
    """How the tokens of a case choose experts: each takes `top_k` different ones of `experts`.

    uniform       all experts alike
    zipf          the i-th favourite has 1/i of the popularity of the first
    captured      as the tokens of a golden folder did
    """

    top_k: int
    experts: int
    skew: Skew | Literal["captured"] = "uniform"
    golden: Golden | None = None

    @model_validator(mode="after")
    def _source(self) -> Routing:
        if (self.skew == "captured") != (self.golden is not None):
            raise ValueError("captured routing, and no other, comes from a golden folder")
        return self


class Provenance(Record):
    """Who makes this call: `llama` in configuration `8b`, phase `decode`, or a held-out shape of the
    registry.
    """

    architecture: str
    config: str
    phase: Literal["prefill", "decode", "mixed", "encode", "denoise", "images", "held-out"]


class Case(Record):
    """init arguments + input specification + provenance + weight. `id` is unique within its task."""

    id: str
    task: str  # L1/rms_norm
    variant: str = "default"
    size: Size
    dtype: DType
    init: dict[str, Any]
    inputs: dict[str, TensorSpec | bool | int | float | str | None]
    batch: Batch | None = None
    routing: Routing | None = None
    provenance: Provenance
    calls: int = 1  # calls of this shape in one step of the model
    timed: bool = True  # held-out shapes are checked, not timed


# ---------------------------------------------------------------- the machine


class Environment(Record):
    """Where a report was made. `device` is the name that a vendor gives: `NVIDIA H200`, `Intel(R) Xeon(R)
    ...`.
    """

    device: str
    device_type: Literal["cpu", "cuda"]
    host_cpu: str
    cores: int
    memory_gib: float
    python: str
    torch: str
    triton: str | None
    cuda: str | None
    driver: str | None
    libraries: dict[str, str]
    fastkernels: str
    git_revision: str | None
    isolation: tuple[str, ...]  # what separates workers here: processes, home, network, ...
    started_at: str  # ISO 8601, UTC


# ---------------------------------------------------------------- a capture


class CapturedTokens(Record):
    """Tokens of each layer, in the order of the run: all were counted, the first were kept."""

    seen: int
    kept: int  # with expert ids and router logits
    hidden: int  # of these, with hidden states


class Capture(Record):
    """Where golden values come from: `provenance.json` of a golden folder."""

    kind: Literal["capture"] = "capture"
    schema_version: int = Field(1, alias="schema")
    model: str  # as it was asked for
    architecture: str
    weights: Literal["random", "checkpoint"]
    revision: str | None  # commit of a Hugging Face snapshot
    config: dict[str, Any]  # as Hugging Face writes it
    dtype: DType
    seed: int  # of random weights, and of prompts of random ids
    workload: str
    requests: int
    output_len: int
    prompts: str  # `random ids`, or the file's name and digest
    top_k: int
    experts: int
    layers: tuple[str, ...]  # names of the routers
    tokens: dict[TokenPhase, CapturedTokens]
    digest: str  # SHA-256 of golden.safetensors
    environment: Environment

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    @property
    def summary(self) -> str:
        """One sentence that leaves no doubt whether this is data of a real model."""
        what = f"{self.model} ({self.architecture}), workload {self.workload}, prompts of {self.prompts}"
        if self.weights == "random":
            return f"{what}; RANDOM weights: routing of no real model, near uniform"
        if self.prompts == RANDOM_IDS:
            return f"{what}; weights of a checkpoint, but random prompts: no real text was routed"
        return f"{what}; weights of a checkpoint"


# ---------------------------------------------------------------- tier 1


class Failure(Record):
    """What a user needs to mend a candidate: the message, the place, and what it printed."""

    message: str
    file: str | None = None
    line: int | None = None
    output: str = ""


class KernelRow(Record):
    """One trial: a candidate (or implementation, or the baseline) on one case, against the baseline."""

    task: str
    variant: str
    case: str
    candidate: str  # name of the candidate, `impl:triton`, or `self-test`
    verdict: str  # `PASSED`, `WRONG(value)`, ... see judge/verdict.py
    failure: Failure | None = None
    contract: Contract
    calls: int = 1
    speedup: float | None = None  # median of paired ratios baseline / candidate; only with PASSED
    speedup_ci: tuple[float, float] | None = None
    baseline_us: float | None = None  # medians
    candidate_us: float | None = None
    baseline_p20_p80_us: tuple[float, float] | None = None
    candidate_p20_p80_us: tuple[float, float] | None = None
    baseline_impl: str | None = None  # which implementations the baseline ran, `rms_norm=triton`
    noise_pct: float | None = None  # |A/A - 1| of two baseline processes beside this trial, upper bound
    significant: bool | None = None  # the win or loss exceeds noise and interval
    samples: int = 0
    dropped: int = 0
    sm_clock_mhz: int | None = None
    error_ratio: float | None = None  # worst candidate error / allowed error; <= 1 passes
    baseline_error: float | None = None  # rel_l2 of the baseline against the float64 oracle, worst output
    candidate_error: float | None = None
    roofline_pct: float | None = None  # floor time from bytes and flops / candidate time
    capture: Literal["yes", "no", "n/a"] = "n/a"
    links: int = 1  # calls of the captured chain; durations are of one of them
    compile: Literal["ok", "graph break", "recompiles", "error", "n/a"] = "n/a"
    compile_detail: str | None = None
    origins: dict[str, float] | None = None  # share of device time: authored, vendor, torch, inductor, nccl
    timed: bool = True
    iterations_checked: int = 0

    @property
    def authored(self) -> float:
        """Share of device time in kernels that the candidate itself defines; 0 where nobody looked."""
        return (self.origins or {}).get("authored", 0.0)


class KernelSummary(Record):
    rows: int
    passed: int
    failed: int
    unstable: int
    geomean_speedup: float | None  # over timed PASSED rows, weighted by calls
    wall_s: float
    measuring_share: float  # of wall_s, spent in trials and not in starting processes


class KernelReport(Record):
    kind: Literal["kernels"] = "kernels"
    schema_version: int = Field(1, alias="schema")
    environment: Environment
    request: dict[str, Any]  # the command's arguments after all defaults
    rows: tuple[KernelRow, ...]
    shadowed: tuple[str, ...] = ()  # candidate files that no longer reach the tasks above them
    notes: tuple[str, ...] = ()  # what could not be measured as asked, and why
    summary: KernelSummary
    complete: bool = True  # False: interrupted, rows so far

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


# ---------------------------------------------------------------- the gate

GateVerdict = Literal["FAST", "SAME", "SLOW", "AMBIGUOUS", "NEW", "MISSING", "BROKEN"]


class Look(Record):
    """Head and base alternating in processes of their own, once. Without numbers where it told nothing."""

    speedup: float | None = None  # median of paired ratios base / head; above 1 the head is faster
    speedup_ci: tuple[float, float] | None = None
    base_us: float | None = None
    head_us: float | None = None
    noise_pct: float | None = None  # what two processes of the base differ by beside it, upper bound
    samples: int = 0
    problem: str | None = None  # why there are no numbers

    @model_validator(mode="after")
    def _whole(self) -> Look:
        numbers = (self.speedup, self.speedup_ci, self.base_us, self.head_us, self.noise_pct)
        known = [number is not None for number in numbers]
        if any(known) != all(known) or all(known) == (self.problem is not None):
            raise ValueError("a look has all its numbers, or says why it has none")
        return self


class GateRow(Record):
    """One case of a head against its base."""

    task: str
    variant: str
    case: str
    candidate: str  # name of the pair: the head's folder, or `baseline` for revisions
    verdict: GateVerdict
    reason: str  # one sentence: why this verdict
    contract: Contract
    calls: int = 1
    timed: bool = True  # held-out shapes are checked, not timed
    head: str | None  # verdict of the head against the float64 oracle, `PASSED`; None: it is not there
    base: str | None  # the same for the base
    looks: tuple[Look, ...] = ()  # the first, and its repetitions in fresh processes
    failure: Failure | None = None


class GateLimits(Record):
    """What counts as a regression: beyond both thresholds, and beyond the noise."""

    max_regression_pct: float  # of the base's time
    min_regression_us: float
    min_speedup: float | None = None  # of the geometric mean over all rows


class GateSummary(Record):
    verdicts: dict[GateVerdict, int]
    geomean_speedup: float | None  # over rows with numbers, weighted by calls
    geomean_ci: tuple[float, float] | None = None  # of the rows' lower and of their upper ends
    min_speedup: Literal["met", "missed", "unclear"] | None = None  # None: none was asked for
    wall_s: float


class GateReport(Record):
    kind: Literal["gate"] = "gate"
    schema_version: int = Field(1, alias="schema")
    environment: Environment
    request: dict[str, Any]
    head: str  # what was compared, as a user would say it
    base: str
    limits: GateLimits
    rows: tuple[GateRow, ...]
    notes: tuple[str, ...] = ()
    outcome: Literal["passed", "failed", "unclear"]
    summary: GateSummary
    complete: bool = True  # False: interrupted, rows so far

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


# ---------------------------------------------------------------- tier 3


class WorkloadResult(Record):
    """Raw seconds of alternating rounds and their ratio (candidate better > 1)."""

    name: str
    kind: Literal["throughput", "latency"]
    unit: str  # `out tok/s`, `s`
    baseline: tuple[float, ...]  # in `unit`, one for each round
    candidate: tuple[float, ...]
    throughput_ratio: float | None = None  # exactly one of the two
    latency_ratio: float | None = None
    ratio_ci: tuple[float, float] | None = None
    clipped: bool = False

    @property
    def ratio(self) -> float:
        ratio = self.throughput_ratio if self.kind == "throughput" else self.latency_ratio
        assert ratio is not None
        return ratio

    @property
    def half_width(self) -> float:
        """The larger distance from the ratio to an end of its interval, relative to it; 0 without one."""
        low, high = self.ratio_ci or (self.ratio, self.ratio)
        return max(high - self.ratio, self.ratio - low) / self.ratio

    @property
    def unstable(self) -> bool:
        """Whether the interval is too wide for the ratio to mean anything: a speed-up rests on sand."""
        return self.half_width > UNSTABLE_HALF_WIDTH


class Swap(Record):
    """Proof that the candidate ran inside the model."""

    sites: int  # modules of the model whose class comes from a candidate layer
    calls: int  # their calls in the eager proof pass
    by_task: dict[str, tuple[int, int]] = {}  # task -> (sites, calls)
    shadowed: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()  # candidate files that the model never imports
    predicted: float | None = None  # Amdahl: speed-up of a step from time saved at the sites
    measured: float | None = None  # speed-up of the same eager step
    transfer: float | None = None  # (measured - 1) / (predicted - 1)


class ModelResult(Record):
    model: str
    category: str
    size: Size
    config: str
    workloads: tuple[WorkloadResult, ...]
    d: tuple[float, ...]  # discrepancy of each sample, 0 same .. 1 unrelated
    noise_d: tuple[tuple[float, ...], ...]  # the same for each noise run of the baseline
    ruin_d: tuple[float, ...]  # discrepancy of unrelated outputs
    kl: float | None = None  # mean KL over positions, lower bound from the top logits
    correctness: float  # C_i
    noise_floor: float  # g_i
    ruin_point: float  # f_i
    valid: bool
    speedup: float | None  # s_i; None unless valid
    throughput_speedup: float | None  # T_i
    latency_speedup: float | None  # L_i
    swap: Swap
    notes: tuple[str, ...] = ()  # fallbacks counted, kernels passed over, clips
    failure: Failure | None = None


class MacroEval(Record):
    score: float
    speedup: float
    correctness: float
    coverage: float
    speedup_throughput_only: float  # lambda = 1
    speedup_latency_only: float  # lambda = 0
    score_ci: tuple[float, float] | None = None
    by_category: dict[str, dict[str, float]]


class EvalReport(Record):
    kind: Literal["eval"] = "eval"
    schema_version: int = Field(1, alias="schema")
    environment: Environment
    request: dict[str, Any]
    candidates: tuple[str, ...]
    models: tuple[ModelResult, ...]
    macroeval: MacroEval | None  # None: interrupted before any model finished
    complete: bool = True

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


# ---------------------------------------------------------------- task admission


class AuditCheck(Record):
    """One candidate whose verdict is known beforehand, on one case. `good`: None where it does not apply."""

    kind: Literal["reference", "trivial", "input", "mutant", "golden"]
    name: str
    good: bool | None
    verdict: str = ""  # of the distribution with the largest error ratio
    error_ratio: float | None = None  # error / allowed error, largest of all draws; None: not measurable
    distribution: str = ""
    reason: str = ""  # why it does not apply, or what is wrong
    elsewhere: bool = False  # it does not apply here, so another case of the task has to show it


class AuditRow(Record):
    """One case. `margin`: smallest error ratio of what must fail / largest of what must pass."""

    task: str
    variant: str
    case: str
    rule: str
    admitted: bool
    margin: float | None  # None: nothing to divide (an exact rule, goldens without error)
    closest: str = ""  # what must fail and has the smallest error ratio
    closest_ratio: float | None = None
    golden: str = ""  # what must pass and has the largest error ratio
    golden_ratio: float | None = None
    draws: int  # calls that were judged
    checks: tuple[AuditCheck, ...]


class AuditTask(Record):
    """Admitted: all its audited cases are, and every input and parameter is seen to matter in one of them."""

    task: str
    admitted: bool
    problems: tuple[str, ...] = ()


class AuditReport(Record):
    kind: Literal["audit"] = "audit"
    schema_version: int = Field(1, alias="schema")
    environment: Environment
    request: dict[str, Any]
    tasks: tuple[AuditTask, ...]
    rows: tuple[AuditRow, ...]
    unaudited: tuple[str, ...] = ()  # cases that this machine cannot hold, and why
    wall_s: float
    complete: bool = True  # False: interrupted, rows so far

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


Report = KernelReport | EvalReport | GateReport | AuditReport
