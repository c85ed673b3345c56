"""The published correlations, to the digits that were published."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from geval_local.analysis.ratings.rated import read_benchmark
from geval_local.analysis.ratings.responses import geval_items, parse_response, unieval_items
from geval_local.statistics.correlation import correlate

DATA = Path(__file__).parents[3] / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"the benchmark files are not at {DATA}")


def three(result):
    return [round(value.value, 4) for value in (result.pearson, result.spearman, result.kendall)]


@pytest.mark.parametrize(
    ("dimension", "published"),
    [
        ("naturalness", [0.4437, 0.5140, 0.3740]),
        ("coherence", [0.5951, 0.6129, 0.4659]),
        ("engagingness", [0.5565, 0.6047, 0.4559]),
        ("groundedness", [0.5362, 0.5750, 0.4515]),
        ("understandability", [0.3800, 0.4678, 0.3607]),
        ("overall", [0.6328, 0.6626, 0.4873]),
    ],
)
def test_unieval_on_topical_chat(dimension, published):
    items = unieval_items(read_benchmark(DATA / "topical_chat.json", "topical-chat"), dimension)
    result = correlate(items, "pooled")
    assert result.n == 360
    assert three(result) == published


def test_unieval_on_qags():
    items = unieval_items(read_benchmark(DATA / "qags_xsum.json", "qags"), "consistency")
    result = correlate(items, "pooled")
    assert (result.n, result.groups) == (239, 239)
    assert three(result) == [0.4614, 0.4879, 0.3992]


GEVAL = [
    ("naturalness", 358, [0.3981, 0.4138, 0.3094], [0.4432, 0.4210, 0.3444], 60, 17),
    ("coherence", 359, [0.4676, 0.4670, 0.3518], [0.5090, 0.4871, 0.3986], 60, 44),
    ("engagingness", 356, [0.4906, 0.5186, 0.3886], [0.5588, 0.5720, 0.4917], 60, 120),
    ("groundedness", 357, [0.2837, 0.3201, 0.2573], [0.6617, 0.6427, 0.5649], 54, 674),
]


@pytest.mark.parametrize(("dimension", "n", "pooled", "per_source", "kept", "unparseable"), GEVAL)
def test_gpt35_geval_on_topical_chat(dimension, n, pooled, per_source, kept, unparseable):
    path = DATA / "geval_results" / f"gpt3.5_topical_chat_{dimension[:3]}.json"
    items, parsed = geval_items(path, "topical-chat", dimension)
    # The original's scripts count a response without a number as 0.
    told = [[parse_response(one) or 0.0 for one in row["all_responses"]] for row in json.loads(path.read_text("utf-8"))]
    items = [replace(item, predicted=fmean(own)) for item, own in zip(items, told, strict=True)]
    assert three(correlate(items, "pooled")) == pooled
    result = correlate(items, "summary")
    assert three(result) == per_source
    assert (result.n, result.groups, result.points) == (n, 60, kept)
    assert (parsed.responses, parsed.unparseable, parsed.counted) == (20 * n, unparseable, 20 * n - unparseable)


def test_leaving_unparseable_responses_out_changes_the_answer():
    path = DATA / "geval_results" / "gpt3.5_topical_chat_gro.json"
    items, parsed = geval_items(path, "topical-chat", "groundedness")
    result = correlate(items, "pooled")
    assert parsed.counted == parsed.responses - 674
    assert result.left_out == {"no response holds a rating": 1}
    assert three(result) != [0.2837, 0.3201, 0.2573]
    assert min(item.predicted for item in items if item.error is None) >= 0
