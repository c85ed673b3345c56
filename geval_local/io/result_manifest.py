"""The manifest of a result file, ``scores.jsonl.meta.json``: judge, input, metrics and signatures of its scores.

It contains only what the scores depend on: no times, no command lines. Equal runs have equal manifests.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasPath, Field, TypeAdapter, ValidationError

from geval_local.errors import DataError, OutputError
from geval_local.files import write_atomically
from geval_local.grouping import DocumentRule
from geval_local.io.ownership import (
    check_own,
    check_place,
    check_replaceable,
    checksummed,
    digest_of,
    is_unedited,
    owned,
)
from geval_local.io.places import File, Place, unreachable
from geval_local.metric import Metric
from geval_local.signature import judge_name, signature_parts

FORMAT = "geval-local results"
VERSION = 1
#: What follows the name of a result file in those of its manifest, and of a CSV file's full rows.
ENDING, ROWS_ENDING = ".meta.json", ".rows.jsonl"


@dataclass(frozen=True)
class ScoredMetric:
    """One metric of a result file."""

    #: Text of its `geval_local.signature.Signature`.
    signature: str
    #: The metric with the evaluation steps in use.
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
    """Mark the place of a value in the file."""
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
    #: Content hash of the result file, to detect edited files; None in files by older versions.
    results_sha256: Annotated[str | None, _at("results", "sha256")] = None
    #: The user's own mapping: field of a metric -> its column, or the dotted path into one. For questions, the parts of
    #: the evidence.
    fields: Annotated[Mapping[str, str], _at("input", "fields")] = field(default_factory=dict)
    #: Field of the document, as the user named it.
    group_by: Annotated[str | None, _at("input", "group_by")] = None
    #: Fields or columns in which the rows of a document agree, as they were counted; empty if every row is a document.
    #: None in files by older versions.
    documents: Annotated[tuple[str, ...] | None, _at("input", "documents")] = None
    #: Columns whose slices the run was summed up by.
    by: Annotated[tuple[str, ...], _at("input", "by")] = ()
    #: Name -> question of the results.
    questions: dict[str, AskedQuestion] = field(default_factory=dict)
    #: Content hash of the full rows stored next to a CSV file, see `rows_path`; None without such a file.
    rows_sha256: Annotated[str | None, _at("rows", "sha256")] = None
    #: In a file of reasons, the request to the judge; None in other files.
    reasons: Mapping[str, Any] | None = None

    def judge_of(self, result: str) -> str:
        """Return the judge of a metric's results: of ``metric@judge``, or as signed where metrics have several."""
        _, is_named, label = result.partition("@")
        signed = {name: signature_parts(one.signature).get("judge", "") for name, one in self.metrics.items()}
        if len({*signed.values()}) == 1 or is_named:
            return judge_name(label or self.judge)
        return judge_name(signed[result].rpartition("@")[0])

    @property
    def judges(self) -> str:
        """The judges of all results."""
        return ", ".join(dict.fromkeys(map(self.judge_of, self.metrics))) or self.judge


_ADAPTER = TypeAdapter(ResultManifest)


def document_rule(
    manifest: ResultManifest | None,
    group_by: str | None,
    fields: Mapping[str, str] | None,
    metrics: Iterable[Sequence[str]] | None = None,
) -> DocumentRule:
    """Return what decides which rows of a result file are one document: `group_by`, else what the manifest records.

    `metrics` are those of interest, by their fields; by default all.
    """
    if manifest is None:
        return DocumentRule.of(metrics or ([tuple(fields)] if fields else ()), mapping=fields, group_by=group_by)
    known = (tuple(metric.definition.fields) for metric in manifest.metrics.values())
    return DocumentRule.of(
        known if metrics is None else metrics,
        mapping={**manifest.fields, **(fields or {})},
        group_by=manifest.group_by if group_by is None else group_by,
        used=manifest.documents,
    )


def rows_path(results: str | Path) -> Path:
    """Return the path of a CSV file's full rows, as JSONL: its name followed by ``.rows.jsonl``."""
    return Path(str(_beside(results, ROWS_ENDING)))


def manifest_path(results: str | Path) -> Path:
    """Return the manifest's path: the result file's name plus ``.meta.json``."""
    return Path(str(_beside(results, ENDING)))


