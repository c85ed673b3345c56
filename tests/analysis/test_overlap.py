import math
import sys
from pathlib import Path

import pytest

from geval_local.analysis.contenders import BASELINES, baseline_scores, references
from geval_local.analysis.ratings.rated import read_benchmark
from geval_local.errors import ConfigurationError
from geval_local.io.results import MetricFigures
from geval_local.statistics.correlation import correlate

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the benchmark files are not at {DATA}")


def baseline_items(data, dimension, name):
    field = data.benchmark.fields["output"]
    scores = baseline_scores(name, [str(row[field]) for row in data.rows], references(data))
    none = {"score": None, "error": "no reference"}
    figures = [{"score": score} if math.isfinite(score) else none for score in scores]
    return data.items(dimension, MetricFigures.of(name, figures))


def spearman(file, name, dimension, baseline):
    data = read_benchmark(DATA / file, name)
    return correlate(baseline_items(data, dimension, baseline), data.benchmark.level).spearman.value


def test_length_counts_words_and_needs_no_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    assert baseline_scores("length", ["one two", "", " a  b c\n"]) == [2.0, 0.0, 3.0]


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    for name in ("rouge-1", "bleu"):
        with pytest.raises(ConfigurationError, match=r"geval-local\[meta\]"):
            baseline_scores(name, ["a"], ["a"])


@pytest.mark.slow
def test_reference_metrics_give_the_libraries_values():
    pytest.importorskip("rouge_score")
    sacrebleu = pytest.importorskip("sacrebleu")
    output, reference = "the cat sat on the mat", "the cats sat on a mat"
    # With stemming "cats" is "cat": 5 of 6 words are shared, 3 of 5 bigrams, and the subsequence leaves one word out.
    assert baseline_scores("rouge-1", [output], [reference]) == [pytest.approx(5 / 6)]
    assert baseline_scores("rouge-2", [output], [reference]) == [pytest.approx(3 / 5)]
    assert baseline_scores("rouge-l", [output], [reference]) == [pytest.approx(5 / 6)]
    assert baseline_scores("chrf", [output], [reference])[0] == sacrebleu.sentence_chrf(output, [reference]).score
    assert baseline_scores("bleu", [output], [reference])[0] == sacrebleu.sentence_bleu(output, [reference]).score
    for name in BASELINES[1:]:
        same, other, none = baseline_scores(name, [output, "quite different", output], [output, reference, None])
        assert same > other
        assert math.isnan(none)


@needs_data
def test_references_of_topical_chat_are_the_true_turns_and_do_not_rate_themselves():
    data = read_benchmark(DATA / "topical_chat.json", "topical-chat")
    found = references(data)
    assert sum(reference is None for reference in found) == 60
    turns = {row["source"]: row["system_output"] for row in data.rows if row["system_id"] == "Original Ground Truth"}
    assert all(r in (None, turns[row["source"]]) for r, row in zip(found, data.rows, strict=True))


@pytest.mark.slow
@needs_data
def test_rouge_comes_near_the_published_figures():
    """SummEval here is half of its documents with one reference, so its figures are near, not equal, to the paper's."""
    pytest.importorskip("rouge_score")
    near = [
        ("summeval_dev.json", "summeval", "coherence", "rouge-1", 0.167, 0.05),
        ("summeval_dev.json", "summeval", "relevance", "rouge-1", 0.326, 0.05),
        ("summeval_dev.json", "summeval", "consistency", "rouge-2", 0.187, 0.05),
        ("topical_chat.json", "topical-chat", "naturalness", "rouge-l", 0.146, 0.03),
        ("topical_chat.json", "topical-chat", "engagingness", "rouge-l", 0.300, 0.03),
        ("qags_xsum.json", "qags", "consistency", "rouge-2", 0.083, 0.02),
    ]
    for file, name, dimension, baseline, published, tolerance in near:
        assert spearman(file, name, dimension, baseline) == pytest.approx(published, abs=tolerance), (name, dimension)


@needs_data
def test_length_says_nothing_about_summaries_and_something_about_engagingness():
    assert abs(spearman("summeval_dev.json", "summeval", "coherence", "length")) < 0.1
    assert spearman("topical_chat.json", "topical-chat", "engagingness", "length") > 0.3
    assert abs(spearman("qags_xsum.json", "qags", "consistency", "length")) < 0.2


@pytest.mark.slow
@needs_data
def test_items_without_a_reference_are_unscored_with_the_reason():
    pytest.importorskip("rouge_score")
    data = read_benchmark(DATA / "topical_chat.json", "topical-chat")
    result = correlate(baseline_items(data, "coherence", "rouge-1"), "pooled")
    assert (result.n, result.left_out) == (300, {"no reference": 60})
