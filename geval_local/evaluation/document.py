"""The file of an evaluation, read with its overrides; every problem with its line."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import Node

from geval_local.errors import ConfigurationError, GevalError
from geval_local.evaluation.model import Evaluation, short
from geval_local.files import expanded
from geval_local.io.places import File, file_at, is_address
from geval_local.runs.settings import EvaluationRecord
from geval_local.wording import in_yaml
from geval_local.yaml_model import Place, parse_file, read_file, validate
from geval_local.yaml_text import line_of, load_yaml

#: A value that overrides the file: ``KEY=VALUE``, as given, and its place in the document.
Override = tuple[str, Place]


@dataclass(frozen=True)
class EvaluationFile:
    """The file of an evaluation."""

    #: Its path.
    path: Path
    #: Its settings, with the overrides.
    settings: Evaluation
    #: Its hashes, for the manifests of its runs.
    record: EvaluationRecord
    #: The overrides.
    overrides: tuple[Override, ...] = ()
    #: Its syntax tree.
    node: Node | None = field(default=None, repr=False)

    def where(self, *place: int | str) -> str:
        """Name the location of a value: ``evaluation.yaml, line 7``, or the override that sets it."""
        return _where(self.path, self.node, self.overrides, place)

    def resolved(self, path: str) -> Path:
        """Resolve a path relative to the file's directory."""
        return self.path.parent / expanded(path)

    def data_file(self, path: str) -> File:
        """Return a file of rows by its address, or by its path, relative to the file's directory."""
        return file_at(path) if is_address(path) else self.resolved(path)


#: Parameters of an evaluation that are not keys of its file.
_BESIDE = ("overrides", "overwrite", "retry_errors")


@contextmanager
def told_in_yaml() -> Iterator[None]:
    """Write parameters in errors as keys of the evaluation's file; usable as a decorator."""
    try:
        yield
    except GevalError as error:
        error.message = in_yaml(error.message, but=_BESIDE)
        error.hint = in_yaml(error.hint, but=_BESIDE) if error.hint else error.hint
        raise


class Problems:
    """Collects the problems of a file, to report all of them at once."""

    def __init__(self, file: EvaluationFile) -> None:
        self._file = file
        self._found: dict[str, None] = {}
        self._hints: dict[str, None] = {}

    @contextmanager
    def at(self, *place: int | str) -> Iterator[None]:
        """Record an error of the package as a problem at a place in the file."""
        try:
            yield
        except GevalError as error:
            self.add(place, error.message, error.hint)

    def add(self, place: Place, text: str, hint: str | None = None) -> None:
        """Add a problem."""
        self._found[f"{self._file.where(*place)}: {text}"] = None
        if hint:
            self._hints[hint] = None

    @property
    def are_found(self) -> bool:
        """Whether there are problems so far."""
        return bool(self._found)

    def check(self) -> None:
        """Raise a `ConfigurationError` if there is any problem."""
        if self._found:
            raise ConfigurationError("\n".join(self._found), hint="\n".join(self._hints) or None)


