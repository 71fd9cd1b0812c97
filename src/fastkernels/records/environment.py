"""The machine that a report comes from."""

from __future__ import annotations

from fastkernels.records.base import Device, Record


class Environment(Record):
    """Where a report was made. `device` is the name that a vendor gives: `NVIDIA H200`, `Intel(R) Xeon(R)
    ...`.
    """

    device: str
    device_type: Device
    host_cpu: str
    cores: int
    memory_gib: float
    python: str
    torch: str
    triton: str | None
    cuda: str | None
    driver: str | None
    libraries: dict[str, str]
    fastkernels: str
    git_revision: str | None
    isolation: tuple[str, ...]  # what separates workers here: processes, home, network, ...
    started_at: str  # ISO 8601, UTC


class NodeUse(Record):
    """A node of a cluster that judged trials of a report."""

    node: str
    trials: int
    environment: Environment
