"""One thread for torch, here and in the processes that tests start: tiny operators gain nothing from two, and
two threads that wait for each other beside other work take ten times as long."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
