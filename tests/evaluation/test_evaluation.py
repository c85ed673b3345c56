"""One file for an evaluation: what it says is done, durably; what is wrong with it is told with its line."""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
from functools import partial
from pathlib import Path

import jsonschema
import pytest
from cli_run import METRIC, good_rows, judge_directory, read_rows, run, write_rows
from run_kit import killed_after

import geval_local.engine.transformers_backend  # before a test replaces what it imports
import geval_local.models.load
from geval_local import run_evaluation, score_file
from geval_local.analysis.gates import Gate, outcomes, parse_limit
from geval_local.errors import ConfigurationError
from geval_local.evaluation.document import read_evaluation
from geval_local.evaluation.execution import make_plan
from geval_local.evaluation.model import schema
from geval_local.evaluation.start import guess_metrics, start_evaluation
from geval_local.io.input_checks import check_input
from geval_local.judge.judge import Judge
from geval_local.models.registry import label_of
from geval_local.options import JudgeOptions
from geval_local.runs.events import RunEvents
from geval_local.runs.manifest import read_manifest
from geval_local.summary import Tally
from geval_local.testing import MockEngine, MockJudge
from geval_local.thinking import Thoughts
from geval_local.yaml_text import load_yaml

LOAD = Judge.load
EVALUATION = """\
data:
  first: first.jsonl
  second:
    file: second.csv
    fields: {output: answer}
metrics:
  - clarity.yaml
judges:
  - tiny
gates:
  clarity: {unscored: "<= 50%", mean: ">= 1", label_mass: ">= 0"}
outputs: out
report: true
"""


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    (tmp_path / "tiny").symlink_to(judge_directory())
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    write_rows(tmp_path / "first.jsonl", good_rows(6))
    (tmp_path / "second.csv").write_text("source,answer\nA tale.,It ends.\nA tale.,\n", encoding="utf-8")
    (tmp_path / "evaluation.yaml").write_text(EVALUATION, encoding="utf-8")
    # The judge is found as any other, and answers at no cost.
    monkeypatch.setattr(Judge, "load", lambda options: MockJudge(name=label_of(options)))
    monkeypatch.setattr(geval_local.models.load, "check_judge", lambda entry, options: None)
    return tmp_path


def go(here: Path, *arguments: object):
    return run("run", "evaluation.yaml", *arguments, home=here / "home")


# --- what it does ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_all_of_it_is_done_with_the_figures_of_score(here, monkeypatch):
    loads: list[str] = []
    monkeypatch.setattr(Judge, "load", lambda options: loads.append(str(options.name)) or LOAD(options))
    done = go(here)
    assert done.exit_code == 0, done.stderr
    assert len(loads) == 1
    lines = done.stdout.splitlines()
    assert any(line.split()[:3] == ["first", "clarity", "6/6"] for line in lines)
    assert any(line.split()[:3] == ["second", "clarity", "1/2"] for line in lines)
    assert "unscored in clarity of second:" in done.stdout
    for page in ("first", "second"):
        assert "<html" in (here / "out" / f"{page}.html").read_text(encoding="utf-8")
    alone = score_file(
        "first.jsonl", "clarity.yaml", JudgeOptions(name=str(here / "tiny")), "alone.jsonl", use_cache=False
    )
    assert alone.files[0].read_bytes() == (here / "out" / "first" / "scores.jsonl").read_bytes()
    assert read_rows(here / "out" / "second" / "scores.jsonl")[1]["geval"]["clarity"]["score"] is None


