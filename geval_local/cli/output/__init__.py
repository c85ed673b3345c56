"""Output of the command line.

- `console`: stdout for results, stderr for messages; `tables`: tables of the analyses, and their JSON
- `run_summary`: the end of ``score``, ``decide`` and ``reasons``
- `audits`: tokens and label tries for ``judges check`` and ``score --dry-run``
"""
