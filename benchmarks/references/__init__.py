"""One file for each reference library: which architectures it serves, with what workloads, and both sides."""

from __future__ import annotations

from references import dlrmv2, flux, gla, lightgcn, siglip2, transformers_lm, vllm_lm, whisper, yolov10
from references.base import Comparison

# The first one of an architecture is its reference where none is named.
FILES = (transformers_lm, gla, whisper, siglip2, flux, yolov10, dlrmv2, lightgcn, vllm_lm)


def comparisons(architecture: str) -> dict[str, Comparison]:
    """By the name of the reference; empty for an architecture that none of them serves."""
    found = [each for file in FILES for each in file.COMPARISONS if each.architecture == architecture]
    return {each.reference: each for each in found}


def architectures() -> list[str]:
    return sorted({each.architecture for file in FILES for each in file.COMPARISONS})
