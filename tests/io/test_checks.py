"""Checks of input before anything expensive; misuse from Python, reported with its remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from geval_local.errors import ConfigurationError, DataError
from geval_local.fields import read_mapping
from geval_local.io.input_checks import check_input
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.options import RunOptions
from geval_local.testing import MockJudge

METRIC = Metric(name="tone", criteria="c", scale="1-5", fields={"source": "Source", "output": "Output"}, steps=())


def rows(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def test_rows_without_a_field_are_refused_with_the_columns_and_what_was_meant(tmp_path: Path) -> None:
    file = rows(tmp_path / "d.jsonl", *[{"source": "S", "outputs": "The output.", "id": n} for n in range(5)])
    with pytest.raises(DataError) as caught:
        check_input(file, [METRIC])
    assert "none of its first 5 rows can be scored on tone: the field 'output' is missing" in caught.value.message
    assert "Columns: source, outputs, id." in (caught.value.hint or "")
    assert "`fields=output=outputs`" in (caught.value.hint or "")
    assert len(check_input(file, [METRIC], RunOptions(fields={"output": "outputs"}))) == 5


def test_rows_whose_column_holds_no_text_are_refused_with_its_keys(tmp_path: Path) -> None:
    file = rows(tmp_path / "d.jsonl", {"source": "S", "output": {"text": "O"}})
    with pytest.raises(DataError, match=r"(?s)its only row cannot be.*is an object, not text.*to its keys: text"):
        check_input(file, [METRIC])
    check_input(file, [METRIC], RunOptions(fields={"output": "output.text"}))


def test_one_row_that_fits_or_rows_at_fault_themselves_are_enough(tmp_path: Path) -> None:
    bad = {"other": "x"}
    check_input(rows(tmp_path / "a.jsonl", *[bad] * 900, {"source": "S", "output": "O"}), [METRIC])
    check_input(rows(tmp_path / "b.jsonl", {"source": "S", "output": ""}, {"source": "S", "output": None}), [METRIC])
    with pytest.raises(DataError, match="none of its first 1000 rows"):
        check_input(rows(tmp_path / "c.jsonl", *[bad] * 1000, {"source": "S", "output": "O"}), [METRIC])


def test_mappings_of_what_is_not_there(tmp_path: Path) -> None:
    file = rows(tmp_path / "d.jsonl", {"source": "S", "answer": "O", "meta": {"text": "T"}})
    with pytest.raises(DataError, match=r"(?s)'output' is mapped to 'anser', and no row.*did you mean 'answer'"):
        check_input(file, [METRIC], RunOptions(fields={"output": "anser"}))
    with pytest.raises(DataError, match="no row has such a column"):
        check_input(file, [METRIC], RunOptions(fields={"output": "meta.txt"}))
    with pytest.raises(ConfigurationError, match="no metric here has a field 'outptu'; did you mean 'output'"):
        check_input(file, [METRIC], RunOptions(fields={"outptu": "answer"}))
    for pair in ("output", "=answer", "output=", ""):
        with pytest.raises(ConfigurationError, match="is not a mapping"):
            read_mapping([pair])
    with pytest.raises(ConfigurationError, match="twice"):
        read_mapping(["output=a", "output=b"])
    assert read_mapping(["output = a=b", "output=a=b"]) == {"output": "a=b"}


# --- Python -----------------------------------------------------------------------------------------------------------

GOOD = [{"source": "S", "output": "O"}, {"source": "S", "answer": "P", "output": "Q"}]


class Frame:
    """A data frame as seen by iteration."""

    columns = ("source", "output")

    def to_dict(self, orient: str) -> list[dict[str, str]]:
        return GOOD

    def __iter__(self):
        return iter(self.columns)


@pytest.mark.parametrize(
    ("metric", "samples", "message"),
    [
        ("rag/faithfulness", GOOD, r"Metric\.load\('rag/faithfulness'\)"),
        (Path("m.yaml"), GOOD, r"Metric\.load\('m\.yaml'\)"),
        ([METRIC, "rag/faithfulness"], GOOD, r"Metric\.load\('rag/faithfulness'\)"),
        ({METRIC.name: METRIC}, GOOD, "a Metric is expected, not dict, or a list"),
        (None, GOOD, "a Metric is expected, not NoneType"),
        (Metric, GOOD, "a Metric is expected"),
        (METRIC, Frame(), "score_frame"),
        (METRIC, [("S", "O")], "sample 0 .* is of type tuple"),
        (METRIC, [*GOOD, "text"], "sample 2 .* is of type str"),
        (METRIC, GOOD[0], r"scores one row"),
        (METRIC, Sample(GOOD[0]), r"scores one"),
        (METRIC, "data.jsonl", r"score_file\(path, metrics, judge\)"),
        (METRIC, 3, "an iterable of rows, not int"),
    ],
)
def test_misuse_is_a_type_error_with_the_remedy(metric, samples, message) -> None:
    judge = MockJudge()
    with pytest.raises(TypeError, match=message):
        judge.score_many(metric, samples)
    with pytest.raises(TypeError, match=message):
        list(judge.iter_scores(metric, samples))


def test_a_real_data_frame_is_told_of_too() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(TypeError, match=r"score_frame\(frame, metrics, judge\)"):
        MockJudge().score_many(METRIC, pandas.DataFrame(GOOD))
    assert all(score.is_scored for score in MockJudge().score_many(METRIC, pandas.DataFrame(GOOD).to_dict("records")))


def test_score_names_the_remedy_too() -> None:
    with pytest.raises(TypeError, match=r"Metric\.load"):
        MockJudge().score("rag/faithfulness", source="S", output="O")  # type: ignore[arg-type]


def test_fields_in_python() -> None:
    judge = MockJudge()
    plain = judge.score_many(METRIC, [{"source": "S", "output": "P"}])
    mapped = judge.score_many(METRIC, GOOD[1:], fields={"output": "answer"})
    assert mapped[0].value == plain[0].value
    assert judge.score_many(METRIC, [Sample(GOOD[1])], fields={"output": "answer"})[0].value == plain[0].value
    with pytest.raises(DataError, match="did you mean 'answer'"):
        judge.score_many(METRIC, GOOD, fields={"output": "answr"})
    with pytest.raises(ConfigurationError, match="no metric here has a field"):
        judge.score_many(METRIC, GOOD, fields={"answer": "output"})
    with pytest.raises(TypeError, match="a mapping of fields to columns"):
        judge.score_many(METRIC, GOOD, fields=["output"])  # type: ignore[arg-type]
    assert judge.score_many(METRIC, []) == []
