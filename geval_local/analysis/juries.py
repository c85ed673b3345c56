"""Several judges as a jury: the mean of their label distributions, and their disagreements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Unpack

from geval_local.analysis.comparison import paired_outputs
from geval_local.analysis.differences import doubt_of
from geval_local.analysis.ratings.values import HumanFields
from geval_local.analysis.results import (
    Reading,
    ResultsGiven,
    ScoredRun,
    each_given,
    level_of_rated,
    row_keys,
    together,
)
from geval_local.analysis.tables import FOLDED_TESTS, Study, Table, as_record, comparison_table, correlation_table
from geval_local.errors import Cause, ConfigurationError, DataError, ErrorCode
from geval_local.io.columns import EVERYTHING
from geval_local.io.ownership import file_sha256
from geval_local.io.result_manifest import ResultManifest, ScoredMetric, manifest_path, write_manifest
from geval_local.io.samples import Sample
from geval_local.io.writer import ResultWriter
from geval_local.scale import Scale
from geval_local.score import Distribution, Estimator, Score
from geval_local.signature import (
    judge_name,
    signature_differences,
    signature_parts,
    told_differences,
    written_signature,
)
from geval_local.statistics.correlation import Correlation, correlate
from geval_local.statistics.levels import Level
from geval_local.statistics.records import ScoredItem, expectations, pair, probability_matrix
from geval_local.statistics.resampling import Target
from geval_local.statistics.significance import Comparison, compare, corrected

#: Keys in which the judges of a jury may differ; the metric and its scale are not among them.
OWN_TO_A_JUDGE = ("judge", "tokenizer", "steps", "style", "dtype", "attention", "transformers", "torch", "version")

#: With more judges than this, the table has no column per judge.
MOST_JUDGES = 5
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Jury:
    """The judges' joint scores."""

    #: The items that all judges scored, with the mean distribution and its expectation.
    items: tuple[ScoredItem, ...]
    #: Mean distance between the distributions of two judges per item, in units of the scale; see `distances`.
    disagreement: tuple[float, ...]
    #: Items of the first judge that some judge did not score.
    left_out: int


def distances(p: Floats, scale: Scale) -> Floats:
    """Compute the mean distance between the distributions of two different judges.

    The distance is the earth mover's (Wasserstein-1): how far probability has to move along the scale. A judge that
    says 1 is thus further from one that says 5 than from one that says 2.
    """
    order = np.argsort(scale.array, kind="stable")
    cumulated = np.cumsum(p[:, :, order], axis=2)[:, :, :-1]
    steps = np.diff(scale.array[order])
    return np.asarray(np.mean([np.abs(one - other) @ steps for one, other in combinations(cumulated, 2)], axis=0))


def convene(judges: Mapping[str, Sequence[ScoredItem]], scale: Scale) -> Jury:
    """Average the judges' label distributions, item by item."""
    if len(judges) < 2:
        raise ConfigurationError("a jury needs at least two judges", hint="Give two or more runs over the same file.")
    names = list(judges)
    shared = list(judges[names[0]])
    for name in names[1:]:
        shared = pair(shared, judges[name])[0]
    aligned = [pair(shared, judges[name])[1] for name in names]
    p = np.stack([probability_matrix(items, scale) for items in aligned])
    mixture = p.mean(axis=0)
    items = tuple(
        replace(item, predicted=float(value), probabilities=dict(zip(scale.labels, row.tolist(), strict=True)))
        for item, row, value in zip(aligned[0], mixture, expectations(mixture, scale), strict=True)
    )
    return Jury(
        items,
        tuple(distances(p, scale).tolist()),
        len(judges[names[0]]) - len(items),
    )


def against_judges(
    jury: Jury,
    judges: Mapping[str, Sequence[ScoredItem]],
    level: Level = "summary",
    coefficient: str = "spearman",
    *,
    target: Target | None = None,
) -> tuple[str, dict[str, Comparison]]:
    """Test whether the jury agrees better with the human ratings than each of its judges."""
    tests = {name: compare(jury.items, items, level, coefficient, target=target) for name, items in judges.items()}
    best = max(tests, key=lambda name: tests[name].second if math.isfinite(tests[name].second) else -math.inf)
    return best, corrected(tests)


def disagreement_table(
    jury: Jury, judges: Mapping[str, Mapping[str, float]], count: int = 10, *, verdict: str = "jury"
) -> Table:
    """Build a table of the items with the largest disagreement; `verdict` names the joint score."""
    order = sorted(range(len(jury.items)), key=lambda index: -jury.disagreement[index])[:count]
    rows: list[tuple[Any, ...]] = []
    for index in order:
        item = jury.items[index]
        scores = {name: own[item.key] for name, own in judges.items()}
        if len(judges) > MOST_JUDGES:
            ends = [choose(scores, key=scores.__getitem__) for choose in (min, max)]
            shown = [f"{scores[name]:.3f} ({name})" for name in ends]
        else:
            shown = [f"{score:.3f}" for score in scores.values()]
        rows.append((item.key, jury.disagreement[index], item.predicted, *shown))
    columns = ("lowest", "highest") if len(judges) > MOST_JUDGES else judges
    whose = "judges'" if verdict == "jury" else "runs'"
    note = f"disagreement: mean distance between two {whose} distributions (earth mover's), in units of the scale"
    return Table.of(("item", "disagreement", verdict, *columns), rows, (note,))


