"""Frames in and out: the figures of the command line, unscored rows in their place, pandas and polars alike."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from types import SimpleNamespace

import forked
import pytest
from cli_run import METRIC, judge_directory, run

from geval_local import Metric, ascore_frame, score_frame
from geval_local.errors import ConfigurationError, DataError
from geval_local.judge.judge import Judge
from geval_local.questions.pair import pair_metric
from geval_local.testing import MockJudge

METRICS = [Metric.from_yaml(METRIC), Metric.load("summarization/fluency").with_steps(())]
ROWS = [
    {"article": "A tale of a ferry.", "answer": "It stops.", "n": 1},
    {"article": "A tale of a ferry.", "answer": None, "n": 2},
    {"article": "Another tale.", "answer": "", "n": 3},
    {"article": "Another tale.", "answer": "A bridge is there.", "n": 4},
]


def frame_of(library: str, rows=ROWS):
    module = pytest.importorskip(library)
    return module.DataFrame(rows)


def values(frame, column: str) -> list:
    return frame[column].to_list()


@pytest.fixture(params=["pandas", "polars"])
def library(request) -> str:
    pytest.importorskip(request.param)
    return request.param


def test_groups_without_their_only_column_are_told_what_is_missing():
    """pandas 3 leaves out the column that it groups by."""
    pandas = pytest.importorskip("pandas", minversion="3")
    metric = METRICS[0].model_copy(update={"fields": {"output": "Text"}})
    frame = pandas.DataFrame({"answer": ["It stops.", "A bridge."]})
    told = r"the field 'output' is missing\nColumns: none\. Map fields to columns:\n  `fields={\"output\": \"COLUMN\"}`"
    with pytest.raises(DataError, match=told):
        frame.groupby("answer").apply(lambda group: score_frame(group, metric, MockJudge()))
    with pytest.raises(DataError, match=told):
        score_frame(pandas.DataFrame(index=[0]), metric, MockJudge())


@pytest.mark.sweep
def test_figures_are_those_of_the_command_line(library, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    Path("clarity.yaml").write_text(METRIC, encoding="utf-8")
    Path("data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    style = "style.yaml"
    Path(style).write_text(METRIC.replace("clarity", "style").replace("1-5", "1-10"), encoding="utf-8")
    names = ["-m", "clarity.yaml", "-m", style, "-j", judge_directory()]
    done = run("score", "data.jsonl", *names, "--no-cache", "-o", "out.jsonl", home=tmp_path / "home")
    assert done.exit_code == 0, done.stderr
    expected = [json.loads(line)["geval"] for line in Path("out.jsonl").read_text(encoding="utf-8").splitlines()]
    scored = score_frame(frame_of(library), ["clarity.yaml", style], str(judge_directory()), figures="all")
    for metric in ("clarity", "style"):
        found = values(scored, f"{metric}.score")
        assert [one if one is None or one == one else None for one in found] == [
            row[metric]["score"] for row in expected
        ]
        for row, distribution in zip(expected, values(scored, f"{metric}.probabilities"), strict=True):
            assert distribution == row[metric].get("probabilities")
        reasons = [row[metric].get("error") for row in expected]
        assert [one is None for one in values(scored, f"{metric}.error")] == [one is None for one in reasons]
    assert sum(row["clarity"]["score"] is not None for row in expected) == 2


def test_unscored_rows_keep_their_place_with_the_reason(library):
    frame = frame_of(library)
    before = list(frame.columns)
    scored = score_frame(frame, METRICS, MockJudge(), progress=False)
    assert list(frame.columns) == before
    assert list(scored.columns) == [
        *before,
        "clarity.score",
        "clarity.error",
        "clarity.error_code",
        "summarization/fluency.score",
        "summarization/fluency.error",
        "summarization/fluency.error_code",
    ]
    assert values(scored, "n") == [1, 2, 3, 4]
    score, error = values(scored, "clarity.score"), values(scored, "clarity.error")
    assert all(one is None or math.isnan(one) for one in score[1:3])
    assert 0 not in score
    assert "row 2: the field 'output' (column 'answer') is null" in error[1]
    assert "is empty" in error[2]
    assert error[0] is None
    assert error[3] is None


def test_a_column_is_mapped_and_a_wrong_one_is_found_before_a_judge_is_loaded(library, monkeypatch):
    frame = frame_of(library, [{"article": "A tale.", "verdict": "It ends."}])
    assert values(score_frame(frame, METRICS, MockJudge(), fields={"output": "verdict"}), "clarity.error") == [None]
    monkeypatch.setattr(Judge, "load", None)
    with pytest.raises(DataError, match=r"the frame: its only row cannot be scored on clarity.*'output' is missing"):
        score_frame(frame, METRICS, "nano")
    with pytest.raises(DataError, match="did you mean 'verdict'"):
        score_frame(frame, METRICS, "nano", fields={"output": "verdikt"})
    with pytest.raises(ConfigurationError, match="no figure 'scor'; did you mean 'score'"):
        score_frame(frame, METRICS, "nano", figures=["scor"])


def test_all_figures_have_types(library):
    rows = [row | {"answer": row["answer"] or "x"} for row in ROWS]
    scored = score_frame(frame_of(library, rows), METRICS[0], MockJudge(), figures="all", threshold=3)
    assert {type(one) for one in values(scored, "clarity.passed")} == {bool}
    assert all(isinstance(one, int) for one in values(scored, "clarity.prompt_tokens"))
    assert "clarity.calibrated" not in scored.columns
    again = score_frame(scored, METRICS[0], MockJudge(name="other"))
    assert list(again.columns).count("clarity.score") == 1


def test_figures_of_both_orders_of_a_pair_are_lists(library):
    metric = pair_metric(METRICS[0])
    rows = [{"source": "A tale.", "output_a": "It stops.", "output_b": text} for text in ("A bridge.", "")]
    scored = score_frame(frame_of(library, rows), metric, MockJudge(), figures="all")
    first, second = values(scored, f"{metric.name}.order_scores")
    assert len(first) == 2
    assert all(0 <= score <= 1 for score in first)
    assert second is None
    assert values(scored, f"{metric.name}.error")[1]


def test_the_index_of_pandas_means_nothing():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS, index=[7, 7, 1, 0])
    plain = score_frame(pandas.DataFrame(ROWS), METRICS, MockJudge())
    odd = score_frame(frame, METRICS, MockJudge())
    assert odd.index.tolist() == [7, 7, 1, 0]
    assert odd["clarity.score"].tolist()[0] == plain["clarity.score"].tolist()[0]
    assert odd["clarity.score"].dtype == "float64"
    missing = pandas.DataFrame({"article": ["A."], "answer": pandas.array([pandas.NA], dtype="string")})
    assert "is null" in score_frame(missing, METRICS, MockJudge())["clarity.error"][0]
    with pytest.raises(DataError, match=r"columns twice: .*'a' 2 times"):
        score_frame(pandas.DataFrame([[1, 2]], columns=["a", "a"]), METRICS, MockJudge())


def _dataset(base: type, **content: object) -> object:
    """Make something that looks like a class of the library datasets, which need not be installed."""
    attributes = {"__module__": "datasets.dict", "with_format": lambda self, kind: self}
    return type("Splits", (base,), attributes)(**content)


def test_other_things_are_no_frames():
    with pytest.raises(TypeError, match=r"a frame is expected \(pandas, polars, Arrow, .*\), not list"):
        score_frame(ROWS, METRICS, MockJudge())
    for data, instead in (
        (ROWS, r"judge\.score_many\(metric, rows\)"),
        ({"answer": ["It stops."]}, r"pandas\.DataFrame\(data\)"),
        (Path("rows.jsonl"), r"score_file\(path, metrics, judge\)"),
        (_dataset(dict, test=SimpleNamespace(column_names=[])), r"choose one of its datasets, such as data\['test'\]"),
        (_dataset(object), r"judge\.score_many\(metric, rows\)"),
    ):
        with pytest.raises(TypeError, match=instead):
            score_frame(data, METRICS, MockJudge())
    for data, instead in (
        ({"answer": ["It stops."]}, r"score_frame\(pandas\.DataFrame\(data\), metrics, judge\)"),
        (ROWS[0], r"judge\.score\(metric, row\)"),
        ("rows.jsonl", r"score_file\(path, metrics, judge\)"),
    ):
        with pytest.raises(TypeError, match=instead):
            MockJudge().score_many(METRICS, data)
    levels = pytest.importorskip("pandas").DataFrame([[1, 2]], columns=[["a", "b"], ["c", "d"]])
    with pytest.raises(DataError, match="several levels"):
        score_frame(levels, METRICS, MockJudge())


class Stream:
    """Any table that hands over an Arrow stream."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


