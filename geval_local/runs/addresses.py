"""Runs at an address: the store stays on this machine, and complete results are uploaded.

The run of ``s3://bucket/runs/first/`` has its directory in the user's directory of this package, under a name made of
the address. What is at the address already is replaced or removed by the rule of local files: only if it is an
unchanged result of this tool, by the description next to it or by the manifest of its run.
"""

from __future__ import annotations

import mmap
import shutil
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from geval_local.errors import DataError, OutputError, telling
from geval_local.files import home_directory, private_home, safe_file_name
from geval_local.io.ownership import check_own, digest_of, owned
from geval_local.io.places import RIGHTS, Place, is_address
from geval_local.io.result_manifest import ENDING, ROWS_ENDING, check_results, manifest_path, rows_path
from geval_local.options import Format
from geval_local.runs.manifest import MANIFEST_NAME, RunManifest, parse_manifest

if TYPE_CHECKING:
    from geval_local.runs.run import Run

_BLOCK = 1 << 20
#: The directory of a run on this machine, if its results are for a directory.
_RUN = "run"
_REPLACE = "Name another one, or add `overwrite=True` to replace it."


# --- on this machine --------------------------------------------------------------------------------------------------


def local_output(place: Place) -> Path:
    """Return the output on this machine of a run whose results are for an address; it need not exist.

    It is a file for the address of one, else the directory of the run.
    """
    if place.local is not None:
        return place.local
    is_file = not place.plain.endswith("/") and Path(place.name).suffix.lower().removeprefix(".") in get_args(Format)
    return home_directory() / "runs" / safe_file_name(place.key) / (place.name if is_file else _RUN)


def make_local_output(place: Place) -> str:
    """Create the directory of `local_output`; return the output as `geval_local.runs.target.find_target` reads it."""
    output = local_output(place)
    hint = "Set GEVAL_LOCAL_HOME to a directory on a local disk that you may write to."
    with telling(OutputError, f"cannot keep the run for {place} in {output.parent}", hint):
        private_home("runs")
        output.parent.mkdir(mode=0o700, exist_ok=True)
    return f"{output}/" if output.name == _RUN else str(output)


@cache
def _copies() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="geval-local-")  # goes when the process ends


def local_results(given: str) -> Path:
    """Return results on this machine: a path as it is, and a new copy of what is at an address, for this process."""
    if not is_address(given):
        return Path(given)
    place = Place(given)
    if place.local is not None:
        return place.local
    with telling(DataError, f"cannot read {place}", RIGHTS):
        return _copied(place)


def _copied(place: Place) -> Path:
    target = Path(tempfile.mkdtemp(dir=_copies().name)) / place.name
    entry = place.entry()
    if entry is not None and entry.is_file:
        _download([place, place.with_ending(ENDING), place.with_ending(ROWS_ENDING)], target.parent)
        return target
    manifest = _manifest_at(place)
    if manifest is None:
        raise DataError(f"there is neither a file nor a run at {place}", hint="Check the address.")
    target.mkdir()
    endings = ("", ENDING, ROWS_ENDING)
    names = [MANIFEST_NAME, *manifest.files]
    _download([place.child(name + ending) for name in names for ending in endings], target)
    return target


def _download(places: Iterable[Place], directory: Path) -> None:
    """Copy files that exist into a directory."""
    for place in places:
        with suppress(FileNotFoundError), place.lines_file() as source, (directory / place.name).open("wb") as target:
            shutil.copyfileobj(source, target, _BLOCK)


# --- at the address ---------------------------------------------------------------------------------------------------


def check_address(asked: RunManifest, on_record: RunManifest | None, *, overwrite: bool = False) -> str | None:
    """Check that the results of a run may be uploaded; return the hash of what they are to replace.

    The run replaces what it made or was to replace, by its manifest `on_record` on this machine, and what is described
    as a result at the address.
    """
    place = Place(str(asked.settings.address))
    with telling(OutputError, f"cannot use {place}", RIGHTS):
        _check_bucket(place)
        if asked.settings.output is None:
            return _check_directory(place, asked, on_record, overwrite=overwrite)
        check_results(place, digests=_known(on_record), overwrite=overwrite)
        return digest_of(place)


