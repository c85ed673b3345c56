"""Runs on a Ray cluster: workers read, score and write, the driver only counts.

- `driver`: what callers ask for; gives the blocks without a part out, and adds up their reports
- `blocks`: the input's files, and the blocks they are cut into
- `job`: what workers are told, and what they report
- `worker`: loads the judge once, then turns one block of the input after the other into its part
- `gather`: brings the rows of a document into one block
- `parts_directory`: manifest, list of blocks and parts, on this machine or at an address
- `merge`: the parts as one file
- `cluster`: blocks surveyed, gathered and scored by Ray Data; steps by an actor
- `connection`: a cluster to work on
"""
