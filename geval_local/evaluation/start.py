"""A first file of an evaluation: guesses metrics and field mapping from the columns of a data file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from geval_local.conversation import messages_of
from geval_local.evaluation.model import schema
from geval_local.fields import guess_columns, listed, nearest, resolve_row, words_of
from geval_local.io.input_checks import may_be_text, readable_samples
from geval_local.io.input_files import read_samples
from geval_local.metric import Metric
from geval_local.metric_file import preset_names
from geval_local.wording import quoted

SCHEMA_NAME = "evaluation.schema.json"
DEFAULT_METRICS = ("assistant/helpfulness",)
#: If several groups of presets fit equally well, the first one here wins.
PREFERRED = ("rag", "correctness", "assistant", "summarization", "dialogue", "style")
#: Number of rows whose columns are read.
ROWS_SEEN = 100
COLUMNS_NAMED = 20

TEMPLATE = """\
# yaml-language-server: $schema={schema}
# An evaluation: `geval-local run {name}` does all of it, and goes on where it was interrupted.
# Paths are relative to this file. A value can be set for one run: `geval-local run {name} --set data.{data}.limit=10`

# Name: data file. JSONL, JSON, CSV, Excel or Parquet, one sample a row; there may be several.
data:
  {data}:
    file: {file}
{fields}    # limit: 100             # the first rows only
    # group_by: document_id  # the field of the document, for the interval of the mean

# Presets (`geval-local metrics list`) or YAML files of your own (`geval-local metrics new`).
metrics:
{metrics}  # - name: my_metric.yaml
  #   threshold: 4         # the score that passes
  #   steps: false         # no evaluation steps in the form

# Names of `geval-local judges list`, directories, or hub ids in the local cache.
judges:
{judges}  # - name: qwen2.5-7b
  #   dtype: float16

# exact; median; mode, the likeliest label; or {{kind: sample, n: 20, seed: 0}}
estimator: exact

# What must hold, or the command ends with exit code 1; `all` means every metric.
# Figures: mean, mean_low and mean_high (the ends of its interval), passed, unscored, label_mass.
gates:
  all: {{unscored: "<= 5%"}}
  # {first}:
  #   mean: "{limit}"
  #   not_worse: true                     # no {loss} against the baseline
  #   by: {{language: {{not_worse: true}}}}   # for every value of a column

# An earlier run; `last` is the newest of another commit whose gates held, and needs a placeholder in outputs.
# baseline: last

# A run directory for each data file, and the reports; runs/{{date}}-{{commit}} gives every run its own.
outputs: runs/{stem}
# formats: [jsonl, csv]  # and parquet

