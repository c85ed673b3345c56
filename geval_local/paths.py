"""Directories for expendable files (fetched judges, pinned steps, caches), and safe file names."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from pathlib import Path

from geval_local.errors import ConfigurationError

__all__ = ["expanded", "home_directory", "home_folder", "private_home", "safe_file_name"]

logger = logging.getLogger("geval_local")

#: A file name may have 255 bytes; a name of this length has room for prefixes and suffixes.
_LONGEST = 100
_ORDINARY = re.compile(r"[\w@+-][\w.@+-]*(/[\w.@+-]+)*", re.ASCII)
_told: set[Path] = set()


def expanded(path: str | Path) -> Path:
    """Put a home directory in the place of a leading ``~`` or ``~user``."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigurationError(
            f"{path}: no home directory is known for {Path(path).parts[0]!r}",
            hint="Write the path out, or begin it with ./ if that is its name.",
        ) from error


def home_directory() -> Path:
    """Return the user's directory for this package; it need not exist."""
    if home := os.environ.get("GEVAL_LOCAL_HOME"):
        return expanded(home)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else expanded("~") / ".cache") / "geval_local"


def private_home(folder: str = "") -> Path:
    """Create the user's directory for this package, or a folder in it, for its user alone; return it."""
    home = home_directory()
    home.parent.mkdir(parents=True, exist_ok=True)
    home.mkdir(mode=0o700, exist_ok=True)
    if folder:
        (home / folder).mkdir(mode=0o700, exist_ok=True)
    return home / folder


def home_folder(name: str) -> Path | None:
    """Create a folder in the user's directory for this package, private to the user."""
    home = home_directory()
    folder = home / name
    try:
        private_home(name)
        problem = None if os.access(folder, os.W_OK | os.X_OK) else "it may not be written to"
    except OSError as error:
        problem = error.strerror or str(error)
    if problem is None:
        return folder
    if home not in _told:
        _told.add(home)
        logger.warning(
            "%s cannot be used (%s): evaluation steps are not pinned and figures not kept for later runs; this run "
            "goes on. Set GEVAL_LOCAL_HOME to a directory that you may write to",
            home,
            problem,
        )
    return None


def safe_file_name(name: str) -> str:
    """Return a safe file name for the name of a metric or a result.

    Two names share a file name only if they differ in ``/`` and ``.`` alone.
    """
    if len(name) <= _LONGEST and _ORDINARY.fullmatch(name):
        return name.replace("/", ".")
    readable = re.sub(r"[^\w+-]+", "-", name, flags=re.ASCII).strip("-")[: _LONGEST - 20]
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{readable}-{digest}" if readable else digest
