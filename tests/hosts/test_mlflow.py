"""The scorer inside MLflow itself, on a SQLite store, and finished runs written as MLflow runs."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
from cli_run import good_rows, judge_directory, run, write_rows
from offline import QUIET

pytest.importorskip("mlflow", reason="mlflow is not installed: pip install 'geval-local[mlflow]'")

import mlflow
from mlflow.genai.scorers import get_scorer
from mlflow.tracking import MlflowClient

from geval_local import Metric, read_samples
from geval_local.errors import ConfigurationError
from geval_local.hosts.bound import release_judges
from geval_local.hosts.mlflow import geval
from geval_local.testing import MockJudge

ANSWER = Metric(
    name="rag/answer",
    criteria="Does the answer agree with the reference?",
    scale="1-5",
    steps=("Compare them.",),
    fields={"question": "Question", "reference": "Reference", "output": "Answer"},
    threshold=1.0,
)
ROWS = [
    {
        "inputs": {"question": f"When does ferry {number} sail?"},
        "outputs": f"At {number}.",
        "expectations": {"expected_output": f"At {number} sharp."},
    }
    for number in range(12)
] + [{"inputs": {"question": "Who?"}, "outputs": " ", "expectations": {"expected_output": "Nobody."}}]


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(mlflow.tracking, "_last_active_run_id", None, raising=False)
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    yield uri
    mlflow.set_tracking_uri(before)


def test_genai_evaluate(store):
    mlflow.set_experiment("ferries")
    result = mlflow.genai.evaluate(data=ROWS, scorers=[geval(ANSWER, MockJudge())])
    rows = [
        {
            "question": row["inputs"]["question"],
            "reference": row["expectations"]["expected_output"],
            "output": row["outputs"],
        }
        for row in ROWS[:12]
    ]
    wanted = {row["output"]: score for row, score in zip(rows, MockJudge().score_many(ANSWER, rows), strict=True)}
    assert result.metrics["rag/answer/mean"] == pytest.approx(sum(score.value for score in wanted.values()) / 12)
    client = MlflowClient()
    seen = 0
    for trace in mlflow.search_traces(return_type="list"):
        (feedback,) = [one for one in trace.info.assessments if one.name == "rag/answer"]
        output = json.loads(trace.data.response) if trace.data.response else None
        assert (feedback.source.source_type, feedback.source.source_id) == ("LLM_JUDGE", "geval-local:/mock")
        if output == " ":
            assert feedback.value is None
            assert feedback.error.error_code == "empty_field"
            assert "only white space" in feedback.error.error_message
            continue
        score = wanted[output]
        assert feedback.value == score.value
        assert feedback.rationale.startswith(f"{score.value:.3g} on 1-5: ")
        assert json.loads(feedback.metadata["probabilities"]) == score.probabilities
        assert feedback.metadata["signature"] == str(MockJudge().signature(ANSWER))
        seen += 1
    assert seen == 12
    assert client.get_experiment_by_name("ferries") is not None
    assert result.passed is False  # the row without a score; the threshold is the scale's end
    assert "only white space" in result.reason


def test_fields_may_be_mapped_into_the_parts_of_a_row():
    scorer = geval(
        ANSWER, MockJudge(), fields={"reference": "expectations.gold.text", "output": "outputs.answer"}, name="agrees"
    )
    feedback = scorer(
        inputs={"question": "When?"}, outputs={"answer": "At six."}, expectations={"gold": {"text": "Six."}}
    )
    assert feedback.name == "agrees"
    assert feedback.value == MockJudge().score(ANSWER, question="When?", reference="Six.", output="At six.").value
    for name in ("reference", "expected_response", "expected_output", "ground_truth"):
        plain = geval(ANSWER, MockJudge())(inputs="When?", outputs="At six.", expectations={name: "Six."})
        assert plain.value == feedback.value


def test_a_trace_gives_what_is_not_given(store):
    mlflow.set_experiment("traced")

    @mlflow.trace
    def answer(question):
        with mlflow.start_span("lookup") as span:
            span.set_inputs({"question": "Inner?"})
            span.set_outputs("Inner.")
        return "At six."

    answer("When?")
    mlflow.flush_trace_async_logging()
    number = mlflow.get_last_active_trace_id()
    mlflow.log_expectation(trace_id=number, name="expected_output", value="Six.")
    trace = mlflow.get_trace(number)
    scorer = geval(ANSWER, MockJudge())
    wanted = MockJudge().score(ANSWER, question="When?", reference="Six.", output="At six.").value
    assert scorer(trace=trace).value == scorer.run(trace=trace).value == wanted
    other = MockJudge().score(ANSWER, question="When?", reference="Six.", output="At nine.").value
    assert scorer(trace=trace, outputs="At nine.").value == other != wanted
    result = mlflow.genai.evaluate(data=[trace], scorers=[scorer])
    assert result.metrics["rag/answer/mean"] == wanted


def test_a_scorer_is_pickled_copied_and_registered_without_its_judge(store, monkeypatch):
    mlflow.set_experiment("kept")
    scorer = geval(ANSWER, judge_directory(), name="agrees", threshold=1.5)
    row = {"inputs": {"question": "When?"}, "outputs": "At six.", "expectations": {"expected_output": "Six."}}
    wanted = scorer(**row).value
    assert copy.deepcopy(scorer)(**row).value == wanted
    kept = pickle.dumps(scorer)
    assert len(kept) < 20_000
    release_judges()
    assert pickle.loads(kept)(**row).value == pytest.approx(wanted, abs=1e-5)
    # MLflow stores functions as their source, and runs that only where it is told to trust it.
    monkeypatch.setenv("MLFLOW_SERVER_ENABLE_CUSTOM_SCORERS", "true")
    pickle.loads(kept).register()
    found = get_scorer(name="agrees")
    assert found(**row).value == pytest.approx(wanted, abs=1e-5)
    # A judge of random weights does not answer in labels, so it passes nothing.
    assert found(**row).metadata["passed"] == scorer(**row).metadata["passed"] == "false"
    with pytest.raises(ConfigurationError, match="rag/answer: its judge was loaded elsewhere"):
        pickle.dumps(geval(ANSWER, MockJudge()))


METRIC = """\
name: clarity
criteria: How clear the text is.
fields: {source: Source, output: Text}
scale: 1-5
steps: [Read the text.]
"""


@pytest.mark.usefixtures("answering")
def test_a_finished_run_becomes_an_mlflow_run(store, tmp_path):
    data = write_rows(tmp_path / "data.jsonl", [*good_rows(5), {"id": "empty", "source": "A tale.", "output": ""}])
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    home = tmp_path / "home"
    scored = run(
        *("score", data, "-m", "clarity.yaml", "-j", judge_directory(), "-o", "scores.jsonl", "--json"), home=home
    )
    assert scored.exit_code == 0, scored.stderr
    figures = json.loads(scored.stdout)["metrics"]["clarity"]
    written = run(
        *("export", "scores.jsonl", "--mlflow", "--tracking-uri", store, "--experiment", "runs", "--name", "first"),
        home=home,
    )
    assert written.exit_code == 0, written.stderr
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("runs")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_name == "first"
    assert found.info.run_id in written.stderr
    assert found.data.metrics["clarity/mean"] == figures["mean"]
    assert (found.data.metrics["clarity/scored"], found.data.metrics["clarity/unscored"]) == (5, 1)
    assert found.data.metrics["clarity/low"] == figures["interval"][0]
    assert found.data.params["input"] == "data.jsonl"
    manifest = json.loads((tmp_path / "scores.jsonl.meta.json").read_text(encoding="utf-8"))
    assert found.data.tags["geval_local.signature.clarity"] == manifest["metrics"]["clarity"]["signature"]
    artifacts = {one.path for one in client.list_artifacts(found.info.run_id)}
    assert artifacts == {"scores.jsonl", "scores.jsonl.meta.json", "report.html"}
    page = client.download_artifacts(found.info.run_id, "report.html", str(tmp_path / "home"))
    with open(page, encoding="utf-8") as file:
        assert "clarity" in file.read()
    kept = client.download_artifacts(found.info.run_id, "scores.jsonl", str(tmp_path / "home"))
    assert len(list(read_samples(kept))) == 6


def test_export_says_what_is_missing(store, tmp_path):
    home = tmp_path / "home"
    write_rows(tmp_path / "scores.jsonl", [{"id": 1, "output": "x"}])
    nowhere = run("export", "scores.jsonl", home=home)
    assert (nowhere.exit_code, "Write --mlflow" in nowhere.stderr) == (2, True)
    unscored = run("export", "scores.jsonl", "--mlflow", home=home)
    assert (unscored.exit_code, "row 1: no scores" in unscored.stderr) == (2, True)


def test_low_scores_pass_where_they_are_good():
    passes = geval(ANSWER.model_copy(update={"better": "low", "threshold": 2.0}), MockJudge()).pass_if
    assert [passes(value) for value in (1.0, 2.0, 2.1)] == [True, True, False]
