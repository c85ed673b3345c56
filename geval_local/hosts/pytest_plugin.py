"""A pytest plugin: scores of a local judge as assertions.

::

    def test_summary(assert_score):
        assert_score("summarization/coherence", at_least=3, source=ARTICLE, output=summarize(ARTICLE))

Tests of a group (marked ``@pytest.mark.geval_local_group``, or all tests with ``--geval-local-group``) run first. After
the group's last test, the plugin scores all assertions together and then reports the tests, so that prompts share their
common text. The plugin imports only pytest until a test asks for a score.
"""

from __future__ import annotations

import os
import reprlib
import sys
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from geval_local.hosts.bound import BoundMetric, MetricLike
    from geval_local.judge.judge import Judge
    from geval_local.metric import Metric
    from geval_local.score import Score

MARK = "geval_local_group"
#: Prefix of the names of a test's properties.
PROPERTY = "geval_local."
#: Most characters of a text that a failure shows.
SHOWN = 100


@dataclass(frozen=True)
class _Claim:
    """A claim of a test about a text: its score is at least, or at most, a value."""

    bound: BoundMetric
    limit: float
    fields: Mapping[str, Any]
    where: str

    def property(self, score: Score) -> tuple[str, str]:
        """Name the metric and its score, for JUnit's files and the table of scores."""
        return PROPERTY + self.bound.metric.name, f"{score.value:.4g}" if score.is_scored else "unscored"

    def failure(self, score: Score) -> str | None:
        """Return the reason why the claim fails; None if it holds."""
        metric = self.bound.metric
        if score.is_scored and metric.direction.passes(score.value, self.limit):
            return None
        said = (
            f"{score.value:.3f} is {metric.direction.failing} {self.limit:g}"
            if score.is_scored
            else "there is no score"
        )
        lines = [f"{metric.name}: {said} (scale {metric.scale.text}, judge {self.bound.judge.name})"]
        lines += [f"  {self.bound.words(score)}"]
        lines += [f"  {name}: {_beginning(value)}" for name, value in self.fields.items()]
        return "\n".join(lines)


@dataclass
class _Test:
    """A test of a group that has run, with its unscored claims."""

    item: pytest.Item
    reports: list[pytest.TestReport]
    claims: list[_Claim]


@dataclass
class _Groups:
    """Tests that have run and are not reported, and the number of tests of their group that are still to run."""

    to_come: Counter[str] = field(default_factory=Counter)
    held: dict[str, list[_Test]] = field(default_factory=dict)