def manifest_text(manifest: ResultManifest) -> str:
    """Write a manifest as JSON, with a checksum over all of it; what is not known has no key."""
    record = _known(
        format=FORMAT,
        version=VERSION,
        judge=manifest.judge,
        input=_known(
            name=manifest.input,
            sha256=manifest.input_sha256,
            rows=manifest.rows,
            fields=dict(manifest.fields) or None,
            group_by=manifest.group_by,
            documents=None if manifest.documents is None else list(manifest.documents),
            by=list(manifest.by) or None,
        ),
        results=_known(sha256=manifest.results_sha256) or None,
        rows=_known(sha256=manifest.rows_sha256) or None,
        metrics={
            name: _known(
                signature=metric.signature,
                unscored=metric.unscored,
                definition=metric.definition.model_dump(exclude_none=True, exclude_defaults=True, mode="json"),
                calibration=metric.calibration,
            )
            for name, metric in manifest.metrics.items()
        },
        questions={name: asdict(one) for name, one in manifest.questions.items()} or None,
        reasons=None if manifest.reasons is None else dict(manifest.reasons),
    )
    return json.dumps(checksummed(record), ensure_ascii=False, indent=1) + "\n"


def _known(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def write_manifest(results: str | Path, manifest: ResultManifest) -> None:
    """Write the manifest of a result file atomically; its permissions follow the user's umask, as for the file."""
    check_manifest(results, overwrite=True)
    path = manifest_path(results)
    try:
        write_atomically(path, manifest_text(manifest), private=False)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def _beside(results: str | File, ending: str) -> File:
    """Return the file next to a result file whose name has this ending."""
    if isinstance(results, Place):
        return results.with_ending(ending)
    results = Path(results)
    return results.parent / f"{results.name}{ending}"  # of `/` too, which has no name


def check_manifest(results: str | File, *, overwrite: bool = False) -> None:
    """Check that the manifest of a result file may be written."""
    path = _beside(results, ENDING)
    check_place(path)
    record = None
    with suppress(OSError, ValueError, RecursionError):
        record = json.loads(path.read() if isinstance(path, Place) else path.read_bytes())
    if path.exists() and not (isinstance(record, dict) and record.get("format") == FORMAT):
        raise OutputError(
            f"{path} exists and is not a manifest of this tool; the manifest of the results has that name",
            hint="Name another output file, or move it to another place.",
        )
    digests = [digest_of(path)] if isinstance(record, dict) and is_unedited(record) else []
    check_replaceable(path, digests=digests, overwrite=overwrite)


def check_results(results: str | File, *, digests: Collection[str | None] = (), overwrite: bool = False) -> None:
    """Check that results may be written: they may only replace an unchanged result of this tool."""
    results = Path(results) if isinstance(results, str) else results
    check_manifest(results, overwrite=overwrite)
    digests = [*digests, *recorded_digests(results)]
    check_replaceable(results, digests=digests, overwrite=overwrite)
    if results.name.lower().endswith(".csv"):
        check_own(_beside(results, ROWS_ENDING), digests)


def is_own_result(results: Path) -> bool:
    """Whether a file is an unmodified result of this tool: its manifest contains its hash."""
    return owned(results, digests=recorded_digests(results))


def recorded_digests(results: File) -> list[str]:
    """Return the hashes in the manifest of a result file: its own, and that of the full rows next to it."""
    try:
        manifest = read_manifest(results)
    except DataError:
        return []
    return [] if manifest is None else [one for one in (manifest.results_sha256, manifest.rows_sha256) if one]


def read_manifest(results: str | File) -> ResultManifest | None:
    """Read the manifest of a result file; None if there is none."""
    path = _beside(results, ENDING)
    remedy = f"Score again; {path.name} is written beside the results by `geval-local score`."
    try:
        record = json.loads(path.read() if isinstance(path, Place) else path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        if isinstance(path, Place) and isinstance(error, OSError):
            raise unreachable(path, error) from error
        raise DataError(f"cannot read {path}: {error}", hint=remedy) from error
    return parse_manifest(record, path)


def parse_manifest(record: Any, path: object) -> ResultManifest:
    """Read a manifest from its decoded JSON; `path` names its source in messages."""
    remedy = "Score again; it is written with the results by `geval-local score`."
    if not isinstance(record, dict) or (record.get("format"), record.get("version")) != (FORMAT, VERSION):
        raise DataError(f"{path} does not describe results in a way that this version reads", hint=remedy)
    try:
        return _ADAPTER.validate_python(record)
    except ValidationError as error:
        (first, *_) = error.errors()
        place = ".".join(map(str, first["loc"]))
        raise DataError(f"{path} is damaged: {place}: {first['msg']}", hint=remedy) from error