def test_a_judge_thinks_as_the_file_says(here, monkeypatch):
    monkeypatch.setattr(Judge, "load", lambda options: MockJudge(name=label_of(options), options=options))
    thinking = "judges=[{name: tiny, think: 3, think_tokens: 40, think_seed: 5}]"
    done = go(here, "--set", thinking, "--set", "report=false")
    assert done.exit_code == 0, done.stderr
    assert "gates: 6 of 6 hold" in done.stderr
    assert done.stderr.count("thoughts of clarity: 3 per row; standard error of the mean from them") == 2
    (scored, *_) = read_rows(here / "out" / "first" / "scores.jsonl")
    assert scored["geval"]["clarity"]["thought_count"] == 3
    options = JudgeOptions(name="tiny", think=3, think_tokens=40, think_seed=5)
    alone = score_file("first.jsonl", "clarity.yaml", MockJudge(name="tiny", options=options), "alone.jsonl")
    assert alone.files[0].read_bytes() == (here / "out" / "first" / "scores.jsonl").read_bytes()
    assert "bias" not in done.stderr
    two = thinking.replace("think: 3", "think: 2")
    assert "think was 3, is 2" in go(here, "--set", two).stderr
    monkeypatch.setattr(Thoughts, "errors", lambda self, values: (0.1, -0.5, 0.2))
    for given, left in ((thinking, "was taken off, and a part is left"), (two, "is left: --think 3 takes it off")):
        told = go(here, "--set", given, "--set", f"outputs={left[:6].strip()}", "--set", "use_cache=false").stderr
        assert told.count(f"; label mass goes with the verdict: a bias of about -0.5 {left}") == 2


def test_the_manifests_hold_the_hash_of_the_file_and_what_was_set(here):
    assert go(here, "--set", "data.first.limit=2", "--set", "report=false").exit_code == 0
    record = read_manifest(here / "out" / "first").settings.evaluation
    assert record.sha256 == hashlib.sha256(EVALUATION.encode()).hexdigest()
    assert record.overrides == ["data.first.limit=2", "report=false"]
    plain = read_evaluation("evaluation.yaml").record
    assert plain.settings_sha256 != record.settings_sha256
    assert read_evaluation("evaluation.yaml", record.overrides).record == record
    (here / "evaluation.yaml").write_text("# a comment\n" + EVALUATION, encoding="utf-8")
    assert read_evaluation("evaluation.yaml").record.settings_sha256 == plain.settings_sha256
    assert not (here / "out" / "first.html").exists()
    assert len(read_rows(here / "out" / "first" / "scores.jsonl")) == 2


def test_a_gate_that_fails_exits_with_1_and_json_says_which(here):
    done = go(here, "--set", "gates.clarity.mean=>= 4.9", "--json")
    assert done.exit_code == 1
    record = json.loads(done.stdout)
    assert [one.split(": the mean")[0] for one in record["failed_gates"]] == ["first: clarity", "second: clarity"]
    assert set(record["data"]) == {"first", "second"}
    assert record["data"]["second"]["metrics"]["clarity"]["unscored"] == 1
    assert "gate failed: first: clarity: the mean" in done.stderr
    assert go(here, "--set", "data.second.gates={clarity: {unscored: <= 0}}").exit_code == 1
    assert go(here).exit_code == 0


def test_an_interrupted_evaluation_goes_on(here):
    class Once(RunEvents):
        def should_stop(self) -> bool:
            return True

    with pytest.raises(KeyboardInterrupt):
        run_evaluation("evaluation.yaml", events=lambda one: Once() if one.name == "second" else RunEvents())
    first = (here / "out" / "first" / "scores.jsonl").stat().st_mtime_ns
    assert not (here / "out" / "second" / "scores.jsonl").exists()
    result = run_evaluation("evaluation.yaml")
    assert result.passed
    assert list(result.runs) == ["first", "second"]
    assert set(result.reports) == {"first", "second"}
    assert (here / "out" / "first" / "scores.jsonl").stat().st_mtime_ns >= first
    whole = go(here, "--set", "outputs=whole")
    assert whole.exit_code == 0
    for name in ("first", "second"):
        a, b = (here / place / name / "scores.jsonl" for place in ("out", "whole"))
        assert a.read_bytes() == b.read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("times", [5, pytest.param(20, marks=pytest.mark.nightly)])
