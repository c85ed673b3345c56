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
    "rank": ("a.jsonl", "--system", "side"),
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


@pytest.mark.parametrize("name", [*SINGLE, *SEVERAL])
def test_ratings_outside_of_the_scale_stop_every_verb_unless_told(verb, here, name):
    for file in ("a.jsonl", "b.jsonl", "data.jsonl"):
        rows = [json.loads(line) for line in (here / file).read_text("utf-8").splitlines()]
        for place, row in enumerate(rows):
            row["low"] = -1 if place in (1, 5) else row["rating"]["clarity"]
        (here / file).write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    given = [*SINGLE.get(name, ()), *SEVERAL.get(name, ())]
    if name == "meta-eval":
        given = ["data.jsonl", "-m", "clarity.yaml", "--results", "a.jsonl", "--no-baselines"]
    elif not name.startswith(("report", "compare")):
        given += ["-m", "clarity"]
    field = "low" if name in SINGLE or name == "meta-eval" else "clarity=low"
    refused = verb(name, *given, "--human", field)
    assert refused.exit_code == 2, refused.stderr
    assert (
        "2 of 12 ratings in 'low' are outside of the scale 1-5: -1 (2 times); the first is in row 2" in refused.stderr
    )
    assert "--skip-outside" in refused.stderr
    if name == "calibrate":
        unreached = verb(name, *given, "--human", field, "--human-scale", "-1 to 5")
        assert (unreached.exit_code, "take --method isotonic" in unreached.stderr) == (2, True)
    for told in (["--skip-outside"], ["--human-scale", "-1 to 5"]):
        # No temperature reaches ratings outside of the metric's scale.
        method = ["--method", "isotonic"] if name == "calibrate" else []
        done = verb(name, *given, *method, "--human", field, *told)
        assert done.exit_code == 0, done.stderr
    close = verb(name, *given, "--human", field, "--human-scale", "five")
    assert (close.exit_code, "--human-scale" in close.stderr) == (2, True), close.stderr
