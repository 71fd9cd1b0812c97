"""How glibc's allocator behaves in a worker, which is where a candidate would set it otherwise."""

import os
from pathlib import Path

import pytest

from fastkernels.runner.worker.pool import Worker

ROOT = Path(__file__).parents[4]
SIDE = "tests.unit.runner.sides_for_tests:Echo"
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
LOOK = """
import ctypes
libc, size = ctypes.CDLL(None), 100 << 20
libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
place = libc.malloc(size)
end = libc.sbrk(0)
flags, inside = None, False
for line in open("/proc/self/smaps"):
    first, *others = line.split()
    if first == "VmFlags:":
        flags = others if inside else flags
    elif not first.endswith(":"):
        begins, ends = (int(at, 16) for at in first.split("-"))
        inside = begins <= place + size // 2 < ends
libc.free(place)
found = {"from the heap": place < end, "kept": libc.sbrk(0) == end, "huge": "hg" in flags}
"""


@pytest.fixture(scope="module")
def found() -> dict[str, bool]:
    version = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None
    if version is None or tuple(map(int, version.split()[1].split(".")[:2])) < (2, 35):
        pytest.skip("this C library has no such settings")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        with Worker("candidate", threads=1, namespaces=True, memory_bytes=8 << 30) as worker:
            worker.start(SIDE)
            return worker.call("look", code=LOOK)["found"]


def test_large_pieces_stay_with_the_process(found: dict[str, bool]) -> None:
    assert found["from the heap"]
    assert found["kept"]


def test_the_heap_asks_for_huge_pages(found: dict[str, bool]) -> None:
    if not _HUGE_PAGES.is_file() or "[madvise]" not in _HUGE_PAGES.read_text():
        pytest.skip("this system gives huge pages to everybody or to nobody")
    assert found["huge"]


def test_a_limit_of_memory_is_one_all_the_same() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        with Worker("candidate", threads=1, memory_bytes=4 << 30) as worker:
            worker.start(SIDE)
            code = "try:\n    found = len(bytearray(5 << 30))\nexcept MemoryError:\n    found = None"
            assert worker.call("look", code=code) == {"found": None}
            within = worker.call("look", code="found = len(bytearray(1 << 30))")
            assert within == {"found": 1 << 30}
