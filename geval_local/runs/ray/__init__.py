"""Runs on a Ray cluster: workers read, score and write, the driver only counts.

- `driver`: lists files and parts, gives blocks out, adds up what came of them
- `worker`: loads the judge once, then turns one block of the input after the other into its part
- `parts_directory`: manifest, list of blocks and parts, on this machine or at an address
- `own_cluster`, `cluster`: a cluster to work on; blocks through an actor pool of Ray Data
- `steps`: evaluation steps, written by a worker
"""
