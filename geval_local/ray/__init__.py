"""Runs on a Ray cluster: workers read, score and write, the driver only counts.

- `blocks`, `input_blocks`: the input's files, the blocks they are cut into, and the survey of a wanted run
- `run_parts`: what callers ask for; `driver`: gives the blocks without a part out, and adds up their reports
- `messages`: what driver and workers tell each other; sums over rows
- `worker`: loads the judge once, then turns one block of the input after the other into its part
- `parts_directory`: manifest, list of blocks and parts, on this machine or at an address
- `own_cluster`, `cluster`: a cluster to work on; blocks through an actor pool of Ray Data
- `gather`: rows of a document brought into one block; `merge`: the parts as one file
- `steps`: evaluation steps, written by a worker
"""
