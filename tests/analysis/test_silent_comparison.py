"""A metric that a judge does not answer has no figures in the record of a comparison; SummEval's fields are found."""

from __future__ import annotations

from types import SimpleNamespace

from geval_local.analysis.comparison import RunComparison
from geval_local.fields import resolve


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
