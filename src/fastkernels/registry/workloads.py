"""What a model is asked to do, as registry/workloads.yaml has it.

Throughput counts what comes out; latency is the time of all requests, of batches that of one.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from fastkernels.records import Record, Size
from fastkernels.registry.schema import Name, Resolution


class _Workload(Record):
    name: Name
    kind: Literal["throughput", "latency"]
    size: Size
    requests: PositiveInt
    summary: str = ""

    counted: ClassVar[str]  # in a second of throughput

    @property
    def unit(self) -> str:
        return f"{self.counted}/s" if self.kind == "throughput" else "s"


class _Batched(_Workload):
    """One batch of images after another."""

    batch: PositiveInt

    counted: ClassVar = "images"

    @model_validator(mode="after")
    def _whole_batches(self) -> _Batched:
        if self.requests % self.batch:
            raise ValueError(f"{self.requests} images are no whole number of batches of {self.batch}")
        return self


class TokenWorkload(_Workload):
    """`requests` prompts of `input_len` tokens, all at once, each answered by exactly `output_len` tokens."""

    input_len: PositiveInt
    output_len: PositiveInt

    counted: ClassVar = "out tok"
    answer: ClassVar = "tokens"  # the kind of correctness that its models have

    @property
    def each(self) -> str:
        """What one request is, for tables."""
        return f"{self.input_len} in, {self.output_len} out"


class SpeechWorkload(_Workload):
    """`requests` audio clips of `seconds`, all at once, each answered by exactly `output_len` tokens."""

    seconds: PositiveFloat
    output_len: PositiveInt

    counted: ClassVar = "out tok"
    answer: ClassVar = "speech"

    @property
    def each(self) -> str:
        return f"{self.seconds:g} s of audio, {self.output_len} out"


class ImageWorkload(_Batched):
    """`requests` images; their resolutions take turns."""

    resolutions: tuple[Resolution, ...] = Field(min_length=1)

    answer: Literal["embedding", "detections"] = "embedding"

    @property
    def each(self) -> str:
        sizes = ", ".join(f"{height}x{width}" for height, width in self.resolutions)
        return f"{sizes}, {self.batch} a batch"


class GenerationWorkload(_Batched):
    """`requests` images of one resolution, each from `prompt_len` tokens in `steps` denoising steps."""

    resolution: Resolution
    prompt_len: PositiveInt
    steps: PositiveInt

    answer: ClassVar = "image"

    @property
    def each(self) -> str:
        height, width = self.resolution
        return f"{height}x{width}, {self.steps} steps, {self.batch} a batch"


Workload = TokenWorkload | ImageWorkload | GenerationWorkload | SpeechWorkload