def test_killed_at_random_moments_it_goes_on_to_the_same_bytes_every_time(here, monkeypatch, times):
    def load(options):
        return MockJudge(MockEngine(batch_tokens=600, sensitive=True, seconds=0.004), name=label_of(options))

    monkeypatch.setattr(Judge, "load", load)
    for page in ("run_page", "comparison_page"):  # pages say to the minute when the results were written
        monkeypatch.setattr(f"geval_local.report.{page}.written_on", lambda place: "today")
    write_rows(here / "first.jsonl", good_rows(60))
    begin = time.perf_counter()
    run_evaluation("evaluation.yaml", overrides=["outputs=whole"])
    length = time.perf_counter() - begin
    names = ("first/scores.jsonl", "first/scores.jsonl.meta.json", "second/scores.jsonl", "first.html", "second.html")
    expected = [(here / "whole" / name).read_bytes() for name in names]
    moments, kills, trial = random.Random(7), 0, 0
    while kills < times:
        trial += 1
        again = partial(run_evaluation, "evaluation.yaml", overrides=[f"outputs=out{trial}"])
        kills += killed_after(moments.uniform(0, length), again)
        again()
        found = [(here / f"out{trial}" / name).read_bytes() for name in names]
        assert [a == b for a, b in zip(found, expected, strict=True)] == [True] * len(names)
        left = {path.name for path in (here / f"out{trial}").rglob(".*")} - {".geval-local.lock"}
        assert not left


def test_another_metric_is_another_configuration_unless_it_may_be_replaced(here):
    assert go(here).exit_code == 0
    (here / "other.yaml").write_text(METRIC.replace("clarity", "other"), encoding="utf-8")
    more = ("--set", "metrics.1=other.yaml")
    refused = go(here, *more)
    assert refused.exit_code == 2
    assert "metrics were clarity, are clarity, other" in refused.stderr
    assert go(here, *more, "--overwrite").exit_code == 0


@pytest.mark.slow
def test_several_judges_are_gated_by_name(here):
    judges = "judges=[{name: tiny}, {name: tiny, style: completion, engine: padded}]"
    done = go(here, "--set", judges, "--set", "data={first: first.jsonl}", "--json")
    assert done.exit_code == 0, done.stderr
    results = list(json.loads(done.stdout)["data"]["first"]["metrics"])
    assert len(results) == 2
    assert all(name.startswith("clarity@") for name in results)
    gate = "gates={'" + results[1] + "': {mean: '> 4.99'}}"
    failed = go(here, "--set", judges, "--set", "data={first: first.jsonl}", "--set", gate, "--json")
    assert failed.exit_code == 1, failed.stderr
    assert len(json.loads(failed.stdout)["failed_gates"]) == 1


def test_a_users_page_stays_and_nothing_is_scored_before(here, monkeypatch):
    (here / "out").mkdir()
    (here / "out" / "second.html").write_text("mine", encoding="utf-8")
    monkeypatch.setattr(Judge, "load", None)
    done = go(here)
    assert done.exit_code == 2
    assert "second.html exists" in done.stderr
    assert (here / "out" / "second.html").read_text(encoding="utf-8") == "mine"


