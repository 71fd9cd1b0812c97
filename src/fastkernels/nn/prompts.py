"""How a text-to-image model reads a prompt: by two text encoders, one for each side of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reader:
    """A text encoder as callers see it: its name, the folder of its tokenizer, how many ids it knows and how
    many of a prompt it reads, to which words are padded; what is longer is cut, or refused."""

    name: str
    tokenizer: str
    vocab_size: int
    tokens: int
    cuts: bool = True
