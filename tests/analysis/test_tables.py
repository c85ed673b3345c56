import subprocess
import sys

import numpy as np
import pytest

from geval_local.analysis import tables
from geval_local.analysis.biases import length_bias, length_table
from geval_local.analysis.calibration import calibration_table, fit_calibration
from geval_local.analysis.differences import gap, gap_table, side_means, side_table
from geval_local.analysis.meta_evaluation import benchmark_table, ceiling_table, human_ceiling
from geval_local.analysis.ratings.benchmarks import published_table
from geval_local.scale import Scale
from geval_local.statistics.correlation import agree, correlate
from geval_local.statistics.records import ScoredItem
from geval_local.statistics.significance import compare

SCALE = Scale.parse("1-3")


@pytest.fixture
def items():
    rng = np.random.default_rng(0)
    found = []
    for index in range(40):
        p = rng.dirichlet([1, 1, 1])
        found.append(
            ScoredItem(
                f"d{index // 4}",
                f"s{index % 4}",
                float(rng.integers(1, 4)),
                float(p @ [1, 2, 3]),
                dict(zip("123", p.tolist(), strict=True)),
                5,
                str(index),
            )
        )
    return found


def test_every_table_has_as_many_cells_as_headers(items):
    ratings = [item.human for item in items]
    made = [
        tables.correlation_table({level: correlate(items, level) for level in ("summary", "pooled", "system")}),
        benchmark_table({"own": {"coherence": correlate(items)}}, published_table("summeval")),
        tables.comparison_table({"a - b": compare(items, items)}),
        tables.agreement_table({"a, b": agree(items, items)}),
        side_table(side_means(items)),
        gap_table({"all": gap(items, "s0", "s1")}),
        calibration_table(fit_calibration(items, SCALE)),
        ceiling_table(human_ceiling({"a": ratings, "b": ratings[::-1]}, {"judge": items})),
        length_table(length_bias(items)),
    ]
    for table in made:
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.headers)}
        assert all(isinstance(cell, str) and "nan" not in cell for row in table.rows for cell in row)


def test_published_rows_are_marked_and_own_averages_need_all_dimensions(items):
    result = correlate(items)
    some = benchmark_table({"own": {"coherence": result}}, published_table("summeval"))
    value = f"{result.spearman.value:.3f}"
    assert some.rows[0] == ("own", value, "-", "-", "-", "-", "measured")
    assert {row[-1] for row in some.rows[1:]} == {"published"}
    assert some.rows[1] == ("ROUGE-1", "0.167", "0.160", "0.115", "0.326", "0.192", "published")
    assert "arXiv:2303.16634" in some.notes[1]
    names = ("coherence", "consistency", "fluency", "relevance")
    every = benchmark_table({"own": dict.fromkeys(names, result)}, published_table("summeval"))
    assert every.rows[0] == ("own", value, value, value, value, value, "measured")


def test_qags_fills_the_column_of_its_file(items):
    own = {"own": {"consistency": correlate(items, "pooled")}}
    for half, place in (("cnn", 1), ("xsum", 2)):
        table = benchmark_table(own, published_table("qags"), {"consistency": half})
        assert table.headers[place] == half
        assert [cell != "-" for cell in table.rows[0][1:4]] == [place == 1, place == 2, False]


def test_reasons_and_ties_are_shown(items):
    flat = [*items, ScoredItem("flat", "s0", 2.0, 2.0), ScoredItem("flat", "s1", 2.0, float("nan"), error="too long")]
    table = tables.correlation_table({"judge": correlate(flat)})
    row = table.rows[0]
    assert len(table.headers) <= 8
    assert any("1 a single item" in note for note in table.notes)
    assert any("1 too long" in note for note in table.notes)
    assert "10/11" in row
    assert any("tied pairs: people" in note for note in table.notes)


def test_analysis_loads_neither_torch_nor_scipy_on_import():
    code = (
        "import pkgutil, sys, geval_local.analysis as a\n"
        "for m in pkgutil.iter_modules(a.__path__): __import__('geval_local.analysis.' + m.name)\n"
        "bad = {'torch', 'transformers', 'scipy', 'nltk', 'sacrebleu', 'rouge_score'} & set(sys.modules)\n"
        "assert not bad and not {'geval_local.models', 'geval_local.engine.interface'} & set(sys.modules), bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_nothing_is_not_negative():
    assert [tables.number(value, 2) for value in (-0.001, 0.001, -0.006)] == ["0.00", "0.00", "-0.01"]


def test_one_coefficient_is_shown_unless_all_are_asked_for(items):
    found = {"judge": correlate(items)}
    one = tables.correlation_table(found, tables.columns_of("one", "kendall"))
    assert one.headers[:3] == ("", "kendall", "n")
    every = tables.correlation_table(found, tables.columns_of("all", "kendall"))
    assert every.headers[:5] == ("", "pearson", "spearman", "kendall", "accuracy")  # no AUC of three ratings
    assert every.rows[-1][0] == "chance"
    # Asked for alone, an undefined one keeps its column.
    assert tables.correlation_table(found, ("auc",)).rows[0][1] == "-"
