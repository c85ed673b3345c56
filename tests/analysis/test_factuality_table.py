"""A table of sentences that are true to a document or not, as AggreFact is: no name for its first column, ids again."""

from __future__ import annotations

import csv
import json
import random

import pytest
from cli_run import run
from sklearn import metrics

from geval_local.analysis.results import ScoredRun
from geval_local.judge.judge import Judge
from geval_local.testing import MockJudge

METRIC = """
name: supported
criteria: Is everything that the summary says in the document?
scale: Yes/No
fields: {source: Document, output: Summary}
steps: [Read both.]
"""


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """Write forty invented rows, two to a document; return them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Judge, "load", lambda options, **_: MockJudge(name="mock"))
    (tmp_path / "supported.yaml").write_text(METRIC, encoding="utf-8")
    draw, rows = random.Random(5), []
    for place in range(40):
        document = f"Report {place // 2}. The bridge at mile {place // 2} was repaired. " * 3
        summary = f"The bridge at mile {place // 2} was repaired. " * draw.choice([1, 2, 5])
        kept = {"": place, "origin": ("cnndm", "xsum")[place % 2], "id": f"id-{place // 2}", "doc": document}
        rows.append(kept | {"summary": summary, "label": draw.choice([0, 1]), "cut": ("val", "test")[place % 2]})
    with (tmp_path / "table.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return rows


def test_counts_and_kappa_are_those_of_scikit_learn(rows, tmp_path):
    refused = run("score", "table.csv", "-m", "supported.yaml", "-j", "nano", "-o", "out.csv", home=tmp_path)
    assert refused.exit_code == 2
    assert "--field source=COLUMN" in refused.stderr
    for results in ("out.jsonl", "out.csv"):
        asked = ("-m", "supported.yaml", "-j", "nano", "--field", "source=doc", "-o", results)
        done = run("score", "table.csv", *asked, home=tmp_path)
        assert done.exit_code == 0, done.stderr
        said = [one.value > 0.5 for one in ScoredRun.of(results).scores("supported")]
        people = [row["label"] == 1 for row in rows]
        ((no, alarm), (miss, hit)) = metrics.confusion_matrix(people, said)
        assert min(no, alarm, miss, hit) > 0
        done = run("meta-eval", results, "--human", "label", "--no-baselines", "--json", home=tmp_path)
        assert done.exit_code == 0, done.stderr
        study = json.loads(done.stdout)
        assert study["grouping"].startswith("rows with the same id count as one document")
        found = study["good_enough"]["verdicts"]["supported: nano"]
        assert (found["n"], found["yes"]) == (40, sum(people))
        assert found["sensitivity"]["value"] == pytest.approx(hit / (hit + miss))
        assert found["specificity"]["value"] == pytest.approx(no / (no + alarm))
        assert found["kappa"]["value"] == pytest.approx(metrics.cohen_kappa_score(people, said))
        assert [*ScoredRun.of(results).rows.column("")] == [str(row[""]) for row in rows]
