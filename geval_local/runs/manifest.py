"""The manifest of a run: the whole configuration, what it reads, what judged it, and what came of it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from geval_local import __version__
from geval_local.errors import OutputError
from geval_local.metric import Metric
from geval_local.runs.files import InputFile, Record, write_atomically

__all__ = [
    "MANIFEST_NAME",
    "JudgeRecord",
    "Manifest",
    "Settings",
    "definition",
    "now",
    "read_manifest",
    "write_manifest",
]

MANIFEST_NAME = "manifest.json"


class Settings(Record):
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
    distributed : str or None
        What the run is spread over: ``ray``.
    workers : int or None
        How many workers it has there.
    address : str or None
        The cluster; None for one of this machine's own.
    """

    window: int
    limit: int | None = None
    estimator: dict[str, Any] = Field(default_factory=dict)
    threshold: float | None = None
    use_cache: bool = True
    formats: list[str] = Field(default_factory=lambda: ["jsonl"])
    output: str | None = None
    metrics: list[dict[str, Any]] = Field(default_factory=list)
    metric_names: list[str] = Field(default_factory=list)
    calibrations: list[str] = Field(default_factory=list)
    distributed: Literal["ray"] | None = None
    workers: int | None = None
    address: str | None = None


class JudgeRecord(Record):
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
    signatures: dict[str, str] = Field(default_factory=dict)
    definitions: dict[str, dict[str, Any]] = Field(default_factory=dict)
    complete: bool = False


class Manifest(Record):
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
    results: dict[str, dict[str, Any]] = Field(default_factory=dict)
    files: list[str] = Field(default_factory=list)

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
        for name in ("window", "limit", "distributed"):
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
