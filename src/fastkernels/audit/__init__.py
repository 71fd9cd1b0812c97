"""Task admission: whether a task's cases and rule tell a right kernel from a wrong one.

    subject     one case with its inputs, its baseline and its float64 oracle, in this process
    gate        the judge's word on any outputs: the rules of judge/, nothing of its own
    trivial     candidates that compute nothing                                       must fail
    mutants     the baseline with one mistake, made from what the case offers         must fail
    precision   arithmetic one step narrower (must fail), sums in another order (must pass)
    alternates  other implementations of the same kernels                             must pass
    admission   all of them on one case, the margin between them, the verdict on the task

Only our own code runs here, so there are no worker processes. What each candidate must do is not told to the
gate.
"""
