"""`fk capture`: run a model, record the calls of its tasks and what its routers got and chose.

run.py       a workload through the engine, into a golden folder (format: loader/golden.py)
calls.py     every distinct call of a task
routers.py   hidden states -> router logits -> expert ids, and the load of every expert
loads.py     load per expert: captured beside uniform and zipf
again.py     the captured hidden states through the kernels of this machine
times.py     durations of a kernels report by routing
page.py      all of it as tables                    plot.py   as a picture
"""
