"""Shares of a run that were scored each for itself, joined: one run with the figures of all of them.

It joins the stores of the shares. Everything after that is the end of any run: the input is read again,
scores are derived from the stored outcomes, and results, description and summary are written. So a joined run differs
from an undivided one by nothing but its identifier and its times, as far as its windows were the same.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from geval_local.errors import ConfigurationError, DataError, OutputError
from geval_local.io.input_files import find_files
from geval_local.io.shares import Stretch, listing_of, share_name, share_numbers
from geval_local.options import RunOptions
from geval_local.runs.completion import RunResult, complete
from geval_local.runs.directory import look_at, shares_in
from geval_local.runs.events import RunEvents
from geval_local.runs.input_file import InputFile, fingerprint_inputs, fingerprint_share
from geval_local.runs.manifest import JudgeRecord, RunManifest, is_run_directory, read_manifest
from geval_local.runs.run import Run
from geval_local.runs.run_file import LoadCalibration, read_calibrations
from geval_local.runs.spread import ScoredShare, fill
from geval_local.runs.target import find_target
from geval_local.signature import signature_differences

#: Most problems of one kind that are named.
_NAMED = 5


def merge_shares(
    given: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    options: RunOptions | None = None,
    *,
    load_calibration: LoadCalibration | None = None,
    events: RunEvents | None = None,
) -> RunResult:
    """Join the shares of a run into one run.

    Parameters
    ----------
    given : sequence of path
        Directories of shares, or directories that hold such.
    output : path
        A .jsonl, .csv or .parquet file, or a directory for the run, as for `geval_local.runs.run_file.score_file`.
    options : RunOptions, optional
        What is written (``formats``, ``columns``, ``csv_style``) if not what the shares have, and ``overwrite``.
    load_calibration : callable, optional
        As for `geval_local.runs.run_file.score_file`.
    events : RunEvents, optional
        Receives the progress.

    Raises
    ------
    GevalError
        If shares are missing, not finished, named twice or not of one run, or their input has changed.
    """
    options = options or RunOptions()
    shares = read_shares(given)
    first = shares[0].manifest
    settings = first.settings
    maps = read_calibrations(
        settings.calibrations, load_calibration, [str(metric["name"]) for metric in settings.metrics]
    )
    is_file = find_target(output, stem=settings.stem).output is not None
    target = find_target(output, options.formats or ([] if is_file else settings.formats), settings.stem)
    before = None if target.directory is None else look_at(target.directory)
    if before is not None and before.has_begun and not before.shares:
        raise OutputError(
            f"{target.directory} holds a run that is not made of shares", hint="Name another directory, or a file."
        )
    paths = find_files(settings.inputs)
    if gone := [path for path in paths if not path.exists()]:
        raise DataError(
            f"the input of the shares is not where it was: there is no {gone[0]}",
            hint="`merge` reads it again. Put it there, or a link to it.",
        )
    for path in paths:
        target.refuse_input(path)
    listing, hashes = listing_of(paths, settings), dict[Stretch, InputFile]()
    for share in shares:
        known = share.manifest.input
        assert known.share is not None
        if known.share.listing != listing or fingerprint_share(known.share, hashes).sha256 != known.sha256:
            raise DataError(
                f"the input {known.path} has another content than when {share.directory} was scored",
                hint="Put the former content back, or score that share again.",
            )
    whole = settings.model_copy(
        update={
            "shard": None,
            "inputs": [],
            "block_rows": None,
            "formats": list(target.formats),
            "output": None if target.output is None else target.output.name,
            "address": target.address,
            "columns": options.columns or settings.columns,
            "csv_style": options.csv_style or settings.csv_style,
        }
    )
    judges = [JudgeRecord(name=judge.name, choice=judge.choice) for judge in first.judges]
    return complete(
        target,
        RunManifest.new(fingerprint_inputs(paths), whole, judges),
        maps,
        {},
        events or RunEvents(),
        fill=lambda run: _merge(run, shares),
        retry_errors=False,
        overwrite=options.overwrite,
    )


def _read(directory: Path) -> ScoredShare:
    manifest = read_manifest(directory)
    if manifest is None or manifest.settings.shard is None:
        raise ConfigurationError(
            f"{directory} is no share of a run",
            hint="`geval-local score FILE ... --shard I/N -o OUT/` makes them; name OUT.",
        )
    return ScoredShare(directory, manifest)


def _numbers(share: ScoredShare) -> tuple[int, int]:
    return share_numbers(share.manifest.settings.shard)


def read_shares(given: Sequence[str | os.PathLike[str]]) -> list[ScoredShare]:
    """Read shares, or those in directories, in the order of the input; check that they are a whole run and finished."""
    directories: list[Path] = []
    for place in map(Path, given):
        # A share that was killed before it began has a directory without a run.
        inside = shares_in(place)
        directories += [place] if is_run_directory(place) or not inside else inside
    shares = sorted(map(_read, dict.fromkeys(directories)), key=_numbers)
    if not shares:
        raise ConfigurationError("there are no shares to be merged", hint="Name the directory that holds them.")
    first = shares[0]
    for share in shares[1:]:
        differences = _differences(first, share)
        if differences:
            raise ConfigurationError(
                f"{share.directory} and {first.directory} are no shares of one run: {'; '.join(differences)}",
                hint="Score the one that is wrong again with the command of the others.",
            )
    for one, other in pairwise(shares):
        if _numbers(one) == _numbers(other):
            raise ConfigurationError(
                f"{one.directory} and {other.directory} are the same share", hint="Name one of them."
            )
    _check_all_there(shares)
    unfinished = [share.directory for share in shares if share.manifest.ended is None]
    if unfinished:
        commands = [shlex.join(["geval-local", "resume", str(one)]) for one in unfinished[:_NAMED]]
        more = f"\n  and {len(unfinished) - _NAMED} more" if len(unfinished) > _NAMED else ""
        raise ConfigurationError(
            f"{len(unfinished)} of {len(shares)} shares are not finished, among them {unfinished[0]}",
            hint="Finish them, then merge again:\n  " + "\n  ".join(commands) + more,
        )
    return shares


def _differences(one: ScoredShare, other: ScoredShare) -> list[str]:
    """List what keeps two shares from being of one run."""
    if _numbers(one)[1] != _numbers(other)[1]:
        return [f"one is of {_numbers(one)[1]} shares, the other of {_numbers(other)[1]}"]
    before, after = one.manifest, other.manifest
    found = before.settings.model_copy(update={"shard": None}).differences(
        after.settings.model_copy(update={"shard": None}), results=True
    )
    old, new = ([metric.get("threshold") for metric in run.settings.metrics] for run in (before, after))
    if not found and old != new:
        found.append(f"the metrics' thresholds were {old}, are {new}")
    mine, theirs = before.input.share, after.input.share
    if mine is None or theirs is None or (mine.listing, mine.end) != (theirs.listing, theirs.end):
        found.append("they are of another input")
    if [judge.name for judge in before.judges] != [judge.name for judge in after.judges]:
        return [*found, "their judges have other names"]
    for record, its in zip(before.judges, after.judges, strict=True):
        for name in record.signatures.keys() & its.signatures.keys():
            differing = signature_differences(record.signatures[name], its.signatures[name])
            found += [f"{key} was {old}, is {new}" for key, (old, new) in differing.items()]
        if record.definitions and its.definitions and record.definitions != its.definitions:
            found.append(f"the evaluation steps of {record.name} are others")
    return list(dict.fromkeys(found))


def _check_all_there(shares: Sequence[ScoredShare]) -> None:
    """Check that every share begins where the one before it ends; a share without rows is none."""
    count, place = _numbers(shares[0])[1], (0, 0)
    number = 0
    for scored in shares:
        share = scored.manifest.input.share
        assert share is not None
        if share.first != place:
            raise _missing(shares, number + 1, _numbers(scored)[0] - 1, count)
        place, number = share.last, _numbers(scored)[0]
        end = share.end
    if place != end:
        raise _missing(shares, number + 1, count, count)


def _missing(shares: Sequence[ScoredShare], first: int, last: int, count: int) -> ConfigurationError:
    folder = shares[0].directory.parent
    if first > last:
        return ConfigurationError(
            f"the shares in {folder} do not follow each other: their input was cut in other ways",
            hint="Was it changed between them? Score all shares of it as it is now.",
        )
    told = f"{first}/{count}" + (f" to {last}/{count}" if last > first else "")
    return ConfigurationError(
        f"rows are missing: those of the share {told}, such as {folder / share_name(f'{first}/{count}')}",
        hint=f"Score the share {first}/{count} by the command of the others, then merge again.",
    )


def _merge(run: Run, shares: Sequence[ScoredShare]) -> None:
    run.manifest.shares = [share.manifest.run for share in shares]
    fill(run, shares)
