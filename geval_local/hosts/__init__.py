"""Exact local judges inside other tools, in process: no server, and prompts still share their common text.

::

    bound          one judge per process, one batcher per judge, and a metric bound to both
    evaluator      a function for every other tool
    deepeval       a metric and a System One model for DeepEval
    inspect        a scorer for Inspect
    mlflow         a scorer for MLflow, and finished runs written to it
    pytest_plugin  scores as assertions

Importing the package loads nothing. The module of a tool loads that tool; the first judge loads torch.
"""
