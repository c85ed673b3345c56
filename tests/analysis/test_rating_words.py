"""Ratings as people write them: words, fractions, shares, stars; read where a scale says what they are."""

from __future__ import annotations

import logging
import math

import pytest

from geval_local.analysis.ratings.values import RatingScale, read_ratings
from geval_local.errors import DataError
from geval_local.scale import Scale


def read(values, scale, **more):
    rows = list(enumerate(({"human": value} for value in values), start=1))
    return read_ratings(rows, "human", "rated.csv", RatingScale.of(scale, **more))


@pytest.mark.parametrize(
    ("values", "scale", "expected"),
    [
        (["yes", "No", "YES "], "Yes/No", [1, 0, 1]),
        (["agree", "disagree"], "{agree: 1, disagree: 0}", [1, 0]),
        (["4 - Good", "5 – Excellent", "1: bad", "2 (poor)"], "1-5", [4, 5, 1, 2]),
        (["4/5", "3.5 / 5"], "1-5", [4, 3.5]),
        (["30 %", "5%"], "0-100", [30, 5]),
        (["30 %"], "0-1 step 0.1", [0.3]),
        (["2,5", "3"], "1-5", [2.5, 3]),
        (["★★★☆☆", "⭐⭐", "★★½", "4 stars", "⭐\ufe0f⭐\ufe0f"], "0.5-5 step 0.5", [3, 2, 2.5, 4, 2]),
        (["4 out of 5", "3,667"], "1-5", [4, 3.667]),
        (["NA", "n/a", "", None, "-", "\u2014", "none", math.nan, 3], "{1: 3, 3: 1}", [math.nan] * 8 + [1]),
        ([1, 4.0], "{1: 4, 2: 3, 3: 2, 4: 1}", [4, 1]),  # ranks
    ],
)
def test_what_a_person_would_recognise_is_read(values, scale, expected):
    assert read(values, scale) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("value", "scale"),
    [
        ("yes", "1-5"),
        ("4/10", "1-5"),
        ("30 %", "1-5"),
        ("4 - 5", "1-5"),
        ("1,5,2", "1-5"),
        ("x", None),
        ("1,000", "0-1000"),
        ("2,500", None),
        (1.5, "{1: 3, 2: 2, 3: 1}"),
        (4, "{1: 3, 2: 2, 3: 1}"),
    ],
)
def test_what_the_scale_does_not_say_is_refused_with_the_remedy(value, scale):
    with pytest.raises(DataError, match=r"rated\.csv, row 1: human is not a number") as caught:
        read([value], scale)
    assert '`human_scale={"yes": 1, "no": 0}`' in str(caught.value.hint)


def test_the_reading_is_told_once(caplog):
    caplog.set_level(logging.INFO, logger="geval_local")
    for _ in range(2):
        read(["4 - Good", "2 - Poor", 3, "1"], "1-5")
    told = [one.getMessage() for one in caplog.records]
    assert told == ["the ratings in 'human' are read so: '4 - Good' is 4, '2 - Poor' is 2"]


def test_a_mapping_is_a_scale_on_a_command_line():
    assert Scale.parse("{yes: 1, no: 0}").labels == ("yes", "no")
    assert Scale.parse("{'very good': 2, bad: -1.5}").values == (2, -1.5)