def _check_bucket(place: Place) -> None:
    bucket = place.path.strip("/").partition("/")[0]
    if place.system.type_name in ("s3", "gcs") and not place.system.get_file_info(bucket).type:
        raise OutputError(f"cannot write {place}: there is no bucket {bucket}", hint="Create it, or check its name.")


def _known(manifest: RunManifest | None) -> set[str | None]:
    """Return the hashes of contents that a run made or may replace; None is that of a file that does not exist."""
    return {None} if manifest is None else {None, *manifest.digests}


def _check_directory(place: Place, asked: RunManifest, on_record: RunManifest | None, *, overwrite: bool) -> str | None:
    from geval_local.runs.run import planned_names

    digest, former = digest_of(place.child(MANIFEST_NAME)), _manifest_at(place)
    found = [] if former is not None or on_record is not None else place.entries(recursive=True)
    if names := [entry.place.name for entry in found if entry.is_file]:
        raise OutputError(
            f"{place} is not empty and holds no run; it has {names[0]}",
            hint="Name a new or an empty directory, or one that holds a run. Nothing was changed.",
        )
    known = _known(on_record) | _known(former)
    is_same = former is None or (on_record is not None and on_record.run == former.run)
    if not is_same and digest not in _known(on_record) and not overwrite:
        raise OutputError(
            f"{place} holds another run, whose store is not in {local_output(place)}",
            hint=f"Continue it on the machine where it began. {_REPLACE}",
        )
    for name in planned_names(asked):
        check_own(place.child(name), known)
    return digest


def _manifest_at(place: Place) -> RunManifest | None:
    try:
        text = place.child(MANIFEST_NAME).read().decode(errors="replace")
    except FileNotFoundError:
        return None
    return parse_manifest(text, place.child(MANIFEST_NAME))


def upload(run: Run, files: Iterable[Path]) -> list[Place]:
    """Upload the complete results of a run; return where they are."""
    manifest, place = run.manifest, Place(str(run.manifest.settings.address))
    check_address(manifest, manifest)
    upload_all = _upload_directory if manifest.settings.output is None else _upload_file
    with telling(OutputError, f"cannot write {place}", f"{RIGHTS} The results are in {run.directory} until then."):
        return upload_all(run, place, list(files))


def _upload_file(run: Run, place: Place, files: list[Path]) -> list[Place]:
    (file,) = files
    if rows_path(file).exists():  # first: while the former description is there, the former rows are ours
        put_file(rows_path(file), place.with_ending(ROWS_ENDING), run)
    # From here on the results rather have no description than another run's.
    place.with_ending(ENDING).delete()
    put_file(file, place, run)
    put_file(manifest_path(file), place.with_ending(ENDING), run)
    for uploaded in (file, rows_path(file), manifest_path(file)):
        uploaded.unlink(missing_ok=True)
    return [place]


def _upload_directory(run: Run, place: Place, files: list[Path]) -> list[Place]:
    directory, made = run.directory, run.manifest.made
    assert directory is not None
    former = _manifest_at(place)
    if former is not None and former.run != run.manifest.run:
        for name, digests in former.made.items():
            if name not in made and owned(place.child(name), digests=digests):
                place.child(name).delete()
    # The manifest last: until then the one that is there says whose the files are.
    for name in [*(name for name, digests in made.items() if digests), MANIFEST_NAME]:
        if (directory / name).is_file():
            put_file(directory / name, place.child(name), run)
    return [place.child(file.name) for file in files]


def put_file(file: Path, place: Place, run: Run) -> None:
    """Upload a file that is not empty, without holding it in memory.

    The thread finishes the object when Ctrl-C stops the run: pyarrow would store one that is cut off.
    """
    with (
        file.open("rb") as source,
        mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as content,
        memoryview(content) as view,
        ThreadPoolExecutor(1) as thread,
    ):
        thread.submit(place.write, view, mark=run.manifest.run).result()
