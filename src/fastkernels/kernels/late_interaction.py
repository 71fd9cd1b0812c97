"""Late interaction (MaxSim): how well documents answer a query, both given as a vector for each token.

    score[b] = sum_i max_j query[i] . docs[j]                  j over the rows of document b that are kept

L tokens of the query · S rows of all documents · B documents · K vector size. Documents lie one behind the
other, by their starts or all of one length. A similarity counts as FLOOR at least, so that one without rows
has a score too. Products, sums and scores in at least float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled

FLOOR = -9999.0  # what colbert-ai fills in for rows of padding


def _similarities(query_LK: Tensor, docs_SK: Tensor, keep_S: Tensor | None) -> Tensor:
    """[S, L]"""
    dtype = torch.promote_types(docs_SK.dtype, torch.float32)
    return _floored(docs_SK.to(dtype) @ query_LK.to(dtype).T, keep_S)


def _floored(similarity_SL: Tensor, keep_S: Tensor | None) -> Tensor:
    kept_SL = similarity_SL if keep_S is None else torch.where(keep_S[:, None], similarity_SL, FLOOR)
    return kept_SL.clamp(min=FLOOR)


def _scores(similarity_SL: Tensor, starts_B1: Tensor | None, length: int) -> Tensor:
    """[B]: of each document the best row for each token of the query."""
    if starts_B1 is None:
        return similarity_SL.unflatten(0, (-1, length)).amax(1).sum(-1)
    # Found on the device. A document without rows owns none of them; rows behind the last one's are nobody's.
    place_S = torch.arange(len(similarity_SL), device=starts_B1.device, dtype=starts_B1.dtype)
    doc_S = torch.searchsorted(starts_B1[1:].contiguous(), place_S, right=True)
    best_B1L = similarity_SL.new_full((len(starts_B1), similarity_SL.shape[1]), FLOOR)
    best_B1L.scatter_reduce_(0, doc_S[:, None].expand_as(similarity_SL), similarity_SL, "amax")
    return best_B1L[:-1].sum(-1)


def _reference(
    query_LK: Tensor, docs_SK: Tensor, starts_B1: Tensor | None, keep_S: Tensor | None, length: int
) -> Tensor:
    return _scores(_similarities(query_LK, docs_SK, keep_S), starts_B1, length)


def _cublas(
    query_LK: Tensor, docs_SK: Tensor, starts_B1: Tensor | None, keep_S: Tensor | None, length: int
) -> Tensor:
    """All similarities go to memory, in float32: of 16-bit vectors without copies of these."""
    if docs_SK.dtype not in checks.HALVES:
        return _reference(query_LK, docs_SK, starts_B1, keep_S, length)
    similarity_SL = torch.mm(docs_SK, query_LK.T, out_dtype=torch.float32)
    return _scores(_floored(similarity_SL, keep_S), starts_B1, length)


def _inductor_unsupported(
    query_LK: Tensor, docs_SK: Tensor, starts_B1: Tensor | None, keep_S: Tensor | None, length: int
) -> str | None:
    if docs_SK.is_cuda and starts_B1 is not None:
        return "of documents by their starts, its code for a GPU gives wrong scores (PyTorch 2.11)"
    return None


_late_interaction = Kernel(
    "late_interaction",
    "(Tensor query, Tensor docs, Tensor? starts, Tensor? keep, SymInt length) -> Tensor",
    _reference,
    fake=lambda query_LK, docs_SK, starts_B1, keep_S, length: docs_SK.new_empty(
        len(docs_SK) // length if starts_B1 is None else len(starts_B1) - 1,
        dtype=torch.promote_types(docs_SK.dtype, torch.float32),
    ),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("cublas", _cublas),
        Implementation("torch", _reference, devices=("cpu",)),
        Implementation("inductor", compiled(_reference), unsupported=_inductor_unsupported),
    ),
    cpu=(),
    rows=lambda query_LK, docs_SK, *_: docs_SK.shape[0],
    work=lambda tally, query_LK, docs_SK, *_: tally.multiply(docs_SK, 2 * docs_SK.numel() * len(query_LK)),
)


def late_interaction(
    query_LK: Tensor,
    docs_SK: Tensor,
    starts_B1: Tensor | None = None,
    keep_S: Tensor | None = None,
    length: int = 0,
    *,
    impl: str | None = None,
) -> Tensor:
    """Scores [B], float32 (float64 of float64).

    Document b owns rows starts_B1[b] .. starts_B1[b + 1] - 1, int32 from 0 to S, perhaps none; without starts
    each owns `length`. Query and documents have one dtype. keep: bool, rows that count; None: all. Raises
    KernelError when `impl` cannot serve the call, ValueError for shapes that do not fit.
    """
    if query_LK.dim() != 2 or docs_SK.dim() != 2 or query_LK.shape[1] != docs_SK.shape[1]:
        raise ValueError(f"a query [L, K] and rows [S, K], not {list(query_LK.shape)}, {list(docs_SK.shape)}")
    if not len(query_LK):
        raise ValueError("a query of 0 tokens scores nothing")
    if starts_B1 is None and (length < 1 or len(docs_SK) % length):
        raise ValueError(f"{len(docs_SK)} rows are no whole number of documents of {length}")
    if keep_S is not None and (keep_S.dtype != torch.bool or keep_S.shape != docs_SK.shape[:1]):
        raise ValueError(f"keep must be bool [{len(docs_SK)}], not {keep_S.dtype} {list(keep_S.shape)}")
    return _late_interaction(query_LK, docs_SK, starts_B1, keep_S, length, impl=impl)
