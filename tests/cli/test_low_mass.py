"""The warning of low label mass: which tokens took it, and what to do."""

from __future__ import annotations

import pytest

from geval_local.cli.output.run_summary import low_mass_warning, show_summaries
from geval_local.score import Score
from geval_local.summary import TOKENS_NAMED, Tally

SIGNATURE = "judge:j@1|metric:m@2|scale:{scale}|style:{style}|dtype:float32"


def summary(*rows: tuple[float, tuple[tuple[str, float], ...]]):
    tally = Tally("m")
    for number, (mass, other) in enumerate(rows):
        tally.add(f"row {number}", number, Score("m", value=2.0, label_mass=mass, other_tokens=other))
    return tally.summary()


def test_the_tokens_that_took_the_mass_are_named_with_their_mean_share():
    found = summary((0.2, ((" The", 0.5), (" A", 0.2))), (0.4, ((" The", 0.3),)), (1.0, ()))
    assert found.other_tokens == ((" The", pytest.approx(0.4)), (" A", pytest.approx(0.1)))
    assert found.to_dict()["label_mass"]["other_tokens"][0] == [" The", pytest.approx(0.4)]
    told = low_mass_warning(found, SIGNATURE.format(scale="1-5", style="chat"))
    assert "below 0.9 in 66.7% of the scored rows" in told
    assert "it writes ' The' (40.0%), ' A' (10.0%)" in told
    assert "continues as another number" not in told


def test_only_a_few_tokens_are_named():
    found = summary((0.1, tuple((f" w{number}", 0.1 - number / 1000) for number in range(9))))
    assert [token for token, _ in found.other_tokens] == [f" w{number}" for number in range(TOKENS_NAMED)]


def test_mass_that_no_token_took_went_on_behind_the_first_token_of_a_label():
    told = low_mass_warning(summary((0.7, ((" A", 0.01),))), SIGNATURE.format(scale="0-1", style="chat"))
    assert "the rest starts like a label but continues as another number or word" in told


@pytest.mark.parametrize(
    ("scale", "style", "remedy"),
    [
        ("1-5", "completion", "leave --style completion out"),
        ("1-5", "chat-no-prefill", "--style chat"),
        ("poor/fair/good", "chat", "a scale of numbers"),
        ("1-5", "chat+closed-thinking", "what each label means"),
    ],
)
def test_the_remedy_fits_the_style_and_the_scale(scale, style, remedy):
    signature = SIGNATURE.format(scale=scale, style=style)
    told = low_mass_warning(summary((0.1, ((" The", 0.9),))), signature, is_plain=True)
    assert remedy in told
    # A judge that completes a text although nobody asked for that has no template.
    assert "--style completion" not in low_mass_warning(summary((0.1, ((" The", 0.9),))), signature)
    assert ("--style chat" in told) is (style == "chat-no-prefill")


def test_a_judge_that_does_not_answer_has_no_mean(capsys):
    silent, answered = summary((0.003, ()), (0.005, ())), summary((0.9, ()), (0.5, ()))
    told = "no mean is shown: this judge does not answer (label mass 0.004)"
    record = silent.to_dict()
    assert (record["mean"], record["interval"], record["standard_error"]) == (None, None, None)
    assert record["warning"] == told
    assert answered.to_dict()["mean"] == 2.0
    show_summaries([silent])
    printed = " ".join(capsys.readouterr().out.split())
    assert told in printed
    assert "2.000" not in printed
    show_summaries([answered])
    assert "2.000" in capsys.readouterr().out
