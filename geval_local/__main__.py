"""``python -m geval_local`` is ``geval-local``."""

from __future__ import annotations

from geval_local.cli import main

main()
