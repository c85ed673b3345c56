"""Run directories: creating, reopening, rejecting other directories, cleaning up, and finding their results.

A directory is a run only if it contains a manifest, which is written before anything else and removed after everything
else. So a directory without a manifest contains no files of a run except the lock.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from geval_local.engine.window import window_sizes
from geval_local.errors import DataError, OutputError, telling
from geval_local.fields import listed
from geval_local.files import check_is_file
from geval_local.io.input_files import find_files
from geval_local.io.ownership import digest_of
from geval_local.io.places import File
from geval_local.io.result_manifest import check_results
from geval_local.io.shares import share_of
from geval_local.runs.addresses import check_address, local_results
from geval_local.runs.input_file import InputFile, fingerprint_inputs, fingerprint_share
from geval_local.runs.manifest import RunManifest, is_run_directory, read_manifest, side_name, write_manifest
from geval_local.runs.own_files import LOCK_NAME, OwnFiles, hold, leftovers
from geval_local.runs.run import Run, planned_names
from geval_local.runs.settings import Settings
from geval_local.runs.store import Store

logger = logging.getLogger("geval_local")

STORE_NAME = "scores.sqlite"
#: Directory of the shares of a run that is spread over workers.
SHARES_NAME = "shares"
_STORE_FILES = (STORE_NAME, f"{STORE_NAME}-wal", f"{STORE_NAME}-shm", f"{STORE_NAME}-journal")


def side_directory(output: Path) -> Path:
    """Return the run directory next to an output file, which exists until the file is complete."""
    return output.with_name(side_name(output.name))


@contextmanager
def open_run(
    directory: Path | None,
    wanted: RunManifest | None = None,
    *,
    retry_errors: bool = False,
    overwrite: bool = False,
    patience: float = 0.0,
) -> Iterator[Run]:
    """Start a run, or continue the existing one; wait so many seconds for another process that is in it."""
    if directory is None:
        assert wanted is not None
        with closing(Store(None, wanted.run, is_new=True)) as store:
            yield Run(wanted, store, None)
        return
    on_record = look_at(directory)
    if on_record is None and wanted is None:
        raise _no_run(directory)
    replaces = _checked_output(directory, on_record, wanted, overwrite=overwrite)
    made = make(directory)
    with hold(directory, patience):
        try:
            with _held(directory, wanted, replaces, overwrite=overwrite, retry_errors=retry_errors) as run:
                yield run
        finally:
            if not is_run_directory(directory):
                asked = wanted if wanted is not None else on_record
                clean_directory(directory, made or (asked is not None and asked.settings.output is not None))


@contextmanager
def _held(
    directory: Path,
    wanted: RunManifest | None,
    replaces: str | None,
    *,
    overwrite: bool,
    retry_errors: bool,
) -> Iterator[Run]:
    """Start or continue a run in a directory that this process has locked."""
    for path in leftovers(directory):
        if path.name != LOCK_NAME:
            path.unlink(missing_ok=True)
    on_record = look_at(directory)  # another process may have been first
    is_new = on_record is None or not on_record.has_begun
    if on_record is None:
        if wanted is None:
            raise _no_run(directory)
    elif wanted is None:
        wanted = on_record.model_copy(update={"input": _input_of(directory, on_record)})
    if on_record is not None and on_record.differences(wanted) and not is_new:
        if not overwrite:
            check_configuration(directory, on_record, wanted)
        is_new = True
    names = [*_STORE_FILES, *planned_names(wanted)]
    if is_new:
        manifest = wanted.model_copy(update={"replaces": replaces, "made": {}, "ended": None})
        OwnFiles(directory, on_record or manifest).check(names)
        if on_record is not None:
            _remove_files(directory, on_record)
        manifest.made = {name: [] for name in _STORE_FILES}
    else:
        assert on_record is not None
        manifest = _merged(on_record, wanted, replaces)
        files = OwnFiles(directory, manifest)
        files.check(names)
        files.sweep()
    try:
        write_manifest(directory, manifest)
        with open_directory(directory, manifest, is_new=is_new) as run:
            if not is_new:
                _take_damage_back(run)
            if retry_errors and run.store.take_errors_back():
                for judge in manifest.judges:
                    judge.complete = False
                write_manifest(directory, manifest)
            try:
                yield run
            except BaseException:
                # A store that is closed already was being cleared away: the results are delivered.
                is_new = is_new and (run.store.is_closed or _has_nothing(run))
                raise
    except BaseException:
        if is_new:
            remove_run(directory, manifest)
        raise


def input_of(paths: Sequence[File], settings: Settings) -> InputFile:
    """Fingerprint the rows that a run is to score, all or a share, given all files of its input."""
    if settings.shard is None:
        return fingerprint_inputs(paths)
    sizes = None if settings.block_rows is None else window_sizes(settings.window)
    return fingerprint_share(share_of(paths, settings, sizes=sizes, pairs=settings.pairs, documents=settings.documents))


def _input_of(directory: Path, on_record: RunManifest) -> InputFile:
    """Fingerprint the input of a run at the place on record."""
    try:
        settings = on_record.settings
        return input_of(on_record.input.paths if settings.shard is None else find_files(settings.inputs), settings)
    except DataError as error:
        if not all(path.exists() for path in on_record.input.paths):
            output = directory.parent / on_record.settings.output if on_record.settings.output else f"{directory}/"
            error.hint = (
                f"Put {on_record.input.name} back there. Where it moved, the command that began the run goes on with "
                "it: give it the new path of the input, the same options, and\n  "
                f"-o {shlex.quote(str(output))}"
            )
        raise


def _take_damage_back(run: Run) -> None:
    """Have damaged rows computed again, with a warning that names some of them."""
    damaged = run.store.take_damage_back()
    if not damaged:
        return
    judges, metrics = run.manifest.judges, run.metrics
    told: list[str] = []
    for judge, metric, row in damaged:
        if judge in range(len(judges)) and metric in range(len(metrics)) and isinstance(row, int):
            judges[judge].complete = False
            told.append(f"row {row // run.outcomes(judge)[metric] + 1} on {metrics[metric].name}")
        else:  # of a damaged place nobody knows whose it was
            for record in judges:
                record.complete = False
    names = listed([*dict.fromkeys(told)], 4) or "their places cannot be read"
    logger.warning("%s: %d outcomes are damaged (%s): they are computed again", run.store.path, len(damaged), names)
    if run.directory is not None:
        write_manifest(run.directory, run.manifest)


@contextmanager
def open_directory(directory: Path, manifest: RunManifest, *, is_new: bool) -> Iterator[Run]:
    """Open a run and its store."""
    with closing(Store(directory / STORE_NAME, manifest.run, is_new=is_new)) as store:
        yield Run(manifest, store, directory)


def look_at(directory: Path) -> RunManifest | None:
    """Read the manifest of the run in a directory; None if a new run may start there. Nothing is changed."""
    with telling(OutputError, f"cannot use {directory}", "Choose a place that you may read and write."):
        if directory.name.startswith(".") and directory.is_symlink():
            raise OutputError(f"{directory} is a link, and no run makes links", hint="Remove it, or name another file.")
        if not directory.is_dir():
            if directory.exists() or directory.is_symlink():
                raise OutputError(f"{directory} is not a directory", hint="Name a new directory, or one with a run.")
            return None
        manifest = read_manifest(directory)
        if manifest is not None:
            return manifest
        names = sorted({path.name for path in directory.iterdir()} - {path.name for path in leftovers(directory)})
    if names:
        told = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        raise OutputError(
            f"{directory} is not empty and holds no run; it has {told}",
            hint="Name a new directory, an empty one, or one that holds a run. Nothing was changed.",
        )
    return None


def make(directory: Path) -> bool:
    """Ensure that the directory exists; return whether it was created."""
    if directory.is_dir():
        return False
    with telling(OutputError, f"cannot make the directory {directory}", "Choose a place that you may write to."):
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700)  # inputs may be private, and so are their scores
    return True


def _checked_output(
    directory: Path, on_record: RunManifest | None, wanted: RunManifest | None, *, overwrite: bool
) -> str | None:
    """Check that a run's output, next to its directory or at an address, may be written; return the hash of the former.

    A result of this tool is replaced once the new one is complete, any other file only with `overwrite`.
    """
    asked = wanted if wanted is not None else on_record
    if asked is None:
        return None
    if asked.settings.address is not None:
        return check_address(asked, on_record, overwrite=overwrite)
    if asked.settings.output is None:
        return None
    output = directory.parent / asked.settings.output
    check_results(output, digests=on_record.digests if on_record is not None else (), overwrite=overwrite)
    return digest_of(output)


def _no_run(directory: Path) -> OutputError:
    return OutputError(f"there is no run in {directory}", hint="`geval-local score FILE ... -o DIR/` begins one.")


def _merged(on_record: RunManifest, wanted: RunManifest, replaces: str | None) -> RunManifest:
    """Apply the requested settings that may change: how scores are derived and written."""
    merged = on_record.model_copy(
        deep=True,
        update={
            "settings": wanted.settings,
            "input": wanted.input.model_copy(update={"rows": on_record.input.rows}),
            "ended": None,
            "replaces": replaces,
        },
    )
    for judge in merged.judges:
        if on_record.settings.estimator != wanted.settings.estimator:
            judge.complete = False  # its signature contains the estimator, and only the judge can compute it again
    return merged


def check_configuration(
    directory: Path, on_record: RunManifest, wanted: RunManifest, *, another: str = "score into another directory"
) -> None:
    """Refuse to continue with a run of another configuration that has finished rows; `another` is a way out."""
    differences = on_record.differences(wanted) if on_record.has_begun else []
    if differences and not _is_empty(directory, on_record):
        raise OutputError(
            f"{directory} holds a run of another configuration: {'; '.join(differences)}",
            hint=f"Go back to what it was, {another}, delete {directory}, or replace that run by adding "
            "`overwrite=True`.",
        )


def _is_empty(directory: Path, manifest: RunManifest) -> bool:
    with open_directory(directory, manifest, is_new=False) as run:
        return _has_nothing(run)


def _has_nothing(run: Run) -> bool:
    """Whether a run has neither finished rows nor thoughts, nor shares that may have some."""
    return run.store.is_empty() and (run.directory is None or not shares_in(run.directory / SHARES_NAME))


def shares_in(directory: Path) -> list[Path]:
    """List the directories of shares in a directory; one that was killed before it began has no run."""
    return sorted(filter(is_run_directory, directory.glob("shard-*-of-*")))


def remove_shares(directory: Path) -> None:
    """Remove the shares in a directory: only the files that they made."""
    for share in shares_in(directory):
        manifest = read_manifest(share)
        if manifest is not None:
            remove_run(share, manifest)
    for left in directory.glob("shard-*-of-*"):
        clean_directory(left, made=not is_run_directory(left))
    with suppress(OSError):
        directory.rmdir()


def remove_run(directory: Path, manifest: RunManifest) -> None:
    """Remove a run from a directory: only the files that it made."""
    _remove_files(directory, manifest)
    OwnFiles(directory, manifest).remove_manifest()


def _remove_files(directory: Path, manifest: RunManifest) -> None:
    """Remove the files of a run except its manifest, which is reset to "not begun"."""
    files = OwnFiles(directory, manifest)
    files.forget()
    remove_shares(directory / SHARES_NAME)
    files.remove()


def clean_directory(directory: Path, made: bool) -> None:
    """Remove the lock of a directory without a run, and the directory if it was created for the run."""
    with suppress(OSError):
        for path in leftovers(directory):
            path.unlink()
        if made:
            directory.rmdir()  # stays if it contains anything else


def result_file(path: str | Path) -> Path:
    """Return the result file for a path; of an address, a copy on this machine."""
    path = local_results(str(path))
    if not path.exists() and (side := side_directory(path)).is_dir():
        path = side
    if not path.is_dir():
        check_is_file(path)
        return path
    manifest = read_manifest(path)
    if manifest is None:
        way = "Name a result file, or the directory that `geval-local score FILE ... -o DIR/` made."
        if shares_in(path):
            way = f"It holds shares. Join them: geval-local merge {shlex.quote(str(path))} -o FILE"
        raise DataError(f"{path} is a directory that holds no run", hint=way)
    resume = f"geval-local resume {shlex.quote(str(path))}"
    if manifest.ended is None:
        raise DataError(f"the run in {path} is not finished", hint=f"Finish it: {resume}")
    files = sorted((path / name for name in manifest.files or ()), key=lambda file: file.suffix == ".csv")
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        raise DataError(f"the results of the run in {path} are gone", hint=f"Write them again: {resume}")
    return found


def recorded_judge(path: str | Path, name: str) -> str | None:
    """Return how the judge of a run was given, such as by its path; None for a result file, which holds names only."""
    path = local_results(str(path))
    manifest = read_manifest(path) if path.is_dir() else None
    found = [] if manifest is None else [judge.choice.get("name") for judge in manifest.judges if judge.name == name]
    return str(found[0]) if found and found[0] is not None else None
