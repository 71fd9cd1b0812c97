"""Example inputs: what a model calls in one step, of which its cases are made (registry/walk.py).

An L4 class has `examples(run, batch)`. It yields a name of its own (a method or a part) and the inputs of
that call, and is sent what the call returns; `run` is the first of these names. The walk runs the calls on
the meta device, where the tensors that `examples` makes lie too: floats of no other dtype have the model's.
T tokens, B rows, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from torch import nn

from fastkernels.nn.cache import allocate, allocate_states, cache_groups, has_source
from fastkernels.nn.context import Step, use_step
from fastkernels.records import Batch

Examples = Generator[tuple[str, tuple[Any, ...]], Any, None]


def language_model(
    model: nn.Module,
    batch: Batch,
    states: tuple[int, int] | None = None,
    media_features: int | None = None,
) -> Examples:
    """A step over paged caches and states, the logits of each row, their softmax, and tokens drawn from all
    of them and from the best by top-k and top-p. states: the shape of the encoder states that a request
    brings along when it begins. media_features: of the rows that media bring, where a model has positions on
    three axes; in a step with prefill rows they stand for every other token."""
    with use_step(made := _step(model, batch)):
        ids_T, positions_T = (torch.empty(batch.num_tokens, dtype=torch.int64) for _ in range(2))
        brought = []
        if states is not None and made.begun_A is not None:
            brought = [torch.empty(made.begun_A.shape[0] * states[0], states[1])]
        if media_features is not None and made.max_query_len:
            positions_T = torch.empty(3, batch.num_tokens, dtype=torch.int64)
            index_T = torch.empty(batch.num_tokens, dtype=torch.int64)
            brought = [torch.empty(max(1, batch.num_tokens // 2), media_features), index_T]
        hidden_TD = yield "forward", (ids_T, positions_T, *brought)
        rows = len(batch.seq_lens)  # the head reads one position of each
        logits_BV = yield "compute_logits", (hidden_TD[:rows],)
        yield "softmax", (logits_BV,)
        temperature_B, top_p_B = (torch.empty(rows, dtype=torch.float32) for _ in range(2))
        seeds_B, at_B = (torch.empty(rows, dtype=torch.int64) for _ in range(2))
        top_k_B = torch.empty(rows, dtype=torch.int32)
        yield "sampler", (logits_BV, temperature_B, None, None, seeds_B, at_B)
        yield "sampler", (logits_BV, temperature_B, top_k_B, top_p_B, seeds_B, at_B)


def _step(model: nn.Module, batch: Batch) -> Step:
    """The batch as a step of the model, whose pools are bound."""
    rows, tokens = len(batch.seq_lens), batch.num_tokens
    lengths = [-(-seq_len // batch.block_size) for seq_len in batch.seq_lens]
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    allocate(model, 1 + sum(lengths), batch.block_size, dtype, device)
    allocate_states(model, rows + 1, dtype, device)
    groups = len(cache_groups(model))
    begun = sum(query == seq for query, seq in zip(batch.query_lens, batch.seq_lens))
    return Step(
        query_starts_B1=torch.empty(rows + 1, dtype=torch.int32),
        seq_lens_B=torch.empty(rows, dtype=torch.int32),
        rows_B=torch.empty(rows, dtype=torch.int64),
        block_tables_GBN=[torch.empty(rows, max(lengths), dtype=torch.int32) for _ in range(groups)],
        slots_GT=[torch.empty(tokens, dtype=torch.int64) for _ in range(groups)],
        num_decodes=batch.num_decodes,
        max_query_len=max(batch.query_lens[batch.num_decodes :], default=0),
        max_seq_len=max(batch.seq_lens),
        begun_A=torch.empty(begun, dtype=torch.int64) if begun and has_source(model) else None,
    )
