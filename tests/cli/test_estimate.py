"""``estimate`` and ``compare --plan`` on results that hold a few ratings."""

from __future__ import annotations

import json

import numpy as np
import pytest
from cli_run import run, write_rows


@pytest.fixture
def scored(tmp_path, monkeypatch):
    """Two systems on forty documents, of which twenty are rated."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = []
    for document in range(40):
        for system, quality in (("a", 3.0), ("b", 3.6)):
            rating = quality + rng.normal()
            row = {"id": f"{document}{system}", "doc": f"d{document}", "system": system, "output": "a text"}
            row["geval"] = {"clarity": {"score": rating + 0.3 * rng.normal()}}
            rows.append(row | {"rating": rating if document < 20 else None})
    write_rows(tmp_path / "scored.jsonl", rows)
    return tmp_path


def verb(here, name: str, *arguments: object, code: int = 0):
    done = run(name, "scored.jsonl", "--group-by", "doc", *arguments, home=here / "home")
    assert done.exit_code == code, done.stderr
    return done


def test_people_and_judge_stand_beside_each_other(scored):
    record = json.loads(verb(scored, "estimate", "--human", "rating", "--json").stdout)
    one = record["estimates"]["b"]
    assert (one["rated"], one["n"]) == (20, 40)
    assert one["worth"] > 20
    assert one["combined"]["low"] < 3.6 < one["combined"]["high"]
    shown = verb(scored, "estimate", "--human", "rating").stdout
    assert "clarity: mean, as people would rate" in shown
    assert "people and judge" in shown
    assert "share of 4 or higher" in verb(scored, "estimate", "--human", "rating", "--share", 4).stdout
    assert "a over b" in verb(scored, "estimate", "--human", "rating", "--wins").stdout


def test_what_is_not_there_is_refused(scored):
    assert "Take one" in verb(scored, "estimate", "--human", "rating", "--wins", "--share", 4, code=2).stderr
    assert "'raitng'" in verb(scored, "estimate", "--human", "raitng", code=2).stderr


def test_a_pilot_says_how_many_documents_a_difference_needs(scored):
    record = json.loads(verb(scored, "compare", "--plan", 0.3, "--json").stdout)
    (need,) = record["plan"]["needs"].values()
    assert need["pilot"] == 40
    # The textbook's for a normal quantile, which Student's exceeds a little.
    normal = ((1.96 + 0.8416) * need["spread"] / 0.3) ** 2
    assert normal < need["documents"]["0.8"] < normal + 4
    assert need["documents"]["0.9"] > need["documents"]["0.8"]
    assert "how many documents are needed?" in verb(scored, "compare", "--plan", 0.3).stdout
    assert "above 0" in verb(scored, "compare", "--plan", 0, code=2).stderr


def test_rows_to_rate_are_drawn_into_a_sheet(scored):
    done = verb(scored, "estimate", "--human", "gold", "--plan", 10, "-o", "sheet.csv", "--seed", 2)
    assert "drawn at random: 10 of 40 documents, 20 rows to rate" in done.stderr
    assert "rated documents" in done.stdout
    assert "type the command again with --sheet sheet.csv in place of --plan 10 -o sheet.csv" in done.stderr
    header, *rows = (scored / "sheet.csv").read_text(encoding="utf-8").splitlines()
    assert (header.split(",")[0], header.split(",")[-1], len(rows)) == ("key", "gold", 20)
    (scored / "sheet.csv").write_text("\n".join([header, *(f"{row}{3 + at % 2}" for at, row in enumerate(rows))]))
    found = json.loads(verb(scored, "estimate", "--human", "gold", "--sheet", "sheet.csv", "--json").stdout)
    assert found["estimates"]["a"]["rated"] == 10
    refused = verb(scored, "estimate", "--human", "gold", "--plan", 10, "-o", "sheet.csv", code=2)
    assert "may hold ratings" in refused.stderr
    assert "--plan" in verb(scored, "estimate", "--human", "gold", "-o", "other.csv", code=2).stderr
