"""What the registry's files hold; every file is validated against these records when it is read.

tasks/L*/*.yaml          TaskEntry     what exists to be replaced
architectures/*.yaml     Architecture  which model uses it
production.yaml          ProductionClass   which kernels production runs
batches/*.yaml           BatchSet      steps that cases are taken from, of several architectures
workloads.yaml           Workload      (workloads.py) what a model is asked to do
suites/*.yaml            Suite         which models and workloads make a score
devices/*.yaml           Device        measured ceilings and preferred implementations
cases/L*/*.jsonl         Case          (records.py) made by build.py; case_files.py has the format
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, PositiveInt, StringConstraints, model_validator

from fastkernels.records import Batch, DType, Record, Routing, Size, Skew, TensorSpec

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.\-]*$")]
TaskId = Annotated[str, StringConstraints(pattern=r"^L[1-4]/[a-z][a-z0-9_]*$")]
Config = dict[str, Any]  # a Hugging Face configuration


# ---------------------------------------------------------------- tasks


class Draw(Record):
    """How the values of a tensor argument are drawn (records.TensorSpec); numbers may name an init argument.

    `high: num_embeddings` is an init argument, `high: config.vocab_size` an entry of one that is a dict, and
    `high: rows.x` the number of rows of argument x.
    """

    draw: str = "normal"
    low: float | str = 0
    high: float | str = 1
    row: int | str | None = None


class ExtraCase(Record):
    """A use of a task that no registered architecture makes: checked, and timed where it says so."""

    id: str
    variant: str = "default"
    size: Size
    dtype: DType
    init: dict[str, Any]
    inputs: dict[str, TensorSpec | bool | int | float | str | tuple[int, ...] | list[list[int]] | None]
    batch: Batch | None = None
    routing: Routing | None = None
    ranks: PositiveInt = 1
    timed: bool = False


class Interface(Record):
    """The parameter names of a variant, as the production module `of` has them: callers there pass them by
    name. `own`: parameters that it lacks, or takes inside a configuration or an attention's metadata."""

    of: str
    init: tuple[str, ...] = ()
    forward: tuple[str, ...] = ()
    own: tuple[str, ...] = ()


class TaskEntry(Record):
    """One task file. After a lookup of `L1/glu:gelu`, `variants` holds only what was asked for."""

    id: TaskId
    summary: str
    variants: dict[Name, str] = Field(min_length=1)  # variant -> class name
    mirrors: tuple[str, ...]  # production modules with this interface
    interface: dict[Name, Interface] = {}  # of each variant
    kernels: tuple[str, ...] = ()  # names in fastkernels.kernels that the file calls itself
    rule: Literal["values", "exact", "sampler"] = "values"
    mutates: tuple[str, ...] = ()  # arguments that forward writes
    aliases: tuple[str, ...] = ()  # names in use elsewhere; `name:variant` points at one variant
    draws: dict[str, Draw] = {}  # arguments that are not plain activations
    selects: dict[str, str] = {}  # output of indices -> argument with the logits that they are chosen by
    thin: bool = False  # it passes its call on to one task of level 1: timed at one size
    is_single: bool = False  # one operation alone, behind another interface: judged as that operation is
    decides: dict[Name, tuple[str, ...]] = {}  # variant -> arguments that decide which values are taken
    replicates: bool = False  # every rank of a group returns the same bits
    private: tuple[str, ...] = ()  # arguments of a rank on which no other rank's results depend
    replays: dict[str, str] = {}  # argument -> draw that takes it from a golden folder (loader/replay.py)
    label: str | dict[Name, str] = (
        ""  # part of case ids, or of each variant's: "K{input_size}", "D{dims}", "C{viewmats}"
    )
    extra_cases: tuple[ExtraCase, ...] = ()
    # What `fk audit` does not admit: device -> id of a case, or "*" for the whole task -> why. Until that is
    # mended none of it is timed, on any device.
    not_admitted: dict[Literal["cpu", "cuda"], dict[str, str]] = {}

    @property
    def level(self) -> int:
        return int(self.id[1])

    def refusals(self, case_id: str) -> list[str]:
        """Why the case is not timed, though it is no held-out shape: once for each device."""
        return [
            f"{self.id if name == '*' else f'{self.id} {name}'} is checked and not timed: "
            f"fk audit does not admit it on {device} ({why})"
            for device, refused in self.not_admitted.items()
            for name, why in refused.items()
            if name in ("*", case_id)
        ]

    @property
    def has_parts(self) -> bool:
        """Whether it is several operations, which hand rounded values on to each other."""
        return self.level > 1 and not self.is_single

    @property
    def name(self) -> str:
        """`rms_norm`"""
        return self.id.partition("/")[2]

    @property
    def module(self) -> str:
        """`L1.rms_norm`: what an overlay loads."""
        return self.id.replace("/", ".")


