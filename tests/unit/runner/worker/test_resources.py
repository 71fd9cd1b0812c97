"""What each worker has of this machine."""

import os

from fastkernels.runner.worker import resources


def test_the_number_of_threads_leaves_a_core(monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert resources.default_threads() == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    cores = len(os.sched_getaffinity(0))
    assert resources.default_threads() == max(1, cores - 1)


def test_a_candidate_on_a_cpu_has_this_machines_memory_and_on_a_gpu_no_limit() -> None:
    assert resources.memory_limit("cuda") is None
    assert resources.memory_limit("cpu") == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
