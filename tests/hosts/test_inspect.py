"""The scorer inside Inspect itself: live with mockllm, and on a log without any model."""

from __future__ import annotations

import math
import os
import sys
from importlib.metadata import entry_points
from pathlib import Path

import forked
import pytest
from cli_run import judge_directory
from offline import environment

pytest.importorskip("inspect_ai", reason="inspect_ai is not installed: pip install 'geval-local[inspect]'")

from inspect_ai import Epochs, Task, eval, score
from inspect_ai._util.registry import registry_lookup, registry_params
from inspect_ai.dataset import Sample
from inspect_ai.log import read_eval_log
from inspect_ai.model import ModelOutput, ModelUsage, get_model

from geval_local import Judge, Metric
from geval_local.errors import ConfigurationError
from geval_local.hosts.inspect import geval
from geval_local.options import JudgeOptions
from geval_local.testing import MockJudge

ANSWER = Metric(
    name="answer",
    criteria="Does the answer agree with the reference and the passages?",
    scale="1-5",
    steps=("Compare them.",),
    fields={"question": "Question", "reference": "Reference", "context": "Passages", "output": "Answer"},
)
FIELDS = {"context": "metadata.passages"}
SAMPLES = [
    Sample(id=1, input="When does it sail?", target="At six.", metadata={"passages": ["It sails at six.", "White."]}),
    Sample(id=2, input="Which colour?", target="White.", metadata={"passages": ["It is white."]}),
    Sample(id=3, input="Who sails it?", target="Nobody knows."),
]
OUTPUTS = ["At six.", "Red.", "A sailor."]


def evaluated(directory, scorer):
    outputs = [ModelOutput.from_content("mockllm", text) for text in OUTPUTS]
    for output in outputs:
        output.usage = ModelUsage()  # or mockllm counts tokens with a vocabulary that it downloads
    model = get_model("mockllm/model", custom_outputs=outputs)
    task = Task(dataset=SAMPLES, scorer=scorer, name="ferry")
    (log,) = eval(task, model=model, log_dir=str(directory), display="none", max_connections=1, max_samples=1)
    assert log.status == "success", log.error
    return log


def expected(judge, outputs=OUTPUTS):
    rows = [
        {
            "question": sample.input,
            "reference": sample.target,
            "context": sample.metadata["passages"],
            "output": output,
        }
        for sample, output in zip(SAMPLES[:2], outputs, strict=False)
    ]
    return judge.score_many(ANSWER, rows)


def test_a_live_evaluation(tmp_path):
    log = evaluated(tmp_path, geval(ANSWER, MockJudge(), fields=FIELDS, threshold=2.0))
    found = {sample.id: sample.scores["answer"] for sample in log.samples}
    outputs = [sample.output.completion for sample in sorted(log.samples, key=lambda one: one.id)]
    wanted = expected(MockJudge(), outputs)
    for number, score_ in enumerate(wanted, start=1):
        one = found[number]
        assert one.value == score_.value
        assert one.answer == outputs[number - 1]
        assert one.explanation.startswith(f"{score_.value:.3g} on 1-5: {score_.mode} (")
        assert one.metadata["probabilities"] == score_.probabilities
        assert one.metadata["passed"] is bool(score_.value >= 2.0)
        assert one.metadata["signature"] == str(MockJudge().signature(ANSWER))
    assert math.isnan(found[3].value)
    assert "'context' is mapped to 'metadata.passages', which is not there" in found[3].reason
    metrics = log.results.scores[0].metrics
    assert metrics["mean"].value == pytest.approx(sum(score_.value for score_ in wanted) / 2)
    assert "stderr" in metrics
    assert metrics["pass_rate"].value == sum(score_.value >= 2.0 for score_ in wanted) / 2
    assert log.results.scores[0].unscored_samples == 1


