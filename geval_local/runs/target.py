"""Output of a run: a file, or a directory that keeps the run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from geval_local.errors import ConfigurationError, OutputError
from geval_local.io.places import File, Place, address_of, is_address
from geval_local.io.result_manifest import check_manifest, is_own_result, read_manifest
from geval_local.io.shares import share_name
from geval_local.io.writer import ResultWriter
from geval_local.options import Format, RunOptions
from geval_local.runs.addresses import local_output, make_local_output
from geval_local.runs.directory import shares_in, side_directory
from geval_local.runs.manifest import is_run_directory
from geval_local.runs.run import export_name


@dataclass(frozen=True)
class Target:
    """Output of a run."""

    #: The run directory; None for a run that keeps nothing.
    directory: Path | None = None
    #: The output file, if given; the run directory is next to it until the file is complete.
    output: Path | None = None
    #: Formats of the exported files.
    formats: tuple[str, ...] = ("jsonl",)
    #: How they are called in a run directory, see `geval_local.runs.manifest.Settings`.
    stem: str = "scores"
    #: Address that the results are uploaded to: of the file, or of the directory. All else is on this machine.
    address: str | None = None

    @property
    def is_directory(self) -> bool:
        """Whether the run stays where it is, in a directory that the user named."""
        return self.directory is not None and self.output is None

    @property
    def results(self) -> Path | str | None:
        """The result file, the first one if there are several formats."""
        if self.address is not None:
            place = Place(self.address)
            return str(place if self.output is not None else place.child(export_name(self.formats[0], self.stem)))
        if self.output is not None or self.directory is None:
            return self.output
        return self.directory / export_name(self.formats[0], self.stem)

    def refuse_input(self, file: File) -> None:
        """Make sure that the results will not take the place of their own input, however it is spelt."""
        if self.results is not None and Place(address_of(file)).key == Place(str(self.results)).key:
            raise OutputError(f"cannot write {self.results}: it is the input", hint="Name another file.")


def find_target(
    place: str | os.PathLike[str] | None, formats: Sequence[str] = (), stem: str = "scores", shard: str | None = None
) -> Target:
    """Read where results are to go: ``scores.jsonl`` is a file; ``runs/NAME/``, or a name without extension, a run.

    The share `shard` of a run, as ``3/8``, has its directory in this one.
    """
    text = None if place is None else checked_place(os.fspath(place))
    if text is not None and is_address(text):
        return _target_at(text, formats, stem, shard)
    suffix = "" if text is None else Path(text).suffix.lower()
    is_format = suffix.removeprefix(".") in get_args(Format)
    is_name = not suffix or (not is_format and (shard is not None or Path(text or "").is_dir()))
    if text is not None and (text.endswith("/") or is_name):
        directory = Path(text)
        if shard is not None:
            if is_run_directory(directory):
                raise OutputError(
                    f"{directory} holds a run, and shares have their directories in one of their own",
                    hint="Name another directory.",
                )
            _check_shares(directory, shard)
            directory /= share_name(shard)
        return Target(directory, None, tuple(dict.fromkeys(formats)) or ("jsonl",), stem)
    if shard is not None:
        raise OutputError(
            "a share of a run is kept in a directory",
            hint="Name one with -o for all shares, such as `-o runs/big/`; `merge` makes one file of them.",
        )
    if formats:
        raise ConfigurationError(
            "`formats` goes with a run directory; the extension of a file tells its format",
            hint="Add `output=runs/NAME/`.",
        )
    if text is None:
        return Target()
    output = Path(text)
    ResultWriter.check(output)
    check_manifest(output, overwrite=True)
    return Target(side_directory(output), output, (suffix.removeprefix("."),))


def check_csv(options: RunOptions, formats: Sequence[str]) -> None:
    """Refuse options of CSV results if no CSV is written."""
    if (options.columns or options.csv_style) and "csv" not in formats:
        raise ConfigurationError(
            "`columns` and `csv_style` are about CSV results; the other formats keep everything",
            hint="Add `output=NAME.csv`, or `formats=csv` to a run directory.",
        )


def _check_shares(directory: Path, shard: str) -> None:
    """Refuse a directory of shares whose number is another: rows would be in two of them."""
    count = share_name(shard).rpartition("-")[2]
    others = [one for one in shares_in(directory) if not one.name.endswith(f"-of-{count}")]
    if others:
        raise OutputError(
            f"{directory} holds shares of another number, such as {others[0].name}, and {shard} is asked for",
            hint=f"Ask for a share of {int(others[0].name.rpartition('-')[2])}, or name another directory.",
        )


def _target_at(address: str, formats: Sequence[str], stem: str, shard: str | None) -> Target:
    """Give a run whose results are for an address a place on this machine."""
    place = Place(address)
    if place.local is not None:
        return find_target(place.path, formats, stem, shard)
    if shard is not None:
        raise OutputError(
            f"cannot keep a share in {address}: `merge` needs the stores of all shares, which are files on a disk",
            hint="Name a directory on a disk with -o; `merge DIR -o ADDRESS` then uploads the result of all shares.",
        )
    return replace(find_target(make_local_output(place), formats, stem), address=address)


def find_run(place: str | os.PathLike[str]) -> Path:
    """Find the directory of a run: the directory itself, or the hidden one next to the run's output file."""
    text = os.fspath(place)
    path = local_output(Place(text)) if is_address(text) else Path(place)
    try:
        # A directory contains its run; only a file has one next to it.
        directory = path if path.is_dir() else side_directory(path)
        found = is_run_directory(directory)
    except (OSError, RuntimeError, ValueError) as error:
        raise OutputError(f"cannot use {str(place)!r}: {error}", hint="Give the path of a run directory.") from error
    if found:
        return directory
    if is_own_result(path) or (is_address(text) and read_manifest(Place(text)) is not None):
        raise OutputError(
            f"{place} is complete: nothing is left to resume",
            hint="To make it anew, repeat the command that made it.",
        )
    if is_address(text):
        raise OutputError(
            f"{place} holds no run, or the results of one whose store is on another machine, or was deleted",
            hint="Resume it on the machine where it began, or score again into another directory.",
        )
    raise OutputError(f"there is no run in {place}", hint="`geval-local score FILE ... -o DIR/` begins one.")


def checked_place(text: str) -> str:
    """Reject empty or invalid paths, such as an unset shell variable, and standard output."""
    if not text.strip():
        raise OutputError(
            "`output` is empty", hint="Name a file or a directory, or leave `output` out; is a variable unset?"
        )
    if text == "-":
        raise OutputError(
            "results are not written to standard output: a run that is stopped goes on with what its output file keeps",
            hint="Name a file or a directory, as in `-o scores.jsonl`; one of that name is `./-`.",
        )
    try:
        text.encode()
        Path(text).resolve()
        Path(text).is_dir()
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise OutputError(f"cannot write {text[:200]!r}: {reason}", hint="Choose another name.") from error
    return text
