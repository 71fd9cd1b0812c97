"""A Ray cluster on this machine, in a process of its own: nodes of one CPU, whose workers are processes here.

python -m tests.e2e.ray_cluster NODES      prints its address
kill                                       on stdin: a node dies, with all that it runs
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster

SMALL = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}


def main(count: int) -> None:
    cluster = Cluster(initialize_head=True, head_node_args=SMALL)
    others = [cluster.add_node(**SMALL) for _ in range(count - 1)]
    try:
        print(cluster.address, flush=True)
        for line in sys.stdin:
            if line == "kill\n":
                cluster.remove_node(others.pop(), allow_graceful=False)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