def test_an_empty_output_is_empty_and_not_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "OUTPUTS", ["", "Red.", "A sailor."])
    log = evaluated(tmp_path, geval(ANSWER, MockJudge(), fields=FIELDS))
    (one,) = [sample.scores["answer"] for sample in log.samples if sample.output.completion == ""]
    assert math.isnan(one.value)
    assert "the field 'output' is empty" in one.metadata["error"] + (one.reason or "")


def test_scorers_are_named_after_their_metrics_and_have_a_pass_rate_where_there_is_a_threshold(tmp_path):
    others = [ANSWER.model_copy(update={"name": name}) for name in ("rag/answer", "rag/tone")]
    log = evaluated(tmp_path, [geval(metric, MockJudge(), fields=FIELDS) for metric in others])
    assert [one.name.removeprefix("rag/") for one in log.results.scores] == ["answer", "tone"]
    assert all(set(one.metrics) == {"mean", "stderr"} for one in log.results.scores)
    assert [set(sample.scores) for sample in log.samples] == [{one.name for one in log.results.scores}] * 3


def test_a_log_is_scored_again_without_its_model(tmp_path):
    log = evaluated(tmp_path, geval(ANSWER, MockJudge(), fields=FIELDS))
    again = score(log, geval(ANSWER, MockJudge(), fields=FIELDS, normalized=True), action="append", display="none")
    for before, after in zip(log.samples[:2], again.samples[:2], strict=True):
        values = [one.value for name, one in after.scores.items() if name.startswith("answer")]
        assert values == [before.scores["answer"].value, ANSWER.scale.normalize(before.scores["answer"].value)]


SCORER_FILE = """
from inspect_ai.scorer import Scorer, mean, scorer, stderr
from geval_local.hosts.inspect import geval as local
import geval_local

@scorer(metrics=[mean(), stderr()])
def clarity(metric: str, judge: str) -> Scorer:
    return local(metric, judge, fields={"source": "input"})
"""
CLARITY = """\
name: clarity
criteria: How clear the text is.
fields: {source: Source, output: Text}
scale: 1-5
steps: [Read the text.]
"""


ROOT = Path(__file__).parents[2]


def test_inspect_score_without_a_scorer_finds_that_of_the_log(tmp_path):
    """In a process that knows nothing but the log, and where the entry points are those of this package."""
    options = JudgeOptions(name=str(judge_directory()), batch_tokens=512)
    preset = "rag/answer_relevance"
    log = evaluated(tmp_path, geval(preset, options, threshold=2.0, normalized=True))
    own = environment(tmp_path) | {"GEVAL_LOCAL_HOME": os.environ["GEVAL_LOCAL_HOME"]}
    tomllib = pytest.importorskip("tomllib", reason="from Python 3.11 on")
    points = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    described = tmp_path / "site" / "geval_local_here-0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: geval-local-here\nVersion: 0\n")
    lines = "".join(f"{name} = {value}\n" for name, value in points["inspect_ai"].items())
    (described / "entry_points.txt").write_text(f"[inspect_ai]\n{lines}")
    line = f"inspect score {log.location} --model none/none --action append --output-file again.eval --display none"
    done = forked.script(line, cwd=tmp_path, env=own)
    assert done.returncode == 0, done.stdout + done.stderr
    again = read_eval_log(str(tmp_path / "again.eval"))
    for sample in again.samples:
        first, second = sample.scores.values()
        assert 0 < first.value < 1
        assert second.value == pytest.approx(first.value, abs=1e-5)
        assert second.metadata["signature"] == first.metadata["signature"]
    (name, again_name) = again.samples[0].scores
    assert again_name == f"{name}1"
    assert [set(one.metrics) for one in again.results.scores] == [{"mean", "stderr", "pass_rate"}] * 2


