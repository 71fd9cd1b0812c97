"""What a model is asked to do, as registry/workloads.yaml has it.

Throughput counts what comes out; latency is the time of all requests, of batches that of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from fastkernels.records import Record, Size
from fastkernels.registry.schema import Name, Shape


class _Workload(Record):
    name: Name
    kind: Literal["throughput", "latency"]
    size: Size
    requests: PositiveInt
    counted: str  # in a second of throughput
    summary: str = ""

    @property
    def unit(self) -> str:
        return f"{self.counted}/s" if self.kind == "throughput" else "s"


class TokenWorkload(_Workload):
    """`requests` prompts, all at once, each answered by exactly `output_len` tokens. input_len: of a prompt;
    0: the model has a fixed one. shapes: of the media beside the prompts; they take turns."""

    input_len: NonNegativeInt = 0
    output_len: PositiveInt
    shapes: tuple[Shape, ...] = ({},)
    counted: str = "out tok"

    answer: ClassVar = "tokens"  # the kind of correctness that its models have

    @property
    def each(self) -> str:
        """What one request is, for tables."""
        asked = [f"{self.input_len} in"] if self.input_len else []
        return ", ".join([*asked, *_words(self.shapes), f"{self.output_len} out"])


class ProgramWorkload(_Workload):
    """`requests` of one batch after another; their shapes take turns."""

    batch: PositiveInt
    shapes: tuple[Shape, ...] = Field(min_length=1)

    answer: ClassVar = "program"

    @property
    def each(self) -> str:
        return ", ".join([*_words(self.shapes), f"{self.batch} a batch"])

    @model_validator(mode="after")
    def _whole_batches(self) -> ProgramWorkload:
        if self.requests % self.batch:
            problem = f"no whole number of batches of {self.batch}"
            raise ValueError(f"{self.requests} {self.counted} are {problem}")
        return self


Workload = TokenWorkload | ProgramWorkload


def _words(shapes: tuple[Shape, ...]) -> Iterator[str]:
    """`384x384`, `28 steps`."""
    for shape in shapes:
        if "height" in shape:
            yield f"{shape['height']}x{shape['width']}"
        sides = ("height", "width")
        yield from (f"{value} {name.replace('_', ' ')}" for name, value in shape.items() if name not in sides)