_GROUPS = pytest.StashKey[_Groups]()
_CLAIMS = pytest.StashKey[list[_Claim]]()
_METRICS = pytest.StashKey[dict[object, "Metric"]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options; all names contain the package's name."""
    group = parser.getgroup("geval-local", "scores of a local judge (geval-local)")
    group.addoption("--geval-local-judge", metavar="NAME", help="judge: a name, a directory, or a cached hub id")
    group.addoption(
        "--geval-local-group", action="store_true", help="score what all tests assert together, at the session's end"
    )
    group.addoption(
        "--geval-local-scores", action="store_true", help="show every score at the session's end, of passed tests too"
    )
    parser.addini("geval_local_judge", "judge of assert_score, unless --geval-local-judge names one")
    parser.addini("geval_local_group", "whether all tests are one group (see --geval-local-group)", type="bool")


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line(
        "markers", f"{MARK}(name): what the tests of a group assert with assert_score is scored together"
    )


@pytest.fixture(scope="session")
def geval_judge(pytestconfig: pytest.Config) -> Judge:
    """Return the session's judge, loaded with the first test that asks; override this fixture to use another.

    ``--geval-local-judge`` names it, or ``geval_local_judge`` in the configuration; else it is the default judge.
    """
    from geval_local.hosts.bound import shared_judge

    named = pytestconfig.getoption("--geval-local-judge") or pytestconfig.getini("geval_local_judge")
    return shared_judge(named or None)


@pytest.fixture
def assert_score(request: pytest.FixtureRequest) -> Callable[..., Score | None]:
    """Return the assertion ``assert_score(metric, at_least=..., **fields)``.

    It takes a metric, a preset's name or a YAML file, and the texts as keyword arguments. ``at_least`` is the lowest
    score that passes, on the metric's scale (absent: the metric's own threshold). ``at_most`` is the highest score that
    passes, for a metric whose low scores are good. ``mapping`` is like ``fields`` of `Judge.score_many`. It returns the
    `Score`, or None in a group, which is scored later.
    """
    known = request.config.stash.setdefault(_METRICS, {})

    def assert_score(
        metric: MetricLike,
        /,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        mapping: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Score | None:
        __tracebackhide__ = True
        from geval_local.errors import ConfigurationError, GevalError
        from geval_local.hosts.bound import BoundMetric

        judge = request.getfixturevalue("geval_judge")
        # Read a named metric once, with its steps.
        name = (str(metric), os.getcwd(), id(judge)) if isinstance(metric, str | os.PathLike) else None
        try:
            limit = at_most if at_least is None else at_least
            one = BoundMetric.bind(known.get(name, metric), judge, fields=mapping, threshold=limit)
        except GevalError as error:
            raise error.with_traceback(None) from None  # the mistake is in the test: hide the plugin's frames
        if name is not None:
            known[name] = one.metric
        wanted, other = ("at_least", at_most) if one.metric.direction.sign > 0 else ("at_most", at_least)
        if other is not None:
            raise ConfigurationError(
                f"{one.metric.direction.value} scores of {one.metric.name} are good", hint=f"Write {wanted}=..."
            )
        if one.threshold is None:
            raise ConfigurationError(
                f"assert_score({one.metric.name!r}) says no score that is good enough",
                hint=f"Write {wanted}=..., or give the metric a threshold.",
            )
        caller = sys._getframe(1)
        claim = _Claim(one, one.threshold, fields, f"{caller.f_code.co_filename}:{caller.f_lineno}")
        claims = request.node.stash.get(_CLAIMS, None)
        if claims is not None:
            claims.append(claim)
            return None
        score = one.score(fields)
        request.node.user_properties.append(claim.property(score))
        failure = claim.failure(score)
        if failure is not None:
            raise AssertionError(failure)
        return score

    return assert_score


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the scores of all tests if requested."""
    if not config.getoption("--geval-local-scores"):
        return
    terminalreporter.section("scores of geval-local")
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                for name, value in report.user_properties:
                    if name.startswith(PROPERTY):
                        shown = f"{value:>8}  {name.removeprefix(PROPERTY)}  {report.outcome}  {report.nodeid}"
                        terminalreporter.write_line(shown)


# --- groups -----------------------------------------------------------------------------------------------------------


def _group_of(item: pytest.Item) -> str | None:
    mark = item.get_closest_marker(MARK)
    if mark is not None:
        return str(mark.args[0] if mark.args else mark.kwargs.get("name", ""))
    config = item.config
    return "" if config.getoption("--geval-local-group") or config.getini("geval_local_group") else None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Count the tests of every group."""
    # A worker of pytest-xdist has to report every test before the next one begins.
    if hasattr(session.config, "workerinput"):
        return
    names = (_group_of(item) for item in session.items if "assert_score" in getattr(item, "fixturenames", ()))
    to_come = Counter(name for name in names if name is not None)
    if to_come:
        session.stash[_GROUPS] = _Groups(to_come)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test of a group and hold its reports back; leave other tests to pytest."""
    groups = item.session.stash.get(_GROUPS, None)
    name = None if groups is None else _group_of(item)
    if groups is None or name is None or "assert_score" not in getattr(item, "fixturenames", ()):
        return None
    from _pytest.runner import runtestprotocol

    item.stash[_CLAIMS] = []
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    groups.held.setdefault(name, []).append(_Test(item, reports, item.stash[_CLAIMS]))
    groups.to_come[name] -= 1
    if not groups.to_come[name]:
        _report(groups.held.pop(name))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Score and report tests held back in a session that ended early, unless it was interrupted."""
    groups = session.stash.get(_GROUPS, _Groups())
    try:
        return (yield)
    except (KeyboardInterrupt, pytest.exit.Exception):
        groups.held.clear()
        raise
    finally:
        for name in list(groups.held):
            _report(groups.held.pop(name))


def _report(tests: list[_Test]) -> None:
    """Score the claims of a group's tests, and report the tests one after the other."""
    scores = iter(_scores([claim for test in tests for claim in test.claims]))
    for test in tests:
        found = [(claim, next(scores)) for claim in test.claims]
        failures = [(claim, one if isinstance(one, str) else claim.failure(one)) for claim, one in found]
        said = [f"{claim.where}\n{text}" for claim, text in failures if text is not None]
        properties = [claim.property(one) for claim, one in found if not isinstance(one, str)]
        # An item shares its list with later reports of it; earlier reports have copies.
        test.item.user_properties.extend(properties)
        for report in test.reports:
            report.user_properties.extend(properties)
        hook = test.item.ihook
        hook.pytest_runtest_logstart(nodeid=test.item.nodeid, location=test.item.location)
        for report in test.reports:
            hook.pytest_runtest_logreport(report=_with_failures(test.item, report, said) if said else report)
        hook.pytest_runtest_logfinish(nodeid=test.item.nodeid, location=test.item.location)


def _scores(claims: list[_Claim]) -> list[Score | str]:
    """Score claims together; return the error of each one that cannot be scored."""
    # Submit all before waiting for the first, so that the judge's batcher computes them like rows of a file.
    waiting = [claim.bound.submit(claim.fields) for claim in claims]
    found: list[Score | str] = []
    for claim, future in zip(claims, waiting, strict=True):
        try:
            found += future.result()
        except Exception as error:  # this test fails with it, and the others do not
            found.append(f"{claim.bound.metric.name}: scoring failed: {type(error).__name__}: {error}")
    return found


def _with_failures(item: pytest.Item, report: pytest.TestReport, said: list[str]) -> pytest.TestReport:
    """Turn the report of a test's call into a failure, unless the test failed already or was expected to fail."""
    if report.when != "call" or (report.skipped and hasattr(report, "wasxfail")):
        return report
    text = "\n".join(said)
    # A test that was strictly expected to fail, and passed so far, has failed by that only.
    is_xpass = isinstance(report.longrepr, str) and report.longrepr.startswith("[XPASS(strict)]")
    if report.failed and not is_xpass:
        report.sections.append(("scores of geval-local", text))
        return report

    def fail() -> None:
        pytest.fail(text, pytrace=False)

    call = pytest.CallInfo.from_call(fail, when="call")
    call.start, call.stop, call.duration = report.start, report.stop, report.duration
    made: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
    return made


def _beginning(value: Any) -> str:
    shown = value if isinstance(value, str) else reprlib.repr(value)
    shown = " ".join(shown.split())
    return repr(shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}...")