def test_a_log_of_another_metric_than_the_preset_is_not_scored_as_if_it_were_that():
    tagged = geval("rag/answer_relevance", MockJudge())
    again = registry_lookup("scorer", "rag/answer_relevance")
    given = registry_params(tagged) | {"judge": str(judge_directory())}
    assert registry_params(again(**given))["metric_hash"] == given["metric_hash"]
    other = Metric.load("rag/answer_relevance").model_copy(update={"criteria": "Any."})
    with pytest.raises(ConfigurationError, match="another rag/answer_relevance than the preset of this version"):
        again(**(given | {"metric_hash": registry_params(geval(other, MockJudge()))["metric_hash"]}))


@pytest.mark.slow
@pytest.mark.sweep("entry point")
@pytest.mark.parametrize("by", ["file", "entry point"])
def test_inspect_score_on_the_command_line(tmp_path, by):
    if by == "entry point" and not entry_points(group="inspect_ai", name="geval_local"):
        pytest.skip("the package is not installed, so that it has no entry points: pip install -e .")
    log = evaluated(tmp_path, geval(ANSWER, MockJudge(), fields=FIELDS))
    (tmp_path / "clarity.yaml").write_text(CLARITY, encoding="utf-8")
    (tmp_path / "scorers.py").write_text(SCORER_FILE, encoding="utf-8")
    scorer = "scorers.py@clarity" if by == "file" else "geval_local/geval"
    line = (
        f"inspect score {log.location} --scorer {scorer} -S metric=clarity.yaml -S judge={judge_directory()} "
        "--model none/none --action append --output-file scored.eval --display none"
    )
    done = forked.script(
        line, cwd=tmp_path, env=environment(tmp_path) | {"GEVAL_LOCAL_HOME": os.environ["GEVAL_LOCAL_HOME"]}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    name = "clarity" if by == "file" else "geval"
    judge = Judge.load(judge_directory())
    metric = Metric.from_yaml(CLARITY)
    for sample in read_eval_log(str(tmp_path / "scored.eval")).samples:
        wanted = judge.score(metric, source=sample.input, output=sample.output.completion)
        found = sample.scores.get(name) or sample.scores["geval_local/geval"]
        assert found.value == pytest.approx(wanted.value, abs=1e-5)


@pytest.mark.parametrize("normalized", [False, True])
def test_the_pass_rate_of_epochs_is_that_of_the_reduced_value(tmp_path, normalized):
    judge, sample = MockJudge(), SAMPLES[0]
    row = {"question": sample.input, "reference": sample.target, "context": sample.metadata["passages"]}
    ranked = sorted(OUTPUTS, key=lambda output: -judge.score(ANSWER, **row, output=output).value)
    values = [judge.score(ANSWER, **row, output=output).value for output in ranked]
    between = (values[0] + sum(values) / 3) / 2
    for reducer, rate in (("mean", 0.0), ("max", 1.0)):
        outputs = [ModelOutput.from_content("mockllm", text) for text in ranked]
        for output in outputs:
            output.usage = ModelUsage()
        task = Task(
            dataset=[sample],
            scorer=geval(ANSWER, judge, fields=FIELDS, threshold=between, normalized=normalized),
            epochs=Epochs(3, reducer),
        )
        model = get_model("mockllm/model", custom_outputs=outputs)
        options = {"display": "none", "max_connections": 1, "max_samples": 1, "log_dir": str(tmp_path / reducer)}
        (log,) = eval(task, model=model, **options)
        assert log.status == "success", log.error
        (found,) = log.results.scores
        assert found.metrics["pass_rate"].value == rate


def test_the_pass_rate_counts_low_scores_where_they_are_good(tmp_path):
    log = evaluated(
        tmp_path, geval(ANSWER.model_copy(update={"better": "low"}), MockJudge(), fields=FIELDS, threshold=2.0)
    )
    values = [one.value for sample in log.samples if not math.isnan((one := sample.scores["answer"]).value)]
    assert log.results.scores[0].metrics["pass_rate"].value == sum(value <= 2.0 for value in values) / len(values)
