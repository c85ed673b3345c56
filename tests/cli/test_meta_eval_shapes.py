"""``meta-eval`` on files in the shapes of published ratings: Newsroom, FED, OpenMEVA, and both halves of QAGS."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from cli_run import judge_directory, read_rows, run
from rated_runs import prepare
from scipy import stats

RNG = np.random.default_rng(0)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    return tmp_path


def evaluate(here, *arguments: object, code: int = 0):
    done = run(
        *("meta-eval", *arguments, "-m", "clarity.yaml", "--judge", judge_directory(), "--no-baselines", "--json"),
        *("-o", "kept"),
        home=here / "home",
    )
    assert done.exit_code == code, done.stderr
    return json.loads(done.stdout) if code == 0 else " ".join(done.stderr.split())


def kept() -> list[dict]:
    (path,) = Path("kept").glob("*.jsonl")
    return read_rows(path)


def spearman(record, level="pooled") -> float:
    (own,) = record["correlations"][level].values()
    return own["clarity"]["spearman"]["value"]


def test_openmeva_stories_by_key_with_a_map_of_systems(here):
    systems = ("gpt", "s2s", "plan_write")
    stories = {
        str(story): {
            "prompt": f"Once there were {story} dogs.",
            "gold_response": "They ran.",
            "gen": {
                name: {"text": f"{name} saw {story} dogs.", "score": RNG.integers(1, 6, 5).tolist()} for name in systems
            },
        }
        for story in range(4)
    }
    Path("mans_roc.json").write_text(json.dumps(stories))
    record = evaluate(
        here,
        *("mans_roc.json", "--rows", "{story}.gen.{system}", "--human", "score", "--group-by", "story"),
        *("--field", "source=prompt", "--field", "output=text", "--rater", "score.*"),
    )
    rows = kept()
    assert [(row["story"], row["system"]) for row in rows[:4]] == [*(("0", name) for name in systems), ("1", "gpt")]
    human = [np.mean(row["score"]) for row in rows]
    scores = [row["geval"]["clarity"]["score"] for row in rows]
    assert spearman(record) == pytest.approx(stats.spearmanr(human, scores)[0])
    assert record["levels"] == ["summary", "pooled", "system"]
    assert (record["ceiling"]["raters"], record["ceiling"]["n"]) == (5, 12)
    # The flat file that is kept goes on to every other verb.
    ranked = run("compare", next(Path("kept").glob("*.jsonl")), "--group-by", "story", "--json", home=here / "home")
    assert len(json.loads(ranked.stdout)["systems"]["clarity"]["systems"]) == 3
    message = evaluate(here, "mans_roc.json", "--rows", "{story}.generated.{system}", "--human", "score", code=2)
    assert "there is no 'generated' for --rows; its keys are: prompt, gold_response, gen" in message


def test_newsroom_one_row_for_each_annotator(here):
    lines = [
        {
            "ArticleID": article,
            "System": system,
            "ArticleText": f"Ferry {article} stops.",
            "SystemSummary": f"{system}: ferry {article}.",
            "CoherenceRating": int(RNG.integers(1, 6)),
        }
        for article in range(5)
        for system in ("abstractive", "lede3", "textrank")
        for _ in range(3)
    ]
    with Path("newsroom-human-eval.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(lines)
    record = evaluate(
        here,
        *("newsroom-human-eval.csv", "--merge", "ArticleID, System", "--human", "CoherenceRating"),
        *("--group-by", "ArticleID", "--system", "System", "--rater", "CoherenceRating.*"),
        *("--field", "source=ArticleText", "--field", "output=SystemSummary"),
    )
    rows = kept()
    assert len(rows) == 15
    human = [np.mean([one["CoherenceRating"] for one in lines[place : place + 3]]) for place in range(0, 45, 3)]
    assert spearman(record) == pytest.approx(
        stats.spearmanr(human, [row["geval"]["clarity"]["score"] for row in rows])[0]
    )
    assert (record["ceiling"]["raters"], record["ceiling"]["n"]) == (3, 15)


def test_newsroom_as_a_map_of_documents_and_systems(here):
    articles = {
        f"doc{article}": {
            "src": f"Ferry {article} stops.",
            "ref_summ": "It stops.",
            "sys_summs": {
                name: {"sys_summ": f"{name}: ferry {article}.", "scores": {"coherence": float(RNG.integers(1, 6))}}
                for name in ("lede3", "textrank")
            },
        }
        for article in range(5)
    }
    Path("newsroom.json").write_text(json.dumps(articles))
    record = evaluate(
        here,
        *("newsroom.json", "--rows", "{article}.sys_summs.{system}", "--human", "scores.coherence"),
        *("--field", "source=src", "--field", "output=sys_summ", "--group-by", "article"),
    )
    rows = kept()
    assert [row["system"] for row in rows] == ["lede3", "textrank"] * 5
    human = [row["scores"]["coherence"] for row in rows]
    assert spearman(record) == pytest.approx(
        stats.spearmanr(human, [row["geval"]["clarity"]["score"] for row in rows])[0]
    )


def test_fed_lists_of_annotators(here):
    turns = [
        {
            "context": f"User: Hi!\nSystem: Hello, {turn}.\nUser: How are you?",
            "response": f"System: I am {turn} years old.",
            "system": ("Meena", "Mitsuku")[turn % 2],
            "annotations": {"Interesting": RNG.integers(0, 3, 5).tolist(), "Fluent": [1, 1, 0, 1, 1]},
        }
        for turn in range(10)
    ]
    Path("fed_data.json").write_text(json.dumps(turns))
    record = evaluate(
        here,
        *("fed_data.json", "--human", "annotations.Interesting", "--group-by", "row"),
        *("--field", "source=context", "--rater", "annotations.Interesting.*"),
    )
    human = [np.mean(turn["annotations"]["Interesting"]) for turn in turns]
    scores = [row["geval"]["clarity"]["score"] for row in kept()]
    assert spearman(record) == pytest.approx(stats.spearmanr(human, scores)[0])
    assert record["ceiling"]["raters"] == 5


@pytest.mark.parametrize(
    ("name", "benchmark", "summary", "half"),
    [
        ("qags_cnn.json", "qags", "It stops .", "cnn"),
        ("qags_xsum.json", "qags", "It stops . Two boats sail . A third one waits .", "xsum"),
        ("half.json", "qags", "It stops . Two boats sail . A third one waits .", "cnn"),
        ("half.json", "qags", "The ferry stops for eight days .", "xsum"),
        ("half.json", "qags-cnn", "The ferry stops for eight days .", "cnn"),
    ],
)
def test_each_half_of_qags_has_its_own_column(here, name, benchmark, summary, half):
    rows = [
        {
            "doc_id": place,
            "system_id": 0,
            "source": f"The ferry {place} stops .",
            "system_output": summary,
            "scores": {"consistency": place % 2},
            "predict_scores": {"consistency": place / 10},
        }
        for place in range(10)
    ]
    Path(name).write_text(json.dumps(rows))
    done = run(
        "meta-eval", name, "--benchmark", benchmark, "--from-responses", name, "--no-baselines", home=here / "home"
    )
    assert done.exit_code == 0, done.stderr
    table = [line.split() for line in done.stdout.splitlines()]
    headers = next(line for line in table if "cnn" in line and "xsum" in line)
    row = next(line for line in table if line and line[-1] == "measured")
    cells = dict(zip(headers[-4:], row[-4:], strict=True))
    assert cells[half] != "-"
    assert cells[{"cnn": "xsum", "xsum": "cnn"}[half]] == "-"
    assert cells["average"] == "-"
