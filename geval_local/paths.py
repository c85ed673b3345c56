"""Where the package keeps what it may lose: fetched judges and content digests."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["home_directory"]


def home_directory() -> Path:
    """Find the user's directory of this package; it need not exist.

    Returns
    -------
    Path
        ``$GEVAL_LOCAL_HOME`` where set, else ``geval_local`` under ``$XDG_CACHE_HOME`` or ``~/.cache``.
    """
    if home := os.environ.get("GEVAL_LOCAL_HOME"):
        return Path(home).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "geval_local"
