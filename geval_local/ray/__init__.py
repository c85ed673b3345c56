"""Runs on a Ray cluster: workers read, score and write; the driver only counts.

- `driver`: the entry points; assigns the blocks that have no part, and adds up their reports
- `blocks`: blocks of the input's files, and their rows
- `survey`: hashes files, finds repeated ids and column types, and cuts blocks, while others are scored
- `block_list`: the blocks that are known so far, and what changed since an earlier run
- `job`: the data that workers get, and the reports they send
- `worker`: loads the judge once, then scores block after block into parts
- `gather`: moves all rows of a document into one block
- `parts_directory`: manifest, list of blocks and parts, on this machine or at an address
- `merge`: the parts as one file
- `cluster`: blocks surveyed, gathered and scored by Ray Data; steps by an actor
- `connection`: finds, starts and watches the cluster
"""
