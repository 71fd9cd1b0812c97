"""Facts about tasks, architectures, workloads and devices: read from `registry/`, validated, without torch."""

from fastkernels.registry.lookup import (
    architecture_for,
    architectures,
    batch_set,
    cases,
    device,
    find_architectures,
    find_tasks,
    read_config,
    suite,
    suites,
    task,
    tasks,
    tasks_of,
    workloads,
)
from fastkernels.registry.lookup import find_architecture as architecture

__all__ = [
    "architecture",
    "architecture_for",
    "architectures",
    "batch_set",
    "cases",
    "device",
    "find_architectures",
    "find_tasks",
    "read_config",
    "suite",
    "suites",
    "task",
    "tasks",
    "tasks_of",
    "workloads",
]
