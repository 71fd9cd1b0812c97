"""mla_decode by FlashMLA, whose operator for 16-bit caches vLLM carries.

How the rows are cut among multiprocessors it computes on the device, once for a step.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.plans import planned_on_device
from fastkernels.kernels.providers.flash_attention import on_hopper
from fastkernels.kernels.providers.vllm_operator import Operator

_FORWARD = Operator(
    "_flashmla_C",
    "dense_decode_fwd",
    "q kcache head_size_v seqlens_k block_table softmax_scale is_causal tile_scheduler_metadata num_splits "
    "out_",
)
BLOCK = 64
FEATURES, LATENT = 576, 512


def unsupported(
    kernel: str,
    q_BHC: Tensor,
    cache_NPC: Tensor,
    seq_lens_B: Tensor,
    block_tables_BM: Tensor,
    scale: float,
    latent: int,
    max_seq_len: int,
) -> str | None:
    if not on_hopper(q_BHC):
        return "needs compute capability 9"
    if (features := q_BHC.shape[-1], latent) != (FEATURES, LATENT):
        return f"serves {FEATURES} features of which {LATENT} are latent, not {features} and {latent}"
    if (block_size := cache_NPC.shape[1]) != BLOCK:
        return f"serves blocks of {BLOCK} tokens, not {block_size}"
    if reason := checks.not_half(q_BHC, cache_NPC) or checks.not_aligned(q_BHC, cache_NPC):
        return reason
    return _FORWARD.missing


def mla_decode(
    q_BHC: Tensor,
    cache_NPC: Tensor,
    seq_lens_B: Tensor,
    block_tables_BM: Tensor,
    scale: float,
    latent: int,
    max_seq_len: int,
) -> Tensor:
    if len(q_BHC) == 0:
        return q_BHC.new_empty((*q_BHC.shape[:2], latent))
    # Filled by the first call of a step; the cut depends on lengths and heads alone.
    cut = planned_on_device("flashmla", (seq_lens_B,), q_BHC.shape[1], lambda: [None, None])
    o_B1HL, _, programs, splits = _FORWARD.call(
        q_BHC[:, None], cache_NPC[:, :, None], latent, seq_lens_B, block_tables_BM, scale, True, *cut, None
    )
    cut[:] = programs, splits
    # What it leaves in rows without keys is no part of its contract.
    return o_B1HL[:, 0].masked_fill_((seq_lens_B == 0)[:, None, None], 0)
