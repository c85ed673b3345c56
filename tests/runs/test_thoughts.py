"""Runs of a judge that thinks: thoughts are stored before their labels are read, and a run that was ended goes on."""

from __future__ import annotations

import sqlite3

import pytest
from run_kit import engine, read, write_input

from geval_local import Metric, score_file
from geval_local.analysis.results import read_results
from geval_local.errors import ConfigurationError, GevalError, Interrupted
from geval_local.options import JudgeOptions
from geval_local.runs.cache import OutcomeCache
from geval_local.runs.events import RunEvents
from geval_local.testing import MockJudge

METRIC = Metric.load("summarization/fluency").with_steps(())
ROWS, COUNT = 20, 3


class Counting(MockJudge):
    """A judge that counts what it draws and reads, and may fail before its first labels."""

    def __init__(self, *, fails: bool = False, **options):
        super().__init__(engine(), options=JudgeOptions(**({"think": COUNT, "think_tokens": 40} | options)))
        self.drawn, sample, read_pack = [], self.backend.sample, self.engine.read

        def count(draws, sampling):
            for batch in sample(draws, sampling):
                self.drawn += [draws[place].seed for place, _ in batch]
                yield batch

        def fail(requests):
            if fails:
                raise GevalError("the power went")
            return read_pack(requests)

        self.backend.sample, self.engine.read = count, fail


class StopAt(RunEvents):
    def __init__(self, judge, thoughts):
        self.judge, self.thoughts = judge, thoughts

    def should_stop(self):
        return len(self.judge.drawn) >= self.thoughts


@pytest.fixture
def file(tmp_path):
    return write_input(tmp_path / "rows.jsonl", ROWS, holes=False)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))


def score(file, place, judge, *, use_cache=False, **options):
    return score_file(file, METRIC, judge, place, use_cache=use_cache, window=8, **options)


def scores(file):
    return [row["geval"][METRIC.name]["score"] for row in read(file)]


def test_the_figures_of_a_run_are_those_of_python_and_name_their_error(file, tmp_path):
    judge = Counting()
    result = score(file, tmp_path / "out.jsonl", judge)
    rows = [one["geval"][METRIC.name] for one in read(tmp_path / "out.jsonl")]

    expected = MockJudge(options=JudgeOptions(think=COUNT, think_tokens=40)).score_many(METRIC, read(file))
    assert [one["score"] for one in rows] == pytest.approx([one.value for one in expected], abs=1e-6)
    assert [one["thought_error"] for one in rows] == pytest.approx([one.thoughts.error for one in expected], rel=1e-5)
    assert not any("thoughts" in one for one in rows)
    assert (result.summaries[0].thoughts, result.rows) == (COUNT, ROWS)
    assert f"thinking:reason-first/1,k={COUNT},mean=jackknife,n=40,t=1,p=1,seed=0" in result.signatures[0]
    assert result.manifest.settings.window == 8


def test_kept_thoughts_are_those_of_the_row_in_every_format(file, tmp_path):
    score(file, tmp_path / "run/", Counting(), keep_thoughts=True, formats=["jsonl", "csv", "parquet"])
    (tmp_path / "run/scores.jsonl").rename(tmp_path / "out.jsonl")
    header = (tmp_path / "run/scores.csv").read_text().split("\n")[0]
    assert f"{METRIC.name}.thought_error,{METRIC.name}.thoughts," in header
    for other in ("csv", "parquet"):
        scores = read_results(tmp_path / f"run/scores.{other}").scores(METRIC.name)
        for one, line in zip(scores, read(tmp_path / "out.jsonl"), strict=True):
            assert list(one.thoughts.texts) == line["geval"][METRIC.name]["thoughts"]
    judge = MockJudge(options=JudgeOptions(think=COUNT, think_tokens=40))
    for line in read(tmp_path / "out.jsonl"):
        thoughts = judge.score(METRIC, source=line["source"], output=line["output"]).thoughts
        assert line["geval"][METRIC.name]["thoughts"] == list(thoughts.texts)
    plain = score(file, tmp_path / "plain.csv", MockJudge())
    assert "thought" not in plain.files[0].read_text().split("\n")[0]
    with pytest.raises(ConfigurationError, match="`keep_thoughts` is for judges that think"):
        score(file, tmp_path / "other.jsonl", MockJudge(), keep_thoughts=True)


