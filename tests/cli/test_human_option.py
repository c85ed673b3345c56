"""``--human`` means the same everywhere: FIELD for one metric, METRIC=FIELD for each of several."""

from __future__ import annotations

import json

import pytest
from cli_run import METRIC, run
from rated_runs import other_judge, prepare, score

SINGLE = {
    "bias": ("a.jsonl", "--side", "side"),
    "calibrate": ("a.jsonl", "--folds", 2, "--overwrite", "-o", "map.json"),
    "estimate": ("a.jsonl", "--system", "side"),
    "jury": ("a.jsonl", "b.jsonl"),
    "preferences": ("a.jsonl", "--system", "side"),
}
SEVERAL = {
    "report": ("a.jsonl", "--overwrite", "-o", "page.html"),
    "report of two": ("a.jsonl", "b.jsonl", "--overwrite", "-o", "site/"),
    "compare": ("a.jsonl", "--system", "side", "--page", "both.html", "--overwrite"),
    "compare of two": ("a.jsonl", "b.jsonl", "--across", "judge"),
    "meta-eval": ("data.jsonl", "-m", "clarity.yaml", "-m", "tone.yaml", "--results", "a.jsonl", "--no-baselines"),
}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    directory = tmp_path_factory.mktemp("human")
    prepare(directory)
    (directory / "tone.yaml").write_text(METRIC.replace("clarity", "tone"), encoding="utf-8")
    for name, judge in (("a.jsonl", None), ("b.jsonl", other_judge())):
        score(directory, name, "-m", directory / "tone.yaml", judge=judge)
    return directory


@pytest.fixture
def verb(here, monkeypatch):
    monkeypatch.chdir(here)
    return lambda name, *more: run(name.split()[0], *more, "--group-by", "doc", home=here / "home")


@pytest.mark.parametrize("name", SINGLE)
def test_of_one_metric_the_field_may_say_so(verb, name):
    told = ["rating.clarity", "clarity=rating.clarity"]
    first, second = (verb(name, *SINGLE[name], "-m", "clarity", "--json", "--human", one) for one in told)
    assert (first.exit_code, second.exit_code) == (0, 0), (first.stderr, second.stderr)
    assert json.loads(first.stdout) == json.loads(second.stdout)
    refused = verb(name, *SINGLE[name], "-m", "clarity", "--human", "tone=rating.clarity")
    assert (refused.exit_code, "--human 'tone=rating.clarity' does not say" in refused.stderr) == (2, True)
    twice = verb(name, *SINGLE[name], "-m", "clarity", "--human", "a", "--human", "b")
    assert (twice.exit_code, "two fields for clarity" in twice.stderr) == (2, True)


@pytest.mark.parametrize("name", SEVERAL)
def test_of_several_metrics_the_field_has_to_say_which(verb, name):
    refused = verb(name, *SEVERAL[name], "--human", "rating.clarity")
    assert (refused.exit_code, "METRIC=FIELD, once for each" in refused.stderr) == (2, True), refused.stderr
    assert "of: clarity, tone." in refused.stderr
    close = verb(name, *SEVERAL[name], "--human", "clarty=rating.clarity")
    assert (close.exit_code, "did you mean 'clarity'?" in close.stderr) == (2, True), close.stderr
    both = verb(name, *SEVERAL[name], "--human", "clarity=rating.clarity", "--human", "tone=rating.clarity")
    assert both.exit_code == 0, both.stderr
    one = verb(name, *SEVERAL[name], "--human", "clarity=rating.clarity")
    if name == "meta-eval":
        assert (one.exit_code, "no human rating is named for tone" in one.stderr) == (2, True)
    else:
        assert one.exit_code == 0, one.stderr
