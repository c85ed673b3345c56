"""The gates of ``score`` and ``resume``, read from their options."""

from __future__ import annotations

from geval_local.errors import ConfigurationError
from geval_local.evaluation.gates import Gate, Limit

__all__ = ["EXIT_GATE", "read_gates"]

EXIT_GATE = 1


def read_gates(fail_under: float | None, max_unscored: str | None) -> list[Gate]:
    """Read the options as given: ``--fail-under 3.5``, ``--max-unscored 5`` or ``--max-unscored 2%``.

    Each gate holds for every metric of the run.
    """
    gates = [] if fail_under is None else [Gate("mean", Limit(">=", fail_under, False))]
    if max_unscored is None:
        return gates
    is_share = max_unscored.strip().endswith("%")
    try:
        limit = float(max_unscored.strip().rstrip("%")) / 100 if is_share else int(max_unscored)
    except ValueError:
        limit = -1
    if not 0 <= limit <= (1 if is_share else float("inf")):
        raise ConfigurationError(
            f"--max-unscored {max_unscored!r} is not a limit", hint="Give a count such as 5, or a share such as 2%."
        )
    return [*gates, Gate("unscored", Limit("<=", limit, is_share))]
