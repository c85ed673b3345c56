"""The end of commands: plain messages and the exit codes of --help, for any state of stdout and the machine."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import forked
import pytest
from cli_run import METRIC, good_rows, judge_directory, run, write_rows

import geval_local.runs.run_file
from geval_local import Judge
from geval_local.cli import scoring as stopping
from geval_local.cli.ending import EXIT_DEFECT, EXIT_INTERRUPTED
from geval_local.cli.scoring import Stopper
from geval_local.errors import GevalError, JudgeError
from geval_local.models.registry import find_judge
from geval_local.runs import exporter


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "data.jsonl", good_rows(3))
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    return tmp_path


def score(here: Path, *arguments: object):
    return run("score", "data.jsonl", "-m", "clarity.yaml", "-j", judge_directory(), *arguments, home=here / "home")


def start(arguments: list[str | bytes], cwd: Path, **streams) -> subprocess.Popen[bytes]:
    environment = os.environ | {"GEVAL_LOCAL_HOME": str(cwd / "home")}
    command = [sys.executable, "-m", "geval_local", *arguments]
    return subprocess.Popen(command, cwd=cwd, env=environment, **streams)


def fork(arguments: list[str], cwd: Path, **settings) -> subprocess.Popen[bytes]:
    """As `start`, where it is not Python's own start that matters."""
    environment = os.environ | {"GEVAL_LOCAL_HOME": str(cwd / "home")} | settings.pop("env", {})
    return forked.start(arguments, cwd=cwd, env=environment, **settings)


def ended(arguments: list[str | bytes], cwd: Path, begin=start, **streams) -> tuple[int, str]:
    """Exit code and messages; what never must be among them is looked for here."""
    process = begin(arguments, cwd, stderr=subprocess.PIPE, **streams)
    messages = process.communicate(timeout=300)[1].decode()
    assert "Traceback" not in messages
    assert "Exception ignored" not in messages
    return process.returncode, messages


