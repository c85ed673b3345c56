"""What a scoring run was asked for: from the options of ``score``, or from the manifest that ``resume`` finds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from geval_local.cli.gates import Gates
from geval_local.cli.loading import JudgeChoice, labels_of
from geval_local.errors import ConfigurationError, OutputError
from geval_local.metric import Metric
from geval_local.score import Estimator

if TYPE_CHECKING:
    from geval_local.analysis.studies.calibration import Calibration
    from geval_local.runs.manifest import Manifest

__all__ = ["Target", "Task", "find_target"]


@dataclass(frozen=True)
class Target:
    """Where results go.

    Attributes
    ----------
    directory : Path or None
        The run directory; None for a run that only prints.
    output : Path or None
        The file of the simple form, which the run directory stands beside until it is whole.
    formats : tuple of str
        Extensions of the exported files.
    """

    directory: Path | None = None
    output: Path | None = None
    formats: tuple[str, ...] = ("jsonl",)


def find_target(text: str | None, formats: Sequence[str]) -> Target:
    """Read ``-o``: ``scores.jsonl`` is a file; ``runs/NAME/``, or a name without an extension, a run directory.

    Raises
    ------
    OutputError
        If a file of that name cannot be written.
    ConfigurationError
        If formats are asked for without a run directory.
    """
    from geval_local.io.result_manifest import check_description
    from geval_local.io.writer import ResultWriter
    from geval_local.runs.directory import side_directory
    from geval_local.runs.export import EXPORT_FORMATS

    unknown = sorted(set(formats) - set(EXPORT_FORMATS))
    if unknown:
        raise ConfigurationError(f"unknown format {unknown[0]!r}", hint=f"Choose among {', '.join(EXPORT_FORMATS)}.")
    if text is not None:
        text = _checked_place(text)
    suffix = "" if text is None else Path(text).suffix.lower()
    is_format = suffix.removeprefix(".") in EXPORT_FORMATS
    if text is not None and (text.endswith("/") or not suffix or (Path(text).is_dir() and not is_format)):
        return Target(Path(text), None, tuple(dict.fromkeys(formats)) or ("jsonl",))
    if formats:
        raise ConfigurationError(
            "--format goes with a run directory; the extension of a file tells its format", hint="Add -o runs/NAME/."
        )
    if text is None:
        return Target()
    output = Path(text)
    if output.is_symlink():
        # Written through, it would replace a file that nobody has named; replaced itself, it would be lost.
        raise OutputError(
            f"cannot write {output}: it is a link to {os.readlink(output)}", hint="Name the file that it leads to."
        )
    ResultWriter.check(output)
    check_description(output)
    return Target(side_directory(output), output, (suffix.removeprefix("."),))


def _checked_place(text: str) -> str:
    """Refuse what is no place at all, such as an unset variable of the shell."""
    if not text.strip():
        raise OutputError("-o is empty", hint="Name a file or a directory, or leave -o out; is a variable unset?")
    try:
        text.encode()
        Path(text).resolve()
        Path(text).is_dir()
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise OutputError(f"cannot write {text[:200]!r}: {reason}", hint="Choose another name.") from error
    return text


@dataclass(frozen=True)
class Task:
    """What a run was asked for.

    Attributes
    ----------
    file : Path
        The input.
    metrics : sequence of Metric
        What is rated.
    metric_names : sequence of str
        The metrics' names or files as given; none for a prompt file.
    judges : sequence of JudgeChoice
        Who rates.
    estimator, limit, threshold, window, use_cache
        See `geval_local.runs.manifest.Settings`; a window of None is the default one.
    gates : Gates
        What the figures must reach.
    target : Target
        Where results go.
    retry_errors : bool
        Whether rows without a score are scored again.
    overwrite : bool
        Leave to replace a file that is no result, or a run of another configuration.
    is_resumed : bool
        Whether the manifest on record says all this.
    calibrations : mapping of str to Calibration
        Metric -> what brings its scores onto the scale of human ratings.
    calibration_files : sequence of Path
        Where they come from.
    distributed, workers, address, fields, columns, csv_safe
        See `geval_local.runs.manifest.Settings`.
    """

    file: Path
    metrics: Sequence[Metric]
    metric_names: Sequence[str]
    judges: Sequence[JudgeChoice]
    estimator: Estimator
    gates: Gates
    target: Target = field(default_factory=Target)
    limit: int | None = None
    threshold: float | None = None
    window: int | None = None
    use_cache: bool = True
    retry_errors: bool = False
    overwrite: bool = False
    is_resumed: bool = False
    calibrations: Mapping[str, Calibration] = field(default_factory=dict)
    calibration_files: Sequence[Path] = ()
    distributed: Literal["ray"] | None = None
    workers: int | None = None
    address: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    columns: Sequence[str] | None = None
    csv_safe: bool = False

    @property
    def output(self) -> Path | None:
        """The file that will hold the results."""
        if self.target.output is not None or self.target.directory is None:
            return self.target.output
        return self.target.directory / f"scores.{self.target.formats[0]}"

    @property
    def judge(self) -> JudgeChoice:
        """The first judge."""
        return self.judges[0]

    @classmethod
    def from_manifest(cls, directory: Path, manifest: Manifest, gates: Gates, *, retry_errors: bool = False) -> Task:
        """Ask for what a run is about."""
        from geval_local.cli.calibrated import load_calibrations

        settings = manifest.settings
        metrics = [Metric.model_validate(one) for one in settings.metrics]
        files = [Path(file) for file in settings.calibrations]
        # A run writes beside its own directory, wherever that may have been moved to.
        output = None if settings.output is None else directory.parent / settings.output
        return cls(
            file=Path(manifest.input.path),
            metrics=metrics,
            metric_names=settings.metric_names,
            judges=[_choice(judge.choice) for judge in manifest.judges],
            estimator=Estimator(**settings.estimator),
            gates=gates,
            target=Target(directory, output, tuple(settings.formats)),
            limit=settings.limit,
            threshold=settings.threshold,
            window=settings.window,
            use_cache=settings.use_cache,
            retry_errors=retry_errors,
            is_resumed=True,
            calibrations=load_calibrations(files, metrics),
            calibration_files=files,
            distributed=settings.distributed,
            workers=settings.workers,
            address=settings.address,
            fields=settings.fields,
            columns=settings.columns,
            csv_safe=settings.csv_safe,
        )

    def manifest(self) -> Manifest:
        """Write down the configuration.

        Raises
        ------
        DataError
            If the input cannot be read.
        ConfigurationError
            If a judge is named twice.
        """
        import geval_local.scorer
        from geval_local.runs.files import fingerprint_input
        from geval_local.runs.manifest import JudgeRecord, Manifest, Settings, definition

        if self.output is not None and self.output.resolve() == self.file.resolve():
            raise OutputError(f"cannot write {self.output}: it is the input", hint="Name another file.")
        names = labels_of(self.judges)
        settings = Settings(
            window=self.window or geval_local.scorer.WINDOW,
            limit=self.limit,
            estimator=asdict(self.estimator),
            threshold=self.threshold,
            use_cache=self.use_cache,
            formats=list(self.target.formats),
            output=None if self.target.output is None else self.target.output.name,
            metrics=[definition(metric) for metric in self.metrics],
            metric_names=list(self.metric_names),
            calibrations=[str(file.resolve()) for file in self.calibration_files],
            distributed=self.distributed,
            workers=self.workers,
            address=self.address,
            fields=dict(self.fields),
            columns=None if self.columns is None else list(self.columns),
            csv_safe=self.csv_safe,
        )
        judges = [
            JudgeRecord(name=name, choice=_plain(choice)) for name, choice in zip(names, self.judges, strict=True)
        ]
        return Manifest.new(fingerprint_input(self.file), settings, judges)


def _plain(choice: JudgeChoice) -> dict[str, Any]:
    return {
        key: str(value.resolve()) if isinstance(value, Path) else value
        for key, value in asdict(choice).items()
        if value is not None and value is not False
    }


def _choice(record: dict[str, Any]) -> JudgeChoice:
    models = record.get("models_file")
    try:
        return JudgeChoice(**{**record, "models_file": None if models is None else Path(models)})
    except TypeError as error:
        raise OutputError(
            f"the manifest names a judge in a way that this version does not know: {error}",
            hint="Use the version of geval-local that wrote it, or score into another directory.",
        ) from error