@dataclass(frozen=True)
class JuryStudy(Study):
    """The joint verdicts of several judges, and their agreement with people."""

    #: The metric.
    metric: str
    #: The verdicts.
    jury: Jury
    #: Judge -> its run.
    named: dict[str, ScoredRun]
    #: Judge -> key of an item -> its score.
    scores: dict[str, dict[str, float]]
    #: How rows are grouped into documents, in words.
    grouping: str
    #: ``jury`` and every judge -> agreement with people; empty without ratings.
    agreement: dict[str, Correlation]
    #: The judge that agrees best with people.
    best: str | None
    #: Judge -> test of jury minus judge.
    tests: dict[str, Comparison]
    #: Number of disagreements that the table lists.
    largest: int
    #: Judge -> why nothing can be concluded from it, and so from the jury; empty if all judges answer.
    doubts: dict[str, str]

    @property
    def only_judge(self) -> str:
        """The judge of all runs; empty if there are several."""
        judges = {
            signature_parts(run.origin(run.one_metric(self.metric)).signature)["judge"] for run in self.named.values()
        }
        return judge_name(judges.pop()) if len(judges) == 1 else ""

    @property
    def verdict(self) -> str:
        """Name of the joint score: runs of one judge are no jury."""
        return "mean" if self.only_judge else "jury"

    def to_dict(self) -> dict[str, Any]:
        """Give all figures as plain JSON values."""
        jury = self.jury
        record = {
            "metric": self.metric,
            "left_out": jury.left_out,
            "items": [
                {"key": item.key, "score": None if self.doubts else item.predicted, "disagreement": own}
                for item, own in zip(jury.items, jury.disagreement, strict=True)
            ],
            "doubts": self.doubts,
            "grouping": self.grouping,
            "against_human": self.agreement,
            "best_judge": self.best,
            "jury_less_judge": self.tests,
        }
        return dict(as_record(record))

    def lines(self) -> list[str]:
        """Say which judges do not answer."""
        return [f"{self.metric} of {judge}: {told}" for judge, told in self.doubts.items()]

    def shown(self) -> Iterator[Table]:
        """Give disagreements, and agreement with people; no scores if a judge does not answer."""
        what = f"the mean of {len(self.named)} runs of one judge" if self.only_judge else f"a jury of {len(self.named)}"
        who, verdict = ("run" if self.only_judge else "judge"), self.verdict
        found = disagreement_table(self.jury, self.scores, self.largest, verdict=verdict)
        if not self.doubts:  # `lines` has the sentences
            yield found.titled(f"{self.metric}: {what}; where the {who}s disagree most")
        if self.agreement:
            agreement = {verdict if one == "jury" else one: found for one, found in self.agreement.items()}
            yield correlation_table(agreement).titled("against people", fold=("n", "points"))
            best = {self.best: f" (best {who})"}
            tests = {f"{verdict} less {one}{best.get(one, '')}": test for one, test in self.tests.items()}
            yield comparison_table(tests).titled(f"does the {verdict} agree better than its {who}s?", fold=FOLDED_TESTS)

    def remarks(self) -> list[tuple[str, bool]]:
        """Say how rows were grouped, and what is missing."""
        found = [(self.grouping, False)] if self.agreement else []
        if left_out := self.jury.left_out:
            items = "1 item is" if left_out == 1 else f"{left_out} items are"
            found.append((f"note: {items} without a verdict: some judge did not score them", True))
        if self.only_judge:
            told = f"all runs are by {self.only_judge}: this is the mean of one judge's runs, not a jury"
            found.append((told, True))
        return found


