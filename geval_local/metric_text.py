"""Metrics as YAML texts: where they are found, and what is wrong with one, by line. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from geval_local.errors import MetricError
from geval_local.yaml_text import line_of, load_yaml

__all__ = ["find_metric", "metric_file_text", "preset_names", "read_metric"]

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
        return path.read_text(encoding="utf-8")
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


def read_metric(model: type[_Model], text: str, origin: str) -> _Model:
    """Read YAML text as `model`, the class of a metric; `text`, `origin` and errors are those of `Metric.from_yaml`."""
    try:
        data, node = load_yaml(text)
    except yaml.YAMLError as error:
        raise MetricError(f"{origin}: not valid YAML: {error}") from error
    if not isinstance(data, dict):
        raise MetricError(f"{origin}: a metric is a mapping of keys such as name, criteria and scale")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        keys = list(model.model_fields)
        problems = [
            f"{origin}, line {line_of(node, problem['loc'])}: {_explain(problem, keys)}" for problem in error.errors()
        ]
        raise MetricError("\n".join(problems), hint=f"Known keys: {', '.join(keys)}.") from error


def _explain(problem: Mapping[str, Any], keys: list[str]) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(problem["loc"][-1]), keys, n=1)
        return f"unknown key {where!r}" + (f", did you mean {near[0]!r}?" if near else "")
    if problem["type"] == "missing":
        return f"the key {where!r} is missing"
    message = str(problem["msg"]).removeprefix("Value error, ")
    return f"{where}: {message}" if where else message
