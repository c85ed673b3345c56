"""Features of stored rows, and ways to run them: all have to write the same bytes.

A new feature of a stored row gets its entry in `FEATURES`, a new way to run its entry in `WAYS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cli_run import judge_directory
from run_kit import METRICS

from geval_local import Metric
from geval_local.errors import Interrupted
from geval_local.io.pairs import PairPlan
from geval_local.io.shares import EmptyShareError
from geval_local.options import JudgeOptions
from geval_local.runs import run_file
from geval_local.runs.completion import RunResult
from geval_local.runs.events import RunEvents
from geval_local.runs.manifest import JudgeRecord
from geval_local.runs.merging import merge_shares
from geval_local.runs.run_file import decide_file, score_file
from geval_local.runs.spread import Spread
from geval_local.runs.workers import ShareScorer, Task, Told
from geval_local.testing import MockEngine, MockJudge

SHARES = 3
CHAT = Metric.load("assistant/helpfulness").with_steps(())
QUESTIONS = {
    "rain": {"type": "predicate", "instructions": "It rains."},
    "mood": {"type": "choice", "options": {"good": "it is so", "bad": "it is not"}, "rotations": 2},
    "wet": {"type": "score", "levels": ["dry", "damp", "wet"]},
}
THINK = {"think": 2, "think_tokens": 30}


def plain_rows() -> list[dict[str, Any]]:
    return [
        {
            "id": f"r{row}",
            "doc_id": f"d{row // 4}",
            "system": f"s{row % 4}",
            "language": "en" if row % 3 else "de",
            "source": f"Tale {row // 4}. " * (3 + row % 4),
            "output": "" if row % 17 == 5 else f"It ends at {row}.",
            "state": f"It is number {row}.",
        }
        for row in range(36)
    ]


def quoted_rows() -> list[dict[str, Any]]:
    """Rows of which some open a quote, and later ones close one."""
    texts = {3: '"It begins here.', 7: 'It closes."', 9: '"Word" and more.', 20: '"Open', 21: 'for one."'}
    return [row | {"output": texts.get(place, row["output"])} for place, row in enumerate(plain_rows())]


def chats() -> list[dict[str, Any]]:
    turns = [("user", "Who?"), ("assistant", "I, {row}."), ("user", "And then?"), ("assistant", "Then {row} ended.")]
    return [
        {"id": row, "messages": [{"role": role, "content": text.format(row=row)} for role, text in turns]}
        for row in range(24)
    ]


def nested_chats() -> list[dict[str, Any]]:
    """Chats in a column with dots in its name, whose assistant is called agent; every third answer holds a photo."""
    rows = []
    for row in chats():
        talk = [{**one, "role": one["role"].replace("assistant", "agent")} for one in row.pop("messages")]
        if row["id"] % 3 == 1:
            talk[1]["content"] = [{"type": "image_url"}]
        rows.append(row | {"a.b": {"talk": talk, "lang": "en"}})
    return rows


def wide_rows() -> list[dict[str, Any]]:
    """Rows of two systems; one of nine lacks the second."""
    rows = [{"id": row, "a": f"One {row}.", "b": f"Two {row}."} for row in range(30)]
    return [{name: text for name, text in row.items() if name != "b" or row["id"] % 9 != 4} for row in rows]


@dataclass(frozen=True)
class Feature:
    """What a run is asked for.

    Attributes
    ----------
    rows : callable
        Makes the rows of the input.
    metrics : list of Metric
        What they are scored on; without any, they answer questions.
    judges : int
        How many judges.
    thinks : dict
        Options of a judge that thinks.
    options : dict
        Options of the run.
    """

    rows: Callable[[], list[dict[str, Any]]] = plain_rows
    metrics: list[Metric] = field(default_factory=lambda: METRICS[1:])
    judges: int = 1
    thinks: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    name: str = "in.jsonl"

    def run(self, file: Path, output: Path, *, stop_after: int | None = None, **options: Any) -> RunResult:
        """Run it; it stops after so many packs, if that is said."""
        choices = [JudgeOptions(name=f"mock{number}", **self.thinks) for number in range(self.judges)]
        judges = [MockJudge(MockEngine(batch_tokens=1500), name=one.name, options=one) for one in choices]

        class Stop(RunEvents):
            def should_stop(self) -> bool:
                return stop_after is not None and sum(judge.engine.executed_packs for judge in judges) >= stop_after

        given = {"use_cache": False, "formats": ["jsonl", "csv", "parquet"]} | self.options | options
        asked: list[Any] = choices if "workers" in options else judges
        if not self.metrics:
            return decide_file(file, QUESTIONS, asked, output, events=Stop(), **given)
        return score_file(file, self.metrics, asked, output, events=Stop(), **given)


FEATURES = {
    "plain": Feature(),
    "windows": Feature(options={"window": 8}),
    "several metrics": Feature(metrics=METRICS),
    "several judges": Feature(judges=2),
    "thoughts": Feature(thinks=THINK, metrics=METRICS, options={"keep_thoughts": True}),
    "thoughts cut, not kept": Feature(thinks=THINK | {"think_tokens": 1}),
    "thoughts of two judges": Feature(thinks=THINK, judges=2, options={"keep_thoughts": True}),
    "pairs": Feature(options={"pairs": PairPlan(group_by="doc_id", system="system")}),
    "pairs with thoughts": Feature(thinks=THINK, options={"pairs": PairPlan(group_by="doc_id", system="system")}),
    "decide": Feature(metrics=[]),
    "decide with thoughts": Feature(metrics=[], thinks=THINK),
    "turns": Feature(chats, [CHAT], options={"turns": "assistant"}),
    "turns with thoughts": Feature(chats, [CHAT], thinks=THINK, options={"turns": "assistant", "keep_thoughts": True}),
    "turns in nested messages": Feature(
        nested_chats, [CHAT], options={"turns": "assistant", "turns_at": "a.b.talk", "roles": ["assistant=agent"]}
    ),
    "rows inside of a file": Feature(name="in.json", options={"rows": "results.results"}),
    "system columns": Feature(wide_rows, options={"system_columns": ["a", "b"]}),
    "system columns in windows": Feature(wide_rows, options={"system_columns": ["a", "b"], "window": 7}),
    "slices": Feature(options={"by": ["language", "length"]}),
    "medians": Feature(options={"estimator": "median"}),
    "another id": Feature(wide_rows, options={"id": "a", "fields": {"output": "b"}}),
    "chosen columns": Feature(options={"columns": ["id", "score", "std", "probabilities"], "csv_style": "safe"}),
    "a CSV file": Feature(name="in.csv"),
    "a Parquet file": Feature(name="in.parquet"),
    "the first rows": Feature(options={"limit": 20}),
    "a table without quoting": Feature(quoted_rows, name="in.tsv"),
    "quotes are characters": Feature(quoted_rows, name="in.csv", options={"quoting": "none"}),
    "pairs of a table without quoting": Feature(
        quoted_rows, name="in.tsv", options={"pairs": PairPlan(group_by="doc_id", system="system")}
    ),
    "decide on a table without quoting": Feature(quoted_rows, [], name="in.csv", options={"quoting": "none"}),
    "another encoding": Feature(name="in.csv", options={"encoding": "utf-16"}),
}


def undivided(feature: Feature, file: Path, place: Path) -> RunResult:
    return feature.run(file, place / "run")


def resumed(feature: Feature, file: Path, place: Path) -> RunResult:
    """Stopped after the first pack, again after the third, and continued by the same command."""
    stopped = 0
    for packs in (1, 2):
        try:
            feature.run(file, place / "run", stop_after=packs)
        except Interrupted:
            stopped += 1
    assert stopped, "the run was over before it could be stopped"
    return feature.run(file, place / "run")


def shared(feature: Feature, file: Path, place: Path) -> RunResult:
    """Shares, one of which is stopped and continued, merged."""
    for number in range(1, SHARES + 1):
        if number == 2:
            with suppress(Interrupted):
                feature.run(file, place / "shares", stop_after=1, shard=f"{number}/{SHARES}")
        with suppress(EmptyShareError):
            feature.run(file, place / "shares", shard=f"{number}/{SHARES}")
    return merge_shares([place / "shares"], place / "run")


def mock_judge(record: JudgeRecord) -> MockJudge:
    thinks = {name: value for name, value in record.choice.items() if name.startswith("think")}
    return MockJudge(MockEngine(batch_tokens=1500), name=record.name, options=JudgeOptions(**thinks))


class Here:
    """Does the tasks of workers in this process; the first share is given up once, as by a worker that died."""

    size = 2

    def __init__(self, workers: str, judges: Sequence[JudgeOptions]) -> None:
        self.workers = workers
        self.told: list[Told] = []

    def run(
        self, tasks: Iterator[Task], *, is_alone: Callable[[], bool], should_stop: Callable[[], bool]
    ) -> Iterator[tuple[Task, Told]]:
        scorer = ShareScorer(mock_judge, self.told.append)
        for task in tasks:
            if task.number == 1:
                scorer.is_stopped.set()
                with suppress(Interrupted):
                    scorer.do(task)
                scorer.is_stopped.clear()
            scorer.do(task)
            yield from ((task, told) for told in self.told)
            self.told.clear()

    def close(self) -> None:
        pass


def by_workers(feature: Feature, file: Path, place: Path) -> RunResult:
    """Over workers, with one that is stopped and continued."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_file, "Spread", partial(Spread, start=Here))
        return feature.run(file, place / "run", workers=2)


