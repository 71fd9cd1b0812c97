"""Attention over latents (MLA, absorbed): all query heads read one entry of the cache for each token, whose
first part is its value too.

    cache[slot] = [c | r]                                                        store_latent
    p[s] = softmax_s(scale q . [c_s | r_s]);   o = sum_s p[s] c_s                mla_decode, mla_prefill

T query tokens · B rows · H heads · L latent features · C features of an entry, L and those of r · N blocks of
P tokens · M blocks of a row's table. Query i of a row sits at seq_len - query_len + i and sees the entries up
to its own. Softmax and sums in at least float32; o has the dtype of the query. Entries are copied exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.kv_cache.limits import reads_lengths_on_the_host
from fastkernels.kernels.providers import PROVIDERS
from fastkernels.kernels.work import Rows, Tally


def _prefill(
    q_THC: Tensor,
    cache_NPC: Tensor,
    query_starts_B1: Tensor,
    seq_lens_B: Tensor,
    block_tables_BM: Tensor,
    scale: float,
    latent: int,
    max_query_len: int,
    max_seq_len: int,
) -> Tensor:
    """The reference, row by row; lengths are read on the host."""
    wide = torch.promote_types(q_THC.dtype, torch.float32)
    starts = (query_starts_B1 - query_starts_B1[0]).tolist()
    o_THL = q_THC.new_zeros((*q_THC.shape[:2], latent))
    for b, seq_len in enumerate(seq_lens_B.tolist()):
        q_QHC = q_THC[starts[b] : starts[b + 1]].to(wide)
        entries_SC = cache_NPC[block_tables_BM[b].long()].flatten(0, 1)[:seq_len].to(wide)
        scores_QHS = torch.einsum("qhc,sc->qhs", q_QHC, entries_SC) * scale
        at_S = torch.arange(seq_len, device=q_THC.device)
        later_QS = at_S > at_S[seq_len - len(q_QHC) :, None]
        p_QHS = scores_QHS.masked_fill_(later_QS[:, None], -torch.inf).softmax(-1)
        o_THL[starts[b] : starts[b + 1]] = (p_QHS @ entries_SC[:, :latent]).to(o_THL.dtype)
    return o_THL


def _decode(
    q_BHC: Tensor,
    cache_NPC: Tensor,
    seq_lens_B: Tensor,
    block_tables_BM: Tensor,
    scale: float,
    latent: int,
    max_seq_len: int,
) -> Tensor:
    starts_B1 = torch.arange(len(q_BHC) + 1, dtype=torch.int32, device=q_BHC.device)
    rows = (seq_lens_B, block_tables_BM)
    return _prefill(q_BHC, cache_NPC, starts_B1, *rows, scale, latent, 1, max_seq_len)


def _store(c_TL: Tensor, r_TR: Tensor, cache_NPC: Tensor, slots_T: Tensor) -> None:
    cache_NPC.flatten(0, 1)[slots_T] = torch.cat((c_TL, r_TR), -1).to(cache_NPC.dtype)


def _declined(kernel: str, x: Tensor, *_: object) -> str | None:
    return reads_lengths_on_the_host(x)


def _like_latents(q_THC: Tensor, latent: int) -> Tensor:
    return q_THC.new_empty((*q_THC.shape[:2], latent))


def _work(tally: Tally, q_THC: Tensor, cache_NPC: Tensor, latent: int, requests: Rows) -> None:
    tally.attend(q_THC, (cache_NPC,), requests, 0, value_size=latent)


_mla_prefill = Kernel(
    "mla_prefill",
    "(Tensor query, Tensor cache, Tensor query_starts, Tensor seq_lens, Tensor block_tables, float scale, "
    "int latent, SymInt max_query_len, SymInt max_seq_len) -> Tensor",
    _prefill,
    fake=lambda q_THC, *args: _like_latents(q_THC, args[5]),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _prefill, devices=("cpu", "cuda"), unsupported=_declined),
        Implementation("vllm", f"{PROVIDERS}.vllm_attention", requires=("vllm",), extra="vllm"),
    ),
    rows=lambda q_THC, *_: q_THC.shape[0],
    work=lambda tally, *args: _work(tally, args[0], args[1], args[6], tally.prefills(args[3])),
)

_mla_decode = Kernel(
    "mla_decode",
    "(Tensor query, Tensor cache, Tensor seq_lens, Tensor block_tables, float scale, int latent, "
    "SymInt max_seq_len) -> Tensor",
    _decode,
    fake=lambda q_BHC, *args: _like_latents(q_BHC, args[4]),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _decode, devices=("cpu", "cuda"), unsupported=_declined),
        Implementation("vllm", f"{PROVIDERS}.vllm_attention", requires=("vllm",), extra="vllm"),
        Implementation("flashmla", f"{PROVIDERS}.flashmla", requires=("vllm",), extra="vllm"),
    ),
    rows=lambda q_BHC, *_: q_BHC.shape[0],
    work=lambda tally, *args: _work(tally, args[0], args[1], args[5], tally.decodes(args[2])),
)

_store_latent = Kernel(
    "store_latent",
    "(Tensor latent, Tensor rest, Tensor(a!) cache, Tensor slots) -> ()",
    _store,
    fake=lambda *_: None,
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _store, devices=("cpu", "cuda")),
    ),
    rows=lambda c_TL, *_: c_TL.shape[0],
    work=lambda tally, c_TL, r_TR, cache, slots: tally.store((cache,), (c_TL, r_TR)),
)


def mla_prefill(
    q_THC: Tensor,
    cache_NPC: Tensor,
    query_starts_B1: Tensor,
    seq_lens_B: Tensor,
    block_tables_BM: Tensor,
    scale: float,
    latent: int,
    max_query_len: int,
    max_seq_len: int,
    *,
    impl: str | None = None,
) -> Tensor:
    """o_THL, contiguous, in the dtype of the query. Queries may have any strides with a contiguous last
    dimension; row b owns those from query_starts_B1[b] on, counted from query_starts_B1[0]. Entries of the
    queries' own tokens are stored already. Raises KernelError when `impl` cannot serve the call.
    """
    rows = (query_starts_B1, seq_lens_B, block_tables_BM)
    return _mla_prefill(q_THC, cache_NPC, *rows, scale, latent, max_query_len, max_seq_len, impl=impl)


def mla_decode(
    q_BHC: Tensor,
    cache_NPC: Tensor,
    seq_lens_B: Tensor,
    block_tables_BM: Tensor,
    scale: float,
    latent: int,
    max_seq_len: int,
    *,
    impl: str | None = None,
) -> Tensor:
    """`mla_prefill` of one query for each row, whose output a row of padding (seq_len 0) has as zeros."""
    return _mla_decode(q_BHC, cache_NPC, seq_lens_B, block_tables_BM, scale, latent, max_seq_len, impl=impl)


def store_latent(
    c_TL: Tensor, r_TR: Tensor, cache_NPC: Tensor, slots_T: Tensor, *, impl: str | None = None
) -> None:
    """Write [c | r] of each token at its slot, block * P + offset, int64. Slots below P are padding: what is
    written there is never read; all others of a call are distinct. Rows may be strided."""
    _store_latent(c_TL, r_TR, cache_NPC, slots_T, impl=impl)
