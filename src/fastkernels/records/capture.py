"""What a capture says of itself."""

from __future__ import annotations

from typing import Any, Literal

from fastkernels.records.base import RANDOM_IDS, Document, DType, Record, TokenPhase
from fastkernels.records.environment import Environment


class CapturedTokens(Record):
    """Tokens of each layer, in the order of the run: all were counted, the first were kept."""

    seen: int
    kept: int  # with expert ids and router logits
    hidden: int  # of these, with hidden states


class Capture(Document):
    """Where golden values come from: `provenance.json` of a golden folder."""

    kind: Literal["capture"] = "capture"
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

    @property
    def summary(self) -> str:
        """One sentence that leaves no doubt whether this is data of a real model."""
        what = f"{self.model} ({self.architecture}), workload {self.workload}, prompts of {self.prompts}"
        if self.weights == "random":
            return f"{what}; RANDOM weights: routing of no real model, near uniform"
        if self.prompts == RANDOM_IDS:
            return f"{what}; weights of a checkpoint, but random prompts: no real text was routed"
        return f"{what}; weights of a checkpoint"
