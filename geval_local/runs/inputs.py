"""The rows that a run scores: all of its files, or a share of them, with their fingerprint."""

from __future__ import annotations

from collections.abc import Sequence

from geval_local.engine.window import window_sizes
from geval_local.io.input_files import find_files
from geval_local.io.places import File
from geval_local.io.shares import share_of
from geval_local.runs.input_file import InputFile, fingerprint_inputs, fingerprint_share
from geval_local.runs.manifest import RunManifest
from geval_local.runs.settings import Settings


def input_of(paths: Sequence[File], settings: Settings) -> InputFile:
    """Fingerprint the rows that a run is to score, given all files of its input."""
    if settings.shard is None:
        return fingerprint_inputs(paths)
    sizes = None if settings.block_rows is None else window_sizes(settings.window)
    return fingerprint_share(share_of(paths, settings, sizes=sizes, pairs=settings.pairs, documents=settings.documents))


def paths_of(manifest: RunManifest) -> list[File]:
    """List all files of the input of a run on record, those that its share has no rows of too."""
    return manifest.input.paths if manifest.settings.shard is None else find_files(manifest.settings.inputs)
