"""Metrics as YAML texts: where they are found, and what is wrong with one, by line. Pure."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from geval_local.errors import DataError, MetricError
from geval_local.files import check_is_file
from geval_local.metric_checks import Problem
from geval_local.yaml_text import line_of, load_yaml

__all__ = ["Reading", "explain_problem", "find_metric", "metric_file_text", "preset_names", "read_metric"]

_Model = TypeVar("_Model", bound=BaseModel)


def find_metric(name: str | Path) -> tuple[str, str]:
    """Find the text of a metric.

    Parameters
    ----------
    name : str or Path
        A preset such as ``summarization/coherence``, or the path of a ``.yaml`` file.

    Returns
    -------
    text : str
    origin : str
        Name of the source, for error messages.

    Raises
    ------
    MetricError
        If there is no such preset or file.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return metric_file_text(path), str(path)
    resource = resources.files("geval_local") / "metrics" / f"{name}.yaml"
    if not resource.is_file():
        near = difflib.get_close_matches(str(name), preset_names(), n=3, cutoff=0.4)
        raise MetricError(
            f"there is no preset metric {str(name)!r}" + (f"; did you mean {', '.join(near)}?" if near else ""),
            hint="List the presets with `geval-local metrics list`, or give the path of a .yaml file.",
        )
    return resource.read_text(encoding="utf-8"), f"preset {name}"


def metric_file_text(path: Path) -> str:
    """Read a metric's file.

    Raises
    ------
    MetricError
        If it cannot be read.
    """
    try:
        check_is_file(path)
        return path.read_text(encoding="utf-8")
    except DataError as error:
        raise MetricError(f"cannot read the metric file {path}: {error.message}", hint=error.hint) from error
    except (OSError, UnicodeDecodeError) as error:
        raise MetricError(f"cannot read the metric file {path}: {error}") from error


def preset_names() -> list[str]:
    """Names of the metrics that ship with the package, sorted."""
    root = resources.files("geval_local") / "metrics"
    return sorted(
        f"{group.name}/{entry.name.removesuffix('.yaml')}"
        for group in root.iterdir()
        if group.is_dir()
        for entry in group.iterdir()
        if entry.name.endswith(".yaml")
    )


@dataclass
class Reading:
    """A metric's file while it is read.

    Attributes
    ----------
    problems : list of Problem
        What does not fit together, collected instead of raised.
    stand_ins : set of str
        Keys that are missing or not well-formed, and were replaced so that the others could be checked.
    """

    problems: list[Problem] = field(default_factory=list)
    stand_ins: set[str] = field(default_factory=set)


#: Well-formed values of the keys that a metric must have.
_STAND_INS = {"name": "name", "criteria": "criteria", "scale": "1-5"}


def read_metric(model: type[_Model], text: str, origin: str) -> _Model:
    """Read YAML text as `model`, the class of a metric; `text`, `origin` and errors are those of `Metric.from_yaml`."""
    try:
        data, node = load_yaml(text)
    except yaml.YAMLError as error:
        raise MetricError(_printable(f"{origin}: not valid YAML: {error}")) from error
    if not isinstance(data, dict):
        raise MetricError(f"{origin}: a metric is a mapping of keys such as name, criteria and scale")
    keys = list(model.model_fields)
    try:
        found, problems = _validated(model, data, keys)
    except (RecursionError, OverflowError) as error:
        raise MetricError(f"{origin}: a value is nested too deeply, refers to itself, or is too large") from error
    if found is not None and not problems:
        return found
    lines = text.splitlines()
    placed = []
    for problem in problems:
        line = line_of(node, problem.path)
        if problem.quote:
            line = next((at for at in range(line, len(lines) + 1) if problem.quote in lines[at - 1]), line)
        placed.append((line, problem.text))
    raise MetricError(
        _printable("\n".join(f"{origin}, line {line}: {text}" for line, text in sorted(placed))),
        hint=f"Known keys: {', '.join(keys)}.",
    )


def _validated(model: type[_Model], data: dict[Any, Any], keys: list[str]) -> tuple[_Model | None, list[Problem]]:
    """Validate a metric's data; every problem has its path, and its text names the key."""
    reading = Reading()
    problems: list[Problem] = []
    found = None
    try:
        found = model.model_validate(data, context=reading)
    except ValidationError as error:
        problems = [Problem(one["loc"], explain_problem(one, keys)) for one in error.errors()]
        failed = {problem.path[0] for problem in problems if problem.path}
        reading.stand_ins = {str(key) for key in failed} | (set(_STAND_INS) - set(data))
        rest = {key: value for key, value in data.items() if key in keys and key not in failed}
        with contextlib.suppress(ValidationError):
            model.model_validate({**_STAND_INS, **rest}, context=reading)
    return found, problems + [Problem(one.path, one.message, one.quote) for one in reading.problems]


def _printable(text: str) -> str:
    """Make lone surrogates, which no terminal takes, visible escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def explain_problem(problem: Mapping[str, Any], keys: list[str]) -> str:
    """Say in words what pydantic found wrong, with the nearest known key where one is unknown."""
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(problem["loc"][-1]), keys, n=1)
        return f"unknown key {where!r}" + (f", did you mean {near[0]!r}?" if near else "")
    if problem["type"] == "missing":
        return f"the key {where!r} is missing"
    message = str(problem["msg"]).removeprefix("Value error, ")
    return f"{where}: {message}" if where else message
