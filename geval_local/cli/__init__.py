"""The command line: one module per verb group, results on stdout, everything else on stderr.

- `app`, `ending`: the verbs with their examples, and how a command ends, also if nobody reads its output
- `commands`: one module per verb, or per group of verbs; `output`: what they print
- `options`: made from `geval_local.options` and shared by verbs; shell completion
- `scoring`: the work around ``score``, ``resume`` and ``decide``, and their signals; `standard_input`; `progress`

Importing this package imports neither torch nor transformers; the verbs do when they run.
"""

from __future__ import annotations

__all__ = ["main"]


def run_verb() -> None:
    """Run the verb that the command line names."""
    from geval_local.cli.app import app

    app(prog_name="geval-local")


def main() -> None:
    """Run the command line and exit with its code, see `geval_local.cli.ending.EXIT_CODES`."""
    import signal
    import sys

    from geval_local.cli.ending import open_closed_streams

    # A scheduler's SIGTERM is an interruption too, so it leaves no partial file.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        open_closed_streams()
        run_verb()
    except KeyboardInterrupt:  # during start-up, or again while a command ends
        print("interrupted", file=sys.stderr)
        raise SystemExit(3) from None
    finally:
        # All output is printed and closed: another Ctrl-C must not print a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # One that came inside an exec() of the library, as of every dataclass while modules load, would still end the
        # process by SIGINT whatever the code is: Python keeps it until the next exec().
        exec("")
