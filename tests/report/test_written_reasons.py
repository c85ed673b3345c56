"""Reasons on the page of a run: beside their rows, inert, and never those of another run."""

from __future__ import annotations

import json

import pytest
from html_page import Page
from report_data import HOSTILE, rows

from geval_local.errors import DataError
from geval_local.report.run_page import RunPage
from geval_local.report.written_reasons import read_reasons, reason_notes

METRIC = "coherence"


def line(made, row, text="It cites the text.", **more):
    figures = made[row - 1]["geval"][METRIC]
    record = {
        "row": row,
        "metric": METRIC,
        "score": figures["score"],
        "label": figures["mode"],
        "reason": text,
        "is_complete": True,
        "cites_text": True,
        "error": None,
        "prompt_sha256": "ab" * 32,
        "signature": "judge:models/wise@12ab|tokenizer:34",
    }
    return record | more


@pytest.fixture
def made():
    return rows(12, unscored=(3,))


@pytest.fixture
def write(tmp_path):
    def save(*lines):
        path = tmp_path / "reasons.jsonl"
        path.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
        return read_reasons(path)

    return save


def test_reasons_stand_beside_their_rows_with_label_and_prompt(tmp_path, made, write):
    reasons = write(
        line(made, 2),
        line(made, 7, "Vague.", cites_text=False, is_complete=False),
        line(made, 9, None, error="the judge wrote nothing", prompt_sha256=None),
    )
    page = Page(RunPage(made, reasons=reasons).write(tmp_path / "r.html").read_text(encoding="utf-8"))
    held = {metric["name"]: metric["reasons"] for metric in page.data["metrics"]}
    assert held["fluency"] == []
    assert [item for item, _ in held[METRIC]] == [1, 6, 8]
    first, second, third = (reason for _, reason in held[METRIC])
    assert first["label"] == made[1]["geval"][METRIC]["mode"]
    assert (first["text"], first["prompt"], first["judge"]) == ("It cites the text.", "ab" * 32, "wise@12ab")
    assert (second["cites"], second["complete"]) == (False, False)
    assert (third["text"], third["error"]) == ("", "the judge wrote nothing")
    assert f"2 reasons on {METRIC} by wise@12ab" in page.text
    assert "1 of 3 rows have none. 1 did not come to an end. 1 cites nothing of the text" in page.text


def test_reasons_are_counted(made, write):
    (notes,) = reason_notes(write(line(made, 1), line(made, 2, None, error="no"), line(made, 3, cites_text=False)))
    assert [notes[name] for name in ("rows", "missing", "cut", "uncited")] == [3, 1, 0, 1]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"row": 99}, "row 2: explains row 99, and results has none of that number"),
        ({"metric": "wit"}, "row 2: explains a score of 'wit', and results holds coherence, fluency"),
        ({"score": 0.25}, "row 2: explains the score 0.25 of row 5"),
        ({"label": "none"}, "row 2: explains the label 'none' of row 5"),
    ],
)
def test_reasons_of_another_run_are_rejected(tmp_path, made, write, change, told):
    with pytest.raises(DataError, match="it belongs to another run") as caught:
        RunPage(made, reasons=write(line(made, 1), line(made, 5) | change)).write(tmp_path / "r.html")
    assert told in caught.value.message
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize(
    ("lines", "told"),
    [([{"row": 1}], "row 1: is no reason: 'metric' is missing"), ([], "holds no reasons")],
)
def test_what_is_no_file_of_reasons_is_told(write, lines, told):
    with pytest.raises(DataError, match=told):
        write(*lines)


def test_hostile_reasons_are_inert(tmp_path, made, write):
    reasons = write(
        *(
            line(made, place, text, prompt_sha256=text, signature=f"judge:{text}@1")
            for place, text in enumerate(HOSTILE[:3], start=1)
        )
    )
    page = Page(RunPage(made, reasons=reasons).write(tmp_path / "r.html").read_text(encoding="utf-8"))
    plain = Page(RunPage(made).write(tmp_path / "plain.html").read_text(encoding="utf-8"))
    assert [tag for tag in page.tags if tag != "p"] == [tag for tag in plain.tags if tag not in ("p",)]
    (held,) = (metric["reasons"] for metric in page.data["metrics"] if metric["name"] == METRIC)
    assert [reason["text"] for _, reason in held] == list(HOSTILE[:3])
