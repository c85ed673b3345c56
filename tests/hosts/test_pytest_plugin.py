"""The pytest plugin in sessions of its own: failures that can be read, groups that are scored together."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from xml.etree import ElementTree

import pytest
from offline import environment

# A session in this process unloads what it has imported, and C extensions do not take being loaded twice.
from geval_local.testing import MockJudge

assert MockJudge

pytest_plugins = ["pytester"]

CONFTEST = """
import pytest
from geval_local.testing import MockEngine, MockJudge

class Counting(MockEngine):
    windows = []
    def __init__(self):
        super().__init__(batch_tokens=1 << 20)
    def execute(self, requests, packs):
        self.windows.append(len(requests))
        return super().execute(requests, packs)

@pytest.fixture(scope="session")
def geval_judge():
    return MockJudge(Counting(), context=2000)

def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"windows {Counting.windows}")
"""
METRIC = """
from geval_local import Metric
CLARITY = Metric(
    name="clarity", criteria="How clear?", scale="1-5", steps=(), fields={"source": "Source", "output": "Text"}
)
"""
LOW = """
import pytest
from geval_local.errors import ConfigurationError
from metric import CLARITY

TOXICITY = CLARITY.model_copy(update={"better": "low", "name": "toxicity"})
TEXTS = {"source": "A ferry.", "output": "A boat."}

def test_it_passes(assert_score):
    assert_score(TOXICITY, at_most=5, **TEXTS)

def test_it_fails(assert_score):
    assert_score(TOXICITY, at_most=1, **TEXTS)

def test_the_wrong_side(assert_score):
    with pytest.raises(ConfigurationError, match="low scores of toxicity are good\\nWrite at_most=..."):
        assert_score(TOXICITY, at_least=3, **TEXTS)
    with pytest.raises(ConfigurationError, match="high scores of clarity are good"):
        assert_score(CLARITY, at_most=3, **TEXTS)
"""
TESTS = """
import pytest
from metric import CLARITY

@pytest.mark.parametrize("number", range(12))
def test_low(assert_score, number):
    assert_score(CLARITY, at_least=1, source="A ferry.", output=f"Boat {number}.")

def test_high(assert_score):
    assert_score(CLARITY, at_least=5, source="A ferry. " * 40, output="A boat.")

def test_two(assert_score):
    assert_score(CLARITY, at_least=1, source="A ferry.", output="One boat.")
    assert_score(CLARITY, at_least=1, source="A ferry.", output="")

def test_nothing():
    pass

@pytest.mark.xfail(strict=True, reason="not good enough yet")
def test_expected_to_fail(assert_score):
    assert_score(CLARITY, at_least=5, source="A ferry.", output="Two boats.")

@pytest.mark.xfail(strict=True, reason="it is")
def test_expected_to_fail_and_passes(assert_score):
    assert_score(CLARITY, at_least=1, source="A ferry.", output="Three boats.")

def test_skipped(assert_score):
    assert_score(CLARITY, at_least=5, source="A ferry.", output="Four boats.")
    pytest.skip("on second thoughts")

def test_skipped_after_it_held(assert_score):
    assert_score(CLARITY, at_least=1, source="A ferry.", output="Six boats.")
    pytest.skip("on second thoughts")

def test_broken(assert_score):
    assert_score(CLARITY, at_least=5, source="A ferry.", output="Five boats.")
    raise KeyError("broken otherwise")
"""
OUTCOMES = {"passed": 13, "failed": 5, "xfailed": 1, "skipped": 1}


@pytest.fixture
def session(pytester, monkeypatch):
    """A directory with tests, and how to run them in this process."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(metric=METRIC)
    # As the entry point loads it where the package is installed; this session has it loaded already.
    plugins = ["-p", "geval_local.hosts.pytest_plugin", "-p", "no:geval_local", "-p", "no:cacheprovider"]

    def run(*arguments, tests=TESTS):
        pytester.makepyfile(test_texts=tests)
        quiet = [*plugins, "-p", "no:deepeval", "-p", "no:asyncio", "-p", "no:randomly", "-rA"]
        return pytester.runpytest_inprocess(*quiet, *arguments)

    return run


def test_low_scores_pass_where_they_are_good(session):
    result = session(tests=LOW)
    result.assert_outcomes(passed=2, failed=1)
    assert "is above 1 (scale 1-5, judge mock)" in result.stdout.str()


