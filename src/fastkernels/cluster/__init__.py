"""One run of `fk kernels` or `fk eval` over the nodes of a Ray cluster.

    kernels, models   a run in parts, and their reports as one
    schedule          which part begins, and begins again
    nodes             Ray
    judge             on a node: the process in which a part is judged, as it would be by `fk` there
    facts, sent       what nodes must have in common; a candidate's files on their way

A part is a value: a candidate, a task and some of its cases; or a model. Its answer is the report of a run of
its own on that node. Reports are joined as by `fk merge` and `fk score`.
"""
