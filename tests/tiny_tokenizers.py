"""Small tokenizers: two of five words, as the folder of a text-to-image pipeline holds them for its text
encoders, and one of each kind of decoder that language models have."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

FIRST_WORD = 10  # id of "a"; the next ones follow
WORDS = ["a", "cat", "on", "the", "mat"]
SPECIAL = {"<pad>": 0, "</s>": 1, "<begin>": 98, "<end>": 99}


def save_tokenizers(root: Path) -> None:
    """CLIP's puts a begin and an end around words and pads with the end; T5's ends them and pads with 0."""
    clip_tokenizer().save_pretrained(root / "tokenizer")
    t5_tokenizer().save_pretrained(root / "tokenizer_2")


def clip_tokenizer(pad: str = "<end>") -> PreTrainedTokenizerFast:
    return _made("<begin> $A <end>", pad=pad, length=77)


def t5_tokenizer() -> PreTrainedTokenizerFast:
    return _made("$A </s>", pad="<pad>", length=512)


def _made(around: str, pad: str, length: int) -> PreTrainedTokenizerFast:
    vocabulary = {word: FIRST_WORD + i for i, word in enumerate(WORDS)} | SPECIAL
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="</s>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(single=around, special_tokens=list(SPECIAL.items()))
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token=pad, model_max_length=length)


def sentencepiece_tokenizer() -> PreTrainedTokenizerFast:
    """As Llama 2's: words begin with a space, bytes stand for what has no token, one leading space is
    stripped."""
    pieces = ["▁", "▁world", "▁hello", "ing", ".", "▁▁", "é", "\ufffd"]
    return _of_pieces(
        [*SPECIALS, *(f"<0x{byte:02X}>" for byte in BYTES), *pieces],
        decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        ),
        byte_fallback=True,
    )


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """As GPT-2's and Llama 3's: every token is some bytes, of a part of a character or of several."""
    letter = dict(zip(_byte_order(), (chr(code) for code in _byte_letters())))
    tokens = [bytes([byte]) for byte in BYTES] + [b" world", b" ", b"a\xf0", b"\x9f\x98", b"\x80b", b"ing"]
    pieces = ["".join(letter[byte] for byte in token) for token in tokens]
    return _of_pieces([*SPECIALS, *pieces], decoders.ByteLevel())


def other_tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    """By the name of their decoder."""
    return {
        "metaspace": _of_pieces([*SPECIALS, "▁", "▁world", "▁▁a", "ing", "."], decoders.Metaspace()),
        "wordpiece": _of_pieces([*SPECIALS, "world", "##ing", ".", "n", "'", "##t"], decoders.WordPiece()),
        "suffix": _of_pieces([*SPECIALS, "world</w>", "ing</w>", "a", ".</w>"], decoders.BPEDecoder()),
        "none": _of_pieces([*SPECIALS, "world", "ing", "."], None),
    }


SPECIALS = ["<unk>", "<s>", "</s>"]
# Parts of one character of four bytes, one of two, and of none.
BYTES = [*b"\n A.", *"\N{GRINNING FACE}".encode(), *"\u00e9".encode(), 0xE2, 0x82, 0xAC, 0xBF, 0xFE, 0xFF]


def _of_pieces(
    pieces: list[str], decoder: decoders.Decoder | None, **options: bool
) -> PreTrainedTokenizerFast:
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    made = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", **options))
    made.decoder = decoder  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        clean_up_tokenization_spaces=False,
    )


def _byte_order() -> list[int]:
    """Bytes that byte-level tokenizers show as themselves, then the others."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return shown + [byte for byte in range(256) if byte not in shown]


def _byte_letters() -> list[int]:
    shown = _byte_order()[:188]
    return shown + list(range(256, 256 + 68))