WAYS: dict[str, Callable[[Feature, Path, Path], RunResult]] = {
    "resumed": resumed,
    "shared": shared,
    "workers": by_workers,
}


def write(path: Path, records: list[dict[str, Any]], encoding: str = "utf-8") -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(one) + "\n" for one in records))
    elif path.suffix == ".json":
        path.write_text(json.dumps({"version": 1, "results": {"results": records}}))
    elif path.suffix in (".csv", ".tsv"):
        cells = [list(records[0]), *(list(one.values()) for one in records)]
        between = "\t" if path.suffix == ".tsv" else ","
        path.write_text("".join(between.join(map(str, one)) + "\n" for one in cells), encoding=encoding)
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(records), path, row_group_size=7)
    return path


def written(place: Path) -> dict[str, bytes]:
    """What a run wrote, without its manifest and its store."""
    return {path.name: path.read_bytes() for path in sorted((place / "run").glob("*s.*")) if path.suffix != ".sqlite"}


def prepared(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Feature, Path]:
    """Give a feature, and its input; the judges of its runs have names that are known."""
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(place / "home"))
    entries = "".join(f"  mock{number}: {{path: {judge_directory()}, style: completion}}\n" for number in range(2))
    (place / "models.yaml").write_text(f"judges:\n{entries}")
    monkeypatch.setenv("GEVAL_LOCAL_MODELS", str(place / "models.yaml"))
    feature = FEATURES[name]
    return feature, write(place / feature.name, feature.rows(), feature.options.get("encoding", "utf-8"))
