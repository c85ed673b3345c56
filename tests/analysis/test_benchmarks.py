import json
import math
from pathlib import Path

import pytest

from geval_local.analysis.ratings.benchmarks import BENCHMARKS, benchmark, published_table
from geval_local.analysis.ratings.rated import read_benchmark
from geval_local.analysis.ratings.responses import geval_items, parse_response, read_responses, unieval_items
from geval_local.analysis.results import figures_of
from geval_local.errors import ConfigurationError, DataError
from geval_local.io.results import MetricFigures
from geval_local.metric_file import preset_names
from geval_local.scale import Scale
from geval_local.statistics.records import pair

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the benchmark files are not at {DATA}")


def rows(**extra):
    return [
        {
            "source": f"history {index // 2}",
            "context": "fact",
            "system_id": f"s{index % 2}",
            "system_output": "a few words",
            "scores": dict.fromkeys(BENCHMARKS["topical-chat"].dimensions, 1.0 + index / 2),
            **extra,
        }
        for index in range(4)
    ]


def write(path, data):
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


@needs_data
@pytest.mark.parametrize(
    ("file", "name", "items", "groups", "systems"),
    [
        ("summeval_dev.json", "summeval", 800, 50, 16),
        ("topical_chat.json", "topical-chat", 360, 60, 6),
        ("qags_xsum.json", "qags", 239, 239, 1),
    ],
)
def test_published_files_read_unmodified(file, name, items, groups, systems):
    data = read_benchmark(DATA / file, name)
    for dimension in data.benchmark.dimensions:
        found = data.items(dimension, MetricFigures.of("m", [{"score": 0.0}] * items))
        assert len(found) == len({item.key for item in found}) == items
        assert len({item.group for item in found}) == groups
        assert len({item.system for item in found}) == systems
        assert all(math.isfinite(item.human) for item in found)


def test_every_dimension_names_a_preset_that_exists():
    named = [preset for layout in BENCHMARKS.values() for preset in layout.dimensions.values() if preset is not None]
    assert set(named) <= set(preset_names())


def test_problems_are_named_by_file_and_row(tmp_path):
    broken = rows()
    del broken[2]["context"]
    with pytest.raises(DataError, match=r"x\.json is not a topical-chat file: row 3: no text in 'context'\n"):
        read_benchmark(write(tmp_path / "x.json", broken), "topical-chat")
    broken = rows()
    del broken[1]["scores"]["coherence"], broken[3]["scores"]
    with pytest.raises(DataError, match=r"row 2: no rating of 'coherence' in 'scores' \(and 1 more problems\)"):
        read_benchmark(write(tmp_path / "x.json", broken), "topical-chat")
    broken = rows()
    broken[3]["scores"]["coherence"] = "good"
    with pytest.raises(DataError, match="row 4: coherence is not a number: 'good'"):
        read_benchmark(write(tmp_path / "x.json", broken), "topical-chat")
    with pytest.raises(ConfigurationError, match="no benchmark 'sumeval'"):
        read_benchmark(tmp_path / "x.json", "sumeval")


def test_a_missing_or_null_rating_is_no_rating_of_zero(tmp_path):
    broken = rows()
    broken[0]["scores"]["coherence"] = None
    data = read_benchmark(write(tmp_path / "x.json", broken), "topical-chat")
    assert math.isnan(data.items("coherence", MetricFigures.of("m", [{"score": 1.0}] * 4))[0].human)


def test_a_dimension_must_be_rated(tmp_path):
    data = read_benchmark(write(tmp_path / "x.json", rows()), "topical-chat")
    with pytest.raises(ConfigurationError, match="no ratings of 'fluency'"):
        data.items("fluency", MetricFigures.of("m", [{"score": 1.0}] * 4))


@pytest.mark.parametrize(
    ("response", "value"),
    [
        ("2", 2.0),
        (" 3", 3.0),
        ("2.5 because", 2.5),
        ("1.", 1.0),
        ("4/5", 4.0),
        ("  3", None),
        ("\n3", None),
        ("Coherence: 3", None),
        ("- 3", None),
        ("1.2.3", None),
        ("...", None),
        ("", None),
        ("-1", None),
    ],
)
def test_responses_are_parsed_by_the_original_rule(response, value):
    assert parse_response(response) == value


def test_unparseable_responses_are_left_out():
    responses = [["3", "no", "1"], ["no", "never"]]
    left_out = read_responses(responses)
    assert left_out.values[0] == 2.0
    assert math.isnan(left_out.values[1])
    assert (left_out.responses, left_out.unparseable, left_out.counted) == (5, 3, 2)


def test_numbers_outside_the_scale_are_counted_and_left_out():
    scale = Scale.parse("1-3")
    responses = [["3", "30", "2.5"]]
    found = read_responses(responses, scale=scale)
    assert (found.values, found.out_of_scale) == ((2.75,), 1)


def test_a_geval_file_with_rows_missing_pairs_with_the_whole(tmp_path):
    whole = write(tmp_path / "all.json", rows(predict_scores={"coherence": 0.5}))
    part = rows(all_responses=["2", "3"])
    del part[1]
    items, _ = geval_items(write(tmp_path / "part.json", part), "topical-chat", "coherence")
    left, right = pair(items, unieval_items(read_benchmark(whole, "topical-chat"), "coherence"))
    assert [item.human for item in left] == [item.human for item in right] == [1.0, 2.0, 2.5]


def test_missing_responses_and_predictions_are_named_by_row(tmp_path):
    data = rows(all_responses=["2"], predict_scores={"coherence": 0.5})
    data[1]["all_responses"] = "2"
    data[2]["predict_scores"] = {}
    path = write(tmp_path / "x.json", data)
    with pytest.raises(DataError, match="row 2: 'all_responses' is not a list of texts"):
        geval_items(path, "topical-chat", "coherence")
    with pytest.raises(DataError, match="row 3: no prediction of 'coherence'"):
        unieval_items(read_benchmark(path, "topical-chat"), "coherence")


def test_a_run_over_a_benchmark_file_is_read_with_its_ratings(tmp_path):
    data = rows(geval={"dialogue/coherence": {"score": 2.5, "probabilities": {"1": 0.0, "2": 0.5, "3": 0.5}}})
    data[1]["geval"] = {"dialogue/coherence": {"score": None, "error": "too long"}}
    found = read_benchmark(write(tmp_path / "run.json", data), "topical-chat")
    items = found.items("coherence", figures_of(found.rows, "dialogue/coherence", found.path))
    assert items[0].probabilities == {"1": 0.0, "2": 0.5, "3": 0.5}
    assert math.isnan(items[1].predicted)
    assert items[1].error == "too long"
    with pytest.raises(DataError, match="row 1: no score of the metric 'other'"):
        figures_of(found.rows, "other", found.path)


@pytest.mark.parametrize("name", list(BENCHMARKS))
def test_published_averages_are_the_averages_of_their_rows(name):
    table = published_table(name)
    for row in table.rows:
        parts = [row.values[column] for column in table.columns if column != "average" and column in row.values]
        if parts:
            off = 0.009 if row.system in ("G-Eval-3.5", "G-Eval-4") and name == "summeval" else 0.0006
            assert sum(parts) / len(parts) == pytest.approx(row.values["average"], abs=off), row.system


def test_published_columns_belong_to_the_benchmark():
    for name in ("summeval", "topical-chat"):
        assert set(published_table(name).columns) - {"average"} <= set(benchmark(name).dimensions)
    assert all("-" not in row.values for name in BENCHMARKS for row in published_table(name).rows)
