"""Slices of rows: every value of a column, quartiles of numbers, rows without a value."""

from __future__ import annotations

import statistics

import pytest

from geval_local.errors import ConfigurationError
from geval_local.grouping import DocumentRule, Documents
from geval_local.score import Score
from geval_local.slices import NO_VALUE, find_slicings
from geval_local.summary import Tally


def sliced(rows, column, rule=None):
    (slicing,) = find_slicings(rows, [column], rule)
    return slicing, [slicing.slice_of(row, rule) for row in rows]


def test_names_are_slices_and_a_missing_value_is_its_own():
    rows = [{"language": one} for one in ("fr", "de", None, "de", "", "  ")] + [{}]
    slicing, found = sliced(rows, "language")
    assert slicing.names == ("de", "fr", NO_VALUE)
    assert found == ["fr", "de", NO_VALUE, "de", NO_VALUE, NO_VALUE, NO_VALUE]
    assert not slicing.told


def test_values_of_other_types_and_paths_into_columns():
    rows = [{"meta": {"paid": one}} for one in (True, False, True)]
    assert sliced(rows, "meta.paid")[1] == ["true", "false", "true"]
    assert sliced([{"n": 3}, {"n": 3.0}, {"n": "3"}], "n")[1] == ["3", "3", "3"]
    assert sliced([{"tags": ["a", "b"]}], "tags")[1] == ['["a", "b"]']


@pytest.mark.parametrize("as_text", [False, True])
def test_many_numbers_are_cut_into_quartiles(as_text):
    numbers = [7 * n % 101 for n in range(100)]
    rows = [{"age": str(n) if as_text else n} for n in numbers] + [{"age": None}]
    slicing, found = sliced(rows, "age")
    cuts = statistics.quantiles(numbers, n=4, method="inclusive")
    for number, name in zip(numbers, found, strict=False):
        low, high = map(int, name.split(" to "))
        assert low <= number <= high
        assert sum(number > cut for cut in cuts) == slicing.names.index(name)
    assert found[-1] == slicing.names[-1] == NO_VALUE
    assert [found.count(name) for name in slicing.names] == [25, 25, 25, 25, 1]
    assert "quartiles" in slicing.told


def test_few_numbers_are_names_and_equal_numbers_stay_together():
    years = [{"year": 2020 + n % 4} for n in range(20)]
    assert sliced(years, "year")[0].names == ("2020", "2021", "2022", "2023")
    skewed = [{"n": 0} for _ in range(90)] + [{"n": n} for n in range(1, 11)]
    slicing, found = sliced(skewed, "n")
    assert slicing.names == ("0 to 0", "1 to 10")
    assert found.count("0 to 0") == 90


def test_length_is_that_of_the_output_unless_a_column_has_the_name():
    rows = [{"answer": "word " * n} for n in range(1, 13)]
    slicing, found = sliced(rows, "length")
    assert slicing.of_output
    assert found[0] == "1 to 3"
    assert "words of the output" in slicing.told
    assert sliced([{"answer": "a b c", "length": "short"}], "length")[1] == ["short"]
    odd = [{"text of the bot": "word " * n} for n in range(1, 13)]
    assert sliced(odd, "length", DocumentRule.of(mapping={"output": "text of the bot"}))[1] == found


@pytest.mark.parametrize("column", ["user", "id"])
def test_an_id_is_an_error_with_its_count(column):
    rows = [{column: f"u{n}" if column == "user" else n} for n in range(1234)]
    with pytest.raises(ConfigurationError, match=rf'`by="{column}"`: the column has 1,234 different values'):
        find_slicings(rows, [column])


def test_a_column_that_is_not_there_is_an_error_with_the_nearest():
    with pytest.raises(ConfigurationError, match="did you mean 'language'") as caught:
        find_slicings([{"language": "de", "output": "x"}], ["langage"])
    assert "language, output" in caught.value.hint


def test_figures_of_slices_are_those_of_their_rows_alone():
    rows = [{"language": "de" if n % 3 else "fr", "doc": n // 2} for n in range(30)]
    slicings = find_slicings(rows, ["language"])
    documents = Documents.of(DocumentRule(group_by="doc"), rows)
    whole, alone = Tally("m"), {"de": Tally("m"), "fr": Tally("m")}
    whole.cut(slicings)
    for n, row in enumerate(rows):
        error = "too long" if n == 4 else None
        value = float("nan") if error else 1 + (n * 7 % 5) * 0.9
        score = Score("m", value, label_mass=0.9, threshold=3.0, passed=value >= 3, error=error)
        whole.add("row", n, score, n, {"language": row["language"]})
        alone[row["language"]].add("row", n, score, n)
    summary = whole.summary(documents)
    assert [one.name for one in summary.slices] == ["language = de", "language = fr"]
    for one in summary.slices:
        expected = alone[one.value].summary(documents)
        assert one.summary.to_dict() == expected.to_dict()
    assert summary.to_dict()["by"]["language"]["fr"]["rows"] == 10
    assert "by" not in alone["de"].summary().to_dict()
