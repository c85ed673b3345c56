"""A metric that a judge does not answer has no figures in the record of a comparison; SummEval's fields are found."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from geval_local.analysis.biases import bias
from geval_local.analysis.comparison import RunComparison, compare
from geval_local.analysis.estimates import estimate
from geval_local.analysis.meta_evaluation import meta_evaluate
from geval_local.analysis.ratings.rated import read_rated
from geval_local.analysis.results import read_results
from geval_local.fields import resolve
from geval_local.scale import Scale
from geval_local.score import Distribution, Estimator, Score

DOUBT = "Nothing can be concluded: this judge does not answer (label mass 0.00248)."


def scored_rows(mass: float = 0.00248):
    """Rows of two systems on eight documents, with ratings; the labels hold this probability together."""
    rows = []
    for document in range(8):
        for system in "ab":
            p = [0.1 + 0.05 * document, 0.2, 0.7 - 0.05 * document + 0.1 * (system == "a")]
            distribution = Distribution(Scale.parse("1-3"), [float(x) for x in _logs(p, mass)])
            figures = Score.from_distribution("m", distribution, estimator=Estimator()).to_dict()
            rating = 1 + (document + (system == "a")) % 3
            rows.append({"doc": f"d{document}", "system": system, "output": "o" * (document + 1), "human": rating})
            rows[-1] |= {"geval": {"m": figures}}
    return rows


def _logs(p, mass):
    return np.log(np.array(p) / sum(p) * mass)


def test_the_record_holds_null_beside_the_doubt():
    runs = (SimpleNamespace(path="a"), SimpleNamespace(path="b"))
    doubt = {"m": ("", "it does not answer"), "n": ("", "")}
    found = RunComparison(runs, {}, "", (), {"m": 1, "n": 2}, {"m": 3, "n": 4}, {}, doubt).to_dict()
    assert found["metrics"] == {"m": None, "n": 2}
    assert found["against_human"] == {"m": None, "n": 4}
    assert found["doubts"] == ["m of B: it does not answer"]


def test_the_output_of_summevals_release_is_found():
    columns = ("id", "decoded", "expert_annotations", "text", "references")
    assert resolve(("source", "output"), columns) == {"source": "text", "output": "decoded"}


SHARED = {"group_by": "doc", "system": "system"}


@pytest.mark.parametrize(
    ("analyse", "hidden"),
    [
        (lambda rows: compare([rows], plan=0.1, **SHARED), ("systems", "m")),
        (lambda rows: bias(rows, "system", group_by="doc"), ("sides",)),
        (lambda rows: bias(rows, "system", group_by="doc"), ("gaps",)),
        (lambda rows: bias(rows, "system", group_by="doc"), ("length",)),
        (lambda rows: estimate(rows, "human", **SHARED), ("estimates", "a", "judge")),
        (lambda rows: estimate(rows, "human", **SHARED), ("estimates", "b", "judge_of_rated")),
    ],
)
def test_a_judge_that_does_not_answer_has_no_mean_and_no_rank_in_any_record(analyse, hidden):
    def figure(study):
        found = study.to_dict()
        for key in hidden:
            found = found[key]
        return found

    silent, answers = analyse(scored_rows()), analyse(scored_rows(0.9))
    assert figure(silent) is None
    assert figure(answers) is not None
    assert any(DOUBT in line for line in silent.lines())
    assert not any("does not answer" in line for line in answers.lines())
    shown = [cell for table in silent.tables() for row in table.rows for cell in map(str, row)]
    mean = f"{sum(row['geval']['m']['score'] for row in scored_rows()) / 16:.3f}"
    assert mean not in shown
    json.dumps(silent.to_dict(), allow_nan=False)


def test_a_meta_evaluation_says_it_beside_its_correlations(tmp_path):
    path = tmp_path / "rated.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in scored_rows()), encoding="utf-8")
    (tmp_path / "m.yaml").write_text("name: m\ncriteria: It is good.\nscale: 1-3\nfields: {output: Output}\n")
    rated = read_rated(path, metrics=[str(tmp_path / "m.yaml")], human="human", group_by="doc")
    study = meta_evaluate(rated, [path], baselines=False)
    assert f"rated, m: {DOUBT}" in study.notes


def test_the_lowest_rows_of_a_judge_that_does_not_answer_are_none():
    assert read_results(scored_rows()).lowest(3) == {}
    assert [len(own) for own in read_results(scored_rows(0.9)).lowest(3).values()] == [3]