@pytest.mark.parametrize("how", ["one by one", "option", "ini", "mark"])
def test_the_outcomes_are_the_same_one_by_one_and_in_groups(session, pytester, how):
    tests = TESTS
    if how == "ini":
        pytester.makeini("[pytest]\ngeval_local_group = true\n")
    elif how == "mark":
        tests = TESTS.replace(
            "import pytest", "import pytest\npytestmark = pytest.mark.geval_local_group('ferries')", 1
        )
    result = session(*(["--geval-local-group"] if how == "option" else []), tests=tests)
    result.assert_outcomes(**OUTCOMES)
    shown = result.stdout.str()
    assert "is below 5 (scale 1-5, judge mock)" in shown
    assert "clarity: there is no score (scale 1-5, judge mock)" in shown
    assert "unscored: the sample: the field 'output' is empty" in shown
    assert "source: 'A ferry. A ferry." in shown
    assert "A ferry. A...'" in shown
    assert "The label reaches 5 with probability" in shown
    windows = next(line for line in result.outlines if line.startswith("windows"))
    if how == "one by one":
        assert windows.count("1") == windows.count(",") + 1 == 19
    else:
        assert windows == "windows [19]"
        assert "KeyError: 'broken otherwise'" in shown
        assert "test_texts.py:1" in shown


@pytest.mark.parametrize("how", [[], ["--geval-local-group"]], ids=["one by one", "group"])
def test_scores_of_passed_tests_are_shown_on_request_and_written_for_junit(session, pytester, how):
    result = session("--geval-local-scores", "--junit-xml=junit.xml", *how)
    result.assert_outcomes(**OUTCOMES)
    rows = [line.split() for line in result.outlines if len(line.split()) == 4 and line.split()[1] == "clarity"]
    assert sum(outcome == "passed" for _, _, outcome, _ in rows) == 12
    assert ["unscored", "clarity", "failed", "test_texts.py::test_two"] in rows
    shown = {name: value for value, _, outcome, name in rows if outcome == "passed"}
    written = {
        f"test_texts.py::{case.get('name')}": [one.get("value") for one in case.iter("property")]
        for case in ElementTree.parse(pytester.path / "junit.xml").iter("testcase")
    }
    assert {name: written[name] for name in shown} == {name: [value] for name, value in shown.items()}
    assert written["test_texts.py::test_two"][1] == "unscored"
    assert written["test_texts.py::test_nothing"] == []


def test_a_wrong_name_is_told_without_the_librarys_frames(session):
    result = session(tests="def test_it(assert_score):\n    assert_score('summarization/coherense', output='x')\n")
    result.assert_outcomes(failed=1)
    shown = result.stdout.str()
    assert "no preset metric 'summarization/coherense'" in shown
    assert "metric_file.py" not in shown


def test_a_session_that_ends_early_reports_what_it_held_back(session):
    tests = f"{TESTS}\ndef test_stop():\n    assert False\n\ndef test_later(assert_score):\n    pass\n"
    result = session("--geval-local-group", "-x", tests=tests)
    shown = result.stdout.str()
    assert "PASSED test_texts.py::test_low[0]" in shown
    assert "FAILED test_texts.py::test_high" in shown
    assert "windows [19]" in shown


def test_a_threshold_is_needed_and_a_scores_figures_come_back(session):
    tests = """
    from metric import CLARITY

    def test_no_threshold(assert_score):
        assert_score(CLARITY, source="A ferry.", output="A boat.")

    def test_off_the_scale(assert_score):
        assert_score(CLARITY, at_least=9, source="A ferry.", output="A boat.")

    def test_figures(assert_score, geval_judge):
        row = {"text": "A boat."}
        score = assert_score(CLARITY, at_least=1, mapping={"output": "row.text"}, source="A ferry.", row=row)
        assert score.value == geval_judge.score(CLARITY, source="A ferry.", output="A boat.").value

    def test_preset(assert_score):
        for _ in range(2):
            assert_score("summarization/fluency", at_least=1, output="A boat.")
    """
    result = session(tests=textwrap.dedent(tests))
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["*says no score that is good enough*", "*the threshold 9 is outside the scale*"])


def test_a_broken_device_fails_the_tests_that_needed_it(session, pytester):
    pytester.makeconftest(
        """
        import pytest
        from geval_local.testing import MockEngine, MockJudge
        class Broken(MockEngine):
            def read(self, requests):
                raise RuntimeError("device lost")
        @pytest.fixture(scope="session")
        def geval_judge():
            return MockJudge(Broken())
        """
    )
    tests = """
from metric import CLARITY
def test_one(assert_score):
    assert_score(CLARITY, at_least=1, source="A ferry.", output="A boat.")
def test_nothing(assert_score):
    pass
"""
    result = session("--geval-local-group", tests=tests)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*clarity: scoring failed: RuntimeError: device lost*"])


UNUSED = """
import sys
def test_unused():
    assert "geval_local.hosts.pytest_plugin" in sys.modules
    assert not {"torch", "transformers", "numpy", "pydantic"} & set(sys.modules)
"""


def test_unused_it_loads_nothing(tmp_path):
    (tmp_path / "test_unused.py").write_text(UNUSED, encoding="utf-8")
    plugins = ["-p", "geval_local.hosts.pytest_plugin", "-p", "no:geval_local"]
    own = environment(tmp_path, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins], cwd=tmp_path, env=own, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