@pytest.mark.parametrize("thoughts", [1, 17, 24, 40])
def test_a_stopped_run_goes_on_with_its_thoughts(file, tmp_path, thoughts):
    score(file, tmp_path / "whole.jsonl", Counting())
    judge = Counting()
    with pytest.raises(Interrupted):
        score(file, tmp_path / "run/", judge, events=StopAt(judge, thoughts))
    assert len(judge.drawn) == thoughts
    again = Counting()
    score(file, tmp_path / "run/", again)

    assert len(again.drawn) == ROWS * COUNT - thoughts
    assert not set(again.drawn) & set(judge.drawn)
    assert (tmp_path / "run/scores.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_a_thought_is_stored_before_its_labels_are_read(file, tmp_path):
    judge = Counting(fails=True)
    with pytest.raises(GevalError, match="the power went"):
        score(file, tmp_path / "run/", judge)
    assert len(judge.drawn) == 8 * COUNT  # those of the first window
    again = Counting()
    score(file, tmp_path / "run/", again)
    assert not set(again.drawn) & set(judge.drawn)


def test_another_number_of_thoughts_is_another_run(file, tmp_path):
    score(file, tmp_path / "run/", Counting())
    with pytest.raises(GevalError, match="judge mock: think was 3, is 4"):
        score(file, tmp_path / "run/", Counting(think=4))
    with pytest.raises(GevalError, match="judge mock: think_seed was None, is 1"):
        score(file, tmp_path / "run/", Counting(think_seed=1))


def test_a_damaged_thought_is_drawn_again_with_its_outcome(file, tmp_path):
    score(file, tmp_path / "run/", Counting())
    before = (tmp_path / "run/scores.jsonl").read_bytes()
    with sqlite3.connect(tmp_path / "run/scores.sqlite") as store:
        store.execute("UPDATE thoughts SET text = 'another' WHERE row = 4")
    again = Counting()
    score(file, tmp_path / "run/", again)
    assert len(again.drawn) == 1
    assert (tmp_path / "run/scores.jsonl").read_bytes() == before


# --- the cache --------------------------------------------------------------------------------------------------------


def test_a_grown_file_is_thought_about_where_it_has_grown(file, tmp_path):
    first = Counting()
    score(file, tmp_path / "first.jsonl", first, use_cache=True)
    old = read(tmp_path / "first.jsonl")
    write_input(file, ROWS + 5, holes=False)
    second = Counting()
    score(file, tmp_path / "second.jsonl", second, use_cache=True)

    assert (len(first.drawn), len(second.drawn)) == (ROWS * COUNT, 5 * COUNT)
    assert [row["geval"] for row in read(tmp_path / "second.jsonl")[:ROWS]] == [row["geval"] for row in old]
    entries, _ = OutcomeCache().size()
    assert entries == 2 * (ROWS + 5) * COUNT  # a thought, and the labels after it


def test_more_thoughts_are_drawn_besides_those_that_are_there(file, tmp_path):
    score(file, tmp_path / "first.jsonl", Counting(think=2), use_cache=True)
    more, whole = Counting(think=5), Counting(think=5)
    score(file, tmp_path / "more.jsonl", more, use_cache=True)
    score(file, tmp_path / "whole.jsonl", whole)

    assert (len(more.drawn), len(whole.drawn)) == (3 * ROWS, 5 * ROWS)
    assert scores(tmp_path / "more.jsonl") == pytest.approx(scores(tmp_path / "whole.jsonl"), rel=1e-9)


@pytest.mark.parametrize(
    "other", [{"think_tokens": 41}, {"think_temperature": 0.5}, {"think_top_p": 0.9}, {"think_seed": 1}]
)
def test_thoughts_of_other_settings_are_others(file, tmp_path, other):
    score(file, tmp_path / "first.jsonl", Counting(), use_cache=True)
    second = Counting(**other)
    score(file, tmp_path / "second.jsonl", second, use_cache=True)
    assert len(second.drawn) == ROWS * COUNT


@pytest.mark.parametrize("damage", ["text = text || 'x'", "ending = 'mark', tokens = x'01'", "checksum = NULL"])
def test_a_damaged_thought_in_the_cache_is_drawn_again(file, tmp_path, caplog, damage):
    score(file, tmp_path / "first.jsonl", Counting(), use_cache=True)
    with sqlite3.connect(OutcomeCache().path) as cache:
        cache.execute(f"UPDATE thoughts SET {damage}")
    second, third = Counting(), Counting()
    score(file, tmp_path / "second.jsonl", second, use_cache=True)
    score(file, tmp_path / "third.jsonl", third, use_cache=True)

    assert (len(second.drawn), len(third.drawn)) == (ROWS * COUNT, 0)  # mended
    assert (tmp_path / "second.jsonl").read_bytes() == (tmp_path / "first.jsonl").read_bytes()
    assert caplog.text.count("damaged entries") == 1


def test_a_run_that_goes_on_draws_what_it_would_have_drawn(file, tmp_path):
    """The cache is asked before the first thought of a window; what others add to it later changes nothing."""
    write_input(tmp_path / "half.jsonl", 4, holes=False)
    score(tmp_path / "half.jsonl", tmp_path / "half-scores.jsonl", Counting(), use_cache=True)
    judge = Counting()
    with pytest.raises(Interrupted):
        score(file, tmp_path / "run/", judge, use_cache=True, events=StopAt(judge, 5))
    score(file, tmp_path / "other.jsonl", Counting(), use_cache=True)
    again = Counting()
    score(file, tmp_path / "run/", again, use_cache=True)

    assert len(judge.drawn) == 5
    assert len(again.drawn) == 4 * COUNT - 5  # the rest of the first window; those of the others are in the cache
    assert scores(tmp_path / "run/scores.jsonl") == pytest.approx(scores(tmp_path / "other.jsonl"), rel=1e-9)


def test_judges_with_and_without_thoughts_share_a_run(file, tmp_path):
    result = score(file, tmp_path / "run/", [MockJudge(name="plain"), Counting()])
    rows = read(tmp_path / "run/scores.jsonl")
    assert [one.thoughts for one in result.summaries] == [0, COUNT]
    assert "thought_error" not in rows[0]["geval"][f"{METRIC.name}@plain"]
    assert "thought_error" in rows[0]["geval"][f"{METRIC.name}@mock"]


def test_without_thinking_results_hold_nothing_of_it(file, tmp_path):
    score(file, tmp_path / "out.jsonl", MockJudge(engine(), options=JudgeOptions(think=0)))
    score(file, tmp_path / "plain.jsonl", MockJudge(engine()))
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "plain.jsonl").read_bytes()
    assert "thought" not in (tmp_path / "out.jsonl").read_text()
    assert "thinking" not in (tmp_path / "out.jsonl.meta.json").read_text()
