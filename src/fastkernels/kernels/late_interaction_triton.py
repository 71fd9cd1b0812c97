"""late_interaction in Triton: a program scores one document, whose similarities stay in registers.

It walks over the document's rows in tiles of M with the best so far of N tokens of the query, N at a time. A
query of one tile and narrow vectors, as ColBERT's, is read once, and so is the document.
L tokens of the query · K vector size, in parts of PART.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.late_interaction import FLOOR
from fastkernels.kernels.launch import power_of_two

MOST_TOKENS = 64  # of the query in one tile
# Rows of a document and elements of a vector in one tile, by bytes of an element.
TILES = {2: (64, 128), 4: (32, 64)}


def unsupported(kernel: str, query_LK: Tensor, docs_SK: Tensor, *rest: object) -> str | None:
    if query_LK.stride(1) != 1 or docs_SK.stride(1) != 1:
        return "needs a contiguous last dimension"
    return checks.not_float32_compute(docs_SK, query_LK)


@triton.jit(do_not_specialize=["L"])
def _score(query, docs, starts, keep, out, L, length, q_stride, d_stride,
           K: tl.constexpr, STARTS: tl.constexpr, KEEP: tl.constexpr, LEAST: tl.constexpr,
           M: tl.constexpr, N: tl.constexpr, PART: tl.constexpr):  # fmt: skip
    doc = tl.program_id(0)
    if STARTS:
        first = tl.load(starts + doc).to(tl.int64)
        rows = tl.load(starts + doc + 1) - first.to(tl.int32)
    else:
        first = doc.to(tl.int64) * length
        rows = length
    j, k = tl.arange(0, M), tl.arange(0, PART)
    total = tl.zeros([N], tl.float32)
    for begin in range(0, L, N):
        i = begin + tl.arange(0, N)
        best = tl.full([N], LEAST, tl.float32)
        q_rows = query + i.to(tl.int64)[None, :] * q_stride
        # What does not change with the rows is read before them.
        q = tl.load(q_rows + k[:, None], mask=(i < L)[None, :] & (k < K)[:, None], other=0.0)
        for at in range(0, rows, M):
            row = first + at + j
            is_row = at + j < rows
            d_rows = docs + row[:, None] * d_stride
            d = tl.load(d_rows + k[None, :], mask=is_row[:, None] & (k < K)[None, :], other=0.0)
            similarity = tl.dot(d, q, input_precision="ieee")
            for part in tl.static_range(PART, K, PART):
                kp = part + k
                further = tl.load(q_rows + kp[:, None], mask=(i < L)[None, :] & (kp < K)[:, None], other=0.0)
                d = tl.load(d_rows + kp[None, :], mask=is_row[:, None] & (kp < K)[None, :], other=0.0)
                similarity = tl.dot(d, further, similarity, input_precision="ieee")
            if KEEP:
                is_row &= tl.load(keep + row, mask=is_row, other=0) != 0
            best = tl.maximum(best, tl.max(tl.where(is_row[:, None], similarity, LEAST), 0))
        total += tl.where(i < L, best, 0.0)
    tl.store(out + doc, tl.sum(total, 0))


def late_interaction(
    query_LK: Tensor, docs_SK: Tensor, starts_B1: Tensor | None, keep_S: Tensor | None, length: int
) -> Tensor:
    count = len(docs_SK) // length if starts_B1 is None else len(starts_B1) - 1
    scores_B = torch.empty(count, dtype=torch.float32, device=docs_SK.device)
    if count:
        rows, part = TILES[docs_SK.element_size()]
        tokens, dim = query_LK.shape
        columns = min(MOST_TOKENS, max(16, power_of_two(tokens)))
        # The places of what there is not are taken by a tensor that is never read.
        keep = scores_B if keep_S is None else keep_S.contiguous().view(torch.uint8)
        _score[(count,)](
            query_LK, docs_SK, scores_B if starts_B1 is None else starts_B1, keep, scores_B,
            tokens, length, query_LK.stride(0), docs_SK.stride(0),
            K=dim, STARTS=starts_B1 is not None, KEEP=keep_S is not None, LEAST=FLOOR,
            M=rows, N=columns, PART=min(part, max(16, power_of_two(dim))), num_warps=4,
        )  # fmt: skip
    return scores_B