@told_in_yaml()
def read_evaluation(path: str | PathLike[str], overrides: Sequence[str] = ()) -> EvaluationFile:
    """Read the file of an evaluation, without reading the files that it names."""
    path = Path(path)
    text = read_file(path, "the evaluation")
    document, node = parse_file(
        text,
        str(path),
        "an evaluation is a mapping of keys such as data, metrics and judges",
        hint="`geval-local init` writes one to start from.",
    )
    document = _in_full(_without_nulls(document))
    set_ = []
    for one in overrides:
        document, place = _with_override(document, one)
        set_.append((one, place))
    document = _without_nulls(document)
    for place in _variables(document):
        if place[0] != "judges":
            raise ConfigurationError(
                f"{_where(path, node, set_, place)}: only the name of a judge is taken from the environment",
                hint=f"Set it when you start the run: `overrides={'.'.join(map(str, place))}=VALUE`.",
            )
    settings: Evaluation = validate(
        Evaluation,
        document,
        lambda place: _where(path, node, set_, place),
        hint="`geval-local init` writes a file to start from.",
    )
    said = json.dumps(settings.model_dump(mode="json"), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    record = EvaluationRecord(
        file=path.name,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        overrides=list(overrides),
        settings_sha256=hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest(),
    )
    return EvaluationFile(path, settings, record, tuple(set_), node)


# --- the document -----------------------------------------------------------------------------------------------------


def _without_nulls(value: Any) -> Any:
    """Remove keys without a value, such as one whose lines are all comments."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _in_full(document: dict[Any, Any]) -> dict[Any, Any]:
    """Expand parts written as their main value, so that an override finds their keys."""
    document = dict(document)
    for key, main in (("estimator", "kind"), ("baseline", "run")):
        if key in document:
            document[key] = short(main)(document[key])
    for key in ("metrics", "judges"):
        if isinstance(document.get(key), list):
            document[key] = [short("name")(item) for item in document[key]]
    if isinstance(document.get("data"), dict):
        document["data"] = {name: short("file")(item) for name, item in document["data"].items()}
    return document


def _with_override(document: dict[Any, Any], given: str) -> tuple[dict[Any, Any], Place]:
    """Set one value in a copy of the document; return its place too."""
    key, equals, text = given.partition("=")
    parts = [part.strip() for part in key.strip().split(".")]
    if not equals or not all(parts):
        raise ConfigurationError(
            f"`overrides={given!r}` sets nothing",
            hint="Write `overrides=KEY.PATH=VALUE`, such as `overrides=data.test.limit=10`.",
        )
    try:
        # YAML would read ">= 3" as a folded text; here it is a comparison.
        value = text.strip() if text.strip().startswith((">", "@")) else load_yaml(text)[0]
    except YAMLError as error:
        raise ConfigurationError(f"`overrides={given!r}`: the value is not valid YAML: {error}") from error
    document = copy.deepcopy(document)
    place: list[int | str] = []
    inner: Any = document
    while True:
        step, parts = _step(inner, parts, given, tuple(place))
        place.append(step)
        if not parts:
            break
        following = inner.get(step) if isinstance(inner, dict) else next(iter(inner[int(step) :]), None)
        if following is None:
            following = {}
            _put(inner, step, following)
        if not isinstance(following, dict | list):
            raise ConfigurationError(
                f"`overrides={given!r}`: {'.'.join(map(str, place))} is {following!r} and holds no keys",
                hint="Set it as a whole, as a mapping in YAML.",
            )
        inner = following
    _put(inner, place[-1], value)
    return _in_full(document), tuple(place)


def _put(inner: Any, step: int | str, value: Any) -> None:
    if isinstance(inner, list) and step == len(inner):
        inner.append(value)
    else:
        inner[step] = value


def _step(inner: Any, parts: list[str], given: str, place: Place) -> tuple[int | str, list[str]]:
    """Take the next key of a path; keys of the document may contain dots, so the longest match wins."""
    if isinstance(inner, list):
        if not parts[0].isdecimal() or int(parts[0]) > len(inner):
            raise ConfigurationError(
                f"`overrides={given!r}`: {'.'.join(map(str, place))} is a list of {len(inner)}, and {parts[0]!r} is no "
                "place in it",
                hint=f"Places count from 0; {len(inner)} adds one.",
            )
        return int(parts[0]), parts[1:]
    for length in range(len(parts), 1, -1):
        if (key := ".".join(parts[:length])) in inner:
            return key, parts[length:]
    return parts[0], parts[1:]


def _variables(value: Any, place: Place = ()) -> Iterator[Place]:
    """Find the places of values with an environment variable, ``${NAME}``."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _variables(item, (*place, key))
    elif isinstance(value, str) and re.search(r"\$\{\w+\}", value):
        yield place


# --- problems ---------------------------------------------------------------------------------------------------------


def _where(path: Path, node: Node | None, overrides: Sequence[Override], place: Place) -> str:
    line = f"{path}, line {line_of(node, place)}"
    for text, changed in reversed(overrides):
        if place[: len(changed)] == changed:
            return f"`overrides={text}`"
        if changed[: len(place)] == place:
            return f"{line}, with `overrides={text}`"
    return line
