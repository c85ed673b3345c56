"""Nothing that is read from files commands a terminal: control characters are shown as escapes, wherever they stand."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest
from cli_run import METRIC, good_rows, judge_directory, write_rows

from geval_local import Metric
from geval_local.analysis.tables import Table
from geval_local.cli.app import app
from geval_local.cli.ending import guarded_streams
from geval_local.cli.output.console import note, print_json, result_console
from geval_local.cli.output.run_summary import show_summaries
from geval_local.cli.output.tables import show_table
from geval_local.cli.progress import show_progress
from geval_local.fields import visible
from geval_local.metric_file import preset_names
from geval_local.score import Score
from geval_local.summary import Tally

#: Writes the clipboard, rings, clears the screen, colours, by one character too, and turns the line round.
EVIL = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x1b[31m\x9b31m\x7f\u202eEVIL"
SHOWN = r"\x1b]52;c;ZXZpbA=="
#: What consoles themselves write: styles, and the moves of a progress bar.
OWN = re.compile(r"\x1b\[(?:\d+(?:;\d+)*)?[mKA]|\x1b\[\?25[lh]")


class Terminal(io.TextIOWrapper):
    """A stream that says that it is a terminal."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        return self.buffer.getvalue().decode()


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    write_rows(tmp_path / "data.jsonl", good_rows(3))
    return tmp_path


def run(terminal: Terminal, *arguments: object) -> int:
    with redirect_stdout(terminal), redirect_stderr(terminal), pytest.raises(SystemExit) as done:
        app([str(argument) for argument in arguments], prog_name="geval-local")
    return int(done.value.code or 0)


def check(text: str, *, payload: str = SHOWN) -> None:
    rest = OWN.sub("", text)
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", rest), ascii(rest)
    assert "\x1b[2J" not in text
    assert "\x1b[31mEVIL" not in text
    assert payload in rest.replace("\n", ""), ascii(rest)


def results(path, metric: str = "tone", row: str = "a"):
    """Somebody else's result file."""
    figures = {"score": 3.0, "probabilities": {"1": 0.5, "5": 0.5}, "label_mass": 1.0, "mode": "1", "error": None}
    return write_rows(
        path, [{"id": f"{row}{n}", "system": row, "output": "x", "geval": {metric: figures}} for n in "12"]
    )


def test_visible_changes_nothing_but_control_characters():
    text = "é 中 🙂 \u200b\u200f\u00a0 a\tb\nc \\x1b"
    assert visible(text) == text
    assert visible("\x1b\r\x85\u202e") == r"\x1b\r\x85\u202e"


def test_a_column_name(here, terminal):
    write_rows(here / "data.jsonl", [{"id": 1, EVIL: 1, "output": "x"}])
    assert run(terminal, "score", "data.jsonl", "-m", "clarity.yaml", "--judge", judge_directory()) == 2
    check(terminal.text)


def test_an_id_and_a_file_name_in_tables_and_progress(here, terminal):
    rows = good_rows(3)
    rows[0]["id"], rows[1]["output"] = EVIL, ""
    rows[1]["id"] = EVIL + "2"
    write_rows(here / f"{EVIL}.jsonl", rows)
    command = ("score", f"{EVIL}.jsonl", "-m", "clarity.yaml", "--judge", judge_directory())
    assert run(terminal, *command, "-o", f"{EVIL}/", "--no-cache") == 0
    check(terminal.text)
    assert run(terminal, "report", f"{EVIL}/", "-o", f"{EVIL}.html") == 0
    check(terminal.text)


def test_the_prompt_of_a_dry_run(here, terminal):
    row = good_rows(1)[0] | {"id": EVIL, "output": f"It ends. {EVIL}"}
    write_rows(here / "data.jsonl", [row])
    evil = json.dumps(f"How clear it is. {EVIL}")
    (here / "clarity.yaml").write_text(METRIC.replace("How clear the text is.", evil), encoding="utf-8")
    assert run(terminal, "score", "data.jsonl", "-m", "clarity.yaml", "--judge", judge_directory(), "--dry-run") in (
        0,
        2,
    )
    check(terminal.text)


@pytest.mark.parametrize(
    "command",
    [
        ("compare", "a.jsonl"),
        ("compare", "a.jsonl", "b.jsonl"),
        ("score", f"{EVIL}.jsonl", "-m", "clarity.yaml"),
        ("score", "data.jsonl", "-m", f"{EVIL}.yaml"),
        ("metrics", "validate", "evil.yaml"),
        ("metrics", "show", EVIL),
        ("judges", "check", EVIL),
        ("resume", EVIL),
        ("report", EVIL, "-o", "page.html"),
        ("score", "data.jsonl", "-m", "clarity.yaml", "--estimator", EVIL),
        (EVIL,),
        ("run", "evil.yaml"),
        ("meta-eval", "a.jsonl", "-m", "clarity.yaml", "--human", EVIL),
    ],
    ids=lambda command: " ".join(command).replace(EVIL, "EVIL"),
)
def test_metrics_systems_names_and_errors(here, terminal, command):
    results(here / "a.jsonl", f"tone {EVIL}", f"a {EVIL}")
    results(here / "b.jsonl", f"tone {EVIL}", f"b {EVIL}")
    (here / "evil.yaml").write_text(METRIC + f"{json.dumps(EVIL)}: 1\n", encoding="utf-8")
    run(terminal, *command)
    check(terminal.text, payload="EVIL")


