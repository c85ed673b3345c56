"""Every verb with the judges of other programs: vLLM here, its server and llama.cpp's, with a tiny model."""

from __future__ import annotations

import json
import urllib.request

import pytest
from cli_run import METRIC, STEPLESS, read_rows, run, write_rows
from llama_program import LlamaServed
from programs import Served, install_vllm
from tiny import byte_tokenizer

from geval_local import Judge, Metric
from geval_local.hosts.evaluator import evaluator
from geval_local.options import JudgeOptions

ROWS = [
    {
        "id": f"{document}{system}",
        "doc_id": f"d{document}",
        "system": system,
        "source": f"A tale of {document}.",
        "output": f"It ends at {document}{system}.",
    }
    for document in range(2)
    for system in "ab"
]
QUESTIONS = """\
rain: {type: predicate, instructions: It rains.}
mood: {type: choice, options: {good: it is good, gloomy: }}
"""


@pytest.fixture(params=["vllm", "served", "llama"])
def judge(request, directory, program, monkeypatch):
    """The options that choose a judge."""
    if request.param == "vllm":
        install_vllm(monkeypatch, program, [])
        yield {"name": str(directory), "engine": "vllm", "style": "chat"}
    else:
        kind = LlamaServed if request.param == "llama" else Served
        with kind(program, byte_tokenizer(), str(directory)).running() as address:
            yield {"name": address, "style": "chat"}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "data.jsonl", ROWS)
    (tmp_path / "clarity.yaml").write_text(METRIC)
    (tmp_path / "plain.yaml").write_text(STEPLESS)
    (tmp_path / "q.yaml").write_text(QUESTIONS)
    return tmp_path


def call(judge, *arguments):
    options = [part for name, value in judge.items() if name != "name" for part in (f"--{name}", value)]
    done = run(*arguments, "-j", judge["name"], *options, home="home")
    assert done.exit_code == 0, done.stderr
    return done


def test_several_metrics_the_cache_and_reasons(here, judge):
    asked = ("score", "data.jsonl", "-m", "clarity.yaml", "-m", "summarization/coherence", "--limit", "3")
    call(judge, *asked, "-o", "first.jsonl")
    again = json.loads(call(judge, *asked, "-o", "second.jsonl", "--json").stdout)
    assert again["from_cache"] == 6
    rows = read_rows(here / "first.jsonl")
    assert len(rows) == 3
    assert all(one["score"] is not None for row in rows for one in row["geval"].values())
    asked = ("reasons", "first.jsonl", "-m", "clarity", "--lowest", "2", "--tokens", "8", "-o", "r.jsonl")
    if judge.get("engine") is None:
        done = run(*asked, home="home")
        assert done.exit_code == 2
        assert "results do not name its address" in done.stderr
    call(judge, *asked)
    assert len(read_rows(here / "r.jsonl")) == 2


def test_decide_and_pairs(here, judge):
    call(judge, "decide", "data.jsonl", "-q", "q.yaml", "--state", "output", "-o", "d.jsonl")
    assert all(0 <= row["decisions"]["rain"]["probability"] <= 1 for row in read_rows(here / "d.jsonl"))
    call(judge, "pairs", "data.jsonl", "-m", "clarity.yaml", "-o", "p.jsonl")
    assert len(read_rows(here / "p.jsonl")) == 2


def test_steps_are_written_or_refused_in_words(here, judge):
    options = [part for name, value in judge.items() if name != "name" for part in (f"--{name}", value)]
    done = run("steps", "plain.yaml", "-j", judge["name"], *options, home="home")
    # A random model writes no list, whoever computes it.
    assert done.exit_code == 2
    assert "steps" in done.stderr
    assert "Traceback" not in done.stderr


def test_scores_of_it_are_calibrated_and_the_calibration_applied(here, judge):
    rows = [
        {**ROWS[at % 4], "id": str(at), "doc_id": f"d{at}", "source": f"A tale of {at}.", "anna": 1 + at % 5}
        for at in range(12)
    ]
    write_rows(here / "rated.jsonl", rows)
    call(judge, "score", "rated.jsonl", "-m", "clarity.yaml", "-o", "scored.jsonl")
    fitted = run("calibrate", "scored.jsonl", "--human", "anna", "-o", "calibration.json", home="home")
    assert fitted.exit_code == 0, fitted.stderr
    assert "verdict" in fitted.stdout
    options = [part for name, value in judge.items() if name != "name" for part in (f"--{name}", value)]
    again = ("score", "rated.jsonl", "-m", "clarity.yaml", "--calibration", "calibration.json", "-o", "again.jsonl")
    done = run(*again, "-j", judge["name"], *options, home="home")
    # Ratings that say nothing of the texts: no calibration helps, and the judge's answer says so before any row.
    assert done.exit_code == 2
    assert "is not applied" in done.stderr