def jury(
    results: ResultsGiven | Sequence[ResultsGiven],
    *,
    metric: str | None = None,
    human: HumanFields | None = None,
    level: Level | None = None,
    coefficient: str = "spearman",
    target: Target | None = None,
    largest: int = 10,
    **reading: Unpack[Reading],
) -> JuryStudy:
    """Average several judges' label distributions, item by item, and compare the jury with people.

    Parameters
    ----------
    results : path, RunResult, rows or data frame, or sequence of them
        Results of two or more judges over the same rows, with their manifests.
    metric : str, optional
        The metric, if the results have several.
    human : str, optional
        Field of the human rating.
    level, coefficient, target
        Level, coefficient and target population of the agreement with people. The default level is ``summary`` if rows
        share documents.
    largest : int
        Number of disagreements that the table lists.
    **reading
        Fields of the document and of the system, and how scores are read: see `Reading`.

    Raises
    ------
    ConfigurationError, DataError
        If the runs do not belong to one jury, or share no scored row.
    """
    scored = [ScoredRun.of(one, **reading) for one in each_given(results)]
    for run in scored[1:]:
        if changed := sum(one != other and None not in (one, other) for one, other in paired_outputs(scored[0], run)):
            told = f"{run.path}: {changed} outputs are not those of {scored[0].path} under the same id or row number"
            raise DataError(told, hint="Give both files the same `id` column, or the same rows in the same order.")
    name = scored[0].one_metric(metric)
    named = _named(scored, name)
    documents = dict(zip(named, together([*named.values()]), strict=True))
    judges = {
        judge: run.items(run.one_metric(name), human=human, documents=documents[judge]) for judge, run in named.items()
    }
    shared = next(iter(documents.values()))
    convened = convene(judges, scored[0].origin(name).definition.scale)
    agreement: dict[str, Correlation] = {}
    tests: dict[str, Comparison] = {}
    best: str | None = None
    if human is not None:
        everyone = {"jury": convened.items, **judges}
        wanted = level or level_of_rated(shared.level, everyone.values())
        agreement = {who: correlate(items, wanted, target=target) for who, items in everyone.items()}
        best, tests = against_judges(convened, judges, wanted, coefficient, target=target)
    doubts = {who: told for who, items in judges.items() if (told := doubt_of(items))}
    scores = {who: {item.key: item.predicted for item in items} for who, items in judges.items()}
    return JuryStudy(name, convened, named, scores, shared.told, agreement, best, tests, largest, doubts)


def save_jury(study: JuryStudy, output: Path) -> None:
    """Write the first run's rows with the jury's verdicts instead of its own, and a manifest."""
    named, metric, jury, runs = study.named, study.metric, study.jury, list(study.named.values())
    origins = {judge: run.origin(metric) for judge, run in named.items()}
    definition = origins[next(iter(named))].definition
    verdicts = {item.key: (item, own) for item, own in zip(jury.items, jury.disagreement, strict=True)}
    unscored = 0
    with ExitStack() as stack:
        writer = stack.enter_context(ResultWriter.open(output, [metric], columns=[EVERYTHING]))
        for row, key in zip(runs[0].rows.inputs(), row_keys(runs[0].rows), strict=True):
            columns: dict[str, Any] = dict(row)
            if key in verdicts:
                item, disagreement = verdicts[key]
                logs = [math.log(p) if p > 0 else -math.inf for p in (item.probabilities or {}).values()]
                score = Score.from_distribution(metric, Distribution(definition.scale, logs), estimator=Estimator())
                # The judges' label masses belong to different vocabularies, so a jury has none.
                score = replace(score, label_mass=math.nan)
                columns["jury_disagreement"] = disagreement
            else:
                score = Score.unscored(metric, Cause("some judge of the jury did not score this row", ErrorCode.JURY))
                unscored += 1
            writer.write(Sample(columns), {metric: score})
        manifest_path(output).unlink(missing_ok=True)
    parts = [signature_parts(origin.signature) for origin in origins.values()]
    joined = {key: "+".join(dict.fromkeys(own.get(key, "-") for own in parts)) for key in parts[0]}
    joined["judge"] = f"{study.verdict}({joined['judge']})"
    scored = {metric: ScoredMetric(written_signature(joined), definition, unscored)}
    manifest = ResultManifest(
        f"{study.verdict} of {', '.join(named)}",
        runs[0].file,
        file_sha256(runs[0].path),
        len(runs[0].rows),
        scored,
        file_sha256(output),
        runs[0].mapping,
    )
    write_manifest(output, manifest)


def _named(scored: Sequence[ScoredRun], metric: str) -> dict[str, ScoredRun]:
    """Name the runs by their judges, or runs of the same judge by their files; check that metric and scale agree."""
    judges: list[str] = []
    first = scored[0].origin(metric).signature
    for run in scored:
        origin = run.origin(run.one_metric(metric))
        differs = signature_differences(first, origin.signature)
        differ = {key: pair for key, pair in differs.items() if key not in OWN_TO_A_JUDGE}
        if differ:
            told = told_differences(differ, "{} | {}")
            raise ConfigurationError(f"{scored[0].path} and {run.path} do not belong to one jury: {told}")
        judges.append(judge_name(signature_parts(origin.signature)["judge"].rpartition("@")[0]))
    names = (judge if judges.count(judge) == 1 else run.name for judge, run in zip(judges, scored, strict=True))
    named = dict(zip(names, scored, strict=True))
    if len(named) < len(scored):
        raise ConfigurationError("two of the runs have the same name", hint="Give every run another file name.")
    return named
