"""A tokenizer that gives up, which is no ordinary exception in Python, costs the row or the judge."""

from __future__ import annotations

import json
import shutil

import pytest
from cli_run import METRIC, good_rows, judge_directory, read_rows, run, write_rows

#: The pattern that takes for ever, in the tokenizer's library too: it gives up after some steps.
NEVER_DONE = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    shutil.copytree(judge_directory(), tmp_path / "judge")
    path = tmp_path / "judge" / "tokenizer.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    others = [one for one in [record["pre_tokenizer"]] if one is not None]
    record["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [NEVER_DONE, *others]}
    path.write_text(json.dumps(record), encoding="utf-8")
    return tmp_path


def score(here, *arguments):
    return run("score", "data.jsonl", "-m", "clarity.yaml", "--judge", "judge", *arguments, home=here / "home")


def test_a_row_that_cannot_be_encoded_is_unscored_and_the_others_are_as_without_it(here):
    rows = good_rows(9)
    write_rows(here / "data.jsonl", rows)
    assert score(here, "-o", "plain.jsonl").exit_code == 0
    rows[4]["output"] = f"{'a' * 60}!"
    write_rows(here / "data.jsonl", rows)
    done = score(here, "-o", "out.jsonl", "--no-cache")
    assert done.exit_code == 0, (done.stderr, done.exception)
    found, plain = (read_rows(here / name) for name in ("out.jsonl", "plain.jsonl"))
    figures = found[4]["geval"]["clarity"]
    assert figures["score"] is None
    assert "tokenizer cannot encode this text" in figures["error"]
    assert "tokenizer cannot encode this text" in done.stdout + done.stderr
    for row in (*range(4), *range(5, 9)):
        assert found[row]["geval"]["clarity"]["score"] == pytest.approx(plain[row]["geval"]["clarity"]["score"])


def test_a_tokenizer_that_never_works_is_refused_in_words(here, monkeypatch):
    class PanicException(BaseException):
        pass

    def panic(*given, **named):
        raise PanicException("called `Option::unwrap()` on a `None` value\nand more")

    write_rows(here / "data.jsonl", good_rows(2))
    monkeypatch.setattr("geval_local.judge.judge.Judge.load", panic)
    done = score(here, "-o", "out.jsonl")
    assert done.exit_code == 2, done.exception
    assert "error: the tokenizer cannot be used: called" in done.stderr
    assert not (here / ".out.jsonl.run").exists()
