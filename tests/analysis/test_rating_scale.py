"""Ratings outside of the scale: refused or left out one by one, before any mean of a list."""

from __future__ import annotations

import json
import logging
import math

import pytest

from geval_local.analysis.ratings.rated import read_rated
from geval_local.analysis.ratings.values import ANY_NUMBER, RatingScale, members_of, read_ratings
from geval_local.analysis.results import ScoredRun
from geval_local.errors import ConfigurationError, DataError
from geval_local.scale import Scale
from geval_local.score import Distribution, Estimator, Score

FIVE = RatingScale.of("1-5")


def read(values, scale=FIVE):
    return read_ratings(enumerate(({"r": value} for value in values), start=1), "r", "f.jsonl", scale)


def test_ratings_outside_are_counted_and_named_with_the_first_row():
    with pytest.raises(DataError) as error:
        read([3, -1, 4, 99, -1, "-1"])
    assert error.value.message == (
        "f.jsonl: 4 of 6 ratings in 'r' are outside of the scale 1-5: -1 (3 times), 99; the first is in row 2"
    )
    assert "`skip_outside=True`" in error.value.hint
    assert "`human_scale=0-100`" in error.value.hint


def test_of_many_values_some_are_named():
    with pytest.raises(DataError, match=r": 10, 11, 12, 13, 14 and 3 other values; the first is in row 1"):
        read([*range(10, 18), 3])


def test_a_member_outside_is_found_before_the_mean_hides_it():
    with pytest.raises(DataError, match=r"1 of 2 ratings .* -1; the first is in row 1"):
        read([[5, -1]])  # the mean, 2, is on the scale
    found = read([[5, -1], [-1, None], [2, 3]], RatingScale.of("1-5", skip_outside=True))
    assert (found[0], math.isnan(found[1]), found[2]) == (5, True, 2.5)


def test_what_is_left_out_is_said(caplog):
    with caplog.at_level(logging.WARNING, "geval_local"):
        read([3, -7], RatingScale.of("1-5", skip_outside=True))
    assert (
        "1 of 2 ratings in 'r' are outside of the scale 1-5: -7; the first is in row 2; they are left out"
        in caplog.text
    )


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([1, 5, 2.5, None, "", math.nan], FIVE),
        ([0, 1, True, "false"], FIVE),  # yes and no
        ([5.0000000001], FIVE),  # the rounding of a mean
        ([-1e9, 1e9], ANY_NUMBER),
        ([0, 50, 100], RatingScale.of("0-100")),
        ([0.2, 1], RatingScale.of("Yes/No")),
        ([1, 3], RatingScale.of(Scale.parse({"poor": 1, "fair": 2, "good": 3}))),
    ],
)
def test_ratings_on_the_scale_are_read(values, scale):
    assert len(read(values, scale)) == len(values)


def test_a_scale_of_words_is_named_with_its_ends():
    with pytest.raises(DataError, match=r"outside of the scale poor/fair/good \(1 to 3\): 4"):
        read([4], RatingScale.of(Scale.parse({"poor": 1, "fair": 2, "good": 3})))


def test_where_no_scale_is_known_nothing_is_outside_of_it():
    with pytest.raises(ConfigurationError, match="nothing says which scale"):
        RatingScale.of(None, skip_outside=True)


def test_rows_of_a_data_frame_are_on_the_scale_of_their_label_probabilities():
    score = Score.from_distribution("m", Distribution(Scale.parse("1-3"), [-3.0, -0.5, -1.5]), estimator=Estimator())
    rows = [{"human": rating, "geval": {"m": score.to_dict()}} for rating in (2, 7)]
    with pytest.raises(DataError, match=r"results: 1 of 2 ratings in 'human' are outside of the scale 1-3: 7"):
        ScoredRun.of(rows).items("m", human="human")
    assert [item.human for item in ScoredRun.of(rows, human_scale="1-10").items("m", human="human")] == [2, 7]
    left = ScoredRun.of(rows, skip_outside=True).items("m", human="human")
    assert math.isnan(left[1].human)


def test_a_path_that_meets_a_list_of_objects_names_its_raters():
    rows = [{"experts": [{"c": 4}, {"c": 5}, {"c": 3}], "plain": [4, 5], "one": {"c": 3}}]
    assert members_of(rows, "experts.c") == ["experts.0.c", "experts.1.c", "experts.2.c"]
    assert [members_of(rows, path) for path in ("experts.0.c", "experts.*.c", "plain", "one.c", "none")] == [[]] * 5
    assert members_of([{"experts.c": 2, **rows[0]}], "experts.c") == []  # a column of that name
    assert members_of([{"experts": [{"c": 4}]}], "experts.c") == []  # nobody to compare with
    assert members_of([{"experts": json.dumps(rows[0]["experts"])}], "experts.c")[2] == "experts.2.c"  # a CSV cell


def test_ratings_of_a_file_are_checked_before_anything_is_scored(tmp_path):
    path = tmp_path / "mine.jsonl"
    rows = [{"source": "s", "output": "o", "human": rating} for rating in (3, 4, -1)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    options = {"metrics": ["summarization/coherence"], "human": "human"}
    with pytest.raises(DataError, match=r"mine.jsonl: 1 of 3 ratings .* outside of the scale 1-5: -1; .* row 3"):
        read_rated(path, **options)
    read_rated(path, **options, skip_outside=True)
    read_rated(path, **options, human_scale="-1 to 5")
