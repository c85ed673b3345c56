"""Options of one judge, after its name; and errors found before any judge is loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cli_run import METRIC, good_rows, judge_directory, read_rows, run, write_rows
from rated_runs import prepare

import geval_local.judge.judge
from geval_local.cli.options import split_judge
from geval_local.errors import ConfigurationError, JudgeError
from geval_local.models.registry import labels_of
from geval_local.options import JudgeOptions


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "data.jsonl", good_rows(4))
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    (tmp_path / "bare.yaml").write_text(METRIC.split("steps:")[0], encoding="utf-8")
    for name in ("twin", "a,b"):
        shutil.copytree(judge_directory(), tmp_path / name)
    return tmp_path


@pytest.fixture
def loaded(monkeypatch) -> list[dict[str, object]]:
    """What `Judge.load` is asked for; nothing is loaded."""
    asked: list[dict[str, object]] = []

    def load(options, **_):
        asked.append(options.model_dump())
        raise JudgeError("enough")

    monkeypatch.setattr(geval_local.judge.judge.Judge, "load", load)
    return asked


def score(here: Path, *arguments: object):
    return run("score", "data.jsonl", "-m", "clarity.yaml", *arguments, home=here / "home")


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("nano", "nano", {}),
        ("nano,style=chat,dtype=float16", "nano", {"style": "chat", "dtype": "float16"}),
        ("twin,device-map=auto", "twin", {"device-map": "auto"}),
        ("a,b", "a,b", {}),
        ("a,b,style=chat", "a,b", {"style": "chat"}),
        ("./a,b,style=chat", "./a,b", {"style": "chat"}),
        ("org/unknown,style=chat", "org/unknown", {"style": "chat"}),
        ("un,known", "un,known", {}),
        ("nano,device-map=x,y,style=chat", "nano", {"device-map": "x,y", "style": "chat"}),
    ],
)
def test_the_name_goes_on_to_the_first_option(text, name, options):
    assert split_judge(text) == (name, options)


def test_options_of_one_judge_go_before_those_of_all(here, loaded):
    done = score(here, "-j", "twin,dtype=float64,batch-tokens=7,trust-remote-code=true", "--dtype", "float16")
    assert "enough" in done.stderr
    assert loaded[0]["name"] == "twin"
    assert (loaded[0]["dtype"], loaded[0]["batch_tokens"], loaded[0]["trust_remote_code"]) == ("float64", 7, True)
    score(here, "-j", "twin", "--dtype", "float16")
    assert loaded[1]["dtype"] == "float16"


@pytest.mark.parametrize(
    ("judge", "message"),
    [
        ("twin,stile=chat", "there is no option 'stile'; did you mean 'style'?"),
        ("twin,batch_tokens=7", "there is no option 'batch_tokens'; did you mean 'batch-tokens'?"),
        ("twin,style=chta", "style: 'chta' is none of 'completion', 'chat' or 'chat-no-prefill'; did you mean 'chat'?"),
        ("twin,batch-tokens=0", "batch-tokens: Input should be at least 1"),
        ("twin,batch-tokens=many", "batch-tokens: Input should be a valid integer"),
        ("twin,chat", "there is no judge 'twin,chat'"),
        ("twin,style=chat,style=chat", "style is given twice"),
    ],
)
def test_an_option_that_is_none_is_refused_with_the_nearest(here, loaded, judge, message):
    done = score(here, "-j", judge)
    assert done.exit_code == 2
    assert message in done.stderr
    assert not loaded


def test_all_options_are_known_by_their_long_names(here, loaded):
    done = score(here, "-j", "nano,x=1")
    assert "there is no option 'x'" in done.stderr
    for name in ("style", "device", "device-map", "dtype", "attention", "quantization", "engine", "trust-remote-code"):
        assert name in done.stderr


@pytest.mark.slow
def test_one_judge_may_be_asked_in_two_ways(here):
    done = score(here, "-j", "twin", "-j", "twin,dtype=float64", "-j", "a,b", "-o", "out.jsonl", "--json")
    assert done.exit_code == 0, done.stderr
    keys = ["clarity@twin,dtype=None"[:12], "clarity@twin,dtype=float64", "clarity@a,b"]
    figures = read_rows(here / "out.jsonl")[0]["geval"]
    assert list(figures) == keys
    signatures = [own["signature"] for own in json.loads(done.stdout)["metrics"].values()]
    assert ["dtype:float64" in signature for signature in signatures] == [False, True, False]
    again = run("resume", "out.jsonl", home=here / "home")
    assert "is complete: nothing is left to resume" in again.stderr


def test_a_judge_given_by_its_path_is_called_by_its_last_part(here, monkeypatch):
    (here / "other").mkdir()
    for place in ("other/twin", "other/twin-2"):
        shutil.copytree(here / "twin", here / place)
    (here / "linked").symlink_to(here / "twin")

    def labels(*names):
        return labels_of([JudgeOptions(name=str(name)) for name in names])

    assert labels("./twin", here / "other/twin/", "nano", here / "linked") == ["twin", "twin-2", "nano", "linked"]
    assert labels("twin", "other/twin", "other/twin-2") == ["twin", "twin-3", "twin-2"]
    monkeypatch.chdir(here / "other" / "twin")
    assert labels(".", "../../twin") == ["twin", "twin-2"]
    two_ways = [JudgeOptions(name="other/twin"), JudgeOptions(name="other/twin", dtype="float64")]
    monkeypatch.chdir(here)
    assert labels_of([JudgeOptions(name="twin"), *two_ways]) == ["twin", "twin-2", "twin-2,dtype=float64"]


def test_no_path_of_a_judge_stands_in_results(here):
    shutil.copytree(here / "twin", here / "deep" / "twin")
    done = run(
        *("score", "data.jsonl", "-m", "clarity.yaml", "-j", here / "twin", "-j", here / "deep/twin", "-o", "out.csv"),
        home=here / "home",
    )
    assert done.exit_code == 0, done.stderr
    assert run("report", "out.csv", "-o", "page.html", home=here / "home").exit_code == 0
    header = (here / "out.csv").read_text(encoding="utf-8").splitlines()[0]
    for judge in ("twin", "twin-2"):
        assert all(f"clarity@{judge}.{name}" in header for name in ("score", "label_mass", "error", "error_code"))
    written = [path for path in here.iterdir() if path.suffix in (".csv", ".jsonl", ".html", ".json")]
    assert len(written) == 5
    assert [path.name for path in written if str(here) in path.read_text(encoding="utf-8")] == []


def test_reasons_ask_for_the_path_that_results_do_not_hold(here):
    (here / "deep").mkdir()
    shutil.copytree(here / "twin", here / "deep" / "own")
    done = run("score", "data.jsonl", "-m", "clarity.yaml", "-j", "deep/own", "-o", "out.jsonl", home=here / "home")
    assert done.exit_code == 0, done.stderr
    asked = run("reasons", "out.jsonl", "--lowest", 1, "-o", "r.jsonl", home=here / "home")
    assert asked.exit_code == 2
    assert "was scored by 'own', and no judge is found by this name" in asked.stderr
    assert "--judge PATH" in asked.stderr
    given = run("reasons", "out.jsonl", "--lowest", 1, "-o", "r.jsonl", "--models", "none.yaml", home=here / "home")
    assert (given.exit_code, "was scored by" in given.stderr, "none.yaml" in given.stderr) == (2, False, True)
    done = run("score", "data.jsonl", "-m", "clarity.yaml", "-j", "deep/own", "-o", "kept/", home=here / "home")
    assert done.exit_code == 0, done.stderr
    assert "was scored by" not in run("reasons", "kept", "--lowest", 1, "-o", "r.jsonl", home=here / "home").stderr


def test_two_ways_that_are_one_are_refused():
    with pytest.raises(ConfigurationError, match="named twice"):
        labels_of([JudgeOptions(name="nano"), JudgeOptions(name="nano", engine="auto")])


@pytest.mark.sweep("clarity.yaml-twinn-there is no judge 'twinn'")
@pytest.mark.parametrize(
    ("judge", "message"),
    [
        ("twinn", "there is no judge 'twinn'"),
        ("twin,style=chat", "a chat style needs a chat template"),
        ("twin,dtype=fp16", "; did you mean 'float16'?"),
        ("twin,device=cuda:99", "the device 'cuda:99' cannot be used here"),
        ("broken", "no tokenizer can be loaded"),
    ],
)
@pytest.mark.parametrize("metric", ["clarity.yaml", "bare.yaml"])
def test_every_judge_is_checked_before_one_is_loaded(here, loaded, judge, message, metric):
    shutil.copytree(judge_directory(), here / "broken")
    for file in (here / "broken").glob("tokenizer*"):
        file.unlink()
    done = run("score", "data.jsonl", "-m", metric, "-j", "a,b", "-j", judge, "-o", "out.jsonl", home=here / "home")
    assert done.exit_code == 2
    assert message in done.stderr
    assert not loaded
    assert not (here / "out.jsonl").exists()
    assert not (here / ".out.jsonl.run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--human", "words"), "words is not a number"),
        (("--human", "nowhere"), "no row has a human rating in 'nowhere'"),
        (("--human", "rating.clarity", "-j", "twinn"), "there is no judge 'twinn'"),
        (("--human", "rating.clarity", "-j", "a,b", "-j", "twin,dtype=fp16"), "did you mean 'float16'?"),
        (("--human", "rating.clarity", "--group-by", "nowhere"), "the field 'nowhere' to group by is missing"),
    ],
)
def test_ratings_and_judges_are_checked_before_a_meta_evaluation_begins(here, loaded, arguments, message):
    prepare(here)
    rows = [row | {"words": "good"} for row in read_rows(here / "data.jsonl")]
    write_rows(here / "data.jsonl", rows)
    judge = () if "-j" in arguments else ("-j", "twin")
    done = run("meta-eval", "data.jsonl", "-m", "bare.yaml", *arguments, *judge, "-o", "kept", home=here / "home")
    assert done.exit_code == 2
    assert message in done.stderr
    assert not loaded
    assert not (here / "kept").exists()


def test_a_wrong_dtype_is_told_the_nearest(here):
    done = score(here, "-j", "twin", "--dtype", "fp16")
    assert done.exit_code == 2
    assert "did you mean 'float16'?" in done.stderr


@pytest.mark.parametrize("name", [name for name, field in JudgeOptions.model_fields.items() if field.default is None])
def test_none_is_what_an_absent_option_is(name):
    assert JudgeOptions(**{name: None}) == JudgeOptions()


def test_a_column_called_like_a_result_is_told_before_scoring(here, loaded):
    write_rows(here / "data.jsonl", [{**row, "clarity.score": "mine"} for row in good_rows(4)])
    done = score(here, "-j", "twin", "-o", "out.csv")
    assert "the input column 'clarity.score' is called like a result" in done.stderr
    assert "'clarity.score_input'" in done.stderr
    assert "called like a result" not in score(here, "-j", "twin", "-o", "out.jsonl").stderr
