"""Runs on a Ray cluster: Ray schedules the shares of a run, as processes of one machine do.

- `scheduler`: actors that load a judge once and bring shares to their outcomes
- `resources`: a cluster divided among workers
- `connection`: finds, starts and watches the cluster
"""
