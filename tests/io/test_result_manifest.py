"""The manifest beside a result file: present with the results, correct, and never another run's."""

from __future__ import annotations

import json

import pytest
from cli_run import judge_directory, read_rows, run
from rated_runs import prepare, score

from geval_local import Estimator, Judge, Metric
from geval_local.errors import DataError
from geval_local.io.ownership import file_sha256
from geval_local.io.result_manifest import manifest_path, read_manifest, write_manifest
from geval_local.signature import Signature, judge_name, signature_differences, signature_parts


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    return tmp_path


def test_it_says_what_the_scores_are(here):
    score(here, "out.jsonl", "--estimator", "mode", "--limit", 3)
    found = read_manifest(here / "out.jsonl")
    judge, metric = Judge.load(judge_directory()), Metric.load("clarity.yaml")
    assert found.metrics["clarity"].signature == str(judge.signature(metric, Estimator("mode")))
    assert found.metrics["clarity"].definition == metric
    assert (found.judge, found.input, found.rows) == (judge.name, "data.jsonl", 3)
    assert found.input_sha256 == file_sha256(here / "data.jsonl")


@pytest.mark.slow
def test_equal_runs_have_equal_manifests_and_another_run_replaces_it(here):
    score(here, "out.jsonl")
    first = manifest_path(here / "out.jsonl").read_text()
    score(here, "out.jsonl")
    assert manifest_path(here / "out.jsonl").read_text() == first
    score(here, "out.jsonl", "--no-steps")
    assert signature_parts(read_manifest(here / "out.jsonl").metrics["clarity"].signature)["steps"] == "none"


@pytest.mark.slow
def test_results_kept_from_the_input_keep_their_origin(here):
    score(here, "out.jsonl")
    (here / "tone.yaml").write_text((here / "clarity.yaml").read_text().replace("name: clarity", "name: tone"))
    done = run(
        *("score", "out.jsonl", "-m", "tone.yaml", "-o", "both.jsonl", "--judge", judge_directory()), home=here / "home"
    )
    assert done.exit_code == 0, done.stderr
    found = read_manifest(here / "both.jsonl")
    assert found.metrics["clarity"] == read_manifest(here / "out.jsonl").metrics["clarity"]
    assert set(found.metrics) == set(read_rows(here / "both.jsonl")[0]["geval"]) == {"clarity", "tone"}


def test_a_run_without_output_leaves_none_and_a_damaged_one_is_refused(here):
    assert read_manifest(here / "nothing.jsonl") is None
    score(here, "out.jsonl")
    manifest = read_manifest(here / "out.jsonl")
    path = manifest_path(here / "out.jsonl")
    for text in ("{", "{}", json.dumps(json.loads(path.read_text()) | {"version": 99})):
        path.write_text(text)
        with pytest.raises(DataError, match=r"out\.jsonl\.meta\.json"):
            read_manifest(here / "out.jsonl")
    write_manifest(here / "out.jsonl", manifest)
    assert read_manifest(here / "out.jsonl") == manifest


def test_signatures_are_compared_key_by_key_whatever_version_wrote_them():
    one = Signature("a|b@1", "t", "m@2", "none", "1-5", "chat", "f", "sdpa", "exact", "5", "2", "0.1")
    text = str(one)
    assert signature_parts(text)["judge"] == "a|b@1"
    assert signature_differences(text, text) == {}
    assert signature_differences(text, text.replace("exact", "mode") + "|engine:trie") == {
        "estimator": ("exact", "mode"),
        "engine": ("-", "trie"),
    }


def test_a_judge_is_its_content_and_not_the_path_to_it():
    assert signature_differences("judge:models/a@12|scale:1-5", "judge:/home/models/a@12|scale:1-5") == {}
    assert set(signature_differences("judge:a@12", "judge:a@13")) == {"judge"}
    assert judge_name("/home/models/a/") == judge_name("a") == "a"