# --- what is wrong with it ------------------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("metrics:", "metrcs:", ["line 6: unknown key 'metrcs'; did you mean 'metrics'?", "key 'metrics' is missing"]),
        ("fields:", "filds:", ["line 5: unknown key 'data.second.filds'; did you mean 'fields'?"]),
        ("  - tiny", "  - {name: tiny, dtyp: float32}", ["line 9: unknown key 'judges.0.dtyp'; did you mean 'dtype'?"]),
        ("  - tiny", "  - {name: tiny, dtype: flaot32}", ["line 9: judges.0.dtype", "did you mean 'float32'?"]),
        ("  - tiny", "  - tinny", ["line 9: there is no judge 'tinny'"]),
        ("clarity.yaml", "summarization/coherenc", ["line 7: there is no preset metric", "summarization/coherence"]),
        ("clarity: {", "clarty: {", ["line 11: a gate of 'clarty'", "did you mean 'clarity'"]),
        ('">= 1"', '"at least 1"', ["line 11: gates.clarity.mean: 'at least 1' is no comparison", '">= 3.5"']),
        ('">= 1"', '">= 60%"', ["mean is no share"]),
        ('">= 1"', '">= 6"', ["line 11: the limit 6 is outside the scale 1-5 of clarity"]),
        ('mean: ">= 1"', 'passed: ">= 90%"', ["line 11: passed needs a threshold, and clarity has none"]),
        ('">= 1"', ">= 1", ["not valid YAML", "in quotes"]),
        ("first.jsonl", "absent.jsonl", ["line 2: there is no file", "absent.jsonl"]),
        ("output: answer", "output: answr", ["line 3: 'output' is mapped to 'answr'", "did you mean 'answer'"]),
        ("report: true", "report: perhaps", ["line 13: report: Input should be a valid boolean"]),
        ("first: first", "../first: first", ["line 2: data.../first", "name is that of a directory"]),
        ("outputs: out", "outputs: out\ncolumns: [id]", ["line 2: `columns` and `csv_style` are about CSV"]),
        ("outputs: out", "outputs: {directory: out}", ["line 12: outputs: Input should be a valid string"]),
        ("report: true", "cache: false", ["`cache` is an option no more", "`use_cache`"]),
        (EVALUATION, "- a\n- b\n", ["an evaluation is a mapping"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(here, monkeypatch, old, new, told):
    text = EVALUATION.replace(old, new)
    assert text != EVALUATION
    (here / "evaluation.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(Judge, "load", None)
    done = go(here)
    assert done.exit_code == 2, done.stderr
    message = " ".join(done.stderr.split())
    for part in told:
        assert part in message, done.stderr
    assert "Traceback" not in done.stderr
    assert not (here / "out").exists()


def test_a_check_names_the_judge_whose_weights_are_not_here(here):
    done = go(here, "--check", "--set", "judges=[qwen2.5-0.5b]")
    assert done.exit_code == 0, done.stderr
    assert "nothing is missing" not in done.stderr
    assert "qwen2.5-0.5b is not on this machine: geval-local judges fetch qwen2.5-0.5b" in done.stderr


def test_a_check_shows_what_the_judge_reads(here):
    done = go(here, "--check")
    assert done.exit_code == 0, done.stderr
    assert "    source: " in done.stderr
    assert "clarity: " in done.stderr


def test_all_problems_are_told_at_once(here):
    text = EVALUATION.replace("clarity.yaml", "nothing/here").replace("- tiny", "- tinny")
    (here / "evaluation.yaml").write_text(text, encoding="utf-8")
    done = go(here, "--check")
    assert done.exit_code == 2
    assert "line 7" in done.stderr
    assert "line 9" in done.stderr


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("judges.0.dtyp=float32", "--set judges.0.dtyp=float32: unknown key 'judges.0.dtyp'; did you mean 'dtype'?"),
        ("data.first.limit=many", "--set data.first.limit=many: data.first.limit: Input should be a valid integer"),
        ("judges.3=nano", "is a list of 1, and '3' is no place in it"),
        ("report.x=1", "report is True and holds no keys"),
        ("limit", "sets nothing"),
        ("window=[", "is not valid YAML"),
        ("metrics.0.name=nothing/here", "--set metrics.0.name=nothing/here: there is no preset metric"),
    ],
)
def test_what_is_set_wrongly_is_told_by_its_text(here, given, told):
    done = go(here, "--check", "--set", given)
    assert done.exit_code == 2
    assert told in " ".join(done.stderr.split())


def test_a_column_that_is_not_there_is_mapped_in_yaml(here):
    """Also where Python runs the file: a person pastes the hint into it."""
    write_rows(here / "first.jsonl", [{"source": "A tale.", "answer text": "It ends."}])
    told = r"evaluation.yaml, line 2: .*'output' is missing\n(?s:.*)\n  `fields: {output: answer text}`"
    with pytest.raises(ConfigurationError, match=told):
        run_evaluation("evaluation.yaml")
    assert "\n  `fields: {output: answer text}`" in go(here, "--check").stderr


def test_values_that_are_set_have_the_types_of_yaml(here):
    overrides = [
        "judges.0.dtype=float64",
        "data.first.limit=3",
        "gates.clarity.mean=>= 2",
        "use_cache=never",
        "judges.1=nano",
    ]
    with pytest.raises(ConfigurationError, match="use_cache: Input should be a valid boolean"):
        read_evaluation("evaluation.yaml", overrides)
    settings = read_evaluation("evaluation.yaml", [*overrides[:3], "use_cache=false", "judges.1=nano"]).settings
    assert settings.judges == [JudgeOptions(name="tiny", dtype="float64"), JudgeOptions(name="nano")]
    assert settings.data["first"].limit == 3
    assert settings.gates["clarity"].mean == ">= 2"
    assert settings.use_cache is False


def test_paths_are_relative_to_the_file(here, monkeypatch):
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    done = run("run", "../evaluation.yaml", "--set", "report=false", home=here / "home")
    assert done.exit_code == 0, done.stderr
    assert (here / "out" / "first" / "scores.jsonl").is_file()
    assert list((here / "elsewhere").iterdir()) == []


# --- parts ----------------------------------------------------------------------------------------------------------


def test_limits_and_gates():
    assert parse_limit("unscored", "<= 2%") == ("<=", 0.02, True)
    assert parse_limit("mean", ">3") == (">", 3.0, False)
    for figure, text in (("unscored", "<= 1.5"), ("passed", ">= 1.2"), ("label_mass", ">= 90%"), ("mean", "3.5")):
        with pytest.raises(ValueError, match=r"share|comparison|whole"):
            parse_limit(figure, text)
    from geval_local.score import Score

    tally = Tally("m")
    for row, value in enumerate((2.0, 4.0), start=1):
        score = Score("m", value, probabilities={}, label_mass=0.9, passed=value >= 3, threshold=3.0)
        tally.add("r", row, score)
    tally.add("r", 3, Score.unscored("m", "empty"))
    summary = tally.summary()
    expected = {
        ("mean", ">= 3"): "the mean is 3",
        ("mean", "> 3"): "the mean 3 is not over 3",
        ("mean", "<= 2.5"): "the mean 3 is over 2.5",
        ("passed", ">= 60%"): "the share that passes 50.00% is under 60.00%",
        ("unscored", "<= 0"): "1 of 3 rows are unscored, more than 0",
        ("unscored", "<= 40%"): "1 of 3 rows are unscored",
        ("label_mass", ">= 0.95"): "the mean label mass 0.9 is under 0.95",
    }
    for (figure, text), told in expected.items():
        holds = text in (">= 3", "<= 40%")
        assert Gate(figure, parse_limit(figure, text)).checked(summary)[:2] == (holds, told)
    other = Gate("mean", parse_limit("mean", ">= 5"), "another")
    assert outcomes([other], [summary]) == []


# --- to start from --------------------------------------------------------------------------------------------------


def test_init_guesses_metrics_and_fields_and_its_file_runs(here):
    (here / "rag.csv").write_text(
        "user_query,retrieved_chunks,answer\nWhen?,On Monday the ferry stops.,On Monday.\n", encoding="utf-8"
    )
    done = run("init", "rag.csv", "-j", "tiny", "-o", "rag.yaml", home=here / "home")
    assert done.exit_code == 0, done.stderr
    text = (here / "rag.yaml").read_text(encoding="utf-8")
    assert text.startswith("# yaml-language-server: $schema=evaluation.schema.json\n")
    document = load_yaml(text)[0]
    assert document["metrics"] == ["rag/answer_relevance", "rag/context_relevance", "rag/faithfulness"]
    mapping = {"question": "user_query", "output": "answer", "context": "retrieved_chunks"}
    assert document["data"]["rag"]["fields"] == mapping
    assert run("run", "rag.yaml", "--check", home=here / "home").exit_code == 0
    described = json.loads((here / "evaluation.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(document, described)
    before = {path: path.read_bytes() for path in here.glob("*.*ml")}
    again = run("init", "rag.csv", "-o", "rag.yaml", home=here / "home")
    assert again.exit_code == 2
    assert "is there already" in again.stderr
    assert {path: path.read_bytes() for path in here.glob("*.*ml")} == before


def test_init_without_data_or_with_strange_columns(here):
    text = start_evaluation(here / "plain.yaml")[0]
    jsonschema.validate(load_yaml(text)[0], schema())
    (here / "odd: name.csv").write_text('"a: b",Outptu\nx,A text.\n', encoding="utf-8")
    written, notes = start_evaluation(here / "odd.yaml", here / "odd: name.csv", metrics=["clarity.yaml"])
    document = load_yaml(written)[0]
    assert document["data"]["odd_name"]["file"] == "odd: name.csv"
    assert document["data"]["odd_name"]["fields"] == {"output": "Outptu"}
    assert "fields: output from 'Outptu' (a guess)" in notes
    assert any("not found: source" in note for note in notes)
    assert guess_metrics(["source", "output"], ["source", "output"], {})[0].startswith("summarization/")
    assert guess_metrics(["x"], ["x"], {}) == []
    for columns in (["Ticket", "question", "output"], ["No", "Question text", "bot reply"], ["message", "reply"]):
        assert guess_metrics(columns, columns, {})[0] == "assistant/helpfulness"
    assert guess_metrics(["question", "expected_output", "answer"], ["question", "expected_output", "answer"], {}) == [
        "correctness/answer_correctness"
    ]


def test_init_guesses_from_what_columns_hold(here):
    (here / "d.csv").write_text(
        "model reply,user question,said in reply\ngpt-4,How long?,Ten days.\n", encoding="utf-8"
    )
    written, _ = start_evaluation(here / "d.yaml", here / "d.csv", metrics=["assistant/helpfulness"])
    assert load_yaml(written)[0]["data"]["d"]["fields"] == {"question": "user question", "output": "said in reply"}
    assert guess_metrics(["model reply", "user question"], ["user question"], {}) == []


def test_init_finds_what_chats_hold(here):
    chat = [{"role": "user", "content": "How long?"}, {"role": "assistant", "content": "Ten days."}]
    write_rows(here / "chats.jsonl", [{"id": n, "lang": "en", "messages": chat} for n in range(2)])
    written, notes = start_evaluation(here / "c.yaml", here / "chats.jsonl")
    assert "fields: question from the chats in 'messages', output from the chats in 'messages'" in notes
    assert not any("not found" in note for note in notes)
    (here / "c.yaml").write_text(written, encoding="utf-8")
    document = load_yaml(written)[0]
    assert (document["metrics"][0], document["data"]["chats"]["fields"]) == ("assistant/helpfulness", None)
    plan = make_plan(read_evaluation("c.yaml", ["judges=[tiny]"]))
    (sample, *_) = check_input(plan.data[0].path, plan.metrics, plan.file.settings.run_options("chats"))
    assert sample.texts(["question", "output"]) == {"question": "How long?", "output": "Ten days."}


def test_the_schema_knows_what_the_model_knows(here):
    done = run("init", "--schema", home=here / "home")
    assert done.exit_code == 0
    described = json.loads(done.stdout)
    jsonschema.Draft202012Validator.check_schema(described)
    document = load_yaml(EVALUATION)[0]
    jsonschema.validate(document, described)
    for wrong in ({"metrcs": []}, {"report": "yes"}, {"gates": {"clarity": {"mean": "at least 3"}}}, {"judges": [3]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(document | wrong, described)
    assert make_plan(read_evaluation("evaluation.yaml")).metrics[0].name == "clarity"