# ---------------------------------------------------------------- architectures, workloads, suites


class BatchEntry(Batch):
    """One step of a served model, and how its tokens choose experts. The first word of its name is the phase
    of the cases that come from it. run: the model's method, or part, that the step begins with; its class
    makes the inputs (nn/examples.py)."""

    run: str = "forward"
    routing: Skew = "uniform"
    held_out: bool = False  # its cases are checked and not timed
    levels: tuple[Literal[1, 2, 3, 4], ...] = (1, 2, 3, 4)  # levels that take cases from this step
    of_rows: bool = False  # at level 1 only from calls that see rows, not tokens alone: attention, scans

    @property
    def batch(self) -> Batch:
        return Batch(**self.model_dump(include=set(Batch.model_fields)))


class BatchSet(Record):
    """Steps that a configuration is walked with."""

    summary: str
    batches: dict[Name, BatchEntry]


class ModelConfig(Record):
    """A configuration of an architecture, as Hugging Face writes it, and how cases are taken from it."""

    size: Size
    dtype: DType
    summary: str
    checkpoint: str | None = None
    config: Config
    walk: tuple[Name, ...] = ()  # sets of steps: the architecture's own, or those of registry/batches
    cut: Config = {}  # changes for L4 cases, so that the float64 oracle fits: fewer layers, parts left out
    cut_name: Name | None = None  # stands for the configuration in the ids of those cases
    # Of random weights, where it is tiny. A small vocabulary lets greedy texts repeat themselves, by half of
    # the seeds; such texts are no evidence (score/timed_tokens.py).
    seed: int = 0


Value = int | float | str  # of a parameter; a str names an entry of the shape, or of the configuration
# What a request is made with (`{height: 384, width: 384}`). A pair is a range that a number is drawn from,
# its ends included.
Shape = dict[str, int | float | tuple[int, int] | tuple[float, float]]
NoiseGroups = tuple[tuple[str, ...], ...]  # kernels that run their `reference` in a noise run of the baseline


class Chosen(Record):
    """A function by its name and its parameters: `{draw: integers, high: config.vocab_size}`."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Input(Chosen):
    """An array that the judge draws (runner/models/draws.py). What the function takes and is not given here
    is the shape's entry of that name."""

    draw: str


class Distance(Chosen):
    """How far two outputs are apart (score/distances.py)."""

    distance: str


def _distances(chosen: Any) -> Any:
    """One distance or several; a name alone stands for one without parameters."""
    several = chosen if isinstance(chosen, (list, tuple)) else [chosen]
    return [{"distance": one} if isinstance(one, str) else one for one in several]


class ProgramSamples(Record):
    """Requests that both sides answer; shapes take turns."""

    count: PositiveInt
    shapes: tuple[Shape, ...] = ({},)

    @model_validator(mode="after")
    def _each_shape_twice(self) -> ProgramSamples:
        """An unrelated request of the same shape must be among the samples."""
        if self.count < 2 * len(self.shapes) or self.count % len(self.shapes):
            raise ValueError(f"{self.count} samples do not show {len(self.shapes)} shapes twice each")
        return self


class ProgramCorrectness(Record):
    """A model whose requests are named inputs and whose answers are named outputs.

    inputs: an array that is drawn, of a list of them the first whose entries the configuration has; or a
    number, or an entry of the shape. d of a sample is the largest over its outputs and the distances of each.
    finished: what is compared is what the model's `finish` makes of the outputs that are timed. audited:
    answers of each timed run that the baseline gives again.
    """

    kind: Literal["program"]
    inputs: dict[Name, Input | tuple[Input, ...] | Value]
    outputs: dict[Name, Annotated[tuple[Distance, ...], BeforeValidator(_distances)]] = Field(min_length=1)
    finished: bool = False
    audited: PositiveInt = 8
    noise: NoiseGroups = Field(min_length=2)
    samples: dict[Size, ProgramSamples]

    def positions(self, size: Size, workloads: Iterable[Any]) -> int:
        return 0


class TokenSamples(Record):
    """Prompts whose greedy continuation by the baseline both sides are forced along. shapes: of media."""

    requests: PositiveInt
    input_lens: tuple[int, int] = (0, 0)  # lengths are drawn from this range, ends included
    output_len: PositiveInt
    shapes: tuple[Shape, ...] = ({},)


