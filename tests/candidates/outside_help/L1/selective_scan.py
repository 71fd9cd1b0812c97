"""Has a program of the user's that listens on a path in the file system (here tmux) start a process outside of its group,
which stops and continues the baseline for as long as this one is stopped."""

from fastkernels.baseline.L1.selective_scan import SelectiveScan  # noqa: F401

from . import help  # noqa: F401
