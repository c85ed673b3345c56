"""SummEval's own release, row for row as its authors publish it, is scored and meta-evaluated as it is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli_run import judge_directory, read_rows, run
from scipy import stats

DIMENSIONS = ("coherence", "consistency", "fluency", "relevance")
DOCUMENTS, SYSTEMS = 12, 4


def release() -> list[dict]:
    """Rows of the release: `id` names a document, every rating is an object of one annotator."""
    rng = np.random.default_rng(0)
    rows = []
    for document in range(DOCUMENTS):
        text = f"The ferry of line {document} stops for {document + 2} days. " * (1 + document % 3)
        for system in range(SYSTEMS):

            def ratings(count: int) -> list[dict]:
                return [dict(zip(DIMENSIONS, rng.integers(1, 6, 4).tolist(), strict=True)) for _ in range(count)]

            rows.append(
                {
                    "id": f"dm-test-{document:04x}",
                    "decoded": f"line {document} stops ." + " it is late ." * system,
                    "expert_annotations": ratings(3),
                    "turker_annotations": ratings(5),
                    "references": [f"Ferry {document} stops, says {who}." for who in range(11)],
                    "model_id": f"M{system}",
                    "filepath": f"cnndm/{document}.story",
                    "text": text,
                }
            )
    return rows


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    directory = tmp_path_factory.mktemp("summeval")
    lines = "".join(f"{json.dumps(row)}\n" for row in release())
    (directory / "release.jsonl").write_text(lines, encoding="utf-8")
    done = run(
        *("score", directory / "release.jsonl", "-m", "summarization/coherence", "--judge", judge_directory()),
        *("--no-steps", "-o", directory / "scored.jsonl"),
        home=directory / "home",
    )
    assert done.exit_code == 0, done.stderr
    return directory


def evaluate(here: Path, *more: object):
    return run(
        *("meta-eval", here / "release.jsonl", "--results", here / "scored.jsonl", "--json", *more), home=here / "home"
    )


def test_one_try_scores_and_meta_evaluates_it_with_its_annotators_as_raters(here):
    done = evaluate(here, "--human", "expert_annotations.coherence")
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    rows = read_rows(here / "scored.jsonl")
    ratings = np.array([[one["coherence"] for one in row["expert_annotations"]] for row in rows], dtype=float)
    scores = np.array([row["geval"]["summarization/coherence"]["score"] for row in rows])
    by_document = zip(ratings.mean(1).reshape(DOCUMENTS, SYSTEMS), scores.reshape(DOCUMENTS, SYSTEMS), strict=True)
    expected = np.nanmean([stats.spearmanr(*pair)[0] for pair in by_document if np.ptp(pair[0])])
    own = record["correlations"]["summary"]
    assert own[Path(judge_directory()).name]["summarization/coherence"]["spearman"]["value"] == pytest.approx(expected)
    assert record["ceiling"]["raters"] == 3
    (annotators,) = record["good_enough"]["annotators"].values()
    assert (annotators["raters"], annotators["n"]) == (3, DOCUMENTS * SYSTEMS)
    assert {"rouge-l", "length"} <= set(own)  # `decoded` and `references` are found


def test_the_same_raters_serve_an_estimate(here):
    done = run(
        *("estimate", here / "scored.jsonl", "--human", "expert_annotations.coherence", "--json"), home=here / "home"
    )
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    assert list(record["raters"]) == [f"expert_annotations.{place}.coherence" for place in range(3)]
    rows = [row for row in release() if row["model_id"] == "M2"]
    mean = np.mean([one["coherence"] for row in rows for one in row["expert_annotations"]])
    assert record["estimates"]["M2"]["people"]["value"] == pytest.approx(mean)


def test_the_benchmark_names_the_form_that_it_reads_and_the_commands_for_this_one(here):
    done = run("meta-eval", here / "release.jsonl", "--benchmark", "summeval", home=here / "home")
    assert done.exit_code == 2
    told = " ".join(done.stderr.split())
    assert "This is SummEval's own release. --benchmark summeval reads the form of UniEval and G-Eval" in told
    assert f"geval-local meta-eval {here / 'release.jsonl'} --results scored.jsonl --human expert_annotations" in told


def test_no_object_and_no_name_of_a_system_is_proposed_as_a_text(here, tmp_path):
    rows = [{"id": row["id"], "model_id": row["model_id"], "model": "M1", "ai_notes": {"a": 1}} for row in release()]
    rows = [row | {"translation_de": "It stops.", "text": "The ferry stops."} for row in rows]
    (tmp_path / "odd.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    done = run("score", tmp_path / "odd.jsonl", "-m", "summarization/coherence", home=here / "home")
    assert done.exit_code == 2
    assert "--field output=translation_de" in done.stderr, done.stderr