def test_json_keeps_the_characters_as_json_writes_them(terminal):
    with redirect_stdout(terminal), guarded_streams():
        print_json({EVIL: EVIL})
    check(terminal.text, payload=r"\u001b]52;c;ZXZpbA==")
    assert json.loads(terminal.text) == {EVIL: EVIL}


def test_every_way_to_the_terminal(terminal):
    from rich.table import Table
    from rich.text import Text

    with redirect_stdout(terminal), redirect_stderr(terminal), guarded_streams():
        table = Table(EVIL, title=EVIL)
        table.add_row(EVIL, style="bold")
        result_console().print(table)
        result_console().print(EVIL, markup=False)
        result_console().rule(EVIL)
        note(EVIL, "bold red")
        print(EVIL)
        sys.stderr.write(EVIL)
        logging.getLogger("other").error(EVIL)
        with show_progress(EVIL, 2) as progress:
            progress.advance(1)
            print(EVIL)
            result_console().print(Text(EVIL, "bold"))
    text = terminal.text
    check(re.sub(r"\x1b\[31m", "", text))
    assert OWN.search(text), "the consoles' own styles are lost"
    width = {len(line) for line in OWN.sub("", text).splitlines() if line.startswith(("┃", "│"))}
    assert len(width) == 1, "a cell is wider than its column"


def test_colours_of_help_texts_stay(terminal):
    assert run(terminal, "--help") == 0
    assert "\x1b[1m" in terminal.text
    assert "\\x1b" not in terminal.text


def at_width(monkeypatch, width: int, *arguments: object) -> list[str]:
    """Lines that a terminal of this width shows, without styles."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    screen = Terminal()
    run(screen, *arguments)
    return OWN.sub("", screen.text).splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_metrics_are_listed_with_whole_names_and_scales(monkeypatch, width):
    lines = at_width(monkeypatch, width, "metrics", "list")
    for name in preset_names():
        (line,) = [line for line in lines if name in line.split()]
        scale = Metric.load(name).scale.text
        assert scale in line.split() or f"scale {scale}" in lines[lines.index(line) + 1]
    assert not any("\u2026" in line for line in lines)
    assert any(line.startswith("left out at this width: ") for line in lines) is (width < 200)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_means_of_judges_with_long_names_are_shown_whole(monkeypatch, width, capsys):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    names = [f"summarization/coherence@a-judge-with-a-long-name-{n}" for n in "12"]
    tallies = [Tally(name) for name in names]
    for tally, mean in zip(tallies, (2.0, 3.0), strict=True):
        for row in range(4):
            tally.add("x", row, Score(tally.name, value=mean + row / 10, label_mass=0.99, probabilities={"1": 1.0}))
    screen = Terminal()
    with redirect_stdout(screen), redirect_stderr(screen):
        show_summaries([tally.summary() for tally in tallies])
    lines = OWN.sub("", screen.text).splitlines()
    for name, mean in zip(names, ("2.150", "3.150"), strict=True):
        (place,) = [place for place, line in enumerate(lines) if name in line]
        assert mean in " ".join(lines[place : place + 2])
    assert max(map(len, lines)) <= width
    assert any("std" in line and "left out" not in line for line in lines) is (width == 200)


@pytest.mark.parametrize("width", [60, 200])
def test_the_table_of_an_analysis_keeps_the_names_of_its_rows(monkeypatch, width):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    headers = ["", *(f"figure with a long name {n}" for n in range(4))]
    rows = [(f"helpful: system-{n}", *(f"{n}.{at} [0.00, 9.00]" for at in range(4))) for n in range(2)]
    screen = Terminal()
    with redirect_stdout(screen), redirect_stderr(screen):
        show_table(Table.of(headers, rows).titled("Which?", sections=True))
    lines = [line.strip() for line in OWN.sub("", screen.text).splitlines()]
    assert lines.count("helpful") == 1
    for n in range(2):
        (place,) = [place for place, line in enumerate(lines) if f"system-{n}" in line]
        told = " ".join(lines[place : place + 5])
        assert all(f"{n}.{at} [0.00, 9.00]" in told for at in range(4)), lines
    assert max(map(len, lines)) <= width
