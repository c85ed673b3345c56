"""Exact local judges inside other people's tools, in process: no server, and prompts still share what they can.

::

    bound          one judge per process, one batcher per judge, and a metric bound to both
    evaluator      a function for every other tool
    deepeval       a metric and a System One model for DeepEval
    inspect        a scorer for Inspect
    mlflow         a scorer for MLflow, and finished runs written to it
    pytest_plugin  scores as assertions

Importing the package loads nothing; a module of a tool loads that tool, and torch is loaded with the first judge.
"""
