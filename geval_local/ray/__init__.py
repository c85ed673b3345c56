"""Runs on a Ray cluster: workers read, score and write, the driver only counts.

- `driver`: what callers ask for; gives the blocks without a part out, and adds up their reports
- `blocks`: the input's files, and the blocks they are cut into
- `worker`: loads the judge once, then turns one block of the input after the other into its part; what it is told, and
  what it reports; how it brings the rows of a document into one block
- `parts_directory`: manifest, list of blocks and parts, on this machine or at an address, and the parts as one file
- `cluster`: a cluster to work on; blocks through an actor pool of Ray Data, steps by an actor
"""
