"""Which rows people should rate, the sheet that they fill in, and the interval that is promised for it."""

import json

import numpy as np
import pytest

from geval_local import estimate, plan_ratings
from geval_local.analysis.rating_plans import save_sheet
from geval_local.analysis.results import read_results, read_rows
from geval_local.errors import ConfigurationError, DataError, OutputError


def scored(rng, documents=100, rated=0, slope=0.8):
    rows = []
    for document in range(documents):
        base = rng.normal()
        for system in ("good", "poor"):
            quality = base + 0.5 * rng.normal() + (system == "good")
            score = 3 + slope * quality + 0.4 * rng.normal()
            row = {"id": f"{document}/{system}", "doc": f"d{document}", "system": system, "output": "=a text"}
            row["truth"] = 3 + quality + 0.3 * rng.normal()
            rating = {"rating": row["truth"]} if document < rated else {}
            rows.append(row | rating | {"geval": {"m": {"score": score}}})
    return rows


def drawn(plan):
    return {row["doc"] for row in plan.sheet}


def test_the_draw_is_of_whole_documents_and_of_all_scores():
    rows = scored(np.random.default_rng(0))
    plan = plan_ratings(rows, "rating", documents=20, group_by="doc", seed=4)
    assert (plan.drawn, len(drawn(plan)), len(plan.sheet)) == (20, 20, 40)
    means = {r["doc"]: np.mean([o["geval"]["m"]["score"] for o in rows if o["doc"] == r["doc"]]) for r in rows}
    ranked = sorted(means, key=means.get)
    ranks = [ranked.index(document) for document in drawn(plan)]
    assert sorted(rank // 10 for rank in ranks) == sorted([*range(10)] * 2)  # two of every tenth of the scores
    assert plan == plan_ratings(rows, "rating", documents=20, group_by="doc", seed=4)
    assert drawn(plan) != drawn(plan_ratings(rows, "rating", documents=20, group_by="doc", seed=5))


def test_every_document_has_the_same_chance():
    rows = scored(np.random.default_rng(1), documents=23)
    counts = dict.fromkeys((row["doc"] for row in rows), 0)
    for seed in range(300):
        # 23 is no multiple of 7, nor of ten.
        for document in drawn(plan_ratings(rows, "rating", documents=7, group_by="doc", seed=seed)):
            counts[document] += 1
    expected = 300 * 7 / 23
    assert max(abs(count - expected) for count in counts.values()) < 4 * np.sqrt(expected * (1 - 7 / 23))


def test_who_rates_sees_neither_scores_nor_systems():
    sheet = plan_ratings(scored(np.random.default_rng(2)), "rating", documents=30, group_by="doc").sheet
    assert set(sheet[0]) == {"key", "doc", "output", "rating"}
    assert "good" not in json.dumps(sheet)
    places = [int(row["doc"][1:]) for row in sheet]
    assert places != sorted(places)


def test_numbers_that_lead_and_columns_of_the_same_name_stay_out():
    rows = [
        row
        | {
            "key": "mine",
            "scores": {"ann": 3},
            "old": "4.5",
            "liked": True,
            "second": "4" if row["doc"] == "d0" else "",
        }
        | {"turns": [{"role": "user", "content": "Hello"}]}
        for row in scored(np.random.default_rng(7), documents=6)
    ]
    plan = plan_ratings(rows, "scores.bob", documents=2, group_by="doc")
    assert set(plan.sheet[0]) == {"key", "doc", "output", "turns", "scores.bob"}
    assert "mine" not in json.dumps(plan.sheet)
    assert plan.tables()[0].rows[0][0] == "2"
    assert "sheet" not in plan.to_dict()


def test_a_pilot_of_one_system_alone_is_none():
    rows = scored(np.random.default_rng(8), documents=30)
    for row in rows[:20]:
        row["rating"] = 3.0 if row["system"] == "good" else None
    plan = plan_ratings(rows, "rating", documents=5, group_by="doc")
    assert "judge's scores" in plan.source
    for row in rows[:20]:
        row["rating"] = 3.0  # all alike
    assert plan_ratings(rows, "rating", documents=5, group_by="doc").tables()[0].rows


@pytest.mark.parametrize("name", ["sheet.csv", "sheet.jsonl"])
def test_a_sheet_that_is_filled_in_is_the_ratings_themselves(tmp_path, name):
    rows = scored(np.random.default_rng(3))
    truth = {row["id"]: row["truth"] for row in rows}
    plan = plan_ratings(rows, "rating", documents=25, group_by="doc")
    save_sheet(plan, tmp_path / name)
    if name.endswith("csv"):
        assert "'=a text" in (tmp_path / name).read_text()  # no spreadsheet runs it
    whose = dict(zip(read_results(rows).blind_keys, truth, strict=True))
    filled = [dict(row) | {"rating": truth[whose[row["key"]]]} for row in read_rows(tmp_path / name)]
    (tmp_path / "filled.jsonl").write_text("".join(json.dumps(row) + "\n" for row in filled))
    found = estimate(rows, "rating", group_by="doc", sheet=tmp_path / "filled.jsonl")
    plain = [row | {"rating": truth[row["id"]] if row["doc"] in drawn(plan) else None} for row in rows]
    assert found.to_dict() == estimate(plain, "rating", group_by="doc").to_dict()
    with pytest.raises(OutputError, match="may hold ratings"):
        save_sheet(plan, tmp_path / name)
    foreign = [*filled[:3], filled[0]], [*filled[:2], {"key": "none", "rating": 3}]
    for wrong, told in zip(foreign, ("row 4: the key .* is also that of row 1", "belongs to no row"), strict=True):
        (tmp_path / "wrong.jsonl").write_text("".join(json.dumps(row) + "\n" for row in wrong))
        with pytest.raises(DataError, match=told):
            estimate(rows, "rating", group_by="doc", sheet=tmp_path / "wrong.jsonl")


def test_a_sheet_belongs_to_no_other_order_of_rows_without_ids(tmp_path):
    """By their numbers alone the ratings would be of the texts that have come to these places."""
    rows = scored(np.random.default_rng(4), documents=12)
    for place, row in enumerate(rows):
        row["output"] = f"text {place}"
        del row["id"]
    save_sheet(plan_ratings(rows, "rating", documents=4, group_by="doc"), tmp_path / "sheet.csv")
    filled = [dict(row) | {"rating": 3} for row in read_rows(tmp_path / "sheet.csv")]
    (tmp_path / "filled.jsonl").write_text("".join(json.dumps(row) + "\n" for row in filled))
    assert estimate(rows, "rating", group_by="doc", sheet=tmp_path / "filled.jsonl")
    with pytest.raises(DataError, match="belongs to no row"):
        estimate(rows[::-1], "rating", group_by="doc", sheet=tmp_path / "filled.jsonl")


@pytest.mark.parametrize("slope", [0.0, 0.8])
def test_the_intervals_are_as_long_as_a_pilot_says(slope):
    rng, lengths, promised = np.random.default_rng(5), [], []
    for _ in range(40):
        rows = scored(rng, documents=150, rated=30, slope=slope)
        plan = plan_ratings(rows, "rating", documents=20, group_by="doc")
        promised.append(plan.lengths[50]["with this judge"])
        for row in rows:
            row["rating"] = row["truth"] if row["doc"] in drawn(plan) or int(row["doc"][1:]) < 30 else None
        found = estimate(rows, "rating", group_by="doc").estimates["good"]
        lengths.append((found.combined.high - found.combined.low) / 2)
    assert np.mean(promised) == pytest.approx(np.mean(lengths), rel=0.1)


def test_documents_that_are_rated_are_not_drawn_again():
    rows = scored(np.random.default_rng(6), documents=40, rated=30)
    plan = plan_ratings(rows, "rating", documents=10, group_by="doc")
    assert (plan.rated, min(int(name[1:]) for name in drawn(plan))) == (30, 30)
    assert "with this judge" in plan.tables()[0].headers
    with pytest.raises(DataError, match="10 have a score and no rating"):
        plan_ratings(rows, "rating", documents=11, group_by="doc")
    with pytest.raises(ConfigurationError, match="field that people fill in"):
        plan_ratings(rows, documents=5, group_by="doc")
    unrated = plan_ratings(rows, raters=["ann", "ben"], documents=5, group_by="doc")
    assert {"ann", "ben"} <= set(unrated.sheet[0])
    assert "judge's scores" in unrated.source
