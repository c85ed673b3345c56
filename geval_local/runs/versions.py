"""Versions of this package and of its libraries: what a run began with, and what is installed now.

Another version may shift scores by rounding. So a run continues with one only if it is told to, and its signatures then
name both.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from geval_local import __version__
from geval_local.errors import OutputError
from geval_local.runs.manifest import JudgeRecord, RunManifest
from geval_local.signature import LIBRARIES, signature_parts, written_signature

#: Key of a signature -> the distribution whose version it names.
_DISTRIBUTIONS = {"transformers": "transformers", "torch": "torch"}


def version_now(library: str) -> str | None:
    """Return an installed version without importing anything; None if it cannot be told."""
    if library not in _DISTRIBUTIONS:
        return __version__
    try:
        return metadata.version(_DISTRIBUTIONS[library])
    except metadata.PackageNotFoundError:
        return None


def _release(version: str) -> str:
    """Return a version without what names its build, as in ``2.13.0+cpu``, which its metadata may lack."""
    return version.partition("+")[0]


def changed_versions(record: JudgeRecord) -> dict[str, tuple[str, str]]:
    """List the libraries of which another version is installed than a judge's scores began with: (before, now)."""
    found: dict[str, tuple[str, str]] = {}
    for signature in record.signatures.values():
        for library, before in _libraries(signature).items():
            now = version_now(library)
            if before != "none" and now is not None and _release(before) != _release(now):
                found[library] = (before, now)
    return found


def check_versions(directory: Path, manifest: RunManifest, *, accept: bool) -> None:
    """Refuse, before a judge is loaded, to continue with other versions than the run began with, unless told to."""
    for record in manifest.judges:
        changed = {} if record.complete else changed_versions(record)
        if changed and not accept:
            told = "; ".join(f"{_name(library)} was {old}, is {new}" for library, (old, new) in changed.items())
            raise OutputError(
                f"the run in {directory} began with other versions: {told}",
                hint="Scores may differ by rounding. Install the former versions; or accept the new ones, which the "
                f"signature then names beside the former:\n  geval-local resume {shlex.quote(str(directory))} "
                "--accept-version",
            )


def accept_versions(record: JudgeRecord, signatures: Mapping[str, str]) -> None:
    """Put the versions of a loaded judge in place of those that a run began with, which the record keeps."""
    for metric, before in record.signatures.items():
        old, new = _libraries(before), _libraries(signatures[metric])
        if old != new:
            record.earlier_versions = [*(one for one in record.earlier_versions if one != old), old]
            record.signatures = {**record.signatures, metric: _with(before, new)}


def published(record: JudgeRecord) -> dict[str, str]:
    """Return the signatures of a judge's scores, with every version that computed some of them, oldest first."""
    return {
        metric: _with(
            signature, {library: _joined(record, library, own) for library, own in _libraries(signature).items()}
        )
        for metric, signature in record.signatures.items()
    }


def _joined(record: JudgeRecord, library: str, own: str) -> str:
    versions: Iterable[str] = (one[library] for one in record.earlier_versions if library in one)
    return ",".join(dict.fromkeys([*versions, own]))


def _libraries(signature: str) -> dict[str, str]:
    return {key: value for key, value in signature_parts(signature).items() if key in LIBRARIES}


def _with(signature: str, changed: Mapping[str, str]) -> str:
    """Return a signature with other values of some of its parts."""
    return written_signature({**signature_parts(signature), **changed})


def _name(library: str) -> str:
    return "geval-local" if library == "version" else library
