"""The manifest beside a result file, ``scores.jsonl.meta.json``: judge, input, metrics and signatures of its scores.

It contains only the information that the scores depend on: no times, no command lines. Equal runs have equal
manifests.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasPath, Field, TypeAdapter, ValidationError

from geval_local.errors import DataError, OutputError
from geval_local.files import write_atomically
from geval_local.io.ownership import check_place, check_replaceable, checksummed, owned
from geval_local.metric import Metric

FORMAT = "geval-local results"
#: The manifest of a directory of parts.
PARTS_MANIFEST = "parts.meta.json"
VERSION = 1


@dataclass(frozen=True)
class ScoredMetric:
    """One metric of a result file."""

    #: Text of its `geval_local.signature.Signature`.
    signature: str
    #: The metric with the evaluation steps that were used.
    definition: Metric
    #: Rows without a score.
    unscored: int
    #: Ratings, method, temperature and knots of the figure ``calibrated``.
    calibration: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class AskedQuestion:
    """One question of a file of decisions."""

    #: As by `geval_local.signature.Signature`.
    signature: str
    #: The question as `geval_local.questions.question.parse_questions` reads it.
    definition: Mapping[str, Any]
    #: Rows without an answer.
    unanswered: int


def _at(*place: str) -> Any:
    """Say where a value stands in the file."""
    return Field(validation_alias=AliasPath(*place))


@dataclass(frozen=True)
class ResultManifest:
    """The manifest of a result file."""

    #: Name of the judge of the latest scoring.
    judge: str
    #: Name and content hash of the file that was scored.
    input: Annotated[str, _at("input", "name")]
    input_sha256: Annotated[str, _at("input", "sha256")]
    #: Number of scored rows, from the first on.
    rows: Annotated[int, _at("input", "rows")]
    #: Name -> metric of the results.
    metrics: dict[str, ScoredMetric] = field(default_factory=dict)
    #: Content hash of the result file, so that an edited file is not mistaken for the tool's own; None in files by
    #: older versions.
    results_sha256: Annotated[str | None, _at("results", "sha256")] = None
    #: The user's own mapping: field of a metric -> the column, or the dotted path into one, that it was read from. Of
    #: questions, the parts of the evidence.
    fields: Annotated[Mapping[str, str], _at("input", "fields")] = field(default_factory=dict)
    #: Field of the document, as the user named it.
    group_by: Annotated[str | None, _at("input", "group_by")] = None
    #: By name.
    questions: dict[str, AskedQuestion] = field(default_factory=dict)
    #: Content hash of the rows that are kept beside a CSV file, see `rows_path`; None where none are.
    rows_sha256: Annotated[str | None, _at("rows", "sha256")] = None
    #: What was asked of the judge, of a file of reasons; None of others.
    reasons: Mapping[str, Any] | None = None


_ADAPTER = TypeAdapter(ResultManifest)


def rows_path(results: str | Path) -> Path:
    """Return where all that a CSV file leaves out is kept: its rows as JSONL, under its name with ``.rows.jsonl``."""
    results = Path(results)
    return results.with_name(f"{results.name}.rows.jsonl")


def manifest_path(results: str | Path) -> Path:
    """Return the manifest's path: the result file's name followed by ``.meta.json``; for parts it is among them."""
    results = Path(results)
    if results.is_dir():
        return results / PARTS_MANIFEST
    return results.with_name(f"{results.name}.meta.json")


def manifest_text(manifest: ResultManifest) -> str:
    """Write a manifest as JSON, with a checksum over all that it says."""
    record = {
        "format": FORMAT,
        "version": VERSION,
        "judge": manifest.judge,
        "input": {
            "name": manifest.input,
            "sha256": manifest.input_sha256,
            "rows": manifest.rows,
            **({"fields": dict(manifest.fields)} if manifest.fields else {}),
            **({} if manifest.group_by is None else {"group_by": manifest.group_by}),
        },
        **({} if manifest.results_sha256 is None else {"results": {"sha256": manifest.results_sha256}}),
        **({} if manifest.rows_sha256 is None else {"rows": {"sha256": manifest.rows_sha256}}),
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
        **({} if manifest.reasons is None else {"reasons": dict(manifest.reasons)}),
    }
    return json.dumps(checksummed(record), ensure_ascii=False, indent=1) + "\n"


def write_manifest(results: str | Path, manifest: ResultManifest) -> None:
    """Write the manifest of a result file atomically; its permissions follow the user's umask, as for the file."""
    path = check_manifest(results, overwrite=True)
    try:
        write_atomically(path, manifest_text(manifest), private=False)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def check_manifest(results: str | Path, *, overwrite: bool = False) -> Path:
    """Check that a manifest may be written beside a result file; return its path."""
    path = manifest_path(results)
    check_place(path)
    record = None
    with suppress(OSError, ValueError, RecursionError):
        record = json.loads(path.read_bytes())
    if path.exists() and not (isinstance(record, dict) and record.get("format") == FORMAT):
        raise OutputError(
            f"{path} exists and is not a manifest of this tool; the manifest of {Path(results).name} has that name",
            hint="Name another output file, or move it to another place.",
        )
    check_replaceable(path, FORMAT, overwrite=overwrite)
    return path


def check_results(results: str | Path, *, digests: Collection[str | None] = (), overwrite: bool = False) -> None:
    """Check that results may be written: a file that replaces only an unchanged result of this tool."""
    check_manifest(results, overwrite=overwrite)
    check_replaceable(Path(results), digests=[*digests, *_recorded(results)], overwrite=overwrite)
    if Path(results).suffix.lower() == ".csv":
        check_rows_place(results, digests=digests)


def check_rows_place(results: str | Path, *, digests: Collection[str | None] = ()) -> Path:
    """Check that the rows of a CSV file may be kept beside it; return their path."""
    path = rows_path(results)
    check_place(path)
    if path.exists() and not owned(path, digests=[*digests, *_recorded(results)]):
        raise OutputError(
            f"{path} exists, and is not as this tool made it; all figures of {Path(results).name} are kept there",
            hint="Move it to another place, or name another output file.",
        )
    return path


def is_own_result(results: Path) -> bool:
    """Whether a file is an unmodified result of this tool: the manifest beside it contains its hash."""
    return owned(results, digests=_recorded(results))


def _recorded(results: str | Path) -> list[str]:
    """Return the hashes of a result file, and of the rows beside it, that its manifest contains."""
    try:
        manifest = read_manifest(results)
    except DataError:
        return []
    return [] if manifest is None else [one for one in (manifest.results_sha256, manifest.rows_sha256) if one]


def read_manifest(results: str | Path) -> ResultManifest | None:
    """Read the manifest of a result file; None if there is none."""
    path = manifest_path(results)
    remedy = f"Score again; {path.name} is written beside the results by `geval-local score`."
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}", hint=remedy) from error
    return parse_manifest(record, path)


def parse_manifest(record: Any, path: object) -> ResultManifest:
    """Read a manifest from its decoded JSON; `path` is where it was found, for messages."""
    remedy = "Score again; it is written with the results by `geval-local score`."
    if not isinstance(record, dict) or (record.get("format"), record.get("version")) != (FORMAT, VERSION):
        raise DataError(f"{path} does not describe results in a way that this version reads", hint=remedy)
    try:
        return _ADAPTER.validate_python(record)
    except ValidationError as error:
        (first, *_) = error.errors()
        place = ".".join(map(str, first["loc"]))
        raise DataError(f"{path} is damaged: {place}: {first['msg']}", hint=remedy) from error
