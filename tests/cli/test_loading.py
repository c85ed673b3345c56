"""The loading options: every verb that loads a judge takes them, and hands all of them on."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path

import pytest
from cli_run import METRIC, judge_directory, run
from rated_runs import prepare

import geval_local.judge
from geval_local.cli.loading import Loading, takes_loading
from geval_local.errors import JudgeError
from geval_local.runs.judge_choice import JudgeChoice

#: What is given on the command line, and what `Judge.load` is to be given for it.
GIVEN = {
    "adapter": ("tuned", Path("tuned")),
    "style": ("chat", "chat"),
    "device": ("cpu", "cpu"),
    "device_map": ("auto", "auto"),
    "dtype": ("float64", "float64"),
    "attention": ("eager", "eager"),
    "quantization": ("8bit", "8bit"),
    "batch_tokens": ("7", 7),
    "engine": ("padded", "padded"),
    "trust_remote_code": (None, True),
}
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

    def load(name, **named):
        asked.append({"name": name, **named})
        raise JudgeError("enough")

    monkeypatch.setattr(geval_local.judge.Judge, "load", load)
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
    defaults = {field.name: field.default for field in fields(Loading)}
    wanted = defaults | {name: value for name, (_, value) in given.items()}
    assert asked == [{"name": str(judge_directory()), "models_file": models, **wanted}]


def test_they_are_the_options_of_judge_load():
    taken = inspect.signature(geval_local.judge.Judge.load).parameters
    assert set(GIVEN) == {field.name for field in fields(Loading)}
    assert {field.name: field.default for field in fields(JudgeChoice)} == {
        name: parameter.default for name, parameter in taken.items()
    }


def test_the_options_stand_in_the_place_of_the_last_parameter():
    def verb(file: str, *, loading: Loading) -> None: ...

    names = [field.name for field in fields(Loading)]
    assert list(inspect.signature(takes_loading()(verb)).parameters) == ["file", *names]
    assert list(inspect.signature(takes_loading(without=("engine",))(verb)).parameters) == [
        "file",
        *(name for name in names if name != "engine"),
    ]
    with pytest.raises(TypeError, match="not called loading, but file"):
        takes_loading()(lambda file: None)
