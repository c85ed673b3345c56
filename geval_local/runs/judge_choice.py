"""The choice of a judge and its load options, as recorded in a manifest."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from geval_local.errors import ConfigurationError, JudgeError, OutputError

if TYPE_CHECKING:
    from geval_local.judge import Judge
    from geval_local.models.registry import JudgeEntry

__all__ = ["JudgeChoice", "choices_of", "labels_of"]


@dataclass(frozen=True)
class JudgeChoice:
    """A judge that is not loaded yet.

    Attributes
    ----------
    name : str or None
        A name in models.yaml, a directory, or a hub id in the local cache; None is the default judge.
    models_file : Path or None
        The user's own models file.
    adapter, style, device, device_map, dtype, attention, quantization, batch_tokens, engine, trust_remote_code
        See `geval_local.Judge.load`.
    """

    name: str | None = None
    models_file: Path | None = None
    adapter: Path | None = None
    style: Literal["completion", "chat", "chat-no-prefill"] | None = None
    device: str | None = None
    device_map: str | None = None
    dtype: str | None = None
    attention: str | None = None
    quantization: Literal["8bit", "4bit"] | None = None
    batch_tokens: int | None = None
    engine: Literal["auto", "trie", "trie-compiled", "cache", "padded"] = "auto"
    trust_remote_code: bool = False

    def load(self) -> Judge:
        """Load the judge."""
        from geval_local.judge import Judge

        return Judge.load(**asdict(self))

    def label(self) -> str:
        """Return the judge's name in results; for a missing judge, the name as given."""
        from geval_local.models.registry import load_registry

        try:
            return self.entry().label
        except JudgeError:
            return self.name or load_registry(self.models_file).default

    def entry(self) -> JudgeEntry:
        """Find the judge's entry, without loading weights."""
        from geval_local.models.registry import find_judge

        entry = find_judge(self.name, self.models_file, adapter=self.adapter)
        return entry if self.style is None else entry.model_copy(update={"style": self.style})

    def check(self) -> None:
        """Check that the judge can be loaded, without reading its weights: files, tokenizer, options.

        Raises
        ------
        GevalError
            As for `load`.
        """
        from geval_local.models.load import LoadOptions, check_judge

        names = {field.name for field in fields(LoadOptions)}
        check_judge(self.entry(), LoadOptions(**{name: value for name, value in asdict(self).items() if name in names}))

    def record(self) -> dict[str, Any]:
        """Return the choice as plain values for a manifest, without defaults."""
        return {
            key: str(value.resolve()) if isinstance(value, Path) else value
            for key, value in asdict(self).items()
            if value is not None and value is not False
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> JudgeChoice:
        """Read a choice back from a manifest.

        Raises
        ------
        OutputError
            If this version does not know a load option.
        """
        paths = {key: Path(record[key]) for key in ("models_file", "adapter") if record.get(key) is not None}
        try:
            return cls(**{**record, **paths})
        except TypeError as error:
            raise OutputError(
                f"the manifest names a judge in a way that this version does not know: {error}",
                hint="Use the version of geval-local that wrote it, or score into another directory.",
            ) from error


def choices_of(given: Any) -> tuple[list[JudgeChoice], dict[int, Judge]]:
    """List judges, however they are given, as choices, and those that are loaded already by their place."""
    listed = list(given) if isinstance(given, list | tuple) else [given]
    choices: list[JudgeChoice] = []
    loaded: dict[int, Judge] = {}
    for place, one in enumerate(listed or [None]):
        if isinstance(one, JudgeChoice):
            choices.append(one)
        elif one is None or isinstance(one, str | os.PathLike):
            choices.append(JudgeChoice(name=None if one is None else os.fspath(one)))
        else:
            loaded[place] = one
            choices.append(JudgeChoice(name=one.name))
    return choices, loaded


def labels_of(choices: Sequence[JudgeChoice]) -> list[str]:
    """Return the judges' names in results: plain names, plus the distinguishing options if one is used twice.

    Raises
    ------
    ConfigurationError
        If two of them are identical.
    """
    names = [choice.label() for choice in choices]
    labels = [
        name if names.count(name) == 1 else ",".join([name, *_differing(choice, choices)])
        for name, choice in zip(names, choices, strict=True)
    ]
    if len(set(labels)) < len(labels):
        raise ConfigurationError(
            f"a judge is named twice: {', '.join(labels)}",
            hint="The same judge can be asked in two ways: -j NAME -j NAME,dtype=float64.",
        )
    return labels


def _differing(choice: JudgeChoice, choices: Sequence[JudgeChoice]) -> list[str]:
    """List the options in which a judge differs from others."""
    names = [field.name for field in fields(JudgeChoice) if field.name not in ("name", "models_file")]
    return [
        f"{name.replace('_', '-')}={getattr(choice, name)}"
        for name in names
        if any(getattr(other, name) != getattr(choice, name) for other in choices) and getattr(choice, name) is not None
    ]
