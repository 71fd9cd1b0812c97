"""Sums or means of rows of a table, a bag of ids for each feature of each sample.

    e[b, f] = sum_{o[s] <= n < o[s + 1]} weight[ids[n]],  s = f B + b;  mean: divided by o[s + 1] - o[s]

B samples · F features · N ids · V rows · D values of a row. Bags lie feature by feature, as jagged tensors
do; their sums sample by sample, as the next layer reads them. A bag without ids gives zeros, a mean too; ids
behind the last offset belong to no bag. Summed in float32 (float64 stays float64), rounded once to the dtype
of the table.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel

MODES = ("sum", "mean")


def _reference(ids_N: Tensor, offsets_S1: Tensor, weight_VD: Tensor, num_features: int, mode: str) -> Tensor:
    """Bag by bag with one index_add: each id's row goes to the bag that holds it."""
    wide = torch.promote_types(weight_VD.dtype, torch.float32)
    lengths_S = offsets_S1.long().diff()
    bags = lengths_S.numel()
    bag_N = torch.arange(bags, device=ids_N.device).repeat_interleave(lengths_S)
    total_SD = weight_VD.new_zeros(bags, weight_VD.shape[1], dtype=wide)
    total_SD.index_add_(0, bag_N, weight_VD[ids_N[: bag_N.numel()]].to(wide))
    if mode == "mean":
        total_SD /= lengths_S.clamp(min=1)[:, None]
    return _by_sample(total_SD.to(weight_VD.dtype), num_features)


def _torch(ids_N: Tensor, offsets_S1: Tensor, weight_VD: Tensor, num_features: int, mode: str) -> Tensor:
    """One lookup, and a copy that turns features and samples. The ids behind the last offset are a bag of
    their own, which is dropped. 16-bit rows are summed in float32."""
    return _by_sample(F.embedding_bag(ids_N, weight_VD, offsets_S1, mode=mode)[:-1], num_features)


def _by_sample(pooled_SD: Tensor, num_features: int) -> Tensor:
    return pooled_SD.view(num_features, -1, pooled_SD.shape[1]).transpose(0, 1).contiguous()


_LOOKUP = "dense_embedding_codegen_lookup_function"


@cache
def _fbgemm_fails(device_type: str) -> str | None:
    """Why the library cannot be used though it is installed: its wheels fit one version of PyTorch and one
    kind of device each."""
    try:
        import_module("fbgemm_gpu")
    except (ImportError, OSError) as error:
        return f"fbgemm_gpu is installed and does not load: {error}"
    if not hasattr(torch.ops.fbgemm, _LOOKUP):
        return f"this fbgemm_gpu has no {_LOOKUP}"
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"fbgemm::{_LOOKUP}", device_type.upper()):
        return f"this fbgemm_gpu is built without {device_type.upper()}"
    return None


def _fbgemm_unsupported(
    ids_N: Tensor, offsets_S1: Tensor, weight_VD: Tensor, num_features: int, mode: str
) -> str | None:
    width = weight_VD.shape[1]
    if weight_VD.dtype != torch.float32:
        return f"serves float32 tables, not {weight_VD.dtype}"
    if width % 4 or width > 2048:
        return f"serves rows of a multiple of 4 up to 2048 values, not {width}"
    return _fbgemm_fails(weight_VD.device.type)


def _fbgemm(ids_N: Tensor, offsets_S1: Tensor, weight_VD: Tensor, num_features: int, mode: str) -> Tensor:
    """FBGEMM's table-batched lookup. The table of every feature begins where ours does: ids are its rows."""
    rows, width = weight_VD.shape
    device = weight_VD.device
    pooled = torch.ops.fbgemm.dense_embedding_codegen_lookup_function(
        dev_weights=weight_VD.flatten(),
        weights_offsets=torch.zeros(num_features, dtype=torch.int64, device=device),
        D_offsets=torch.arange(0, (num_features + 1) * width, width, dtype=torch.int32, device=device),
        total_D=num_features * width,
        max_D=width,
        hash_size_cumsum=torch.arange(num_features + 1, dtype=torch.int64, device=device) * rows,
        total_hash_size_bits=(num_features * rows).bit_length(),
        indices=ids_N.long(),
        offsets=offsets_S1.long(),
        pooling_mode=MODES.index(mode),
        indice_weights=None,
        feature_requires_grad=None,
        mixed_D=False,
    )
    return pooled.view(-1, num_features, width)


_embedding_bag = Kernel(
    "embedding_bag",
    "(Tensor ids, Tensor offsets, Tensor weight, int num_features, str mode) -> Tensor",
    _reference,
    fake=lambda ids_N, offsets_S1, weight_VD, num_features, mode: weight_VD.new_empty(
        (offsets_S1.numel() - 1) // num_features, num_features, weight_VD.shape[1]
    ),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("fbgemm", _fbgemm, requires=("fbgemm_gpu",), unsupported=_fbgemm_unsupported),
        Implementation("torch", _torch, devices=("cpu", "cuda")),
    ),
    rows=lambda ids_N, offsets_S1, *_: offsets_S1.numel() - 1,
    work=lambda tally, ids_N, offsets_S1, weight_VD, *_: tally.look_up(weight_VD, ids_N.numel()),
)


def embedding_bag(
    ids_N: Tensor,
    offsets_S1: Tensor,
    weight_VD: Tensor,
    num_features: int,
    mode: str,
    *,
    impl: str | None = None,
) -> Tensor:
    """[B, F, D], contiguous; mode: sum or mean. ids int32 or int64, each in [0, V); offsets [F B + 1] of
    their dtype, from 0 and never falling, the last at most N.

    Raises KernelError when `impl` cannot serve the call, ValueError for another mode and for offsets that are
    no whole number of samples. What offsets and ids hold is not looked at: the host would wait for a GPU.
    """
    if mode not in MODES:
        raise ValueError(f"mode must be {' or '.join(MODES)}, not {mode!r}")
    if (offsets_S1.numel() - 1) % num_features:
        raise ValueError(
            f"{offsets_S1.numel()} offsets are not those of {num_features} features: one more than "
            "features times samples"
        )
    return _embedding_bag(ids_N, offsets_S1, weight_VD, num_features, mode, impl=impl)
