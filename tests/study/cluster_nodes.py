"""A Ray cluster of two nodes, `first` and `second`, on this machine: `python cluster_nodes.py`.

Prints the cluster's address. Reads names of nodes from stdin, removes each node, and prints `removed`. Ends when stdin
is closed.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster


def main() -> None:
    size = dict(num_cpus=1, object_store_memory=100 * 2**20, include_dashboard=False)
    cluster = Cluster(initialize_head=True, head_node_args=dict(node_name="first", **size), shutdown_at_exit=True)
    try:
        nodes = {"second": cluster.add_node(node_name="second", **size)}
        print(cluster.address, flush=True)
        for line in sys.stdin:
            cluster.remove_node(nodes.pop(line.strip()), allow_graceful=False)
            print("removed", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
