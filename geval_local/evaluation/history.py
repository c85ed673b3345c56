"""Directories of an evaluation's runs, named by date, time and commit: finds the last one and the next one."""

from __future__ import annotations

import glob
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from geval_local.errors import GevalError
from geval_local.fields import nearest
from geval_local.runs.manifest import RunManifest, read_manifest

#: Placeholder -> pattern of its value.
_SHAPES = {"date": r"\d{4}-\d{2}-\d{2}", "time": r"\d{6}", "commit": r"(?:[0-9a-f]{10}|nocommit)"}
_PLACEHOLDER = re.compile(r"\{([^{}/]*)\}")
#: Replaces the commit outside of a repository.
NO_COMMIT = "nocommit"
#: Means the newest finished run.
LAST = "last"
#: Seconds that git may take to name a commit.
_PATIENCE = 10


def checked_pattern(text: str) -> str:
    """Reject unknown placeholders."""
    for name in _PLACEHOLDER.findall(text):
        if name not in _SHAPES:
            known = ", ".join(f"{{{one}}}" for one in _SHAPES)
            raise ValueError(f"there is no placeholder {{{name}}}{nearest(name, _SHAPES)}; there are {known}")
    return text


def has_placeholder(pattern: str) -> bool:
    """Whether a path has a placeholder, so that every run has its own directory."""
    return _PLACEHOLDER.search(pattern) is not None


def filled(pattern: str, when: datetime, commit: str) -> str:
    """Fill the placeholders; `when` is in UTC."""
    values = {"date": when.strftime("%Y-%m-%d"), "time": when.strftime("%H%M%S"), "commit": commit}
    return _PLACEHOLDER.sub(lambda found: values[found[1]], pattern)


def commit_of(directory: Path) -> str:
    """Return the first 10 digits of the commit of a directory's repository; `NO_COMMIT` without one."""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            ["git", "-C", str(directory), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
            env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"},
        )
        if done.returncode == 0 and re.fullmatch(r"[0-9a-f]{40,64}", done.stdout.strip()):
            return done.stdout[:10]
    return NO_COMMIT


def made_by(pattern: str, **known: str) -> list[Path]:
    """List the directories that a pattern has made; `known` are placeholders with a fixed value."""
    parts = _PLACEHOLDER.split(pattern)
    shape, wild = "", ""
    for place, part in enumerate(parts):
        if place % 2:
            shape += re.escape(known[part]) if part in known else _SHAPES[part]
            wild += glob.escape(known[part]) if part in known else "*"
        else:
            shape, wild = shape + re.escape(part), wild + glob.escape(part)
    shape, wild = shape.rstrip("/"), wild.rstrip("/")
    # A second run with the same name gets a number at its end.
    found = sorted({*glob.glob(wild), *glob.glob(f"{wild}-*")})
    return [Path(one) for one in found if re.fullmatch(rf"{shape}(-\d+)?", one) and os.path.isdir(one)]


def last_finished(pattern: str, name: str, *, but: Path | None = None) -> Path | None:
    """Find the newest finished run of a data file, by its manifest, except in the directory `but`."""
    found: list[tuple[str, str, Path]] = []
    for directory in made_by(pattern):
        manifest = None if directory == but else _manifest(directory / name)
        if manifest is not None and manifest.ended is not None:
            found.append((manifest.ended, str(directory), directory / name))
    return max(found)[2] if found else None


def next_directory(
    pattern: str, when: datetime, commit: str, fits: Callable[[Path], bool], is_finished: Callable[[Path], bool]
) -> Path:
    """Choose the directory of a run.

    An unfinished run of the same configuration and commit continues in its directory. Otherwise the directory is the
    filled pattern, with a number at its end if a run of another configuration already has that name.
    """
    for directory in reversed(made_by(pattern, commit=commit)):
        if not is_finished(directory) and fits(directory):
            return directory
    return next(one for one in _numbered(filled(pattern, when, commit)) if not one.exists() or fits(one))


def _numbered(path: str) -> Iterator[Path]:
    path = path.rstrip("/")
    yield Path(path)
    number = 2
    while True:
        yield Path(f"{path}-{number}")
        number += 1


def _manifest(directory: Path) -> RunManifest | None:
    """Read the manifest of a run; None if there is no usable one."""
    try:
        return read_manifest(directory)
    except (GevalError, OSError):
        return None
