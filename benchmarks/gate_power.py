"""How often a gate finds a drop: `python benchmarks/gate_power.py` writes the table of docs/gate-in-ci.md.

Differences between two versions of one answer are normal, with a mean of -0.3 points of a scale from 1 to 5. Four gates
share one level, as for all rows and three languages. The last column is the share of jobs without any drop that fail.
"""

from __future__ import annotations

import sys

import numpy as np

from geval_local.statistics.noninferiority import not_worse
from geval_local.statistics.significance import LEVEL

ROWS = (20, 40, 80, 160)
SPREADS = (0.3, 0.5, 0.8, 1.0)
DROP, GATES, SPAN, JOBS = 0.3, 4, 4.0, 1000


def failed(rows: int, spread: float, drop: float, seed: int = 0) -> float:
    """Return the share of jobs in which one gate of `rows` rows fails."""
    draws = np.random.default_rng([seed, rows, int(10 * spread)]).normal(-drop, spread, (JOBS, rows))
    return float(np.mean([not_worse(own, span=SPAN, level=LEVEL / GATES).passed is False for own in draws]))


def table() -> str:
    """Write the table in Markdown."""
    headers = ["rows", *(f"sd {spread:g}" for spread in SPREADS), "no drop, sd 0.5"]
    lines = [headers, ["---:"] * len(headers)]
    for rows in ROWS:
        found = [failed(rows, spread, DROP) for spread in SPREADS]
        lines.append([str(rows), *(f"{one:.2f}" for one in found), f"{failed(rows, 0.5, 0.0):.3f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(f"{table()}\n")
