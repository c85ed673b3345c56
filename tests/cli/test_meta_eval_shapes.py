"""``meta-eval`` on files in the shapes of published ratings: Newsroom, FED, OpenMEVA, and both halves of QAGS."""

from __future__ import annotations

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
        *("--field", "source=context", "--rater", "annotations.Interesting.*", "--human-scale", "0-2"),
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
    done = run("meta-eval", name, "--benchmark", benchmark, "--responses", name, "--no-baselines", home=here / "home")
    assert done.exit_code == 0, done.stderr
    table = [line.split() for line in done.stdout.splitlines()]
    headers = next(line for line in table if "cnn" in line and "xsum" in line)
    row = next(line for line in table if line and line[-1] == "measured")
    cells = dict(zip(headers[-4:], row[-4:], strict=True))
    assert cells[half] != "-"
    assert cells[{"cnn": "xsum", "xsum": "cnn"}[half]] == "-"
    assert cells["average"] == "-"
