"""The manifest of a run: the whole configuration, its input, judges and results."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from geval_local import __version__
from geval_local.errors import GevalError, OutputError, telling
from geval_local.files import write_atomically
from geval_local.io.ownership import checksummed, is_unedited
from geval_local.metric import Metric
from geval_local.options import Positive
from geval_local.runs.input_file import InputFile, ManifestPart, Sha256
from geval_local.runs.settings import Definition, FileName, Settings, checked_name

MANIFEST_NAME = "manifest.json"
FORMAT = "geval-local run"
#: 2: has a checksum and lists the files that the run made.
SCHEMA_VERSION = 2
_REMEDY = (
    "Put back the manifest as geval-local wrote it; or score into another directory, or delete this one yourself and "
    "run again: figures already computed come from the cache where that is in use."
)


def _checked_own_name(name: str) -> str:
    checked_name(name.removeprefix(f"{STEPS_NAME}/"))
    return name


STEPS_NAME = "steps"
_OwnName = Annotated[str, AfterValidator(_checked_own_name)]


class JudgeRecord(ManifestPart):
    """One judge of a run, as it was when the run started."""

    #: Name as given; results of several judges are keyed by it.
    name: Annotated[str, Field(min_length=1)]
    #: Load options.
    choice: dict[str, Any]
    #: Content fingerprint of its weights, and its engine; None until it has been loaded.
    fingerprint: str | None = None
    engine: str | None = None
    #: The token budget of the plan.
    batch_tokens: Positive | None = None
    #: Metric -> signature.
    signatures: dict[str, str] = Field(default_factory=dict)
    #: Metric -> definition with the evaluation steps in use.
    definitions: dict[str, Definition] = Field(default_factory=dict)
    #: Whether every row has its outcome.
    complete: bool = False

    @property
    def thoughts(self) -> int:
        """How many outcomes a form has: one, or one after each thought."""
        return int(self.choice.get("think", 1))


class RunManifest(ManifestPart):
    """Everything about a run except its outcomes."""

    format: Literal["geval-local run"] = "geval-local run"
    schema_version: Literal[2] = 2
    #: Identifier, also in the store.
    run: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    #: Version of geval-local.
    version: str = __version__
    #: UTC, ISO 8601; `ended` is None until the results are written.
    started: str
    ended: str | None = None
    input: InputFile
    settings: Settings
    judges: Annotated[list[JudgeRecord], Field(min_length=1)]
    #: Identifiers of the shares that were merged into this run.
    shares: list[str] = Field(default_factory=list)
    #: Names of the result files.
    files: list[FileName] = Field(default_factory=list)
    #: Files of the run, relative to its directory, recorded before they are made -> SHA-256 of their allowed contents,
    #: none for files that keep changing. Nothing else in the directory is replaced or removed.
    made: dict[_OwnName, list[Sha256]] = Field(default_factory=dict)
    #: SHA-256 of the output file that existed when the run started and that it may replace.
    replaces: Sha256 | None = None

    @property
    def has_begun(self) -> bool:
        """Whether a judge has been loaded, so that there may be outcomes."""
        return any(judge.fingerprint is not None for judge in self.judges)

    @property
    def digests(self) -> set[str | None]:
        """Hashes of the contents that the run made or may replace."""
        return {self.replaces, *(digest for digests in self.made.values() for digest in digests)}

    @classmethod
    def new(cls, file: InputFile, settings: Settings, judges: list[JudgeRecord]) -> RunManifest:
        """Create the manifest of a new run."""
        return cls(run=secrets.token_hex(8), started=now(), input=file, settings=settings, judges=judges)

    def differences(self, other: RunManifest) -> list[str]:
        """List the differences of another configuration that affect outcomes; empty if there are none."""
        found = []
        if self.input.sha256 != other.input.sha256:
            found.append(
                f"the input {other.input.path} has another content (was {self.input.bytes} bytes, "
                f"is {other.input.bytes})"
            )
        found += self.settings.differences(other.settings)
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


def definition(metric: Metric) -> dict[str, Any]:
    """Return a metric as plain values that `Metric.model_validate` reads back."""
    return metric.model_dump(exclude_none=True, exclude_defaults=True, mode="json")


def now() -> str:
    """Return the UTC date and time in ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def write_manifest(directory: Path, manifest: RunManifest) -> None:
    """Write the manifest of a run directory, atomically, with a checksum over its content."""
    write_private(directory / MANIFEST_NAME, manifest_text(manifest), manifest.run)


def write_private(path: Path, text: str, run: str) -> None:
    """Write a file of a run atomically."""
    hint = "Is the disk full? Make room and resume; what was committed is kept."
    with telling(OutputError, f"cannot write {path}", hint):
        write_atomically(path, text, private=True, mark=run)


def manifest_text(manifest: RunManifest) -> str:
    """Write a manifest as JSON, with a checksum over all that it says."""
    return json.dumps(checksummed(manifest.model_dump(mode="json")), indent=1) + "\n"


def read_manifest(directory: Path) -> RunManifest | None:
    """Read the manifest of a run directory; None if there is none by this tool."""
    path = directory / MANIFEST_NAME
    text = _text_of(path)
    manifest = None if text is None else parse_manifest(text, path)
    output = None if manifest is None else manifest.settings.output
    if output is not None and Path(os.path.abspath(directory)).name != side_name(output):
        raise OutputError(
            f"{path} is that of a run for {output}, and lies in a directory of another name than {side_name(output)}",
            hint=f"Give the directory its name back; {output} is then written beside it.",
        )
    return manifest


def parse_manifest(text: str, path: object) -> RunManifest | None:
    """Read a manifest from its text; None if it is none of this tool's. `path` is where it was found, for messages."""
    record = _claim(text, path)
    if record is None:
        return None
    if record.get("schema_version") != SCHEMA_VERSION:
        raise OutputError(
            f"{path} was written by another version of geval-local ({record.get('version')}); this one cannot read it",
            hint="Use the version that wrote it, or score into another directory.",
        )
    if not is_unedited(record):
        raise OutputError(f"{path} was edited, or is damaged: its checksum is that of another content", hint=_REMEDY)
    try:
        rest = {key: value for key, value in record.items() if key != "checksum"}
        return RunManifest.model_validate_json(json.dumps(rest), strict=True)
    except (ValidationError, GevalError) as error:
        problems = [str(error)]
        if isinstance(error, ValidationError):
            problems = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:3]]
        raise OutputError(f"{path} is not a run manifest: {'; '.join(problems)}", hint=_REMEDY) from error


def is_run_directory(directory: Path) -> bool:
    """Whether a directory contains a run: a manifest that claims to be of this tool, valid or not."""
    path = directory / MANIFEST_NAME
    try:
        text = _text_of(path)
        return text is not None and _claim(text, path) is not None
    except OutputError:
        return True


def side_name(output: str) -> str:
    """Return the name of the run directory next to an output file, which exists until the file is complete."""
    return f".{output}.run"


def _text_of(path: Path) -> str | None:
    """Read the text of a file; None if there is none, or it is no text."""
    if path.is_symlink() or not path.is_file():
        return None
    with telling(OutputError, f"cannot read {path}", _REMEDY), suppress(ValueError):
        return path.read_text(encoding="utf-8")
    return None


def _claim(text: str, path: object) -> dict[str, Any] | None:
    """Read a manifest that claims to be of this tool."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        if f'"{FORMAT}"' in text[:400]:
            raise OutputError(f"{path} is damaged or cut off: {error}", hint=_REMEDY) from error
        return None
    return record if isinstance(record, dict) and record.get("format") == FORMAT else None