def test_help_and_the_page_tell_the_exit_codes(tmp_path):
    told = " ".join(run("--help", home=tmp_path).stdout.split())
    page = (Path(__file__).parents[2] / "docs" / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    for code in ("0 done", "1 a gate failed", "nothing could be scored", "2 usage", "3 interrupted", "70 unexpected"):
        assert code in told
    for row in ("| 0 | done", "| 1 | a gate failed", "| 2 | usage", "| 3 | interrupted", "| 70 | unexpected"):
        assert row in page


def test_a_defect_is_one_line_and_the_rest_on_request(here, monkeypatch):
    def broken(*given, **named):
        raise ZeroDivisionError("one\nover nothing")

    monkeypatch.setattr(geval_local.runs.run_file, "score_file", broken)
    done = score(here)
    assert done.exit_code == EXIT_DEFECT == 70
    first, *rest = done.stderr.splitlines()
    assert first == "error: unexpected ZeroDivisionError: one over nothing"
    assert "Traceback" not in done.stderr
    again = rest[-1].strip()
    assert again.startswith("geval-local --debug score data.jsonl ")
    for place in (0, 1, 3):
        arguments = again.split()[2:]
        arguments.insert(place, "--debug")
        shown = run(*arguments, home=here)
        assert shown.exit_code == 70
        assert "Traceback (most recent call last)" in shown.stderr
        assert "in broken" in shown.stderr


def test_python_callers_are_raised_to_as_ever():
    with pytest.raises(JudgeError):
        Judge.load("no-such-judge")


def test_an_interruption_that_a_library_turned_into_an_error_stays_one(here, monkeypatch):
    def importing(*given, **named):
        try:
            try:
                raise KeyboardInterrupt
            except BaseException as error:  # as Python does in ``__set_name__``, and transformers with what it imports
                raise RuntimeError("Error calling __set_name__") from error
        except RuntimeError:
            raise ModuleNotFoundError("Could not import module 'LlamaConfig'") from None

    monkeypatch.setattr(geval_local.runs.run_file, "score_file", importing)
    done = score(here)
    assert done.exit_code == EXIT_INTERRUPTED == 3
    failed, again, command = done.stderr.splitlines()
    assert failed == "with it failed: Could not import module 'LlamaConfig'"
    assert again == "interrupted; run it again with:"
    assert command.strip().startswith("geval-local score data.jsonl ")
    debugged = run(*command.split()[1:2], "--debug", *command.split()[2:], home=here / "home")
    assert debugged.exit_code == EXIT_INTERRUPTED
    assert "Traceback" in debugged.stderr


def test_an_interruption_while_a_module_makes_a_class_has_its_code(here):
    """Python would end the process by SIGINT after its code: the exec() in which it came is over, but remembered."""
    (here / "start.py").write_text(
        """import os, signal
from geval_local import cli
def work():
    try:
        exec("os.kill(os.getpid(), signal.SIGTERM)", globals())
    except KeyboardInterrupt:
        raise SystemExit(3) from None
cli.run_verb = work
cli.main()
""",
        encoding="utf-8",
    )
    assert subprocess.run([sys.executable, "-m", "start"], cwd=here, check=False).returncode == EXIT_INTERRUPTED


def test_a_run_whose_clearing_away_is_interrupted_is_cleared_away(here, monkeypatch):
    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(exporter, "remove_run", interrupted)
    done = score(here, "-o", "out.jsonl")
    assert done.exit_code == EXIT_INTERRUPTED
    assert "failed" not in done.stderr
    assert len((here / "out.jsonl").read_text(encoding="utf-8").splitlines()) == 3
    assert not (here / ".out.jsonl.run").exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_what_the_machine_refuses_is_named(here, monkeypatch, number):
    def refused(*given, **named):
        raise OSError(number, os.strerror(number), "some/file")

    monkeypatch.setattr(geval_local.runs.run_file, "score_file", refused)
    done = score(here)
    assert done.exit_code == 2
    assert done.stderr == f"error: some/file: {os.strerror(number)}\n"


@pytest.mark.parametrize("judge", ["~nosuchuser/x", "x" * 5000, "./" + "y" * 300])
def test_a_judge_that_can_be_nowhere_is_refused(here, judge):
    done = run("score", "data.jsonl", "-m", "clarity.yaml", "-j", judge, home=here / "home")
    assert done.exit_code == 2, done.stderr
    assert judge[2:40] in done.stderr
    if judge.startswith("~"):
        with pytest.raises(GevalError, match="no home directory is known for '~nosuchuser'"):
            find_judge(judge)


@pytest.mark.parametrize("output", ["o" * 250 + ".jsonl", "o" * 300, "d" * 300 + "/o.jsonl", "é" * 200 + "/"])
def test_an_output_whose_name_is_too_long_is_refused(here, output):
    done = score(here, "-o", output)
    assert done.exit_code == 2, done.stderr
    assert "too long" in done.stderr


@pytest.mark.slow
def test_names_that_are_not_utf8_are_refused(here):
    shutil.copy(here / "data.jsonl", os.fsencode(here) + b"/d\xff.jsonl")
    for arguments in ([b"d\xff.jsonl"], ["data.jsonl", "-o", b"o\xff.jsonl"]):
        code, messages = ended(["score", *arguments, "-m", "clarity.yaml"], here)
        assert code == 2
        assert "\\xff.jsonl" in messages
        assert "is not UTF-8" in messages


def test_a_working_directory_that_is_gone_is_refused(here):
    (here / "gone").mkdir()
    program = f"import os, sys; os.chdir('gone'); os.rmdir('../gone'); os.execv({sys.executable!r}, sys.argv[1:])"
    code = "import sys; sys.argv[0] = 'geval-local'; from geval_local.cli import main; main()"
    own = [sys.executable, "-c", code, "score", str(here / "data.jsonl"), "-o", "out.jsonl"]
    command = [sys.executable, "-c", program, *own]
    environment = os.environ | {"PYTHONPATH": str(Path(geval_local.__file__).parents[1])}
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "the working directory cannot be used" in done.stderr
    assert "Traceback" not in done.stderr


def test_stdout_that_is_closed_is_refused_before_anything_is_done(here):
    command = ["score", "data.jsonl", "-m", "clarity.yaml", "-j", str(judge_directory()), "-o", "out.jsonl"]
    code, messages = ended(command, here, preexec_fn=lambda: os.close(1))
    assert code == 2
    assert "stdout is closed" in messages
    assert "loading" not in messages


@pytest.mark.sweep
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("arguments", [["--help"], ["judges", "list"], ["metrics", "list", "--json"]])
def test_stdout_that_is_full_is_told(here, arguments):
    with open("/dev/full", "wb") as full:
        code, messages = ended(arguments, here, stdout=full)
    assert code == 2
    assert "cannot write to stdout: No space left on device" in messages


@pytest.mark.slow
def test_a_reader_that_has_gone_ends_it_quietly_and_the_file_is_kept(here):
    command = ["score", "data.jsonl", "-m", "clarity.yaml", "-j", str(judge_directory()), "-o", "out.jsonl"]
    reading, writing = os.pipe()
    os.close(reading)
    code, messages = ended(command, here, fork, stdout=writing)
    os.close(writing)
    assert code == 141
    assert "error" not in messages
    assert len((here / "out.jsonl").read_text(encoding="utf-8").splitlines()) == 3


@pytest.mark.slow
def test_messages_that_nobody_reads_stop_nothing(here):
    reading, writing = os.pipe()
    os.close(reading)
    command = ["score", "data.jsonl", "-m", "clarity.yaml", "-j", str(judge_directory()), "-o", "out.jsonl"]
    process = start(command, here, stdout=subprocess.PIPE, stderr=writing)
    os.close(writing)
    assert b"clarity" in process.communicate(timeout=300)[0]
    assert process.returncode == 0
    assert (here / "out.jsonl").exists()


@pytest.mark.slow
def test_what_stdout_cannot_encode_is_written_by_number(here):
    write_rows(here / "data.jsonl", [{"id": "naïve 名", "source": "A.", "output": "B."}])
    command = ["score", "data.jsonl", "-m", "clarity.yaml", "-j", "nano"]  # it answers, so its rows are shown
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = fork(command, here, env={"PYTHONIOENCODING": "ascii"}, **pipes)
    results, messages = process.communicate(timeout=300)
    assert process.returncode == 0, messages
    assert b"na\\xefve" in results


def test_signals_while_a_run_ends_do_not_interrupt_its_cleaning_up(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(stopping.time, "monotonic", lambda: now[0])
    stopper = Stopper()
    with stopper.listening():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        now[0] += stopping.ENDING_SECONDS + 1  # somebody has swallowed it
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
def test_ctrl_c_twice_while_the_judge_is_loaded_leaves_nothing(here):
    before = {path.name for path in here.iterdir()}
    command = ["score", "data.jsonl", "-m", "clarity.yaml", "-j", str(judge_directory()), "-o", "out.jsonl"]
    process = fork(command, here, stderr=subprocess.PIPE)
    assert process.stderr is not None
    assert process.stderr.readline() == b"loading the judge ...\n"
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    messages = process.communicate(timeout=300)[1].decode()
    assert process.returncode == 3
    assert "Traceback" not in messages
    assert {path.name for path in here.iterdir()} - {"home"} == before
