"""Runs on a Ray cluster.

- `driver`: windows are cut into shards, workers score them, this process writes parts and results
- `own_cluster`, `cluster`: a cluster to work on; shards through an actor pool of Ray Data
- `worker`, `steps`, `attempts`: what a worker does; evaluation steps; shards that kill their worker
- `shards`, `parts`, `part_records`: rows that share texts; their outcomes in Parquet files
"""