# A page for each data file, {data}.html beside its run.
report: true
"""


def start_evaluation(
    target: Path, data: Path | None = None, *, metrics: Sequence[str] = (), judges: Sequence[str] = ()
) -> tuple[str, list[str]]:
    """Compose the file of an evaluation: its YAML, and what was guessed."""
    from geval_local.models.registry import load_registry

    notes: list[str] = []
    samples = [] if data is None else readable_samples([*islice(read_samples(data), ROWS_SEEN)], str(data))
    columns = list(dict.fromkeys(str(column) for sample in samples for column in sample.fields))
    row = {name: value for sample in reversed(samples) for name, value in sample.fields.items()}
    chat = (messages_of(row) or ("",))[0]
    texts = [column for column in columns if column != chat and may_be_text(column, samples)]
    names = list(metrics)
    if not names:
        names = guess_metrics(columns, texts, row) if columns else []
        if columns:
            notes.append(
                f"presets chosen by its columns: {', '.join(names)}"
                if names
                else "its columns fit no preset by their names; say under `fields` which column holds what"
            )
        names = names or list(DEFAULT_METRICS)
    loaded = [Metric.load(name) for name in names]
    first = loaded[0]
    mapping, missing = _mapping(loaded, columns, texts, row)
    if columns:
        known = resolve_row(tuple(mapping), tuple(columns), row)
        found = ", ".join(
            f"{field} from the chats in {chat!r}"
            if column not in columns
            else f"{field} from {column!r}" + ("" if known.get(field) == column else " (a guess)")
            for field, column in mapping.items()
        )
        notes.append(f"fields: {found or 'none found'}")
        if missing:
            notes.append(f"not found: {', '.join(missing)}; map them to columns under `fields`")
    stem = "first" if data is None else data.name.split(".")[0]
    name = re.sub(r"[^\w-]+", "_", stem, flags=re.ASCII).lstrip("-")[:60] or "data"
    paths = [_relative(Path(one), target) if one.endswith((".yaml", ".yml")) else one for one in names]
    text = TEMPLATE.format(
        schema=SCHEMA_NAME,
        name=target.name,
        stem=re.sub(r"[^\w.-]+", "_", target.stem),
        data=name,
        file=quoted("data.jsonl" if data is None else _relative(data, target)),
        fields=_fields_text(mapping, missing, columns),
        metrics="".join(f"  - {quoted(one)}\n" for one in paths),
        judges="".join(f"  - {quoted(one)}\n" for one in judges or [load_registry().default]),
        first=quoted(first.name),
        limit=f"{first.direction.comparison} {(first.scale.low + first.scale.high) / 2:g}",
        loss=first.direction.loss,
    )
    return text, notes


def guess_metrics(columns: Sequence[str], texts: Sequence[str], row: Mapping[str, Any]) -> list[str]:
    """Return the presets that fit the names of columns: those of the group that uses the most columns.

    A field is guessed from the columns that hold `texts` only, or found in the conversation of a `row`.

    If groups use the same number, the one with more fields that occur in column names wins, such as ``user question``.
    """
    best: tuple[tuple[int, ...], list[str]] = ((0,), [])
    groups: dict[str, list[str]] = {}
    for name in preset_names():
        groups.setdefault(name.split("/")[0], []).append(name)
    for group, names in groups.items():
        used: set[str] = set()
        called: set[str] = set()
        for name in names:
            wanted = tuple(Metric.load(name).fields)
            found = _found(wanted, columns, texts, row)
            if len(found) < len(wanted):
                break
            used |= set(found.values())
            called |= {column for field, column in found.items() if field in words_of(column)}
        else:
            rank = (len(used), len(called), -PREFERRED.index(group) if group in PREFERRED else -len(PREFERRED))
            if not best[1] or rank > best[0]:
                best = (rank, names)
    return best[1]


def _found(
    fields: Sequence[str], columns: Sequence[str], texts: Sequence[str], row: Mapping[str, Any]
) -> dict[str, str]:
    """Find the columns of fields as scoring does, else by guesses from those that hold texts."""
    found = dict(resolve_row(tuple(fields), tuple(columns), row))
    free = [column for column in texts if column not in found.values()]
    return found | guess_columns([field for field in fields if field not in found], free)


def schema_text() -> str:
    """Write the JSON schema of an evaluation's file."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def _mapping(
    metrics: Sequence[Metric], columns: Sequence[str], texts: Sequence[str], row: Mapping[str, Any]
) -> tuple[dict[str, str], list[str]]:
    """Map the fields of all metrics to columns by their names; list the fields without a column."""
    found: dict[str, str] = {}
    differing = set()
    for metric in metrics:
        for field, column in _found(tuple(metric.fields), columns, texts, row).items():
            if found.setdefault(field, column) != column:
                differing.add(field)  # each metric finds its own column by name
    wanted = dict.fromkeys(field for metric in metrics for field in metric.fields)
    missing = [field for field in wanted if field not in found]
    return {field: found[field] for field in wanted if field in found and field not in differing}, missing


def _fields_text(mapping: dict[str, str], missing: Sequence[str], columns: Sequence[str]) -> str:
    if not columns:
        return (
            "    # fields:               # field of a metric: the column that it is read from\n    #   output: answer\n"
        )
    shown = listed([" ".join(column.split()) for column in columns], COLUMNS_NAMED)
    lines = [f"    # Field of a metric: its column. The columns are: {shown}", "    fields:"]
    read = {field: column for field, column in mapping.items() if column in columns}  # the others are in chats
    lines += [f"      {quoted(field)}: {quoted(column)}" for field, column in read.items()]
    lines += [f"      # {field}: COLUMN  # not found by its name{nearest(field, columns)}" for field in missing]
    return "\n".join(lines) + "\n"


def _relative(path: Path, target: Path) -> str:
    return Path(os.path.relpath(path, target.parent)).as_posix()
