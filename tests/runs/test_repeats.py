"""What rows have in common is worked on once, and nobody can tell from what comes out."""

from __future__ import annotations

import gc
import io
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from run_kit import engine, execute, wanted, write_input

from geval_local.io.samples import read_samples
from geval_local.io.text_formats import JsonlSink, ResultRow, to_json
from geval_local.runs import local
from geval_local.tokens.shared_text import _pieces

VALUES = st.sampled_from(["a", "b", '"\n\u2028é', "\ud800", "1", 1, 1.0, True, None, ["a"], {"a": "b"}, float("nan")])
TEXTS = st.lists(st.sampled_from(["\n", "\n\n", "A", "b", " ", "1", "é", "\nA", "\nb c"]), max_size=8).map("".join)


@settings(max_examples=200)
@given(st.lists(st.dictionaries(st.sampled_from(["x", "y", 1, "1", "é"]), VALUES, max_size=4), max_size=6))
@example([{"x": "1"}, {"x": 1}, {"x": "1"}])
@example([{"x": "\ud800", "y": "a"}, {"x": "\ud800", "y": "a"}, {"y": "a"}])
@example([{"x": "a"}, {}, {"x": "a"}])
def test_lines_are_those_of_rows_by_themselves(rows):
    file = io.BytesIO()
    sink = JsonlSink(file)
    for row in rows:
        sink.write(ResultRow(row, {}, {"m": {"score": 0.1}}, False))
    expected = [to_json({**row, "geval": {"m": {"score": 0.1}}}) + "\n" for row in rows]
    assert file.getvalue().decode() == "".join(expected)


def test_a_text_is_kept_once_and_a_bad_one_is_bad_in_every_row(tmp_path):
    source, bad = "é" * 100, "\ud800" * 100
    rows = [{"source": text} for text in (source, source, bad, bad, source)]
    rows += [{"source": [source]}, {"source": 1}, {"source": True}, {"source": source, "other": bad}, {"other": bad}]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    samples = list(read_samples(file))
    assert [dict(sample.fields) for sample in samples] == rows
    assert type(samples[7].fields["source"]) is bool
    assert [sample.error is not None for sample in samples] == [*[False] * 2, *[True] * 2, *[False] * 4, *[True] * 2]
    assert samples[0].fields["source"] is samples[1].fields["source"]


@settings(max_examples=300)
@given(TEXTS, TEXTS, TEXTS)
@example("", "\nA", "\nA")
@example("x\nA", "y\nA", "y\nB")
@example("x\nA\nB", "", "\nC")
@example("x\nAb", "", "\nA")
def test_pieces_of_another_text_are_taken_over_where_they_are_the_same(common, first, second):
    assert _pieces(common + second, _pieces(common + first)) == _pieces(common + second)


@pytest.mark.parametrize("stop_after", [None, 3])
def test_a_long_run_takes_what_is_loaded_from_the_collector_and_gives_it_back(tmp_path, monkeypatch, stop_after):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(local, "LONG_RUN", 60)
    frozen = []

    def read(requests):
        frozen.append(gc.get_freeze_count() > 0 and gc.get_threshold() != thresholds)
        return type(mock).read(mock, requests)

    mock = engine(batch_tokens=20_000)
    monkeypatch.setattr(mock, "read", read)
    before, thresholds = gc.get_freeze_count(), gc.get_threshold()
    try:
        execute(
            tmp_path / "run",
            wanted(write_input(tmp_path / "in.jsonl", 120), window=50),
            lambda: mock,
            stop_after=stop_after,
        )
    except local.Interrupted:
        assert stop_after
    assert before == gc.get_freeze_count() == 0
    assert thresholds == gc.get_threshold()
    assert not frozen[0]
    assert frozen[-1] is (stop_after is None)
