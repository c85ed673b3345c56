"""The manifest beside a result file, ``scores.jsonl.meta.json``: judge, input, metrics and signatures of its scores.

It contains only the information that the scores depend on: no times, no command lines. Equal runs have equal
manifests.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from geval_local.errors import DataError, OutputError
from geval_local.files import write_atomically
from geval_local.metric import Metric

__all__ = [
    "PARTS_MANIFEST",
    "AskedQuestion",
    "Manifest",
    "ScoredMetric",
    "check_description",
    "file_sha256",
    "is_own_result",
    "manifest_path",
    "manifest_text",
    "parse_manifest",
    "read_manifest",
    "write_manifest",
]

FORMAT = "geval-local results"
#: The manifest of a directory of parts.
PARTS_MANIFEST = "parts.meta.json"
VERSION = 1


@dataclass(frozen=True)
class ScoredMetric:
    """One metric of a result file.

    Attributes
    ----------
    signature : str
        Text of its `geval_local.signature.Signature`.
    definition : Metric
        The metric with the evaluation steps that were used.
    unscored : int
        Rows without a score.
    calibration : dict or None
        Ratings, method, temperature and knots of the figure ``calibrated``.
    """

    signature: str
    definition: Metric
    unscored: int
    calibration: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class AskedQuestion:
    """One question of a file of decisions.

    Attributes
    ----------
    signature : str
        As by `geval_local.signature.Signature`.
    definition : dict
        The question as `geval_local.questions.question.parse_questions` reads it.
    unanswered : int
        Rows without an answer.
    """

    signature: str
    definition: Mapping[str, Any]
    unanswered: int


@dataclass(frozen=True)
class Manifest:
    """The manifest of a result file.

    Attributes
    ----------
    judge : str
        Name of the judge of the latest scoring.
    input, input_sha256 : str
        Name and content hash of the file that was scored.
    rows : int
        Number of scored rows, from the first on.
    metrics : dict of str to ScoredMetric
        Name -> metric of the results.
    results_sha256 : str or None
        Content hash of the result file, so that an edited file is not mistaken for the tool's own; None in
        files by older versions.
    fields : dict of str to str
        The user's own mapping: field of a metric -> the column, or the dotted path into one, that it was read from.
        Of questions, the parts of the evidence.
    questions : dict of str to AskedQuestion
        By name.
    """

    judge: str
    input: str
    input_sha256: str
    rows: int
    metrics: dict[str, ScoredMetric] = field(default_factory=dict)
    results_sha256: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    questions: dict[str, AskedQuestion] = field(default_factory=dict)


def manifest_path(results: str | Path) -> Path:
    """Return the manifest's path: the result file's name followed by ``.meta.json``; for parts it is among them."""
    results = Path(results)
    if results.is_dir():
        return results / PARTS_MANIFEST
    return results.with_name(f"{results.name}.meta.json")


def file_sha256(path: str | Path) -> str:
    """Hash a file's content, 64 hex digits."""
    with Path(path).open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def manifest_text(manifest: Manifest) -> str:
    """Write a manifest as JSON."""
    record = {
        "format": FORMAT,
        "version": VERSION,
        "judge": manifest.judge,
        "input": {
            "name": manifest.input,
            "sha256": manifest.input_sha256,
            "rows": manifest.rows,
            **({"fields": dict(manifest.fields)} if manifest.fields else {}),
        },
        **({} if manifest.results_sha256 is None else {"results": {"sha256": manifest.results_sha256}}),
        "metrics": {
            name: {
                "signature": metric.signature,
                "unscored": metric.unscored,
                "definition": metric.definition.model_dump(exclude_none=True, exclude_defaults=True, mode="json"),
                **({} if metric.calibration is None else {"calibration": metric.calibration}),
            }
            for name, metric in manifest.metrics.items()
        },
        **(
            {"questions": {name: asdict(one) for name, one in manifest.questions.items()}} if manifest.questions else {}
        ),
    }
    return json.dumps(record, ensure_ascii=False, indent=1) + "\n"


def write_manifest(results: str | Path, manifest: Manifest) -> None:
    """Write the manifest of a result file atomically; its permissions follow the user's umask, as for the file.

    Raises
    ------
    OutputError
        If it cannot be written, or another file has that name.
    """
    path = check_description(results)
    try:
        write_atomically(path, manifest_text(manifest), private=False)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def check_description(results: str | Path) -> Path:
    """Check that a manifest may be written beside a result file; return its path.

    Raises
    ------
    OutputError
        If another file has that name, or the name is too long.
    """
    path = manifest_path(results)
    try:
        status = path.lstat()
        is_own = stat.S_ISREG(status.st_mode) and f'"format": "{FORMAT}"' in path.read_text(encoding="utf-8")[:200]
    except FileNotFoundError:
        return path
    except ValueError:
        is_own = False
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}", hint="Name another output file.") from error
    if not is_own:
        raise OutputError(
            f"{path} exists and is not a manifest of this tool; the manifest of {Path(results).name} has that name",
            hint="Name another output file, or move it to another place.",
        )
    return path


def is_own_result(results: str | Path) -> bool:
    """Whether a file is an unmodified result of this tool: the manifest beside it contains its hash."""
    try:
        manifest = read_manifest(results)
        return manifest is not None and manifest.results_sha256 == file_sha256(results)
    except (DataError, OSError):
        return False


def read_manifest(results: str | Path) -> Manifest | None:
    """Read the manifest of a result file; None if there is none.

    Raises
    ------
    DataError
        If it cannot be read, or is of another format or version.
    """
    path = manifest_path(results)
    remedy = f"Score again; {path.name} is written beside the results by `geval-local score`."
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}", hint=remedy) from error
    return parse_manifest(record, path)


def parse_manifest(record: Any, path: object) -> Manifest:
    """Read a manifest from its decoded JSON; `path` is where it was found, for messages.

    Raises
    ------
    DataError
        If it is of another format or version, or damaged.
    """
    remedy = "Score again; it is written with the results by `geval-local score`."
    if not isinstance(record, dict) or (record.get("format"), record.get("version")) != (FORMAT, VERSION):
        raise DataError(f"{path} does not describe results in a way that this version reads", hint=remedy)
    try:
        return Manifest(
            judge=str(record["judge"]),
            input=str(record["input"]["name"]),
            input_sha256=str(record["input"]["sha256"]),
            rows=int(record["input"]["rows"]),
            metrics={
                name: ScoredMetric(
                    str(metric["signature"]),
                    Metric.model_validate(metric["definition"]),
                    int(metric["unscored"]),
                    metric.get("calibration"),
                )
                for name, metric in record["metrics"].items()
            },
            results_sha256=str(record["results"]["sha256"]) if "results" in record else None,
            fields={str(name): str(column) for name, column in record["input"].get("fields", {}).items()},
            questions={
                name: AskedQuestion(str(one["signature"]), dict(one["definition"]), int(one["unanswered"]))
                for name, one in record.get("questions", {}).items()
            },
        )
    except (KeyError, TypeError, ValueError, AttributeError, ValidationError) as error:
        raise DataError(f"{path} is damaged: {error!r}", hint=remedy) from error
