"""Run directories: made, found again, refused when they are something else, and left clean."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from geval_local.errors import ConfigurationError, OutputError
from geval_local.runs.files import fingerprint_input
from geval_local.runs.local import LocalRun
from geval_local.runs.lock import DirectoryLock
from geval_local.runs.manifest import MANIFEST_NAME, Manifest, read_manifest, write_manifest
from geval_local.runs.ray.driver import DistributedRun
from geval_local.runs.ray.parts import PARTS_NAME, PartStore
from geval_local.runs.run import Run
from geval_local.runs.store import Store

__all__ = ["STORE_NAME", "is_run_directory", "open_run", "side_directory"]

STORE_NAME = "scores.sqlite"


def side_directory(output: Path) -> Path:
    """Name the run directory beside an output file, which is there until the file is whole."""
    return output.with_name(f".{output.name}.run")


def is_run_directory(path: Path) -> bool:
    """Whether there is a run in a directory."""
    return (path / MANIFEST_NAME).is_file()


@contextmanager
def open_run(directory: Path | None, wanted: Manifest | None = None, *, retry_errors: bool = False) -> Iterator[Run]:
    """Begin a run, or go on with the one that is there.

    Parameters
    ----------
    directory : Path or None
        The run directory; made if it is not there. None: a run that leaves nothing behind.
    wanted : Manifest, optional
        The configuration asked for, as by `Manifest.new`. Absent: the one on record.
    retry_errors : bool
        Whether rows without a score are to be scored again.

    Raises
    ------
    OutputError
        If the directory is in use, holds something else, or holds a run of another configuration; the message says
        what changed.
    ConfigurationError
        If a distributed run has no directory.
    DataError
        If the input of the run on record cannot be read.
    """
    if directory is None:
        assert wanted is not None
        if wanted.settings.distributed is not None:
            raise ConfigurationError("a distributed run needs a directory for its parts", hint="Add -o runs/NAME/.")
        with Store(None, wanted.run, is_new=True) as store:
            yield LocalRun(wanted, store, None)
        return
    made = _make(directory, must_exist=wanted is None)
    with DirectoryLock(directory):
        on_record = read_manifest(directory)
        _sweep(directory)
        if on_record is None:
            if wanted is None:
                raise _no_run(directory)
            # Whatever store is there was left by a process that died before its manifest was written.
            _delete_store(directory)
        else:
            wanted = _reconciled(directory, on_record, wanted)
        is_new = on_record is None
        with _opened(directory, wanted, is_new=is_new) as run:
            if retry_errors and run.store.take_errors_back(range(len(wanted.judges))):
                for judge in wanted.judges:
                    judge.complete = False
            write_manifest(directory, wanted)
            try:
                yield run
            except BaseException:
                if is_new and run.store.is_empty():
                    run.store.close()
                    _undo(directory, made)
                raise


@contextmanager
def _opened(directory: Path, manifest: Manifest, *, is_new: bool) -> Iterator[Run]:
    """Open the store that belongs to a run, and the run."""
    if manifest.settings.distributed is not None:
        parts = PartStore(
            directory / PARTS_NAME, manifest.run, manifest.settings.window, len(manifest.settings.metrics)
        )
        yield DistributedRun(manifest, parts, directory)
        return
    with Store(directory / STORE_NAME, manifest.run, is_new=is_new) as store:
        yield LocalRun(manifest, store, directory)


def _make(directory: Path, *, must_exist: bool) -> bool:
    """Make sure that there is a directory to work in; return whether it was made."""
    if directory.is_dir():
        names = {path.name for path in directory.iterdir()}
        if names and MANIFEST_NAME not in names and not any(name.startswith((STORE_NAME, ".")) for name in names):
            raise OutputError(
                f"{directory} is not empty and holds no run", hint="Name a new directory, or one that holds a run."
            )
        return False
    if must_exist:
        raise _no_run(directory)
    try:
        directory.mkdir(parents=True)
    except OSError as error:
        raise OutputError(
            f"cannot make the directory {directory}: {error.strerror}", hint="Choose a place that you may write to."
        ) from error
    return True


def _no_run(directory: Path) -> OutputError:
    return OutputError(f"there is no run in {directory}", hint="`geval-local score FILE ... -o DIR/` begins one.")


def _reconciled(directory: Path, on_record: Manifest, wanted: Manifest | None) -> Manifest:
    """Check that what is asked for is what is on record, and take over what may change: how scores are derived."""
    if wanted is None:
        path = Path(on_record.input.path)
        wanted = on_record.model_copy(update={"input": fingerprint_input(path)})
    differences = on_record.differences(wanted)
    if differences:
        raise OutputError(
            f"{directory} holds a run of another configuration: {'; '.join(differences)}",
            hint=f"Go back to what it was, score into another directory, or delete {directory}.",
        )
    rows = on_record.input.rows
    merged = on_record.model_copy(
        update={
            "settings": wanted.settings,
            "input": wanted.input.model_copy(update={"rows": rows}),
            "ended": None,
        }
    )
    for judge in merged.judges:
        if on_record.settings.estimator != wanted.settings.estimator:
            judge.complete = False  # its signature names the estimator, and only the judge can tell it anew
    return merged


def _sweep(directory: Path) -> None:
    """Remove half-written files of a process that died."""
    for path in (*directory.glob(".*.tmp"), *(directory / PARTS_NAME).glob(".*.tmp")):
        path.unlink(missing_ok=True)


def _delete_store(directory: Path) -> None:
    for path in directory.glob(f"{STORE_NAME}*"):
        path.unlink()


def _undo(directory: Path, made: bool) -> None:
    """Leave no trace of a run that has not begun."""
    if made:
        shutil.rmtree(directory, ignore_errors=True)
        return
    _delete_store(directory)
    (directory / MANIFEST_NAME).unlink(missing_ok=True)
    for folder in ("steps", PARTS_NAME):
        shutil.rmtree(directory / folder, ignore_errors=True)