def nulls(rows):
    """Write a missing struct as None: polars 1.0 gives it as one of missing values, although its `is_null` is right."""
    return [
        {name: None if isinstance(one, dict) and set(one.values()) == {None} else one for name, one in row.items()}
        for row in rows
    ]


@pytest.mark.parametrize("kind", ["lazy polars", "arrow", "stream", "duckdb", "datasets"])
def test_other_frames_have_the_figures_of_polars(kind):
    polars, pyarrow = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    table, lazy = pyarrow.Table.from_pylist(ROWS), polars.DataFrame(ROWS).lazy()
    expected = score_frame(polars.DataFrame(ROWS), METRICS[0], MockJudge(), figures="all", threshold=3)
    if kind == "duckdb":
        frame, result = pytest.importorskip("duckdb").from_arrow(table), pyarrow.Table
    elif kind == "datasets":
        frame = pytest.importorskip("datasets").Dataset.from_list(ROWS)
        result = type(frame)
    else:
        frame, result = {
            "lazy polars": (lazy, polars.DataFrame),
            "arrow": (table, pyarrow.Table),
            "stream": (Stream(table), pyarrow.Table),
        }[kind]
    scored = score_frame(frame, METRICS[0], MockJudge(), figures="all", threshold=3)
    assert isinstance(scored, result)
    rows = (
        scored.to_dicts() if kind == "lazy polars" else scored.to_list() if kind == "datasets" else scored.to_pylist()
    )
    assert nulls(rows) == nulls(expected.to_dicts())
    assert sum(row["clarity.score"] is not None for row in rows) == 2


def test_an_empty_frame_stays_empty(library):
    scored = score_frame(frame_of(library, ROWS)[:0], METRICS, MockJudge())
    assert len(scored) == 0
    assert "clarity.score" in scored.columns


def test_frames_are_scored_in_an_event_loop(library):
    frame = frame_of(library)
    judge = MockJudge()
    plain = score_frame(frame, METRICS, judge)
    told: list[tuple[int, int]] = []

    async def both():
        return await asyncio.gather(
            ascore_frame(frame, METRICS, judge, progress=lambda done, total: told.append((done, total))),
            ascore_frame(frame, METRICS[0], judge),
        )

    first, second = asyncio.run(both())
    for scored in (first, second):
        assert values(scored, "clarity.score")[3] == values(plain, "clarity.score")[3]
    assert told[-1] == (8, 8)


def test_nothing_is_imported_that_is_not_asked_for():
    code = (
        "import sys, geval_local; geval_local.score_frame; print([m for m in ('pandas', 'polars') if m in sys.modules])"
    )
    done = forked.code(code)
    assert done.stdout.strip() == "[]", done.stderr
