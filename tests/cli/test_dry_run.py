"""``score --dry-run``: forms, tokens and labels from the tokenizer alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cli_run import METRIC, STEPLESS, STEPS, good_rows, judge_directory, run, write_rows

from geval_local import Judge, Metric
from geval_local.prompt import render_form


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "data.jsonl", [{"source": "x"}, *good_rows(2)])
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    (tmp_path / "plain.yaml").write_text(STEPLESS, encoding="utf-8")
    # No weights: whatever needs them fails.
    shutil.copytree(judge_directory(), tmp_path / "judge", ignore=shutil.ignore_patterns("*.safetensors"))
    return tmp_path


def dry(here: Path, *arguments: object, judge: object = "judge"):
    return run("score", "data.jsonl", "--judge", judge, "--dry-run", *arguments, home=here / "home")


def test_a_judge_that_thinks_is_told_where_its_thoughts_are_shown(here):
    done = dry(here, "-m", "clarity.yaml", "--think", "2")
    assert done.exit_code == 0, done.stderr
    assert "`geval-local judges check judge --think 1`" in " ".join(done.stderr.split())
    assert "think" not in dry(here, "-m", "clarity.yaml").stderr


def test_reasons_name_parameters_as_options(here):
    chat = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]
    write_rows(here / "data.jsonl", [{"messages": chat}, {"source": "x"}])
    done = dry(here, "-m", "clarity.yaml", "--turns", "assistant")
    assert done.exit_code == 0, done.stderr
    assert "row 2: there is no conversation; the columns are: source, row_in_file. --turns-at says" in done.stdout


def test_the_first_usable_form_is_shown_to_the_letter_without_weights(here):
    done = dry(here, "-m", "clarity.yaml")
    assert done.exit_code == 0, done.stderr
    form = render_form(Metric.load("clarity.yaml"), {key: str(value) for key, value in good_rows(1)[0].items()})
    assert f"<s>{form.text}" in done.stdout
    assert "data.jsonl, row 2" in done.stdout
    assert "row 1: the field 'output' is missing" in done.stderr
    assert "1 of them BOS" in done.stdout
    assert "... " in done.stdout


def test_only_the_first_rows_are_looked_at_where_a_limit_says_so(here):
    done = dry(here, "-m", "clarity.yaml", "--limit", 1)
    assert done.exit_code == 2
    assert "the field 'output' is missing" in done.stderr
    assert "data.jsonl, row 2" in dry(here, "-m", "clarity.yaml", "--limit", 2).stdout


def test_json_holds_tokens_and_trie(here):
    done = dry(here, "-m", "clarity.yaml", "-m", "plain.yaml", "-m", "factuality/summary_consistency", "--json")
    record = json.loads(done.stdout)
    form = record["forms"]["clarity"]
    assert form["row"] == 2
    assert form["bos_count"] == 1
    assert len(form["token_ids"]) == len(form["text"].encode()) - len("<s>") + 1
    assert [(one["label"], one["text"]) for one in form["surface_forms"][:2]] == [("1", "1"), ("1", " 1")]
    assert form["inner_nodes"] == [[], [form["surface_forms"][1]["token_ids"][0]]]
    assert record["forms"]["factuality/summary_consistency"]["steps"] == "present"  # presets bring theirs
    assert record["forms"]["plain"]["steps"] == "to be written"


def test_missing_steps_are_told_and_pinned_ones_are_used(here, monkeypatch):
    done = dry(here, "-m", "plain.yaml", judge=judge_directory())
    assert "no evaluation steps yet" in done.stderr
    assert "Evaluation Steps:" not in done.stdout
    monkeypatch.setattr(Judge, "continue_text", lambda *_, **__: STEPS)
    assert run("steps", "plain.yaml", "--judge", judge_directory(), home=here / "home").exit_code == 0
    done = dry(here, "-m", "plain.yaml", judge=judge_directory())
    assert "no evaluation steps yet" not in done.stderr
    assert "2. Compare them." in done.stdout


def test_a_file_whose_rows_all_fail_is_an_error(here):
    write_rows(here / "data.jsonl", [{"source": "x"}] * 3)
    done = dry(here, "-m", "clarity.yaml")
    assert done.exit_code == 2
    assert "none of its first 3 rows" in done.stderr


def test_a_long_label_list_leaves_out_its_middle(here):
    (here / "wide.yaml").write_text(METRIC.replace("scale: 1-5", "scale: 0-100"), encoding="utf-8")
    done = dry(here, "-m", "wide.yaml")
    assert done.exit_code == 0, done.stderr
    assert "142 more" in done.stdout
    assert "1 opens 10" in done.stdout


@pytest.mark.parametrize("encoding", ["koi8-r", "gb18030", "utf-16-le"])
def test_the_encoding_that_is_named_is_read(here, encoding):
    text = "Поезд ушёл."
    (here / "data.csv").write_bytes(f"source,output\n{text},{text}\n".encode(encoding))
    options = ["--judge", "judge", "-m", "clarity.yaml", "--encoding", encoding, "--dry-run"]
    done = run("score", "data.csv", *options, home=here / "home")
    assert done.exit_code == 0, done.stderr
    assert text in done.stdout


def test_what_the_judge_reads_is_shown_with_its_columns_and_what_each_step_leaves(here):
    chat = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because \x1b[2J."}]
    photo = [{"role": "user", "content": [{"type": "image_url"}]}, {"role": "assistant", "content": "A cat."}]
    write_rows(here / "chats.jsonl", [{"messages": [*chat, *photo]}, {"messages": chat}, {"messages": "none"}])
    asked = ("-m", "conversation/turn_helpfulness", "--turns", "assistant", "--field", "output=output")
    done = run("score", "chats.jsonl", "--judge", "judge", "--dry-run", *asked, home=here / "home")
    assert done.exit_code == 0, done.stderr
    told = done.stdout
    assert "the first 3 rows, which make 4 samples: 2 can be read\n" in told
    assert "conversation/turn_helpfulness: 2 of 4 have all texts\n" in told
    assert "    history: User: Why?\n    output: Because \\x1b[2J.\n" in told
    assert (
        "  without a score, not_text: 1, such as chats.jsonl, row 1: the column 'messages', message 3, part 1" in told
    )
    assert "  without a score, missing_field: 1, such as chats.jsonl, row 3" in told


def test_a_text_is_shown_with_the_column_it_came_from(here):
    write_rows(here / "d.jsonl", [{"post": f"P{n} " * 40, "summary": "S."} for n in range(5)])
    asked = ("-m", "clarity.yaml", "--field", "source=post", "--dry-run")
    done = run("score", "d.jsonl", "--judge", "judge", *asked, home=here / "home")
    assert "    source from post: P0 P0 P0" in done.stdout
    assert "... (120 characters)\n    output from summary: S.\n" in done.stdout
    assert "d.jsonl, row 3\n" in done.stdout
    assert "P3" not in done.stdout
    record = json.loads(run("score", "d.jsonl", "--judge", "judge", *asked, "--json", home=here / "home").stdout)
    assert "    output from summary: S." in record["read"]
