"""The attention kernels in CUDA C++ on a CPU, thread by thread: they answer, and do not get stuck."""

from typing import Any

import pytest
import torch

from fastkernels.kernels.decode_attention import hopper as decode
from fastkernels.kernels.prefill_attention import hopper as prefill
from tests.attention_case import attention_case
from tests.unit.kernels.emulation import COMPILER, emulate

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="needs g++"),
    pytest.mark.whole,  # half a minute; a GPU runs tests/gpu/test_attention_hopper.py
]
ONE = {"heads": (4, 1), "head_dim": 64}
# Name: multiprocessors, facts. Tiles of 32 tokens, steps of 128 keys; several tiles a program, and parts.
PREFILL: dict[str, tuple[int, dict[str, Any]]] = {
    "rows": (
        3,
        {"query_lens": [5, 0, 133, 16], "seq_lens": [5, 9, 133, 300], "heads": (8, 2), "head_dim": 64},
    ),
    "window-blocks-of-8": (
        2,
        {"query_lens": [40, 3], "seq_lens": [330, 200], "window": 133, "block_size": 8, **ONE},
    ),
    "two-panels": (1, {"query_lens": [40], "seq_lens": [200], "heads": (7, 1), "head_dim": 80}),
    "parts": (7, {"query_lens": [20, 40], "seq_lens": [1500, 700], "window": 1300, "sinks": True, **ONE}),
}
DECODE: dict[str, tuple[int, dict[str, Any]]] = {
    "parts": (20, {"seq_lens": [700, 0, 1, 130], "heads": (8, 2), "head_dim": 64}),
    "sinks-window": (
        4,
        {"seq_lens": [300, 5], "window": 170, "sinks": True, "heads": (16, 1), "head_dim": 128},
    ),
    "clusters": (36, {"seq_lens": [900, 0, 70, 200], "sinks": True, "heads": (8, 1), "head_dim": 200}),
    "one-cluster": (9, {"seq_lens": [300], "heads": (4, 1), "head_dim": 256}),
}


def test_prefill(tmp_path, monkeypatch):
    for name, (multiprocessors, facts) in PREFILL.items():
        (tmp_path / name).mkdir()
        counters = emulate(monkeypatch, tmp_path / name, multiprocessors)
        case = attention_case(dtype=torch.bfloat16, **facts)
        args: Any = [0 if a is None else a for a in case.prefill_args]
        case.check(prefill.prefill_attention(*args))
        assert len(counters[0]) > 2 or name != "parts"
        assert not counters[0].any()


def test_decode(tmp_path, monkeypatch):
    for name, (multiprocessors, facts) in DECODE.items():
        (tmp_path / name).mkdir()
        counters = emulate(monkeypatch, tmp_path / name, multiprocessors)
        case = attention_case([1] * len(facts["seq_lens"]), dtype=torch.bfloat16, **facts)
        args: Any = [0 if a is None else a for a in case.decode_args]
        case.check(decode.decode_attention(*args))
        assert len(counters) == (name != "one-cluster")
        assert not any(one.any() for one in counters)
