"""Durable runs from Python: figures as by the judge itself, resumable, no database where nothing is kept."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time

import pytest
from cli_run import METRIC, judge_directory

import geval_local
from geval_local import Interrupted, Judge, Metric, RunEvents, read_samples, resume, score_file
from geval_local.engine.unread_backend import UnreadBackend
from geval_local.errors import ConfigurationError, OutputError, WeightsError
from geval_local.io.ownership import checksummed
from geval_local.options import JudgeOptions

ROWS = 40


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    rows = [
        {"id": f"r{number}", "source": f"Document {number // 4} says a few things.", "output": f"Summary {number}."}
        for number in range(ROWS)
    ]
    rows[7]["output"] = None
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    return tmp_path


def scores_in(path):
    return [json.loads(line)["geval"]["clarity"]["score"] for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("loaded", [False, True], ids=["by name", "a loaded judge"])
def test_figures_are_those_of_score_many(here, loaded):
    judge = Judge.load(judge_directory())
    expected = [
        one.value if one.is_scored else None
        for one in judge.score_many(Metric.load("clarity.yaml"), read_samples("data.jsonl"))
    ]
    given = judge if loaded else str(judge_directory())
    result = score_file("data.jsonl", "clarity.yaml", given, "out.jsonl")
    assert scores_in(here / "out.jsonl") == expected
    assert (result.rows, result.summaries[0].scored) == (ROWS, ROWS - 1)
    assert [file.name for file in result.files] == ["out.jsonl"]
    assert result.signatures[0] == str(judge.signature(Metric.load("clarity.yaml")))
    assert repr(result) == f"RunResult(clarity: {ROWS} rows, out.jsonl)"
    told = "no mean is shown: this judge does not answer"  # its weights are random
    assert f"<td>clarity</td><td>{ROWS - 1}/{ROWS}</td><td>{told}" in result._repr_html_()


class _Recorder(RunEvents):
    """Records events, and stops after a number of outcomes."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.told: list[str] = []
        self.done = 0
        self.stop_at = stop_at

    def on_resume(self, there, total):
        self.told.append(f"resume {there > 0} {total}")

    def on_load(self, judge):
        self.told.append("load")

    def on_loaded(self, judge):
        self.told.append("loaded")

    def on_score(self, judge, total, there, done):
        self.told.append(f"score {total}")

    def on_progress(self, done):
        assert done >= self.done
        self.done = done

    def on_write(self):
        self.told.append("write")

    def should_stop(self):
        return self.stop_at is not None and self.done >= self.stop_at


def test_a_stopped_run_is_resumed_to_the_same_bytes(here):
    choice = JudgeOptions(name=str(judge_directory()), batch_tokens=600)
    whole = _Recorder()
    score_file("data.jsonl", "clarity.yaml", choice, "whole/", use_cache=False, events=whole)
    assert whole.told == ["load", "loaded", f"score {ROWS}", "write"]
    assert whole.done == ROWS
    with pytest.raises(Interrupted) as stop:
        score_file("data.jsonl", "clarity.yaml", choice, "part/", use_cache=False, events=_Recorder(stop_at=9))
    assert stop.value.directory is not None
    assert not (here / "part" / "scores.jsonl").exists()
    again = _Recorder()
    result = resume(stop.value.directory, events=again)
    assert again.told == [f"resume True {ROWS}", "load", "loaded", f"score {ROWS}", "write"]
    assert result.totals["rows"] == ROWS
    assert (here / "part" / "scores.jsonl").read_bytes() == (here / "whole" / "scores.jsonl").read_bytes()


def test_a_run_that_keeps_nothing_writes_no_database(here, monkeypatch):
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, **named: connect({":memory:": path}[path], **named))
    result = score_file("data.jsonl", Metric.load("clarity.yaml"), str(judge_directory()), use_cache=False)
    assert result.files == []
    assert result.summaries[0].scored == ROWS - 1
    assert sorted(path.name for path in here.iterdir() if path.name != "home") == ["clarity.yaml", "data.jsonl"]


def test_what_cannot_be_done_is_refused_before_a_judge_is_loaded(here, monkeypatch):
    monkeypatch.setattr(Judge, "load", lambda *given, **named: pytest.fail("a judge was loaded"))
    with pytest.raises(OutputError, match="it is the input"):
        score_file("data.jsonl", "clarity.yaml", "nano", "data.jsonl", overwrite=True)
    with pytest.raises(OutputError, match="no run"):
        resume("nowhere/")
    with pytest.raises(ConfigurationError, match="no metric is named"):
        score_file("data.jsonl", [], "nano")
    with pytest.raises(ConfigurationError, match="same name"):
        score_file("data.jsonl", ["clarity.yaml", "clarity.yaml"], "nano")
    with pytest.raises(geval_local.GevalError, match="no row has such a column"):
        score_file("data.jsonl", "rag/faithfulness", "nano", fields={"output": "nothing"})


