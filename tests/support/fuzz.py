"""Damaged input files, metric files and judge directories, by seed: what `tests/house/test_fuzz.py` scores."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from pathlib import Path
from typing import Any

from cli_run import METRIC, good_rows, judge_directory

__all__ = ["judge_case", "metric_case", "rows_case"]

#: Values that stand where something else is expected.
JUNK: tuple[Any, ...] = (
    *(None, True, -1, 0, 1e308, 10**400, "", " ", "\x00", "\ud800", "🙂" * 50, [], {}, [[[]]], {"a": {"a": {}}}),
    *(
        "=cmd()",
        "<|im_end|>",
        "{{ output }}",
        "\n\n\n",
        "x" * 5000,
        ["a", None, 3],
        [{"role": "user", "content": "hi"}],
    ),
)
YAML_JUNK = (
    *("!!timestamp foo", "!!bool foo", "!!python/object:os.system {}", "&a [*a]", "[" * 3000, "1" * 400, "{a: b: c}"),
    *('"\\ud800"', "~", "- x", "0x_", ".inf", ".nan", "|", "'", "%", "@", "<<: 3", "yes", "\t", "\x07", "? ?"),
)


def _damaged(content: bytes, rng: random.Random) -> bytes:
    """Cut, flip, insert, double or drop some bytes."""
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(content) + 1)
        kind = rng.randrange(6)
        if kind == 0:
            content = content[:place]
        elif kind == 1:
            content = content[:place] + bytes([rng.randrange(256)]) + content[place + 1 :]
        elif kind == 2:
            piece = (b'"', b"\n", b"\x00", b"\r", b"\xff", b",", b"}", b"\xef\xbb\xbf", b";", b"\n\n", b"{")
            content = content[:place] + rng.choice(piece) + content[place:]
        elif kind == 3:
            content = content[:place] + content[place : place + 40] * 2 + content[place + 40 :]
        elif kind == 4:
            content = content[:place] + content[place + rng.randint(1, 30) :]
        else:
            content = content + rng.randbytes(rng.randint(1, 50))
    return content


def _is_text(value: object) -> bool:
    """Whether a value is a text that Parquet takes."""
    return isinstance(value, str) and "\ud800" not in value


def rows_case(directory: Path, seed: int) -> tuple[Path, list[str] | None]:
    """Write an input file.

    Returns
    -------
    path : Path
        The file.
    ids : list of str or None
        The ids of its rows in order, where every row is intact as a row; None where bytes were damaged.
    """
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = good_rows(rng.randint(1, 12))
    for row in rows:
        if rng.random() < 0.4:
            row[rng.choice(["output", "source", "extra", "output"])] = rng.choice(JUNK)
        if rng.random() < 0.1:
            row.pop(rng.choice(["output", "source"]), None)
    ids: list[str] | None = [str(row["id"]) for row in rows]
    kind = rng.choice(["jsonl", "jsonl", "json", "csv", "tsv", "parquet"])
    path = directory / f"data.{kind}"
    if kind == "jsonl":
        lines = [json.dumps(row) for row in rows]
        if rng.random() < 0.2:
            lines = [line + "\n" * rng.randint(0, 2) for line in lines]
        content = "\n".join(lines).encode() + b"\n" * rng.randint(0, 2)
    elif kind == "json":
        content = json.dumps(rows, indent=rng.choice([None, 1])).encode()
    elif kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.table(
            {
                "id": [str(row["id"]) for row in rows],
                "output": [row["output"] if _is_text(row.get("output")) else None for row in rows],
                "source": ["A text." for _ in rows],
                "when": pa.array([rng.randrange(2**31) for _ in rows], pa.int32()).cast(pa.date32()),
            }
        )
        pq.write_table(table, path)
        content = path.read_bytes()
    else:
        import csv
        import io

        text = io.StringIO()
        writer = csv.writer(text, delimiter="\t" if kind == "tsv" else rng.choice(",;|"))
        writer.writerow(["id", "source", "output"])
        for row in rows:
            writer.writerow([row.get(name) for name in ("id", "source", "output")])
        content = text.getvalue().encode("utf-8", "replace")
        ids = None  # an empty cell or a sign that is no text may change how the file is read
    if rng.random() < 0.35:
        content, ids = _damaged(content, rng), None
    if kind in ("jsonl", "json", "csv") and rng.random() < 0.15:
        encoding = rng.choice(["utf-16", "utf-16-le", "utf-8-sig", "latin-1", "utf-32"])
        content, ids = content.decode("utf-8", "replace").encode(encoding, "replace"), None
    if rng.random() < 0.08:
        content = gzip.compress(content)
        path = path.with_name(f"{path.name}.gz")
    path.write_bytes(content)
    return path, ids


def metric_case(directory: Path, seed: int) -> Path:
    """Write a metric file."""
    rng = random.Random(seed)
    lines = METRIC.splitlines()
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(lines))
        kind = rng.randrange(5)
        key = lines[place].split(":")[0]
        if kind == 0:
            lines[place] = f"{key}: {rng.choice(YAML_JUNK)}"
        elif kind == 1:
            del lines[place]
            lines = lines or ["name: x"]
        elif kind == 2:
            key = rng.choice(["scale", "rubric", "template", "threshold", "fields", "nope"])
            value = rng.choice([*YAML_JUNK, "1-5", "0-1 step 0.1", "{9: best}", "[a, a]", "{A: .nan}"])
            lines.insert(place, f"{key}: {value}")
        elif kind == 3:
            lines[place] = rng.choice(YAML_JUNK)
        else:
            lines.insert(place, lines[rng.randrange(len(lines))])
    content = "\n".join(lines).encode("utf-8", "replace")
    if rng.random() < 0.25:
        content = _damaged(content, rng)
    path = directory / "metric.yaml"
    path.write_bytes(content)
    return path


def judge_case(directory: Path, seed: int) -> Path:
    """Write a judge directory."""
    rng = random.Random(seed)
    path = directory / "judge"
    shutil.copytree(judge_directory(), path)
    names = sorted(file.name for file in path.iterdir())
    for _ in range(rng.randint(1, 2)):
        file = path / rng.choice(names)
        kind = rng.randrange(4)
        if kind == 0 and file.exists():
            file.unlink()
        elif file.suffix == ".json" and file.exists() and kind in (1, 2):
            try:
                record = json.loads(file.read_text(encoding="utf-8"))
            except ValueError:  # damaged in the round before
                continue
            if isinstance(record, dict):
                junk = rng.choice([one for one in JUNK if one != "\ud800"])
                record[rng.choice([*record, "auto_map", "quantization_config", "adapter"])] = junk
                file.write_text(json.dumps(record), encoding="utf-8")
        elif file.exists():
            content = file.read_bytes()
            head = min(len(content), 4000)
            file.write_bytes(_damaged(content[:head], rng) + content[head:])
    return path
