"""What the shell offers after TAB: names of metrics and judges, and files beside them. Imports no model library."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

__all__ = ["complete_judge", "complete_metric"]


def complete_metric(incomplete: str) -> list[str]:
    """Offer presets and YAML files."""
    from geval_local.metric_file import preset_names

    return [*_beginning(preset_names(), incomplete), *_paths(incomplete, (".yaml", ".yml"))]


def complete_judge(incomplete: str) -> list[str]:
    """Offer the judges of the models files, directories and GGUF files."""
    from geval_local.errors import GevalError
    from geval_local.models.registry import load_registry

    try:
        names: Iterable[str] = load_registry().judges
    except GevalError:  # a models file that is being edited
        names = ()
    return [*_beginning(names, incomplete), *_paths(incomplete, (".gguf",))]


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


def _paths(incomplete: str, suffixes: tuple[str, ...]) -> list[str]:
    """List directories and files of some endings that a path may go on with."""
    head, slash, tail = incomplete.rpartition("/")
    try:
        found = sorted(Path(f"{head}{slash}" or ".").expanduser().iterdir())
    except (OSError, RuntimeError):
        return []
    named = [path for path in found if path.name.startswith(tail) and (tail or not path.name.startswith("."))]
    return [
        f"{head}{slash}{path.name}{'/' if path.is_dir() else ''}"
        for path in named
        if path.is_dir() or path.suffix in suffixes
    ]
