"""Which pairs are judged: all, with a baseline, within a budget, and pairs that the rows are themselves."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest

from geval_local.errors import ConfigurationError, DataError, UnscorableError
from geval_local.io.input_files import read_samples
from geval_local.io.pairs import PairPlan, pair_samples
from geval_local.io.samples import Sample

SYSTEMS = "abcdefgh"


def rows(documents=4, systems=SYSTEMS):
    """Rows by system, so that those of a document are apart."""
    return [
        Sample(
            {"doc_id": f"d{document}", "system_id": system, "source": f"S{document}", "output": f"{system}{document}"},
            row=1 + place * documents + document,
            origin="data.jsonl",
        )
        for place, system in enumerate(systems)
        for document in range(documents)
    ]


def pairs_of(found):
    return [(own.fields["document"], own.fields["system_a"], own.fields["system_b"]) for own in found]


def test_all_pairs_come_document_by_document_and_read_each_their_row():
    found = list(pair_samples(rows(2, "abc"), PairPlan()))
    assert pairs_of(found) == [(d, *p) for d in ("d0", "d1") for p in (("a", "b"), ("a", "c"), ("b", "c"))]
    assert found[2].texts(["source", "output_a", "output_b"]) == {
        "source": "S0",
        "output_a": "b0",
        "output_b": "c0",
    }
    assert found[2].fields["id"] == "3/5"
    assert found[2].where == "data.jsonl, rows 3 and 5"


def test_a_baseline_is_compared_with_everybody_and_nobody_else_is():
    found = pairs_of(pair_samples(rows(2, "abc"), PairPlan(baseline="b")))
    assert found == [("d0", "a", "b"), ("d0", "b", "c"), ("d1", "a", "b"), ("d1", "b", "c")]
    with pytest.raises(DataError, match=r"no row is of the baseline 'bb'.*Systems: a, b, c|baseline 'bb'"):
        list(pair_samples(rows(2, "abc"), PairPlan(baseline="bb")))


@pytest.mark.parametrize("budget", [5, 28, 56, 100])
def test_a_budget_is_spread_evenly_and_is_the_same_every_time(budget):
    plan = PairPlan(budget=budget, seed=3)
    found = pairs_of(pair_samples(rows(), plan))
    assert found == pairs_of(pair_samples(rows(), plan))
    assert len(found) == len(set(found)) == min(budget, 4 * 28)
    by_document = Counter(document for document, _, _ in found)
    assert max(by_document.values()) - min(by_document[f"d{number}"] for number in range(4)) <= 1
    pairs = Counter((a, b) for _, a, b in found)
    possible = [(a, b) for place, a in enumerate(SYSTEMS) for b in SYSTEMS[place + 1 :]]
    assert max(pairs.values()) - min(pairs[pair] for pair in possible) <= 1
    systems = Counter(system for _, a, b in found for system in (a, b))
    assert max(systems.values()) - min(systems[system] for system in SYSTEMS) <= 2
    if budget == 5:
        assert found != pairs_of(pair_samples(rows(), PairPlan(budget=budget, seed=4)))


def test_rows_that_make_no_pair_keep_their_reasons():
    broken = [
        *rows(1, "ab"),
        Sample({"raw": "{"}, 7, "data.jsonl", "data.jsonl, row 7: not valid JSON"),
        Sample({"doc_id": "d0", "output": "x"}, 8, "data.jsonl"),
        Sample({"system_id": "c", "output": "x"}, 9, "data.jsonl"),
    ]
    found = list(pair_samples(broken, PairPlan()))
    assert len(found) == 4
    assert "not valid JSON" in found[1].error
    assert "row 8: the field 'system_id' of the system is missing" in found[2].error
    assert "row 9: the field 'doc_id' of the document is missing" in found[3].error
    empty = [*rows(1, "ab"), Sample({"doc_id": "d0", "system_id": "c", "source": "S", "output": " "}, 9, "data.jsonl")]
    with pytest.raises(UnscorableError, match="row 9: the field 'output' is only white space"):
        list(pair_samples(empty, PairPlan()))[1].texts(["source", "output_a", "output_b"])
    with pytest.raises(DataError, match="no pair to be judged"):
        list(pair_samples(rows(3, "a"), PairPlan()))


@pytest.mark.parametrize(
    "wrong",
    [
        {"baseline": "a", "budget": 3},
        {"budget": 3, "given": "llmbar"},
        {"budget": 0},
        {"given": "llmba"},
    ],
)
def test_a_plan_that_does_not_hold_together_is_refused(wrong):
    with pytest.raises(ConfigurationError):
        PairPlan(**wrong)


LLMBAR = {"input": "Add 75 and 48.", "output_1": "123", "output_2": "134", "label": 1}
PANDALM = {
    "idx": 4,
    "motivation_app": "Search",
    "cmp_key": "opt-7b_pythia-6.9b",
    "instruction": "Give queries.",
    "input": math.nan,
    "response1": "1. How?",
    "response2": "1. Why?",
    "annotator1": 2,
    "annotator2": 0,
    "annotator3": 1,
}
TURNS = [
    {"role": "user", "content": "Q1"},
    {"role": "assistant", "content": "A1"},
    {"role": "user", "content": "Q2"},
    {"role": "assistant", "content": "A2"},
]
MT_BENCH = {
    "question_id": 81,
    "model_a": "alpaca-13b",
    "model_b": "gpt-3.5-turbo",
    "winner": "model_b",
    "judge": "author_2",
    "conversation_a": TURNS,
    "conversation_b": [{**turn, "content": turn["content"].replace("A", "B")} for turn in TURNS],
    "turn": 1,
}


def given(tmp_path, form, *records):
    path = tmp_path / "pairs.json"
    path.write_text(json.dumps(list(records)), encoding="utf-8")
    return list(pair_samples(read_samples(path), PairPlan(given=form)))


def test_llmbar_pandalm_and_mt_bench_are_read_as_published(tmp_path):
    (found,) = given(tmp_path, "llmbar", LLMBAR)
    assert found.texts(["question", "output_a", "output_b"]) == {
        "question": "Add 75 and 48.",
        "output_a": "123",
        "output_b": "134",
    }
    assert found.fields["human"] == [1.0]
    one, other = given(tmp_path, "pandalm", PANDALM, {**PANDALM, "input": "In Spain.", "annotator1": 1})
    assert one.fields["prompt"] == "Give queries."
    assert other.fields["prompt"] == "Give queries.\n\nIn Spain."
    assert one.fields["human"] == [0.0, 0.5, 1.0]
    assert (one.fields["system_a"], one.fields["system_b"]) == ("opt-7b", "pythia-6.9b")
    assert one.fields["document"] != other.fields["document"]
    first, second, tie = given(
        tmp_path, "mt-bench", MT_BENCH, {**MT_BENCH, "turn": 2}, {**MT_BENCH, "winner": "tie (inconsistent)"}
    )
    assert first.texts(["question", "output_a", "output_b"]) == {"question": "Q1", "output_a": "A1", "output_b": "B1"}
    assert second.texts(["question", "output_a", "output_b"])["output_b"] == "B1\n\nB2"
    assert second.fields["prompt"] == "Q1\n\nQ2"
    assert [own.fields["human"] for own in (first, second, tie)] == [[0.0], [0.0], [0.5]]
    assert (first.fields["document"], first.fields["system_b"]) == ("81", "gpt-3.5-turbo")
    (won,) = given(tmp_path, "mt-bench", {**MT_BENCH, "winner": "model_a"})
    assert won.fields["human"] == [1.0]


def test_rows_of_another_shape_keep_their_places_with_the_reason(tmp_path):
    found = given(
        tmp_path,
        "mt-bench",
        {**MT_BENCH, "winner": "nobody"},
        {**MT_BENCH, "conversation_a": "A1"},
        LLMBAR,
        MT_BENCH,
    )
    assert "winner is 'nobody', and not 1 for A" in found[0].error
    assert "conversation_a is no list of 2 messages" in found[1].error
    assert "the column 'conversation_a' is missing" in found[2].error or "missing" in found[2].error
    assert found[3].error is None


def test_answers_to_different_prompts_are_no_pair(tmp_path):
    def chat(*texts):
        return [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]

    rejected = chat("Q?", "A.", "And?", "No.")
    found = given(
        tmp_path,
        "preference",
        *({"chosen": chat("Q?", one, "And?", "Yes."), "rejected": rejected} for one in ("B.", "A.")),
    )
    assert "chosen and rejected answer different prompts" in found[0].error
    assert found[1].fields["output_a"] == "Yes."
