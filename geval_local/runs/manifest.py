"""The manifest of a run: the whole configuration, what it reads, what judged it, and what came of it."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from geval_local import __version__
from geval_local.errors import DataError, OutputError
from geval_local.metric import Metric

__all__ = [
    "MANIFEST_NAME",
    "InputFile",
    "JudgeRecord",
    "Manifest",
    "Settings",
    "definition",
    "fingerprint_input",
    "now",
    "read_manifest",
    "write_atomically",
    "write_manifest",
]

MANIFEST_NAME = "manifest.json"
_BLOCK = 1 << 20


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True)


class InputFile(_Record):
    """The file that is scored, by its content.

    Attributes
    ----------
    path : str
        Absolute path.
    name : str
        Its last part.
    sha256 : str
        Hash of the content.
    bytes, lines : int
        Size, and number of line ends, which for JSONL is about the number of rows.
    changed : int
        Time of the last change, nanoseconds: tells at no cost that a file was written to during a run.
    rows : int or None
        Rows read; None until the first pass is through.
    """

    path: str
    name: str
    sha256: str
    bytes: int
    lines: int
    changed: int
    rows: int | None = None


class Settings(_Record):
    """What the user asked for.

    Attributes
    ----------
    window : int
        Rows that are gathered and planned together.
    limit : int or None
        Score the first rows only.
    estimator : dict
        Fields of `Estimator`.
    threshold : float or None
        Overrides the metrics' own.
    use_cache : bool
        Whether figures of earlier runs are taken over.
    formats : list of str
        What is exported: jsonl, csv, parquet.
    output : str or None
        The simple form's file, to which the result is moved at the end.
    metrics : list of dict
        The metrics' definitions as given.
    metric_names : list of str
        Their names or files as given.
    calibrations : list of str
        Files of calibrations that are applied to the scores.
    """

    window: int
    limit: int | None = None
    estimator: dict[str, Any] = {}
    threshold: float | None = None
    use_cache: bool = True
    formats: list[str] = ["jsonl"]
    output: str | None = None
    metrics: list[dict[str, Any]] = []
    metric_names: list[str] = []
    calibrations: list[str] = []


class JudgeRecord(_Record):
    """One judge of a run, as it was when it began.

    Attributes
    ----------
    name : str
        Name as given; results of several judges are keyed by it.
    choice : dict
        How it is loaded.
    fingerprint, engine : str or None
        Content of its weights, and what runs it; None until it has been loaded.
    batch_tokens : int or None
        The token budget of the plan.
    signatures : dict of str to str
        Metric -> signature.
    definitions : dict of str to dict
        Metric -> definition with the evaluation steps in use.
    complete : bool
        Whether every row has its outcome.
    """

    name: str
    choice: dict[str, Any]
    fingerprint: str | None = None
    engine: str | None = None
    batch_tokens: int | None = None
    signatures: dict[str, str] = {}
    definitions: dict[str, dict[str, Any]] = {}
    complete: bool = False


class Manifest(_Record):
    """Everything about a run that is not an outcome.

    Attributes
    ----------
    run : str
        Identifier, also in the store.
    version : str
        Of geval-local.
    started, ended : str
        UTC, ISO 8601; `ended` is None until the results are written.
    input, settings, judges
        See there.
    results : dict of str to dict
        Metric, or ``metric@judge`` with several judges -> signature, definition, counts.
    files : list of str
        What was written.
    """

    format: Literal["geval-local run"] = "geval-local run"
    schema_version: Literal[1] = 1
    run: str
    version: str = __version__
    started: str
    ended: str | None = None
    input: InputFile
    settings: Settings
    judges: list[JudgeRecord]
    results: dict[str, dict[str, Any]] = {}
    files: list[str] = []

    @classmethod
    def new(cls, file: InputFile, settings: Settings, judges: list[JudgeRecord]) -> Manifest:
        """Begin a run."""
        return cls(run=secrets.token_hex(8), started=now(), input=file, settings=settings, judges=judges)

    def differences(self, other: Manifest) -> list[str]:
        """Say what another configuration changes of what the outcomes depend on; empty if nothing.

        Parameters
        ----------
        other : Manifest
            The configuration that is asked for now; `self` is the one on record.
        """
        found = []
        if self.input.sha256 != other.input.sha256:
            found.append(
                f"the input {other.input.path} has another content (was {self.input.bytes} bytes, "
                f"is {other.input.bytes})"
            )
        for name in ("window", "limit"):
            before, after = getattr(self.settings, name), getattr(other.settings, name)
            if before != after:
                found.append(f"--{name} was {before}, is {after}")
        found += _metric_differences(self.settings.metrics, other.settings.metrics)
        before, after = [[judge.name for judge in one.judges] for one in (self, other)]
        if before != after:
            found.append(f"judges were {', '.join(before)}, are {', '.join(after)}")
        else:
            for one, two in zip(self.judges, other.judges, strict=True):
                found += [
                    f"judge {one.name}: {key} was {one.choice.get(key)}, is {two.choice.get(key)}"
                    for key in dict.fromkeys([*one.choice, *two.choice])
                    if one.choice.get(key) != two.choice.get(key)
                ]
        return found


def _metric_differences(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[str]:
    names = [[str(metric["name"]) for metric in metrics] for metrics in (before, after)]
    if names[0] != names[1]:
        return [f"metrics were {', '.join(names[0])}, are {', '.join(names[1])}"]
    found = []
    for one, two in zip(before, after, strict=True):
        # The threshold is applied to outcomes afterwards; everything else is in them.
        keys = [key for key in dict.fromkeys([*one, *two]) if key != "threshold" and one.get(key) != two.get(key)]
        if keys:
            found.append(f"metric {one['name']}: changed in {', '.join(keys)}")
    return found


def definition(metric: Metric) -> dict[str, Any]:
    """Write a metric as plain values that `Metric.model_validate` reads back."""
    return metric.model_dump(exclude_none=True, exclude_defaults=True, mode="json")


def now() -> str:
    """UTC date and time, ISO 8601, in seconds."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def fingerprint_input(path: Path) -> InputFile:
    """Fingerprint an input file by its content.

    Raises
    ------
    DataError
        If it cannot be read.
    """
    digest, lines = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            while block := file.read(_BLOCK):
                digest.update(block)
                lines += block.count(b"\n")
    except FileNotFoundError:
        raise DataError(f"there is no file {path}", hint="Check the path, and the directory it starts from.") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a directory", hint="Give the path of one file.") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}", hint="Check the file's permissions.") from error
    return InputFile(
        path=str(path.resolve()),
        name=path.name,
        sha256=digest.hexdigest(),
        bytes=status.st_size,
        lines=lines,
        changed=status.st_mtime_ns,
    )


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that there is either the old one or the new one, on the disk, whatever happens.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    partial = path.with_name(f".{path.name}.tmp")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}",
            hint="Is the disk full? Make room and resume; what was committed is kept.",
        ) from error


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest of a run directory, in one step."""
    write_atomically(directory / MANIFEST_NAME, manifest.model_dump_json(indent=1) + "\n")


def read_manifest(directory: Path) -> Manifest | None:
    """Read the manifest of a run directory; None if there is none.

    Raises
    ------
    OutputError
        If it is damaged or of another version.
    """
    path = directory / MANIFEST_NAME
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return Manifest.model_validate(record)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError as error:
        problems: Iterable[str] = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:3])
        raise OutputError(
            f"{path} is not a manifest that this version reads: {'; '.join(problems)}",
            hint="Use the version of geval-local that wrote it.",
        ) from error
    except (OSError, ValueError) as error:
        raise OutputError(
            f"cannot read {path}: {error}", hint="Restore it, or delete the directory and run again."
        ) from error