def test_judges_check(here, judge):
    options = [part for name, value in judge.items() if name != "name" for part in (f"--{name}", value)]
    done = run("judges", "check", judge["name"], "-m", "clarity.yaml", *options, "--json", home="home")
    assert done.exit_code in (0, 1), done.stderr  # the label mass of a random model is small
    record = json.loads(done.stdout)
    assert record["batch_difference"] < 1e-6, record
    assert "`judges check` measures" not in done.stdout  # it cannot, where another program computes


def test_an_evaluation_and_its_report(here, judge):
    chosen = {"data": {"test": "data.jsonl"}, "judges": [judge], "metrics": ["clarity.yaml"], "outputs": "out"}
    (here / "e.yaml").write_text(json.dumps(chosen | {"report": True}))
    done = run("run", "e.yaml", home="home")
    assert done.exit_code == 0, done.stderr
    (page,) = (here / "out").rglob("*.html")
    assert ("not verified" in page.read_text()) is ("engine" not in judge)


def test_options_of_a_backend_on_the_command_line(here, judge, directory):
    """They are checked with the judge that they are for, wherever that is named."""
    if judge.get("engine"):
        call(judge, "score", "data.jsonl", "-m", "clarity.yaml", "--tensor-parallel", "2", "--vllm", "max_num_seqs=4")
        own = f"{judge['name']},engine=vllm,tensor-parallel=2"
    else:
        served = ("--tokenizer", directory, "--served-model", "tiny", "--requests-at-once", "2", "--allow-remote")
        call(judge, "score", "data.jsonl", "-m", "clarity.yaml", *served)
        checked = run("judges", "check", judge["name"], "-m", "clarity.yaml", *served, "--style", "chat", home="home")
        assert checked.exit_code in (0, 1), checked.stderr
        own = f"{judge['name']},tokenizer={directory}"
    done = run("score", "data.jsonl", "-m", "clarity.yaml", "-j", own, home="home")
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize("wrong", [("--tokenizer", "."), ("--tensor-parallel", "2"), ("--allow-remote",)])
@pytest.mark.parametrize("named", [(), ("-j", "nano")])
def test_options_of_another_backend_are_refused(here, wrong, named):
    done = run("score", "data.jsonl", "-m", "clarity.yaml", *named, *wrong, home="home")
    assert done.exit_code == 2
    assert wrong[0] in done.stderr


def test_an_evaluator_and_a_server_ask_it(here, judge):
    pytest.importorskip("uvicorn")
    from serving import serving

    loaded = Judge.load(JudgeOptions(**judge))
    metric = Metric.load("clarity.yaml")
    (expected,) = loaded.score_many(metric, ROWS[:1])
    assert evaluator(metric, loaded)(**ROWS[0])["score"] == pytest.approx(expected.value, abs=1e-9)
    with serving(loaded) as (port, _):
        body = json.dumps({"metric": metric.model_dump(mode="json", exclude_none=True), "rows": ROWS[:1]}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/score", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            (row,) = json.loads(answer.read())["rows"]
    assert row["geval"]["clarity"]["score"] == pytest.approx(expected.value, abs=1e-4)


@pytest.mark.slow
def test_deepeval_asks_it(here, judge):
    pytest.importorskip("deepeval")
    from deepeval.test_case import LLMTestCase

    from geval_local.hosts.deepeval import GEvalLocal

    loaded = Judge.load(JudgeOptions(**judge))
    metric = Metric.load("clarity.yaml")
    case = LLMTestCase(input=ROWS[0]["source"], actual_output=ROWS[0]["output"])
    own = metric.model_copy(update={"fields": {"output": "Text"}})
    assert GEvalLocal(own, loaded).measure(case) == loaded.score_many(own, ROWS[:1])[0].normalized
