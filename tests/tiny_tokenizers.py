"""Tokenizers of five words, as the folder of a text-to-image pipeline holds them for its text encoders."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

FIRST_WORD = 10  # id of "a"; the next ones follow
WORDS = ["a", "cat", "on", "the", "mat"]
SPECIAL = {"<pad>": 0, "</s>": 1, "<begin>": 98, "<end>": 99}


def save_tokenizers(root: Path) -> None:
    """CLIP's puts a begin and an end around words and pads with the end; T5's ends them and pads with 0."""
    clip_tokenizer().save_pretrained(root / "tokenizer")
    t5_tokenizer().save_pretrained(root / "tokenizer_2")


def clip_tokenizer() -> PreTrainedTokenizerFast:
    return _made("<begin> $A <end>", pad="<end>", length=77)


def t5_tokenizer() -> PreTrainedTokenizerFast:
    return _made("$A </s>", pad="<pad>", length=512)


def _made(around: str, pad: str, length: int) -> PreTrainedTokenizerFast:
    vocabulary = {word: FIRST_WORD + i for i, word in enumerate(WORDS)} | SPECIAL
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="</s>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(single=around, special_tokens=list(SPECIAL.items()))
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token=pad, model_max_length=length)
