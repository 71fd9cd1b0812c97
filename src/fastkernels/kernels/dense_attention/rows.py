"""What implementations of dense_attention ask about their rows."""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.plans import planned


def lengths(query_starts_B1: Tensor, key_starts_B1: Tensor) -> tuple[list[int], list[int]]:
    """Queries and keys of each row, on the host; read once for all layers of a forward."""
    return planned(
        "dense_attention",
        (query_starts_B1, key_starts_B1),
        (),
        lambda: (query_starts_B1.diff().tolist(), key_starts_B1.diff().tolist()),
    )


def are_equal(
    q_THK: Tensor,
    k_SHK: Tensor,
    query_starts_B1: Tensor,
    max_query_len: int,
    max_key_len: int,
) -> bool:
    """Whether all rows have the same lengths, decided without a look at the device: T queries in B rows of
    at most T / B each are T / B in every row."""
    rows = len(query_starts_B1) - 1
    return q_THK.shape[0] == rows * max_query_len and k_SHK.shape[0] == rows * max_key_len


def batched(x_THK: Tensor, rows: int) -> Tensor:
    """[T, H, K] of equally long rows as [B, H, T / B, K], without a copy."""
    return x_THK.unflatten(0, (rows, x_THK.shape[0] // rows)).transpose(1, 2)
