"""Steps that cannot go with their metric are refused; the presets ship steps that can."""

from __future__ import annotations

import pytest

from geval_local.judge.steps import unfit
from geval_local.metric import Metric
from geval_local.metric_file import preset_names

WORDS = Metric(
    name="support/helpfulness",
    criteria="Whether the answer solves the customer's problem: it names the cause, gives steps, says what is next.",
    scale={"useless": 1, "meh": 2, "fine": 3, "great": 4},
)
NUMBERS = Metric(name="clarity", criteria="How clear the text is.", scale="1-5")


@pytest.mark.parametrize(
    ("metric", "step", "reason"),
    [
        (WORDS, "Assign a score for helpfulness on a scale of 1 to 5.", "another scale"),
        (NUMBERS, "Rate it from 1 to 10.", "another scale"),
        (NUMBERS, "Choose a score between 0 and 5.", "another scale"),
        (NUMBERS, "Answer yes or no based on the criteria.", "a form"),
        (NUMBERS, "Evaluation Form (scores ONLY):", "a form"),
        (NUMBERS, "Read the whole text with care once more and read the whole text with care once more.", "repeats"),
        (
            WORDS,
            "Whether the answer solves the customer's problem: it names the cause, gives the steps.",
            "copies the criteria",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason(metric, step, reason):
    assert reason in unfit(("Read the text.", step), metric)


def test_a_step_that_repeats_an_earlier_one_is_refused():
    step = "Look at every sentence of the text and note mistakes"
    assert "repeats" in unfit((step, f"Again: {step.lower()} once more."), NUMBERS)


def test_a_check_may_say_one_sentence_of_the_criteria_and_no_more():
    first = "Whether the reply tells the guest plainly what the house can do about the noise."
    metric = Metric(name="plain", criteria=f"{first} A plain reply names one thing.", scale="1-5", introduction="")
    check = f"Check {first[0].lower()}{first[1:]}"
    assert unfit(("Read the reply.", check), metric) is None
    for copy in (first, f"{check} A plain reply names one thing."):
        assert "copies the criteria" in unfit(("Read the reply.", copy), metric)
    introduced = Metric(name="plain", criteria="Whether it is plain.", scale="1-5", introduction=first)
    assert "copies the criteria" in unfit(("Read the reply.", check), introduced)


@pytest.mark.parametrize("step", ["Assign a score on a scale of 1 to 5.", "Read pages 2 to 9.", "Rate it 1-5."])
def test_what_fits_is_taken(step):
    assert unfit(("Read the text.", step), NUMBERS) is None


@pytest.mark.parametrize("name", preset_names())
def test_presets_ship_steps_that_fit(name):
    metric = Metric.load(name)
    assert not metric.needs_steps
    assert len(metric.steps) >= 3
    assert unfit(metric.steps, metric) is None
    assert "people" in metric.steps_provenance.generation


@pytest.mark.parametrize("name", ["assistant/helpfulness", "assistant/instruction_following", "style/conciseness"])
def test_what_people_ask_for_first_is_there(name):
    assert name in preset_names()
