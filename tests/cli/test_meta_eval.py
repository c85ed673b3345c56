"""``meta-eval`` on the published files and on rows of one's own, with a tiny judge where one is needed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from cli_run import METRIC, judge_directory, read_rows, run, write_rows
from rated_runs import other_judge, prepare, score
from run_kit import kills_itself
from scipy import stats

import geval_local.judge.judge
from geval_local.analysis import contenders
from geval_local.analysis.results import ABLATIONS, estimate_name
from geval_local.evaluation import kept_scores
from geval_local.runs.store import Store

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the benchmark files are not at {DATA}")
RESPONSES = [f"{DATA}/geval_results/gpt3.5_topical_chat_{name}.json" for name in ("nat", "coh", "eng", "gro")]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    return tmp_path


def evaluate(here, *arguments: object, code: int = 0):
    done = run("meta-eval", *arguments, "--json", home=here / "home")
    assert done.exit_code == code, done.stderr
    return json.loads(done.stdout) if code == 0 else done.stderr


def own(here, *arguments: object, code: int = 0):
    return evaluate(
        here,
        "data.jsonl",
        "-m",
        "clarity.yaml",
        "--human",
        "rating.clarity",
        "--group-by",
        "doc",
        *arguments,
        code=code,
    )


def figure(record, level, name, dimension, coefficient):
    return round(record["correlations"][level][name][dimension][coefficient]["value"], 4)


@pytest.mark.slow
@needs_data
def test_published_responses_and_predictions_without_a_model(here, monkeypatch):
    monkeypatch.setattr(geval_local.judge.judge.Judge, "load", None)
    named = [part for path in RESPONSES for part in ("--responses", path)]
    given = (here, DATA / "topical_chat.json", "--benchmark", "topical-chat", *named)
    record = evaluate(*given, "--level", "pooled")
    summary = evaluate(*given, "--level", "summary")["correlations"]["summary"]
    gpt, unieval = "gpt3.5_topical_chat", "UniEval (predict_scores)"
    assert figure(record, "pooled", gpt, "naturalness", "spearman") > 0.4
    assert figure(record, "pooled", gpt, "groundedness", "pearson") != 0.2837
    assert summary[gpt]["groundedness"]["skipped"] == {"constant human ratings": 6}
    assert figure(record, "pooled", unieval, "overall", "spearman") == 0.6626
    assert record["responses"][f"{gpt}, groundedness"]["unparseable"] == 674
    assert record["comparisons"][f"coherence: {gpt} / {unieval}"]["n"] > 350
    assert {row["system"] for row in record["published"]["rows"]} >= {"G-Eval-4", "USR"}
    assert record["correlations"]["pooled"][gpt]["groundedness"]["left_out"] == {"no response holds a rating": 1}


@pytest.mark.slow
@needs_data
def test_the_table_marks_what_is_published_and_shows_the_baselines(here):
    done = run(
        *("meta-eval", DATA / "qags_xsum.json", "--benchmark", "qags", "--responses", DATA / "qags_xsum.json"),
        home=here / "home",
    )
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    (paper,) = [line.split() for line in lines if line.startswith("UniEval  ")]
    assert paper == ["UniEval", "0.662", "0.488", "0.575", "published"]
    assert any(line.startswith("qags_xsum") and "0.488" in line and "measured" in line for line in lines)
    assert any(line.startswith("length") and "measured" in line for line in lines)
    assert any(line.strip().startswith("rouge-l") for line in lines)


@pytest.mark.slow
@needs_data
def test_a_benchmark_is_scored_once_and_never_taken_for_something_else(here, monkeypatch):
    arguments = [DATA / "summeval_dev.json", "--benchmark", "summeval", "--limit-groups", 2, "--no-steps"]
    arguments += ["-m", "fluency", "-j", judge_directory(), "-o", "kept"]
    first = evaluate(here, *arguments)
    name = Path(judge_directory()).name
    (kept,) = Path("kept").glob("*.jsonl")
    rows = read_rows(kept)
    assert len(rows) == 32
    per_document = [
        stats.spearmanr(
            [row["scores"]["fluency"] for row in rows if row["doc_id"] == doc],
            [row["geval"]["summarization/fluency"]["score"] for row in rows if row["doc_id"] == doc],
        )[0]
        for doc in dict.fromkeys(row["doc_id"] for row in rows)
    ]
    measured = first["correlations"]["summary"][name]["fluency"]["spearman"]["value"]
    assert measured == pytest.approx(np.mean(per_document), abs=1e-12)

    by_results = evaluate(here, *arguments[:6], "-m", "fluency", "--results", kept)
    assert by_results["correlations"]["summary"][name] == first["correlations"]["summary"][name]

    monkeypatch.setattr(kept_scores, "run_file", None)
    assert evaluate(here, *arguments)["correlations"] == first["correlations"]
    monkeypatch.undo()
    monkeypatch.chdir(here)
    evaluate(here, *arguments, "--dtype", "float64")
    (other,) = set(Path("kept").glob("*.jsonl")) - {kept}
    both = evaluate(here, *arguments, "-m", "coherence")
    (third,) = set(Path("kept").glob("*.jsonl")) - {kept, other}
    assert set(read_rows(third)[0]["geval"]) == {"summarization/fluency", "summarization/coherence"}
    assert both["correlations"]["summary"][name]["fluency"] == first["correlations"]["summary"][name]["fluency"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_evaluation_goes_on_and_keeps_the_same_files(here, monkeypatch):
    """Killed after two units of a metric, and of another one."""
    (here / "plain.yaml").write_text(METRIC.replace("name: clarity", "name: plain"), encoding="utf-8")
    units = []
    add = Store.add

    def evaluated(directory, metric, dies_after=None):
        def counted(store, judge, outcomes, **more):
            units.append(len(rows := list(outcomes)))
            add(store, judge, rows, **more)
            if len(units) == dies_after:
                os.kill(os.getpid(), signal.SIGKILL)

        units.clear()
        monkeypatch.setattr(Store, "add", counted)
        return run(
            *("meta-eval", "data.jsonl", "-m", f"{metric}.yaml", "--human", "rating.clarity", "--group-by", "doc"),
            *("-j", judge_directory(), "--batch-tokens", 800, "--engine", "padded", "-o", directory, "--json"),
            home=here / f"home-{directory}",
        )

    shown = {metric: evaluated("whole", metric).stdout for metric in ("clarity", "plain")}
    assert sum(units) == 12
    assert len(units) > 3, "it is not killed in its middle"
    for metric in ("clarity", "plain"):
        assert kills_itself(lambda: evaluated("killed", metric, dies_after=2))  # noqa: B023 - called at once
        assert [path.name for path in Path("killed").iterdir() if path.is_dir()], "no run was left"
        done = evaluated("killed", metric)
        assert done.exit_code == 0, done.stderr
        assert 0 < sum(units) < 12, "what was finished was scored again"
        assert done.stdout == shown[metric]
    assert {path.name: path.read_bytes() for path in Path("killed").iterdir()} == {
        path.name: path.read_bytes() for path in Path("whole").iterdir()
    }
    assert sorted(name for one in Path("killed").glob("*.jsonl") for name in read_rows(one)[0]["geval"]) == [
        "clarity",
        "plain",
    ]


@pytest.mark.slow
def test_kept_scores_of_other_rows_are_not_taken_and_those_of_unknown_origin_are_kept(here):
    own(here, "-j", judge_directory(), "-o", "kept")
    (kept,) = Path("kept").glob("*.jsonl")
    rows = Path("data.jsonl").read_text()
    Path("data.jsonl").write_text(rows.replace("Yes.", "No.."))
    own(here, "-j", judge_directory(), "-o", "kept")
    assert len([*Path("kept").glob("*.jsonl")]) == 2
    Path("data.jsonl").write_text(rows)
    Path(f"{kept}.meta.json").unlink()
    assert "is not an unchanged result" in own(here, "-j", judge_directory(), "-o", "kept", code=2)


def test_ablations_are_other_estimates_of_the_same_judge(here):
    record = own(here, "-j", judge_directory(), "--ablations", "-o", "kept", "--no-baselines", "--level", "pooled")
    name = Path(judge_directory()).name
    others = {estimate_name(name, one) for one in ABLATIONS}
    assert {f"{name} - probs", f"{name} n = 20", f"{name} median"} == others
    assert set(record["contenders"]) == {name, f"{name} - steps", *others}
    steps = record["comparisons"][f"clarity: {name} / {name} - steps"]["difference"]
    assert steps["low"] < steps["value"] < steps["high"]
    full = read_rows(next(path for path in Path("kept").glob("*.jsonl") if "no-steps" not in path.name))
    bare = read_rows(next(Path("kept").glob("*no-steps*.jsonl")))
    human = [row["rating"]["clarity"] for row in full]
    modes = [float(row["geval"]["clarity"]["mode"]) for row in full]
    assert figure(record, "pooled", f"{name} - probs", "clarity", "pearson") == round(
        stats.pearsonr(human, modes)[0], 4
    )
    scores = [row["geval"]["clarity"]["score"] for row in bare]
    assert figure(record, "pooled", f"{name} - steps", "clarity", "pearson") == round(
        stats.pearsonr(human, scores)[0], 4
    )
    pairs = set(record["comparisons"])
    assert pairs == {f"clarity: {name} / {other}" for other in (*others, f"{name} - steps")}


@pytest.mark.slow
def test_two_judges_are_compared_with_each_other_and_with_people(here):
    record = own(here, "-j", judge_directory(), "-j", other_judge())
    (pair,) = record["agreements"]
    assert record["comparisons"][pair]["groups"] == 6
    assert "Student's t" in record["comparisons"][pair]["why"]
    assert record["levels"] == ["summary"]
    assert "rouge-l" in record["correlations"]["summary"]


def test_several_raters_give_the_human_ceiling(here):
    rows = read_rows(here / "data.jsonl")
    for place, row in enumerate(rows):
        row["raters"] = {"x": row["rating"]["clarity"], "y": 1 + (place * 7) % 5, "z": min(5, place % 3 + 2)}
    write_rows(here / "data.jsonl", rows)
    raters = [part for name in "xyz" for part in ("--rater", f"raters.{name}")]
    record = own(here, "-j", judge_directory(), "--no-baselines", *raters, "--level", "pooled")
    ceiling = record["ceiling"]
    assert (ceiling["raters"], ceiling["n"], ceiling["level"]) == (3, 12, "pooled")
    table = np.array([[row["raters"][name] for row in rows] for name in "xyz"], dtype=float)
    people = [stats.spearmanr(table[i], np.delete(table, i, axis=0).mean(axis=0))[0] for i in range(3)]
    assert ceiling["people"]["value"] == pytest.approx(np.mean(people))
    assert list(ceiling["judges"]) == [Path(judge_directory()).name]
    assert "--benchmark brings them" in evaluate(here, "x.json", "--benchmark", "qags", "--rater", "x", code=2)


@pytest.mark.slow
def test_a_run_of_score_is_taken_as_it_is(here):
    score(here, "run.csv", "--columns", "all")
    score(here, "other.parquet", judge=other_judge())
    record = own(here, "--results", "run.csv", "--results", "other.parquet")
    direct = own(here, "-j", judge_directory(), "-j", other_judge())
    assert record["correlations"] == direct["correlations"]


def test_a_missing_library_is_a_note_and_no_error(here, monkeypatch):
    def without_sacrebleu(name):
        if name.startswith("sacrebleu"):
            raise ImportError(name)
        return __import__(name, fromlist=["_"])

    monkeypatch.setattr(contenders, "import_module", without_sacrebleu)
    score(here, "run.jsonl")
    record = own(here, "--results", "run.jsonl")
    assert {name for name, one in record["contenders"].items() if one["kind"] == "baseline"} == {
        *("length", "rouge-1", "rouge-2", "rouge-l")
    }
    assert [note for note in record["notes"] if "sacrebleu is not installed" in note]


def test_all_rows_unscored_is_said_and_the_others_are_shown(here):
    score(here, "run.jsonl")
    rows = read_rows(here / "run.jsonl")
    for row in rows:
        row["geval"]["clarity"] = {"score": None, "error": "too long", "prompt_tokens": 0}
    Path("run.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    record = own(here, "--results", "run.jsonl")
    assert any("12 x too long" in note for note in record["notes"])
    assert "length" in record["correlations"]["summary"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--responses", "x.json"], "--benchmark"),
        (["--benchmark", "newsroom"], "no benchmark 'newsroom'"),
        (["--limit-groups", "0"], "at least 1"),
        (["--human", "rating.tone", "--human", "x", "--human", "y"], "two fields for clarity"),
        (["--human", "raiting", "--results", "data.jsonl"], "did you mean 'rating'"),
        (["--human", "rating.clarity", "--results", "data.jsonl"], "holds no scores"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_reason(here, arguments, message):
    human = [] if "--human" in arguments or "--benchmark" in arguments else ["--human", "rating.clarity"]
    refused = evaluate(here, "data.jsonl", "-m", "clarity.yaml", *human, *arguments, code=2)
    assert message in refused


@needs_data
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--responses", f"{DATA}/topical_chat.json", "--human", "x"], "--benchmark brings them"),
        (["-m", "tone"], "there is no preset"),
        (["-m", "summarization/fluency"], "no ratings for"),
        (["-m", "tone=clarity.yaml"], "no dimension 'tone'"),
        (["--responses", "tone=x.json"], "no dimension 'tone'"),
        (["--responses", f"{DATA}/geval_results/../qags_xsum.json"], "not a topical-chat file"),
    ],
)
def test_what_does_not_fit_the_benchmark_is_refused(here, arguments, message):
    refused = evaluate(here, DATA / "topical_chat.json", "--benchmark", "topical-chat", *arguments, code=2)
    assert message in refused
