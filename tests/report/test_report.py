"""The page of one run, as a file: its content, rejected input, and texts that stay inert."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from dataclasses import asdict
from importlib.resources import files

import pytest
from cli_run import write_rows
from html_page import Page, as_shown
from report_data import HOSTILE, metric_of, rows, run_of

from geval_local.analysis.results import Grouped, read_results
from geval_local.analysis.tables import Table
from geval_local.errors import Cause, ConfigurationError, DataError, ErrorCode, OutputError
from geval_local.grouping import DocumentRule
from geval_local.io.samples import Sample
from geval_local.io.writer import ResultWriter
from geval_local.report.page import SCRIPTS, json_block
from geval_local.report.reports import write_report
from geval_local.report.run_page import RunPage, agreement, group_correlations
from geval_local.report.written_reasons import read_reasons
from geval_local.score import Score


def written(tmp_path, given, kind=RunPage, **options) -> Page:
    return Page(kind(given, **options).write(tmp_path / "report.html").read_text(encoding="utf-8"))


def ablated(table):
    """A page with another table of estimators than that of its run."""
    return type("Ablated", (RunPage,), {"ablation": table})


def hostile_rows():
    made = rows(len(HOSTILE) + 1, unscored=[0])
    for row, text in zip(made, HOSTILE, strict=False):
        row |= {"id": text, "source": text, "output": text, "doc_id": text, text: text}
        row["geval"][text] = row["geval"]["coherence"] | {
            "probabilities": {text: 0.25, "2": 0.75},
            "other_tokens": [[text, 0.5]],
        }
        row["geval"]["fluency"] = Score.unscored("fluency", text).to_dict()
    return made


# --- what it says -----------------------------------------------------------------------------------------------------


def test_figures_are_the_means_of_the_scored_items(tmp_path):
    made = rows(60, metrics=("coherence",), unscored=[3, 9], low_mass=[5], threshold=3)
    values = [row["geval"]["coherence"]["score"] for row in made if row["geval"]["coherence"]["score"] is not None]
    page = written(tmp_path, made)
    assert f"{sum(values) / len(values):.3f}" in page.text
    assert "58 of 60" in page.text
    share = sum(value >= 3 for value in values) / len(values)
    assert f"{share:.1%} reach 3" in page.text


def test_unscored_items_are_counted_with_their_reason_and_never_0(tmp_path):
    page = written(tmp_path, rows(10, metrics=("coherence",), unscored=[3, 9]))
    assert "coherence: 2 of 10: too_long , for example: the filled form has 4003 tokens" in page.text
    assert "rows 4, 10" in page.text
    run = page.data["metrics"][0]["runs"][0]
    assert [index for index, score in enumerate(run["score"]) if score is None] == [3, 9]
    assert run["mass"][3] is None
    assert run["p"][3] is None
    assert set(run["error"]) == {"3", "9"}
    assert 0 not in run["score"]


def test_the_script_gets_every_figure(tmp_path):
    made = rows(12, low_mass=[2])
    data = written(tmp_path, made, human=["fluency=scores.fluency"]).data
    metric = data["metrics"][1]
    assert (metric["name"], metric["labels"], metric["low"], metric["high"]) == ("fluency", list("12345"), 1, 5)
    for index, row in enumerate(made):
        figures, run = row["geval"]["fluency"], metric["runs"][0]
        assert run["score"][index] == pytest.approx(figures["score"], abs=1e-6)
        assert run["mass"][index] == pytest.approx(figures["label_mass"], abs=1e-6)
        assert run["p"][index] == pytest.approx(list(figures["probabilities"].values()), abs=1e-6)
        assert metric["human"][index] == pytest.approx(row["scores"]["fluency"], abs=1e-6)
        output = data["columns"][data["output"]]
        assert output["name"] == "output"
        assert data["texts"][output["v"][index]] == row["output"]
    assert run["other"] == {"2": [[" The", 0.41], ["\n", 0.2]]}


def test_a_small_probability_does_not_become_none(tmp_path):
    made = rows(2, metrics=("coherence",))
    made[0]["geval"]["coherence"]["probabilities"] = {"1": 3e-9, "2": 1 - 3e-9, "3": 0.0}
    p = written(tmp_path, made).data["metrics"][0]["runs"][0]["p"][0]
    assert p[0] == 3e-9
    assert p[2] == 0


def test_one_source_of_many_items_is_held_once(tmp_path):
    made = rows(50, per_group=50)
    page = RunPage(made).write(tmp_path / "r.html").read_text(encoding="utf-8")
    assert page.count(json.dumps(made[0]["source"])) == 1


def item(data, place):
    """Everything that the script is told about one item."""
    metric = data["metrics"][0]
    values = [metric["runs"][0][figure][place] for figure in ("score", "mass", "p")]
    return (
        values,
        metric["human"][place],
        [data["texts"][one["v"][place]] for one in data["columns"]],
        data["keys"][place],
    )


def test_of_many_rows_the_page_holds_some_and_its_tables_are_of_all(tmp_path):
    made = rows(40, metrics=("coherence",), unscored=[3])
    whole = written(tmp_path, made, human="scores.coherence", rule=DocumentRule("doc_id"))
    page = written(tmp_path, made, human="scores.coherence", rule=DocumentRule("doc_id"), rows=7)
    assert page.data["rows"] == [1 + place * 40 // 7 for place in range(7)]
    assert "hold 7 of them, at equal distances" in page.text
    assert "hold 7 of them" not in whole.text
    tables = [re.sub(r"Tables are of all .*? takes more\.", "", one.text) for one in (page, whole)]
    assert tables[0].split() == tables[1].split()
    for index, number in enumerate(page.data["rows"]):
        assert item(page.data, index) == item(whole.data, number - 1)


def test_rows_with_a_reason_are_always_on_the_page(tmp_path):
    made = rows(40, metrics=("coherence",))
    results = write_rows(tmp_path / "results.jsonl", made)
    signature, score = "judge:mock", made[12]["geval"]["coherence"]
    reason = {
        "row": 13, "metric": "coherence", "label": score["mode"], "score": score["score"], "reason": "Because.",
        "is_complete": True, "cites": False, "prompt_sha256": "0" * 64, "signature": signature,
    }  # fmt: skip
    reasons = read_reasons(write_rows(tmp_path / "reasons.jsonl", [reason]))
    page = written(tmp_path, results, reasons=reasons, rows=2)
    assert page.data["rows"] == [1, 13, 21]
    assert page.data["metrics"][0]["reasons"][0][0] == 1
    assert "and those with a written reason" in page.text


def test_prompt_steps_signature_manifest_and_ablation_are_shown(tmp_path):
    page = written(
        tmp_path,
        run_of(
            rows(6),
            {
                "coherence": (
                    "judge:nano@12ab|dtype:float32",
                    metric_of(criteria="Read <all> of it.", steps=["First look.", "Then rate."]),
                )
            },
        ),
        facts={"duration": "41 s", "seen": None},
        kind=ablated(Table(("", "spearman"), (("- Probs", ".502"),))),
    )
    for text in ("Read <all> of it.", "Then rate.", "judge:nano@12ab|dtype:float32", "41 s", "- Probs", ".502"):
        assert text in page.text
    assert "judge nano@12ab" in page.text
    assert "seen" not in page.text


def test_correlations_are_those_of_the_analysis(tmp_path):
    made = rows(40, metrics=("coherence",), unscored=[3])
    page = written(tmp_path, made, human="scores.coherence", rule=DocumentRule("doc_id"))
    results = read_results(made)
    documents = Grouped([row["doc_id"] for row in made], "")
    items = results.items("coherence", human="scores.coherence", documents=documents)
    for level, found in agreement(items).items():
        assert level in page.text
        assert as_shown(asdict(found.spearman)) in page.text
    assert "1 too_long" in page.text
    groups = group_correlations(items)
    assert [group.n for group in groups].count(4) == 1
    assert len(groups) == 8
    drawn = page.data["metrics"][0]["groups"]
    assert drawn == [round(group.spearman, 6) for group in groups if not math.isnan(group.spearman)]
    assert drawn == sorted(drawn)


def test_groups_with_constant_ratings_have_no_coefficient(tmp_path):
    made = rows(10, metrics=("coherence",))
    for row in made[:5]:
        row["scores"]["coherence"] = 3.0
    page = written(tmp_path, made, human="scores.coherence", rule=DocumentRule("doc_id"))
    assert len(page.data["metrics"][0]["groups"]) == 1
    assert "doc-1 5 constant constant constant" in page.text


def test_word_labels_get_their_scale_from_scores_or_from_the_metric(tmp_path):
    made = rows(20, metrics=("ok",), scale="0-1")
    for row in made:
        figures = row["geval"]["ok"]
        figures["probabilities"] = dict(zip(("No", "Yes"), figures["probabilities"].values(), strict=True))
    metric = written(tmp_path, made).data["metrics"][0]
    assert (metric["labels"], metric["low"], metric["high"]) == (["No", "Yes"], 0, 1)
    run = run_of(made, {"ok": ("", metric_of(scale={"No": -1, "Yes": 1}))})
    metric = written(tmp_path, run).data["metrics"][0]
    assert (metric["low"], metric["high"]) == (-1, 1)


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_every_format_of_results_gives_the_same_page(tmp_path, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    made = rows(8, unscored=[1], low_mass=[2], threshold=3)
    with ResultWriter.open(tmp_path / f"run{suffix}", ["coherence", "fluency"], columns=["all"]) as writer:
        for number, row in enumerate(made, start=1):
            columns = {name: row[name] for name in ("id", "doc_id", "source", "output")}
            scores = {}
            left = ("score", "error", "error_code", "other_tokens")
            for metric, figures in row["geval"].items():
                known = {name: value for name, value in figures.items() if name not in left}
                pairs = tuple(map(tuple, figures.get("other_tokens", ())))
                value = math.nan if figures["score"] is None else figures["score"]
                lost = Cause(figures["error"], ErrorCode.read(figures["error_code"])) if "error" in figures else None
                scores[metric] = Score(metric, value, other_tokens=pairs, error=lost, **known)
            writer.write(Sample(columns, number), scores)
    expected = written(tmp_path, [{**row, "scores": None} for row in made]).data
    data = written(tmp_path, tmp_path / f"run{suffix}").data
    assert data["metrics"] == expected["metrics"]
    assert data["keys"] == expected["keys"]


def test_the_same_run_gives_the_same_bytes(tmp_path):
    made = rows(10)
    pages = [RunPage(made, human=["fluency=scores.fluency"]).write(tmp_path / name).read_bytes() for name in ("a", "b")]
    assert pages[0] == pages[1]


# --- texts stay texts -------------------------------------------------------------------------------------------------


def hostile_page(tmp_path) -> Page:
    given = hostile_rows()
    known = [*HOSTILE, *(metric for row in given for metric in row["geval"])]
    metric = metric_of(criteria="\n".join(HOSTILE[:7]), steps=HOSTILE[:7])  # a metric is text
    return written(
        tmp_path,
        run_of(given, dict.fromkeys(known, ("|".join(HOSTILE), metric))),
        facts={text: text for text in HOSTILE},
        human={"coherence": "scores.coherence"},
        rule=DocumentRule("doc_id"),
        kind=ablated(Table(("", HOSTILE[0]), tuple((text, text) for text in HOSTILE), HOSTILE)),
        title=HOSTILE[1],
    )


def test_hostile_texts_add_no_element_attribute_or_comment(tmp_path):
    page = hostile_page(tmp_path)
    calm = written(tmp_path, rows(10), human={"coherence": "scores.coherence"}, title="calm")
    assert page.tags.count("script") == calm.tags.count("script") == 2
    assert [one.split()[:2] for one in page.comments] == [["geval-local", "page"]]  # with its digest
    assert not {"img", "iframe", "link", "object", "base"} & set(page.tags)
    # The page's own pictures and no other.
    assert [value for tag, name, value in page.attributes if (tag, name) == ("svg", "class")] == ["track"] * (
        page.tags.count("svg")
    )
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    addresses = [value for _, name, value in page.attributes if name in ("src", "href", "action", "data", "srcset")]
    assert addresses
    assert all(value.startswith("#") for value in addresses)


def test_hostile_texts_reach_the_script_unchanged(tmp_path):
    data = hostile_page(tmp_path).data
    expected = [text.encode("utf-8", "backslashreplace").decode() for text in HOSTILE]
    outputs = data["columns"][data["output"]]["v"]
    assert [data["texts"][place] for place in outputs[: len(HOSTILE)]] == expected
    assert [metric["name"] for metric in data["metrics"][2:]] == expected


def test_the_data_block_holds_no_markup():
    value = {text: [text, "<!--", "]]>", "&amp;"] for text in HOSTILE[:-2]}
    block = str(json_block(value))
    assert not set("<>&\u2028\u2029") & set(block)
    assert json.loads(block) == value


def test_the_policy_admits_one_script_and_no_request(tmp_path):
    page = written(tmp_path, rows(3))
    (policy,) = [value for _, name, value in page.attributes if name == "content" and "default-src" in value]
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe-inline" not in policy.replace("style-src 'unsafe-inline'", "")


def test_the_script_never_parses_markup():
    for name in SCRIPTS:
        source = files("geval_local.report").joinpath("assets").joinpath(name).read_text(encoding="utf-8")
        found = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|new Function|"
            r"createContextualFragment|setTimeout\(\s*[\"'`]|fetch\(|XMLHttpRequest|https?://(?!www\.w3\.org/2000/svg)",
            source,
        )
        assert not found, f"{name}: {found}"


# --- what it refuses --------------------------------------------------------------------------------------------------


def spoiled(**figures):
    made = rows(3)
    made[1]["geval"]["fluency"] |= figures
    return made


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "holds no rows"),
        ([{"output": "a"}], "results, row 1: no scores"),
        ([{"geval": {"m": 3}}], "row 1: the column 'geval' does not hold one object per metric"),
        ([{"geval": {}}], "results, row 1: no scores"),
        (spoiled(score="high"), "row 2: fluency: score: a number is expected, not 'high'"),
        (spoiled(score=True), "row 2: fluency: score: a number is expected, not True"),
        (spoiled(label_mass=math.inf), "row 2: fluency: label_mass: a number beyond all scales, not inf"),
        (spoiled(probabilities=[0.5, 0.5]), "row 2: fluency: probabilities: probabilities by label are expected"),
        (spoiled(probabilities={"1": 1.5}), "row 2: fluency: probabilities: a probability is 0 to 1, not {'1': 1.5}"),
        (
            spoiled(other_tokens=["x"]),
            "row 2: fluency: other_tokens: pairs of token and probability are expected, not ['x']",
        ),
        (spoiled(order_scores=[1.0]), "row 2: fluency: order_scores and order_masses are not equally many"),
    ],
)
def test_broken_results_are_named_by_row(tmp_path, given, message):
    with pytest.raises(DataError) as caught:
        RunPage(given).write(tmp_path / "r.html")
    assert message in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_row_without_a_metric_is_unscored_on_it(tmp_path):
    made = rows(4)
    del made[2]["geval"]["fluency"]
    page = written(tmp_path, made)
    assert "fluency: 1 of 4: the row holds no figures of this metric" in page.text


def test_targets_that_cannot_be_written(tmp_path):
    made = rows(3)
    source = tmp_path / "run.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")
    with pytest.raises(OutputError, match="it is a directory"):
        RunPage(made).write(tmp_path)
    with pytest.raises(OutputError, match="there is no directory"):
        RunPage(made).write(tmp_path / "no" / "r.html")
    with pytest.raises(OutputError, match="it is the result file itself"):
        RunPage(source).write(source)
    assert json.loads(source.read_text(encoding="utf-8").splitlines()[0]) == made[0]


def test_a_page_shows_no_other_estimate(tmp_path):
    with pytest.raises(ConfigurationError, match="so it does not go with `estimator`"):
        write_report([rows(3)], tmp_path / "r.html", estimator="mode")
    assert not list(tmp_path.iterdir())


def test_ratings_must_belong_to_the_results(tmp_path):
    with pytest.raises(DataError, match="no row has a human rating in 'stars'"):
        RunPage(rows(3), human={"fluency": "stars"}).write(tmp_path / "r.html")
    with pytest.raises(DataError, match=r"row 1: the field 'doc' to group by is missing"):
        RunPage(rows(3), human={"fluency": "scores.fluency"}, rule=DocumentRule("doc")).write(tmp_path / "r.html")
