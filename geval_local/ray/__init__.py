"""Runs over a Ray cluster; nothing outside of this folder imports Ray.

- `scheduler`: actors as workers, and the process that talks to Ray; `resources`: the cluster divided among them
"""
