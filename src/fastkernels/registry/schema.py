"""What the registry's files hold; every file is validated against these records when it is read.

tasks.yaml               TaskEntry     what exists to be replaced
architectures/*.yaml     Architecture  which model uses it
batches.yaml             BatchEntry    the steps that cases are taken from
workloads.yaml           Workload      (workloads.py) what a model is asked to do
suites/*.yaml            Suite         which models and workloads make a score
devices/*.yaml           Device        measured ceilings and preferred implementations
cases/L*/*.jsonl         Case          (records.py) written by build.py
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, StringConstraints, model_validator

from fastkernels.records import Batch, DType, Record, Size, Skew, TensorSpec

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.\-]*$")]
TaskId = Annotated[str, StringConstraints(pattern=r"^L[1-4]/[a-z][a-z0-9_]*$")]
Config = dict[str, Any]  # a Hugging Face configuration


# ---------------------------------------------------------------- tasks


class Draw(Record):
    """How the values of a tensor argument are drawn (records.TensorSpec); numbers may name an init argument.

    `high: num_embeddings` is an init argument, `high: config.vocab_size` an entry of one that is a dict.
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
    inputs: dict[str, TensorSpec | bool | int | float | str | None]
    batch: Batch | None = None
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
    is_single: bool = False  # one operation alone, behind another interface: judged as that operation is
    decides: dict[Name, tuple[str, ...]] = {}  # variant -> arguments that decide which values are taken
    replicates: bool = False  # every rank of a group returns the same bits
    replays: dict[str, str] = {}  # argument -> draw that takes it from a golden folder (loader/replay.py)
    label: str | dict[Name, str] = ""  # part of case ids, or of each variant's: "K{input_size}", "D{dims}"
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


class BatchEntry(Record):
    """One step of a served model, as `(count, query_len, seq_len)` runs, and how its tokens choose experts;
    of images, `(count, rows, columns)` of patches, each behind `text` tokens of its prompt, or one
    `(count, height, width)` in pixels. clips: the rows are audio clips with all encoder states. latents: the
    images are latents to decode, and not in pixels. prompts: the rows are prompts for this part of the
    model."""

    rows: tuple[tuple[int, int, int], ...] = ()
    grids: tuple[tuple[int, int, int], ...] = ()
    text: int = 0
    clips: bool = False
    latents: bool = False
    prompts: str = ""
    images: tuple[int, int, int] | None = None
    routing: Skew = "uniform"
    levels: tuple[Literal[1, 2, 3, 4], ...] = (1, 2, 3, 4)  # levels that take cases from this step


class BatchSet(Record):
    """Steps that a configuration is walked with; cases of untimed sets are only checked."""

    summary: str
    timed: bool = True
    held_out: bool = False
    batches: dict[Name, BatchEntry]


class ModelConfig(Record):
    """A configuration of an architecture, as Hugging Face writes it, and how cases are taken from it."""

    size: Size
    dtype: DType
    summary: str
    checkpoint: str | None = None
    config: Config
    walk: tuple[Name, ...] = ()  # batch sets
    cut: Config = {}  # changes for L4 cases, so that the float64 oracle fits: fewer layers, parts left out
    cut_name: Name | None = None  # stands for the configuration in the ids of those cases


Resolution = tuple[PositiveInt, PositiveInt]  # height and width of an image in pixels


class TokenSamples(Record):
    """Prompts whose greedy continuation by the baseline both sides are forced along."""

    requests: PositiveInt
    input_lens: tuple[PositiveInt, PositiveInt]  # lengths are drawn from this range, ends included
    output_len: PositiveInt


class ImageSamples(Record):
    """Images whose features or detections are compared; resolutions take turns."""

    images: PositiveInt
    resolutions: tuple[Resolution, ...] = Field(min_length=1)


class GenerationSamples(Record):
    """Images that are generated from the same prompts and noise; resolutions take turns."""

    images: PositiveInt
    resolutions: tuple[Resolution, ...] = Field(min_length=1)
    prompt_len: PositiveInt
    steps: PositiveInt

    @model_validator(mode="after")
    def _each_resolution_twice(self) -> GenerationSamples:
        """An unrelated image of the same size must be among the samples."""
        if self.images < 2 * len(self.resolutions) or self.images % len(self.resolutions):
            raise ValueError(
                f"{self.images} images do not show {len(self.resolutions)} resolutions twice each"
            )
        return self


class SpeechSamples(Record):
    """Audio clips whose greedy transcript by the baseline both sides are forced along."""

    requests: PositiveInt
    seconds: tuple[PositiveFloat, PositiveFloat]  # lengths are drawn from this range
    output_len: PositiveInt


class TokenCorrectness(Record):
    """How two runs of a model are compared (d of a sample: 0 same, 1 unrelated); what counts as ruined."""

    kind: Literal["tokens"]
    ruin: Literal["other-prompt"]  # the same tokens scored after another sample's prompt
    samples: dict[Size, TokenSamples]


class EmbeddingCorrectness(Record):
    """d = 1 - cosine of an image's features, both less the baseline's mean over the samples."""

    kind: Literal["embedding"]
    ruin: Literal["other-image"]
    samples: dict[Size, ImageSamples]


class DetectionCorrectness(Record):
    """d = max(1 - score-weighted F1, 1 - mean IoU, mean score difference) of an image's matched boxes."""

    kind: Literal["detections"]
    ruin: Literal["other-image"]
    samples: dict[Size, ImageSamples]


class ImageCorrectness(Record):
    """d = 1 - cosine of an image's pixels, both less the baseline's mean of each colour."""

    kind: Literal["image"]
    ruin: Literal["other-prompt"]  # the image of another sample of the same size
    samples: dict[Size, GenerationSamples]


class SpeechCorrectness(Record):
    """As for tokens, after an audio clip and the same few tokens for all."""

    kind: Literal["speech"]
    ruin: Literal["other-clip"]
    prompt: dict[Size, tuple[int, ...]]
    samples: dict[Size, SpeechSamples]


Correctness = Annotated[
    TokenCorrectness | EmbeddingCorrectness | DetectionCorrectness | ImageCorrectness | SpeechCorrectness,
    Field(discriminator="kind"),
]


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
    reference: dict[Literal["parity", "speed"], str]
    license: str = ""
    order: PositiveInt | None = None  # of addition: the first to make a call owns its case; None: the last
    positions: str = "max_position_embeddings"  # the configuration's key: prompt and continuation end there
    tensor_parallel: dict[str, int] = {}  # configuration -> GPUs
    configs: dict[Name, ModelConfig]
    default_config: dict[Size, str]
    workloads: tuple[Name, ...]
    correctness: Correctness


class Suite(Record):
    name: Name
    summary: str
    architectures: tuple[str, ...]  # ids or globs
    workloads: dict[Size, tuple[Name, ...]]


# ---------------------------------------------------------------- devices


class Ceilings(Record):
    """What the best kernels reach on this device, measured, not the data sheet's figure."""

    copy_tb_s: float  # bytes read + written
    read_tb_s: float | None = None
    gemm_tflops: dict[DType, float]


class Choice(Record):
    use: str
    max_rows: int | None = None  # applies while the kernel's size is at most this


class Device(Record):
    name: str  # as the vendor says it
    ceilings: Ceilings | None = None  # None: measured at run time
    l2_mib: float | None = None
    implementations: dict[str, tuple[str | Choice, ...]] = {}
    sources: dict[str, str] = {}  # figure -> how and where it was measured
