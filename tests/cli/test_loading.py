"""Options of judges and runs: every verb that takes a group hands all of it on; values that do not fit are told."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from cli_run import METRIC, judge_directory, run
from rated_runs import prepare

import geval_local.judge.judge
from geval_local.cli.options import takes_options
from geval_local.errors import ConfigurationError, JudgeError
from geval_local.options import JudgeOptions, RunOptions
from geval_local.score import Estimator

#: What is given on the command line, and what `Judge.load` is to be given for it.
GIVEN = {
    "adapter": ("tuned", Path("tuned")),
    "style": ("chat", "chat"),
    "device": ("cpu", "cpu"),
    "dtype": ("float64", "float64"),
    "attention": ("eager", "eager"),
    "quantization": ("8bit", "8bit"),
    "batch_tokens": ("7", 7),
    "engine": ("padded", "padded"),
    "trust_remote_code": (None, True),
}
OF_SERVERS = ("served_model", "tokenizer", "requests_at_once", "allow_remote")
WRITING_STEPS = ("batch_tokens", "engine")
VERBS = {
    "score": ("score", "data.jsonl", "-m", "clarity.yaml", "-j"),
    "meta-eval": ("meta-eval", "data.jsonl", "-m", "clarity.yaml", "--human", "rating.clarity", "-j"),
    "judges check": ("judges", "check"),
    "steps": ("steps", "bare.yaml", "-j"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_loading_option_reaches_the_judge(verb, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    Path("bare.yaml").write_text(METRIC.split("steps:")[0], encoding="utf-8")
    asked = []

    def load(options, **_):
        asked.append(options)
        raise JudgeError("enough")

    monkeypatch.setattr(geval_local.judge.judge.Judge, "load", load)
    left_out = WRITING_STEPS if verb == "steps" else ()
    adapter = tmp_path / "tuned"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}", encoding="utf-8")
    given = {name: pair for name, pair in GIVEN.items() if name not in left_out} | {"adapter": (str(adapter), adapter)}
    options = [
        part
        for name, (text, _) in given.items()
        for part in (f"--{name.replace('_', '-')}", *(() if text is None else (text,)))
    ]
    models = tmp_path / "models.yaml"
    models.write_text("judges: {}\n", encoding="utf-8")
    done = run(*VERBS[verb], judge_directory(), "--models", models, *options, home=tmp_path / "home")
    assert done.exit_code == 2
    assert "enough" in done.stderr
    wanted = {name: value for name, (_, value) in given.items()}
    assert asked == [JudgeOptions(name=str(judge_directory()), models_file=models, **wanted)]


def test_every_option_is_given_here():
    others = {"tensor_parallel", "gpu_memory_share", "vllm", *OF_SERVERS}  # of other backends, see tests/engine
    others |= {
        name for name in JudgeOptions.model_fields if name.startswith("think")
    }  # see tests/core/test_thinking.py
    assert {*GIVEN, "name", "models_file", "device_map", *others} == set(JudgeOptions.model_fields)


def test_the_options_stand_in_the_place_of_their_group():
    def verb(file: str, *, judge: JudgeOptions, run: RunOptions) -> None: ...

    names = [*JudgeOptions.model_fields, "limit"]
    assert list(inspect.signature(takes_options("limit")(verb)).parameters) == ["file", *names]
    without = takes_options("limit", judge_without=["engine"])(verb)
    assert "engine" not in inspect.signature(without).parameters


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ({"limt": 3}, "unknown key 'limt'; did you mean 'limit'?"),
        ({"limit": 0}, "limit: Input should be at least 1"),
        ({"limit": 10**30}, "limit: Input should be at most"),
        ({"estimator": "moed"}, "estimator: unknown estimator 'moed'"),
        ({"formats": ["xlsx"]}, "'xlsx' is none of 'jsonl', 'csv' or 'parquet'"),
        ({"cluster": "auto"}, "`cluster` is for the workers of Ray"),
    ],
)
def test_an_option_that_does_not_fit_is_told_in_words(named, told):
    with pytest.raises(ConfigurationError, match=r".") as caught:
        RunOptions(**named)
    assert told in str(caught.value)


def test_options_are_read_as_the_command_line_writes_them():
    options = RunOptions(fields=["output=answer"], columns="id, score", estimator="mode", formats=["csv"])
    assert options.fields == {"output": "answer"}
    assert options.columns == ["id", "score"]
    assert options.estimator == Estimator("mode")
