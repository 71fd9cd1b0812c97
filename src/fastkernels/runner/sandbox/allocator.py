"""How the C library's allocator is set in every worker: it keeps what it once got, and in huge pages.

As it comes, glibc maps each piece beyond 32 MB anew and gives it back when it is freed, so every call that
returns as much faults all of its pages in again: 15 of 17 ms of an embedding of 262,144 rows on a CPU. And
where the system gives huge pages to whoever asks (`madvise`, as most do), it does not ask. One line of a
candidate changes either for its whole process, nothing tells how they are set, and neither is a kernel's
work. So all sides have the better settings, and there is nothing left to win.

They are those of a program's start (worker/template.py), from where its forks and their children have them.
Other C libraries read no such variable; glibc before 2.35 knows no huge pages. Where the heap cannot grow, at
a limit of memory or beside what is mapped behind it, glibc maps what is missing all the same. Threads other
than the first have heaps of 64 MB, and map what is larger, however it is set.
"""

from __future__ import annotations

_SETTINGS = {
    "mmap_max": 0,
    "trim_threshold": 2**64 - 1,
    "top_pad": 256 << 20,  # by which the heap grows at least: addresses, no memory
    "hugetlb": 1,  # ask for huge pages, where the system wants to be asked
}
ENVIRONMENT = {"GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={to}" for name, to in _SETTINGS.items())}