class TokenCorrectness(Record):
    """A model whose answers are tokens: d of a sample is 1 - teacher-forced agreement with the baseline's own
    greedy tokens, and ruined are the same tokens scored behind another sample's prompt.

    media: what a request has beside its prompt, unless its shape is empty. prompt: the same ids for all
    requests that have media, ahead of those that are drawn, if any are; text_below: what drawn ids are below,
    where not all of the vocabulary is text. media_tokens: that media add to a prompt, at most.
    """

    kind: Literal["tokens"]
    media: dict[Name, Input] = {}
    prompt: dict[Size, tuple[int, ...]] = {}
    text_below: dict[Size, PositiveInt] = {}
    media_tokens: dict[Size, PositiveInt] = {}
    noise: NoiseGroups = Field(min_length=1)
    samples: dict[Size, TokenSamples]

    def positions(self, size: Size, workloads: Iterable[Any]) -> int:
        """That prompts and outputs of the workloads need; 0 without any."""
        beside = self.beside(size)
        return max((beside + w.input_len + w.output_len for w in workloads), default=0)

    def beside(self, size: Size) -> int:
        """Positions of a prompt beside those of its drawn ids."""
        return len(self.prompt.get(size, ())) + self.media_tokens.get(size, 0)


Correctness = Annotated[TokenCorrectness | ProgramCorrectness, Field(discriminator="kind")]


class Architecture(Record):
    id: Name
    name: str
    category: str
    task: TaskId  # L4/llama
    checkpoint: str  # the scored Hugging Face id
    model_types: tuple[str, ...]  # config.json `model_type`s that this task serves
    hf_architectures: tuple[str, ...]  # config.json `architectures`, model_index.json `_class_name`
    components: tuple[
        Name, ...
    ] = ()  # folders of such a pipeline with its parts, as its configuration has them
    # Files of weights beside the model's in its folder, and what stands before the names of their tensors.
    further_weights: dict[str, str] = {}
    # The section of a configuration that describes the model, where the whole describes more.
    text_section: str = ""
    reference: dict[Literal["parity", "speed"], str]
    license: str = ""
    order: PositiveInt | None = None  # of addition: the first to make a call owns its case; None: the last
    positions: str = "max_position_embeddings"  # the configuration's key: prompt and continuation end there
    tensor_parallel: dict[str, int] = {}  # configuration -> GPUs
    # What its layers can be split by (nn/partition): tensors, experts. Empty: it is served on one rank.
    parallel: tuple[Literal["tensor", "expert"], ...] = ()
    batches: dict[Name, BatchSet] = {}  # steps of its own
    configs: dict[Name, ModelConfig]
    default_config: dict[Size, str]
    workloads: tuple[Name, ...]
    unscored: tuple[Name, ...] = ()  # further workloads that it may be asked
    correctness: Correctness


class Suite(Record):
    name: Name
    summary: str
    architectures: tuple[str, ...]  # ids or globs
    workloads: dict[Size, tuple[Name, ...]] = {}  # none: those that each architecture lists itself

    def names(self, architecture: Architecture, size: Size) -> tuple[Name, ...]:
        """Of the workloads that it asks of an architecture."""
        return self.workloads.get(size, architecture.workloads)


# ---------------------------------------------------------------- devices


class Ceilings(Record):
    """What the best kernels reach on this device, measured, not the data sheet's figure."""

    copy_tb_s: float  # bytes read + written
    read_tb_s: float | None = None
    gemm_tflops: dict[DType, float]


class Choice(Record):
    use: str
    max_rows: int | None = None  # applies while the kernel's size is at most this
    dtype: DType | None = None  # applies to calls whose first tensor has this one


class Device(Record):
    name: str  # as the vendor says it
    ceilings: Ceilings | None = None  # None: measured at run time
    l2_mib: float | None = None
    implementations: dict[str, tuple[str | Choice, ...]] = {}
    sources: dict[str, str] = {}  # figure -> how and where it was measured


class ProductionClass(Record):
    """Kernels of one kind that production runs for the operations `of`, names of kernels; each of the
    implementations `by` is one."""

    name: str  # as in "baseline without FlashAttention-3"
    of: tuple[str, ...] = Field(min_length=1)
    by: tuple[str, ...] = Field(min_length=1)
    capability: tuple[int, ...] = ()  # major compute capabilities that it runs on; empty: all
