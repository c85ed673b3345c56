"""Words that contradict a metric's scale are found; years, counts, prices and percentages are none."""

from __future__ import annotations

import pytest

from geval_local.metric import Metric
from geval_local.metric_file import preset_names
from geval_local.scale import Scale
from geval_local.scale_words import other_scale, scale_doubts

CONTRADICTIONS = [
    ("1-5", "Score the answer from 0.0 to 1.0."),
    ("1-5", "Return a value between 0.0 and 1.0, where 1.0 is perfect."),
    ("1-5", "Assign 0.9 if only one fact is missing."),
    ("1-5", "Give it 0 if the answer is empty."),
    ("1-5", "Give a score of 10 for a perfect answer."),
    ("1-5", "Rate the helpfulness of the response from 1 to 10."),
    ("1-5", "Rate how helpful the response is from 1 to 10."),
    ("1-5", "Rate it 1-10."),
    ("1-5", "On a scale of 1 to 10, how clear is the text?"),
    ("1-5", "Use a 0-100 scale."),
    ("1-5", "Judge it on a 7-point Likert scale."),
    ("1-5", "Rate the coherence out of 10."),
    ("1-5", "Score: 8/10 if there are few mistakes."),
    ("1-5", "Express the score as a percentage."),
    ("1-5", "Give a percentage."),
    ("1-5", "A score of 90% means that nearly all is right."),
    ("1-5", "Score between 0% and 100%."),
    ("1-5", "How clear the text is. Answer yes or no."),
    ("1-5", "Scores of 6-8: good."),
    ("0-1", "Rate from 1 to 5."),
    ("1-10", "Rate the text on a scale from 1 to 5."),
    ("1-100", "Rate the text out of 10."),
    ("Yes/No", "Rate from 1 to 5 whether the text is polite."),
    ("Yes/No", "Choose a score between 0 and 10."),
    ("Yes/No", "Assign 0.5 if it is unclear."),
]
HARMLESS = [
    ("1-5", "The summary has between 1 and 5 sentences."),
    ("1-3", "A good answer names from 2 to 6 reasons."),
    ("1-5", "Lower the score for answers with 50 to 100 words."),
    ("1-5", "Lower the score if the price is between 10 and 20."),
    ("1-5", "Whether the events from 2019 to 2021 are in order."),
    ("1-5", "Rate how well the years 1990 to 2000 are covered."),
    ("1-5", "Rate the text on a scale of 1 to 5."),
    ("1-5", "Score it from 1 (worst) to 5 (best)."),
    ("1-5", "Rate from 5 to 1."),
    ("1-5", "Scores of 4-5 are for texts without mistakes, 1-2 for the others."),
    ("1-5", "Assign 3 if half of the facts are there."),
    ("1-5", "Use a 5-point scale."),
    ("0-4", "Use a 5-point scale."),
    ("1-5", "Rate it out of 5."),
    ("0-100", "Give the score as a percentage."),
    ("0-1 step 0.1", "Assign 0.9 if one fact is missing, on a scale of 0.0 to 1.0."),
    ("1-5", "Whether the percentage growth of the revenue, such as 4.5%, is quoted correctly."),
    ("1-5", "Lower the score if a percentage is given without its base."),
    ("1-5", "Rate whether the interest rate, between 2 and 3 percent, is named."),
    ("1-5", "Give 2 reasons and 10 examples."),
    ("1-5", "Nine out of ten customers, or 3 out of 4 facts, are enough."),
    ("1-5", "The reply says yes or no before it explains."),
    ("1-5", "Whether it keeps the dates 10/10/2024 and 24/7 opening hours."),
    ("Yes/No", "Whether the text is polite. Answer yes or no."),
    ("Yes/No", "Whether the answer has 1 to 3 sentences."),
    ("1-5", "Whether a heart rate between 60 and 100 beats is called normal."),
    ("1-5", "The map has a scale of 1:50000."),
    ("1-5", "Steps 1 to 3 come before step 4."),
]


@pytest.mark.parametrize(("scale", "text"), CONTRADICTIONS)
def test_contradictions_are_found(scale, text):
    found = other_scale(f"The quality of the answer. {text}", Scale.parse(scale))
    assert found is not None
    assert found in text


@pytest.mark.parametrize(("scale", "text"), HARMLESS)
def test_harmless_sentences_are_left_alone(scale, text):
    assert other_scale(text, Scale.parse(scale)) is None


def test_every_part_of_a_metric_is_looked_at():
    metric = Metric(
        name="a/b",
        criteria="How clear it is, out of 7 points, as a score out of 10.",
        steps=["Read it.", "Assign 0.9 if it is clear."],
        rubric={"1": "0.0 to 0.2", "5": "clear, with 1 to 2 slips"},
        scale="1-5",
    )
    assert [one.split(":")[1] for one in scale_doubts(metric)] == [
        " criteria names another scale than 1-5",
        " step 2 names another scale than 1-5",
        " rubric 1 names another scale than 1-5",
    ]


@pytest.mark.parametrize("name", preset_names())
def test_presets_agree_with_their_scales(name):
    assert scale_doubts(Metric.load(name)) == []
