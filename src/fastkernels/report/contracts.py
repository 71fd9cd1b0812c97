"""Durations under two contracts are never to be compared: where a report has both, its tables say which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fastkernels.records import Contract, GateRow, KernelRow


def contracts(rows: Iterable[KernelRow | GateRow]) -> list[Contract]:
    """In the order in which they come."""
    return list(dict.fromkeys(row.contract for row in rows))


def under(contract: Contract, contracts: Sequence[Contract]) -> str:
    """` · contract eager` in a report with more than one."""
    return f" · contract {contract}" if len(contracts) > 1 else ""
