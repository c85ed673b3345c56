"""The command line: one module per verb group, results on stdout, everything else on stderr.

Importing this package imports neither torch nor transformers; the verbs do when they run.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit with its code.

    0: done. 1: a gate failed (``--fail-under``, ``--max-unscored``). 2: usage or configuration. 3: interrupted.
    """
    import signal

    from geval_local.cli.app import app

    # A scheduler's polite stop is an interruption too: nothing half-written stays behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app(prog_name="geval-local")
