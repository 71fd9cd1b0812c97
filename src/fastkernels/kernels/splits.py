"""Attention over splits of the keys of a row: what they leave, added up by one program.

    m = max_j s_j,  l = sum_j 2^(s_j - m),  o_i = sum_j 2^(s_j - m) v_j / l,  e_i = m + log2 l      split i
    o = sum_i 2^(e_i - max e) o_i / sum_i 2^(e_i - max e)                                          row

j over the keys of split i, scores s in units of log 2; o_i and e_i are float32. They are added in the order
of the splits: the result does not depend on which program does it.
"""

# Triton types a device function's arguments as what a launch passes.
# pyright: reportArgumentType=false, reportReturnType=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def combine(out, split_out, split_lse, used,
            G: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr, DIMS: tl.constexpr,
            SLOTS: tl.constexpr):  # fmt: skip
    """out[G, K] from split_out[used, G, K] and split_lse[used, G], SLOTS splits at a time."""
    s, g, d = tl.arange(0, SLOTS), tl.arange(0, GROUP), tl.arange(0, DIMS)
    out_mask = (g < G)[:, None] & (d < K)[None, :]
    # Finite, so that heads that are only padding have weights 0 and not NaN.
    top = tl.full([GROUP], -1e30, tl.float32)
    total = tl.zeros([GROUP], tl.float32)
    acc = tl.zeros([GROUP, DIMS], tl.float32)
    for at in tl.range(0, used, SLOTS, num_stages=1):
        slot = (at + s)[:, None] * G + g[None, :]
        there = (at + s < used)[:, None] & (g < G)[None, :]
        lse = tl.load(split_lse + slot, mask=there, other=float("-inf"), cache_modifier=".cg")
        parts = tl.load(
            split_out + slot[:, :, None] * K + d[None, None, :],
            mask=there[:, :, None] & (d < K)[None, None, :], other=0.0, cache_modifier=".cg",
        )  # fmt: skip
        new_top = tl.maximum(top, tl.max(lse, 0))
        weights = tl.exp2(lse - new_top[None, :])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(weights, 0)
        acc = acc * shrink[:, None] + tl.sum(parts * weights[:, :, None], 0)
        top = new_top
    total = tl.where(total > 0, total, 1.0)  # padding
    o = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + g[:, None] * K + d[None, :], o, mask=out_mask)
