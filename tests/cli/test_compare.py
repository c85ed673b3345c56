"""``compare`` and ``jury``: allowed comparisons, and their results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli_run import judge_directory, read_rows, run, write_rows
from html_page import Page, as_shown
from rated_runs import other_judge, prepare, score
from scipy import stats

from geval_local.io.result_manifest import manifest_path, read_manifest
from geval_local.signature import signature_parts


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    score(tmp_path, "a.jsonl")
    score(tmp_path, "b.csv", "--columns", "all", judge=other_judge())
    return tmp_path


@pytest.mark.slow
def test_a_csv_file_without_the_texts_is_compared_by_their_keys(here):
    columns = ("--columns", "row,score,error")
    score(here, "c.csv", *columns, judge=other_judge())
    done = run("compare", "a.jsonl", "c.csv", "--across", "judge", home=here)
    assert done.exit_code == 0, done.stderr
    rows = [json.loads(line) for line in (here / "data.jsonl").read_text().splitlines()]
    rows[0]["output"] += " And more."
    (here / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    score(here, "d.csv", *columns, judge=other_judge())
    refused = run("compare", "a.jsonl", "d.csv", "--across", "judge", home=here)
    assert refused.exit_code == 2
    assert "input: 1 outputs | other texts under the same id or row number" in refused.stderr


def scores(path, metric="clarity"):
    return np.array([row["geval"][metric]["score"] for row in read_rows(Path(path))])


def probabilities(path):
    return np.array([list(row["geval"]["clarity"]["probabilities"].values()) for row in read_rows(Path(path))])


@pytest.mark.usefixtures("answering")
@pytest.mark.slow
def test_judges_are_compared_only_when_that_is_asked_for(here):
    refused = run("compare", "a.jsonl", "b.csv", home=here)
    assert refused.exit_code == 2
    assert refused.stdout == ""
    assert "not comparable: judge:" in refused.stderr
    assert "--across judge" in refused.stderr
    done = run("compare", "a.jsonl", "b.csv", "--across", "judge", home=here)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[2].startswith("differs in judge: ")
    assert "largest disagreements: clarity" in done.stdout


@pytest.mark.usefixtures("answering")
@pytest.mark.slow
def test_figures_are_those_of_the_shared_rows(here):
    score(here, "b.jsonl", judge=other_judge())
    write_rows(here / "b.jsonl", read_rows(here / "b.jsonl")[::-1][:10])
    done = run(
        *("compare", "a.jsonl", "b.jsonl", "--across", "judge", "--json", "--largest", 2),
        *("--human", "rating.clarity", "--group-by", "doc"),
        home=here,
    )
    record = json.loads(done.stdout)
    a, b = scores("a.jsonl")[2:], scores("b.jsonl")[::-1]
    own = record["metrics"]["clarity"]
    assert own["agreement"]["n"] == 10
    assert own["mean"]["value"] == pytest.approx((a - b).mean(), abs=1e-12)
    assert own["mean"]["low"] < own["mean"]["value"] < own["mean"]["high"]
    assert own["agreement"]["only_first"] == 2
    keys = [row["id"] for row in read_rows(here / "a.jsonl")[2:]]
    order = np.argsort(-np.abs(a - b))[:2]
    assert [key for key, _, _ in own["largest"]] == [keys[index] for index in order]
    assert record["against_human"]["clarity"]["groups"] == 5


@pytest.mark.usefixtures("answering")
@pytest.mark.slow
def test_level_coefficient_and_target_are_chosen_and_the_page_says_the_same(here):
    score(here, "b.jsonl", judge=other_judge())
    common = ("compare", "a.jsonl", "b.jsonl", "--across", "judge", "--human", "rating.clarity", "--group-by", "doc")
    chosen = ("--level", "pooled", "--coefficient", "kendall")
    done = run(*common, *chosen, "--json", "--page", "both.html", home=here)
    assert done.exit_code == 0, done.stderr
    test = json.loads(done.stdout)["against_human"]["clarity"]
    assert (test["level"], test["coefficient"], test["target"]) == ("pooled", "kendall", "documents")
    human = [row["rating"]["clarity"] for row in read_rows(here / "a.jsonl")]
    assert test["first"] == pytest.approx(stats.kendalltau(human, scores("a.jsonl"))[0])
    shown = run(*common, *chosen, home=here).stdout
    page = Page(Path("both.html").read_text(encoding="utf-8")).text
    difference = test["difference"]
    assert as_shown(difference) in shown
    assert as_shown(difference) in page
    assert "new documents from the same systems" in shown
    refused = run(*common, "--target", "systems", home=here)
    assert refused.exit_code != 0
    assert "who wrote each output" in refused.stderr


@pytest.mark.usefixtures("answering")
@pytest.mark.slow
def test_documents_are_guessed_and_said_and_independence_only_as_told(here):
    score(here, "b.jsonl", judge=other_judge())
    common = ("compare", "a.jsonl", "b.jsonl", "--across", "judge", "--human", "rating.clarity", "--json")
    guessed = json.loads(run(*common, home=here).stdout)
    assert "same source count as one document; " in guessed["grouping"]
    assert guessed["against_human"]["clarity"]["groups"] == 3
    told = json.loads(run(*common, "--group-by", "row", home=here).stdout)
    assert "as `group_by=row` says" in told["grouping"]
    assert (told["against_human"]["clarity"]["level"], told["against_human"]["clarity"]["groups"]) == ("pooled", 12)


@pytest.mark.usefixtures("answering")
@pytest.mark.slow
def test_the_closing_table_groups_rows_and_says_how(here):
    command = ("score", "data.jsonl", "-m", "clarity.yaml", "--judge", judge_directory())
    by_document = run(*command, "--group-by", "doc", "--json", home=here)
    figures = json.loads(by_document.stdout)["metrics"]["clarity"]
    assert figures["documents"] == 6
    assert figures["grouping"] == "rows with the same doc count as one document"
    means = scores("a.jsonl").reshape(6, 2).mean(axis=1)
    share = (means.mean() - 1) / 4  # Student's t of its log-odds, so that the interval stays on the scale
    half = stats.t.ppf(0.975, 5) * stats.sem(means) / 4 / (share * (1 - share))
    expected = [1 + 4 / (1 + np.exp(-(np.log(share / (1 - share)) + sign * half))) for sign in (-1, 1)]
    assert figures["interval"] == pytest.approx(expected)
    assert "6 are few: the interval is wide" in run(*command, "--group-by", "doc", home=here).stderr
    refused = run(*command, "--group-by", "chapter", home=here)
    assert refused.exit_code == 2
    assert "the field 'chapter' to group by is missing" in refused.stderr


@pytest.mark.slow
def test_a_jury_is_tested_against_its_best_judge(here):
    score(here, "b.jsonl", judge=other_judge())
    done = run("jury", "a.jsonl", "b.jsonl", "--human", "rating.clarity", "--group-by", "doc", "--json", home=here)
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    tests = record["jury_less_judge"]
    assert len(tests) == 2
    assert record["best_judge"] == max(tests, key=lambda name: tests[name]["second"])
    shown = run("jury", "a.jsonl", "b.jsonl", "--human", "rating.clarity", "--group-by", "doc", home=here).stdout
    assert "(best judge)" in shown


@pytest.mark.slow
def test_steps_estimators_and_texts_are_differences_too(here):
    score(here, "mode.jsonl", "--estimator", "mode", "--no-steps")
    refused = run("compare", "a.jsonl", "mode.jsonl", "--across", "estimator", home=here)
    assert refused.exit_code == 2
    assert "--across steps" in refused.stderr
    assert "--across estimator" not in refused.stderr
    done = run("compare", "a.jsonl", "mode.jsonl", "--across", "estimator", "--across", "steps", home=here)
    assert done.exit_code == 0, done.stderr

    rows = read_rows(here / "a.jsonl")
    rows[3]["output"] = "Something else."
    write_rows(here / "changed.jsonl", rows)
    manifest_path(here / "changed.jsonl").write_bytes(manifest_path(here / "a.jsonl").read_bytes())
    refused = run("compare", "a.jsonl", "changed.jsonl", home=here)
    assert refused.exit_code == 2
    assert "input: 1 outputs" in refused.stderr
    assert run("compare", "a.jsonl", "changed.jsonl", "--across", "input", home=here).exit_code == 0


@pytest.mark.slow
def test_a_run_of_unknown_origin_is_compared_only_across_anything(here):
    manifest_path(here / "a.jsonl").unlink()
    refused = run("compare", "a.jsonl", "b.csv", "--across", "judge", home=here)
    assert refused.exit_code == 2
    assert "nothing says under which signature" in refused.stderr
    done = run("compare", "a.jsonl", "b.csv", "--across", "any", home=here)
    assert done.exit_code == 0, done.stderr
    assert "of unknown origin" in done.stdout
    assert "no such key" in run("compare", "a.jsonl", "b.csv", "--across", "jugde", home=here).stderr


@pytest.mark.slow
def test_a_jury_is_the_mean_of_the_distributions(here):
    score(here, "b.jsonl", judge=other_judge())
    done = run("jury", "a.jsonl", "b.jsonl", "-o", "jury.jsonl", "--json", home=here)
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    mean = (probabilities("a.jsonl") + probabilities("b.jsonl")) / 2
    np.testing.assert_allclose(probabilities("jury.jsonl"), mean, atol=1e-12)
    np.testing.assert_allclose(scores("jury.jsonl"), mean @ [1, 2, 3, 4, 5], atol=1e-12)
    rows = read_rows(here / "jury.jsonl")
    assert [row["jury_disagreement"] for row in rows] == [item["disagreement"] for item in record["items"]]
    assert all(row["geval"]["clarity"]["label_mass"] is None for row in rows)
    parts = signature_parts(read_manifest(here / "jury.jsonl").metrics["clarity"].signature)
    assert parts["judge"].startswith("jury(")
    assert parts["judge"].count("@") == 2
    assert run("compare", "a.jsonl", "jury.jsonl", "--across", "judge", home=here).exit_code == 0


@pytest.mark.slow
def test_runs_of_one_judge_are_called_no_jury(here, answering):
    score(here, "again.jsonl")
    done = run("jury", "a.jsonl", "again.jsonl", "--human", "rating.clarity", "-o", "mean.jsonl", home=here)
    assert done.exit_code == 0, done.stderr
    assert "the mean of 2 runs of one judge" in done.stdout
    assert "jury" not in done.stdout
    assert ["item", "disagreement", "mean", "a", "again"] in [line.split() for line in done.stdout.splitlines()]
    described = read_manifest(here / "mean.jsonl")
    assert described.judge == "mean of a, again"
    assert signature_parts(described.metrics["clarity"].signature)["judge"].startswith("mean(")


@pytest.mark.slow
def test_a_juror_that_did_not_score_leaves_the_row_without_a_verdict(here):
    rows = read_rows(here / "a.jsonl")
    rows[0]["geval"]["clarity"] = {"score": None, "error": "too long", "prompt_tokens": 0}
    write_rows(here / "a.jsonl", rows)
    done = run("jury", "b.csv", "a.jsonl", "-o", "jury.jsonl", home=here)
    assert done.exit_code == 0, done.stderr
    assert "1 item is without a verdict" in done.stderr
    assert "did not score" in read_rows(here / "jury.jsonl")[0]["geval"]["clarity"]["error"]
    assert read_manifest(here / "jury.jsonl").metrics["clarity"].unscored == 1


@pytest.mark.slow
def test_who_does_not_belong_on_a_jury(here):
    score(here, "mode.jsonl", "--estimator", "mode")
    assert "do not belong to one jury: estimator" in run("jury", "a.jsonl", "mode.jsonl", home=here).stderr
    assert "at least two judges" in run("jury", "a.jsonl", home=here).stderr
    assert "one of the runs" in run("jury", "b.csv", "a.jsonl", "-o", "a.jsonl", home=here).stderr
