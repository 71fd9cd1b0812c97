"""What NVIDIA's tools and PyTorch's profiler say of a task's case or of a model.

    tools        which tool there is, how to get the others, and a process of ours under one
    one_call     that process: one call of a case
    ncu          Nsight Compute: bandwidth, occupancy, and what limits a kernel
    sanitizer    compute-sanitizer: accesses, races, barriers, by kernel and line
    model_trace  a model's run: torch.profiler, or Nsight Systems
    of_report    the same for candidates of a report of `fk kernels`

A candidate runs here without the judge's isolation (docs/threat_model.md), and behind its verdict.
"""
