"""What a meta-evaluation says of rows that it leaves out, of its level, and of a judge that says one thing only."""

from __future__ import annotations

import json

import pytest

from geval_local.analysis.meta_evaluation import meta_evaluate
from geval_local.analysis.ratings.rated import read_rated
from geval_local.statistics.records import ScoredItem, usable


def study(tmp_path, figures):
    """Evaluate one run: figures of four documents with two rows each."""
    rows = [
        {"doc": f"d{at // 2}", "output": "o" * (at + 1), "human": 1 + at % 3, "geval": {"m": own}}
        for at, own in enumerate(figures)
    ]
    path = tmp_path / "judge.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    (tmp_path / "m.yaml").write_text("name: m\ncriteria: Good.\nscale: 1-3\nfields: {output: Output}\n", "utf-8")
    rated = read_rated(path, metrics=[str(tmp_path / "m.yaml")], human="human", group_by="doc")
    return meta_evaluate(rated, [path])


def lost(row, tokens):
    return {
        "score": None,
        "error": f"data.jsonl, row {row}: the prompt has {tokens} tokens, at most 4,096 fit\nCut it.",
    }


def scored(value):
    return {"score": value, "label_mass": 0.9}


def test_rows_left_out_are_grouped_by_reason_and_not_listed(tmp_path):
    errors = [lost(row, f"{5000 + 7 * row:,}") for row in range(1, 5)]
    found = study(tmp_path, [*errors, *map(scored, (1.2, 2.4, 1.8, 2.9))])
    (judge, *_) = found.correlations.values()
    assert judge["m"].left_out == {"the prompt has 5,007 tokens, at most 4,096 fit": 4}
    nothing = study(tmp_path, [*errors, *errors])
    assert "judge, m: nothing to correlate: 8 x the prompt has 5,007 tokens, at most 4,096 fit" in nothing.notes


@pytest.mark.parametrize(
    ("kept", "level"), [((0, 2, 4, 6), "pooled"), ((0, 1, 2, 3, 4, 6), "summary"), ((), "summary")]
)
def test_the_level_is_one_that_the_scored_rows_have(tmp_path, kept, level):
    figures = [scored(1 + 0.2 * at) if at in kept else lost(at + 1, 5000) for at in range(8)]
    found = study(tmp_path, figures)
    assert found.level == level
    said = "no document has two rows with a score and a rating, so this is the pooled level" in found.notes
    assert said is (level == "pooled")


def test_a_judge_that_gives_everything_one_score_is_named_in_one_sentence(tmp_path):
    found = study(tmp_path, [scored(2.0)] * 8)
    told = "judge, m: all 8 rated rows have the same score, 2.000, so nothing correlates with it"
    assert [note for note in found.notes if "same score" in note] == [told]
    assert not [note for note in study(tmp_path, [scored(1 + at / 8) for at in range(8)]).notes if "same" in note]


def test_reasons_differ_by_more_than_their_numbers():
    errors = ["a.jsonl, row 1: too long", "b.jsonl, row 22: too long", "empty", None]
    items = [ScoredItem("", "", 1.0, float("nan"), error=error) for error in errors]
    assert usable(items)[1] == {"too long": 2, "empty": 1, "unscored": 1}
