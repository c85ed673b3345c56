"""Directories of an evaluation's runs, named by date, time and commit: finds the last good one and the next one."""

from __future__ import annotations

import glob
import json
import logging
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import chain, count
from pathlib import Path
from typing import Any

from geval_local.errors import ConfigurationError, DataError, OutputError, telling
from geval_local.fields import counted, nearest
from geval_local.files import save_text
from geval_local.io.ownership import checksummed, read_own_record
from geval_local.runs.directory import result_file
from geval_local.runs.manifest import read_manifest
from geval_local.runs.settings import EvaluationRecord

logger = logging.getLogger("geval_local")

#: Placeholder -> pattern of its value.
_SHAPES = {"date": r"\d{4}-\d{2}-\d{2}", "time": r"\d{6}", "commit": r"(?:[0-9a-f]{10}|nocommit)"}
_PLACEHOLDER = re.compile(r"\{([^{}/]*)\}")
#: Replaces the commit outside of a repository.
NO_COMMIT = "nocommit"
#: Means the newest run that `last_good` takes.
LAST = "last"
#: The file of an evaluation's directory that holds its verdict, written when all its gates are known.
RECORD = "gates.json"
_FORMAT = "geval-local gates"
#: Keys that `--set` may change in a run that is still a baseline for others.
_HARMLESS = ("baseline.run", "baseline.require", "baseline.accept", "by", "report")
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
        if "dubious ownership" in done.stderr:
            told = "git does not name the commit: %s belongs to another user. Add it to git's setting safe.directory"
            logger.warning(told, directory.absolute())
    return NO_COMMIT


def made_by(pattern: str, **known: str) -> list[Path]:
    """List the directories that a pattern has made; `known` are placeholders with a fixed value."""
    parts = list(enumerate(_PLACEHOLDER.split(pattern.rstrip("/"))))
    values = _SHAPES | {name: re.escape(value) for name, value in known.items()}
    shape = "".join(values[part] if place % 2 else re.escape(part) for place, part in parts)
    wild = "".join("*" if place % 2 else glob.escape(part) for place, part in parts)
    # A second run with the same name gets a number at its end.
    found = sorted({*glob.glob(wild), *glob.glob(f"{wild}-*")})
    return [Path(one) for one in found if re.fullmatch(rf"{shape}(-\d+)?", one) and os.path.isdir(one)]


@dataclass(frozen=True)
class Earlier:
    """An earlier run to compare with."""

    #: Its result file.
    path: Path
    #: First digits of its commit, and its end, in ISO 8601 and UTC; empty if not known.
    commit: str = ""
    ended: str = ""
    #: Names of data that only it has.
    removed: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        """The path, with commit and date if they are known."""
        known = [f"commit {self.commit}"] if self.commit else []
        known += [f"{self.ended[:16].replace('T', ' ')} UTC"] if self.ended else []
        return f"{self.path} ({', '.join(known)})" if known else str(self.path)


def claim(directory: Path) -> bool:
    """Make the directory of a new run; whether no other process was faster."""
    with (
        telling(OutputError, f"cannot make {directory}", "Choose a place that you may write to."),
        suppress(FileExistsError),
    ):
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir()
        return True
    return False


def remove_record(directory: Path) -> None:
    """Remove an older verdict, before anything of a run changes."""
    if _read_record(directory) is not None:
        (directory / RECORD).unlink()


def write_record(
    directory: Path, record: EvaluationRecord, commit: str, runs: Mapping[str, str], *, held: bool
) -> None:
    """Write durably whether all gates of an evaluation held; `runs` are the identifiers of its runs, by data name."""
    is_whole = all(one.partition("=")[0].strip() in _HARMLESS for one in record.overrides)
    found = {
        "format": _FORMAT,
        "file": record.file,
        "commit": commit,
        "ended": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "held": held,
    }
    found |= {"whole": is_whole, "runs": dict(runs)}
    save_text(directory / RECORD, json.dumps(checksummed(found), indent=1) + "\n")


def _read_record(directory: Path) -> dict[str, Any] | None:
    """Read the verdict of an evaluation's directory; None if it has none."""
    path = directory / RECORD
    if (record := read_own_record(path, _FORMAT)) is None and path.exists():
        raise DataError(f"{path} is damaged or was edited", hint=f"Put it back, or delete {directory}.")
    return record


def last_good(
    pattern: str, file: str, name: str, names: Sequence[str], *, but: Path, commit: str, limit: int | None
) -> tuple[Earlier | None, str]:
    """Find the newest run of a data file to compare with; None and the reason if there is none.

    It is a run of this evaluation's `file`, whole (nothing set, no other limit), of another commit, and its gates held.

    Raises
    ------
    GevalError
        If a manifest or verdict is damaged, results are gone, or the data file seems to have another name there.
    """
    left: Counter[str] = Counter()
    good: list[tuple[str, str, dict[str, Any]]] = []
    for directory in made_by(pattern):
        record = None if directory == but else _read_record(directory)
        if record is None:
            left["did not end, or its gates are not known"] += directory != but
        elif record["file"] != file:
            left[f"is of another file than {file}"] += 1
        elif commit != NO_COMMIT and record["commit"] == commit:
            left["is of this commit"] += 1
        elif not record["held"]:
            left["failed a gate"] += 1
        elif not record["whole"]:
            left["was changed by an override"] += 1
        else:
            good.append((record["ended"], str(directory), record))
    for ended, path, record in sorted(good, key=lambda one: one[:2], reverse=True):
        place, gone = Path(path) / name, sorted(set(record["runs"]) - set(names))
        if name not in record["runs"]:
            if gone:
                raise ConfigurationError(
                    f"the last run in {path} has no data {name!r}, and this file no data {gone[0]!r}: was it renamed?",
                    hint=f"Keep the name {gone[0]}; or give {name} `baseline={place.with_name(gone[0])}`.",
                )
            return None, f"the data {name} are new: the last run in {path} has {', '.join(record['runs'])}"
        manifest = read_manifest(place) if place.is_dir() else None
        if manifest is None or manifest.run != record["runs"][name]:
            raise DataError(
                f"{place}: the manifest is damaged, or that of another run than {RECORD} names",
                hint=f"Put it back as it was, or delete {path}.",
            )
        if manifest.settings.limit in (None, limit):
            return Earlier(result_file(place), record["commit"].replace(NO_COMMIT, ""), ended, tuple(gone)), ""
        left["has another limit"] += 1
    made = counted(left.total(), "run")
    why = "; ".join(f"{count} {text}" for text, count in left.items() if count)
    return None, f"no earlier run is a baseline ({f'of {made} {why}' if why else 'there is none'})"


def next_directory(
    pattern: str, when: datetime, commit: str, fits: Callable[[Path], bool], is_finished: Callable[[Path], bool]
) -> Path:
    """Choose the directory of a run.

    An unfinished run of the same configuration and commit continues in its directory. Otherwise the directory is the
    filled pattern, with a number at its end if a run of another configuration already has that name. A directory `fits`
    if it holds a run of this configuration, which no other process is doing.
    """
    for directory in reversed(made_by(pattern, commit=commit)):
        if not is_finished(directory) and fits(directory):
            return directory
    path = filled(pattern, when, commit).rstrip("/")
    numbered = chain([Path(path)], (Path(f"{path}-{number}") for number in count(2)))
    return next(one for one in numbered if not one.exists() or fits(one))