def _score(name, events=None):
    score_file("data.jsonl", "clarity.yaml", JudgeOptions(name=str(judge_directory())), name, events=events)
    return (events or _Recorder()).told


def test_rows_that_are_all_in_the_cache_need_no_weights(here, monkeypatch):
    _score("first.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr("geval_local.engine.transformers_backend.read_model", None)
        assert _score("again.jsonl", _Recorder()) == ["load", f"score {ROWS}", "write"]
    described = [json.loads((here / f"{name}.jsonl.meta.json").read_text()) for name in ("first", "again")]
    assert (here / "again.jsonl").read_bytes() == (here / "first.jsonl").read_bytes()
    assert described[0]["metrics"] == described[1]["metrics"]


def test_weights_that_waited_are_read_for_the_first_new_row(here, monkeypatch):
    _score("first.jsonl")
    with (here / "data.jsonl").open("a") as file:
        file.write('{"id": "new", "source": "Another document.", "output": "Another summary."}\n')
    told = _score("grown.jsonl", _Recorder())
    score = f"score {ROWS + 1}"
    assert told == ["load", score, "load", "loaded", score, "write"]
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(here / "other"))
    assert _score("whole.jsonl", _Recorder()) == ["load", "loaded", score, "write"]
    grown, whole = scores_in(here / "grown.jsonl"), scores_in(here / "whole.jsonl")
    assert grown[7] is whole[7] is None
    assert [one for one in grown if one] == pytest.approx([one for one in whole if one], abs=1e-5)


#: Edits of the kept facts by whoever can write there, with a checksum that fits.
FACTS = {
    "a key is missing": lambda facts: facts.pop("context"),
    "a key is unknown": lambda facts: facts.update(colour="red"),
    "setup is null": lambda facts: facts.update(setup=None),
    "the report is a list": lambda facts: facts.update(report=[]),
    "the report has no engine": lambda facts: facts["report"].pop("engine"),
    "another fingerprint": lambda facts: facts.update(fingerprint="0" * 16),
    "another name": lambda facts: facts.update(label="gpt-5|dtype:float16"),
    "another dtype": lambda facts: facts["setup"].update(dtype="bfloat16"),
    "another tokenizer": lambda facts: facts["setup"].update(tokenizer="0" * 16),
    "another version": lambda facts: facts["setup"].update(version="9.9"),
}


@pytest.mark.parametrize("edit", FACTS)
def test_facts_that_were_edited_do_not_reach_a_signature_and_heal(here, tmp_path, edit):
    _score("first.jsonl")
    _score("second.jsonl")
    (file,) = [one for one in (tmp_path / "home" / "verdicts").iterdir() if '"facts"' in one.read_text()]
    record = json.loads(file.read_text())
    FACTS[edit](record["findings"]["facts"])
    del record["checksum"]
    file.write_text(json.dumps(checksummed(record)))

    _score("edited.jsonl")

    described = [json.loads((here / f"{name}.jsonl.meta.json").read_text()) for name in ("first", "edited")]
    assert described[0]["metrics"] == described[1]["metrics"]
    assert (here / "edited.jsonl").read_bytes() == (here / "first.jsonl").read_bytes()
    Judge.load(JudgeOptions())
    assert isinstance(Judge.load(JudgeOptions(), on_read=lambda read: read()).backend, UnreadBackend)


def test_a_judge_whose_files_change_is_another_one(here, tmp_path):
    place = tmp_path / "judge"
    shutil.copytree(judge_directory(), place)
    choice = JudgeOptions(name=str(place))

    def again():
        return Judge.load(choice, on_read=lambda read: read())

    assert isinstance(again().backend, UnreadBackend) is False
    time.sleep(0.05)  # the digest of a file that is younger than a tick is not noted
    Judge.load(choice)
    waiting = again()
    assert isinstance(waiting.backend, UnreadBackend)
    loaded = Judge.load(choice)
    metric = Metric.load("clarity.yaml")
    assert (waiting.identity, waiting.context, waiting.precision) == (loaded.identity, loaded.context, loaded.precision)
    assert waiting.signature(metric) == loaded.signature(metric)
    config = json.loads((place / "config.json").read_text()) | {"rms_norm_eps": 1e-3}
    (place / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match="changed while the judge was being loaded"):
        waiting.backend.whole  # noqa: B018 - reads the weights
    assert not isinstance(again().backend, UnreadBackend)
    assert isinstance(Judge.load(choice, on_read=lambda read: read()).backend, UnreadBackend)
    assert not isinstance(Judge.load(choice, style="completion", on_read=lambda read: read()).backend, UnreadBackend)
