"""MLflow: a scorer for ``mlflow.genai.evaluate`` on a local judge, and finished runs written as MLflow runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities import AssessmentError, AssessmentSource, Feedback, Trace
from mlflow.genai.scorers import Scorer
from mlflow.genai.scorers.base import ScorerKind, SerializedScorer
from pydantic import PrivateAttr

from geval_local import __version__
from geval_local.analysis.results import ScoredRun
from geval_local.errors import OutputError, first_line
from geval_local.hosts.bound import BoundMetric, JudgeLike, MetricLike, laid_out
from geval_local.io.result_manifest import manifest_path
from geval_local.report.overview import summaries
from geval_local.summary import Summary


class GEvalScorer(Scorer):  # type: ignore[misc]
    """A scorer of MLflow on a local judge. It can be pickled; it can be registered if its judge is given by name."""

    _bound: BoundMetric = PrivateAttr()

    def __init__(self, bound: BoundMetric, **settings: Any) -> None:
        super().__init__(**settings)
        self._bound = bound

    def __call__(
        self, *, inputs: Any = None, outputs: Any = None, expectations: Any = None, trace: Trace | None = None
    ) -> Feedback:
        """Score one row, or a trace, from which missing arguments are read."""
        bound = self._bound
        given = {"expectations": expectations, "inputs": inputs, "outputs": outputs}
        held = {} if trace is None else _parts(trace)
        row = {name: held.get(name) if value is None else value for name, value in given.items()}
        found = bound.score(laid_out(row))
        return Feedback(
            name=self.name,
            value=found.value if found.is_scored else None,
            rationale=bound.words(found),
            source=AssessmentSource(source_type="LLM_JUDGE", source_id=f"geval-local:/{bound.judge.name}"),
            metadata=_texts(bound.record(found)),
            error=None if found.is_scored else AssessmentError(error_code=found.error_code, error_message=found.error),
        )

    @property
    def pass_if(self) -> Callable[[Any], bool] | None:
        """Whether a value is at the threshold or on its good side; None without one."""
        limit, direction = self._bound.threshold, self._bound.metric.direction
        return None if limit is None else lambda value: direction.passes(value, limit)

    @property
    def kind(self) -> ScorerKind:
        """Functions: MLflow registers their source, and it cannot register classes."""
        return ScorerKind.DECORATOR

    def model_dump(self, **settings: Any) -> dict[str, Any]:
        """Write the scorer as a function that makes it again."""
        bound = self._bound
        judge = bound.options.model_dump(mode="json", exclude_unset=True)
        terms = {"name": self.name, "fields": dict(bound.fields), "threshold": bound.threshold}
        source = f"""\
from geval_local import Metric
from geval_local.hosts.mlflow import geval
from geval_local.options import JudgeOptions
made = geval(Metric.from_yaml({bound.metric.to_yaml()!r}), JudgeOptions(**{judge!r}), **{terms!r})
return made(inputs=inputs, outputs=outputs, expectations=expectations, trace=trace)"""
        return asdict(
            SerializedScorer(
                name=self.name,
                description=self.description,
                aggregations=self.aggregations,
                timeout=self.timeout,
                call_source=source,
                call_signature="(inputs=None, outputs=None, expectations=None, trace=None)",
                original_func_name="geval",
            )
        )


def geval(
    metric: MetricLike,
    judge: JudgeLike = None,
    *,
    name: str | None = None,
    fields: Mapping[str, str] | None = None,
    threshold: float | None = None,
    aggregations: Sequence[Any] | None = None,
    timeout: float | None = None,
) -> GEvalScorer:
    """Make a scorer whose feedback is the exact expectation over a local judge's label probabilities.

    The columns of a row are the keys of its inputs and expectations, and ``output``, or the keys of its outputs if
    these are an object. A dotted path may begin with ``inputs``, ``outputs`` or ``expectations``.
    """
    bound = BoundMetric.bind(metric, judge, fields=fields, threshold=threshold)
    return GEvalScorer(
        bound,
        name=name or bound.metric.name,
        description=bound.metric.criteria,
        aggregations=None if aggregations is None else list(aggregations),
        timeout=timeout,
    )


def _parts(trace: Trace) -> dict[str, Any]:
    """Read a trace like MLflow's own scorers: its root span's inputs and outputs, and the trace's expectations."""
    root = next((span for span in trace.data.spans if span.parent_id is None), None)
    noted = {one.name: one.expectation.value for one in trace.search_assessments(type="expectation")}
    spans = {} if root is None else {"inputs": root.inputs, "outputs": root.outputs}
    return {**spans, "expectations": noted or None}


def _texts(record: Mapping[str, Any]) -> dict[str, str]:
    """Write figures as texts, for MLflow's metadata."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in record.items()
        if value is not None
    }


# --- finished runs ----------------------------------------------------------------------------------------------------


def log_results(
    results: Path,
    *,
    fields: Mapping[str, str] | None = None,
    artifacts: Sequence[Path] = (),
    tracking_uri: str | None = None,
    experiment: str | None = None,
    name: str | None = None,
) -> str:
    """Write a result file as one MLflow run: summaries as metrics, origin as parameters, files as artifacts."""
    scored = ScoredRun(results, fields or {})
    described = scored.manifest
    before = mlflow.get_tracking_uri()
    try:
        if tracking_uri is not None:
            mlflow.set_tracking_uri(tracking_uri)
        if experiment is not None:
            mlflow.set_experiment(experiment)
        with mlflow.start_run(run_name=name or results.stem) as run:
            mlflow.set_tag("geval_local.version", __version__)
            if described is not None:
                mlflow.log_params(
                    {
                        "judge": described.judges,
                        "input": described.input,
                        "input_sha256": described.input_sha256,
                        "rows": described.rows,
                    }
                )
                for metric, origin in described.metrics.items():
                    mlflow.set_tag(f"geval_local.signature.{_key(metric)}", origin.signature)
            for summary in summaries(scored):
                mlflow.log_metrics(_figures(summary))
            for file in (results, manifest_path(results), *artifacts):
                if file.is_file():
                    mlflow.log_artifact(str(file))
            return str(run.info.run_id)
    except mlflow.exceptions.MlflowException as error:
        raise OutputError(
            f"MLflow does not take the run: {first_line(error)}", hint="Check `tracking_uri` and `experiment`."
        ) from error
    finally:
        mlflow.set_tracking_uri(before)


def _figures(summary: Summary) -> dict[str, float]:
    names = ("mean", "low", "high", "std", "label_mass", "label_mass_min", "rows", "scored", "unscored", "passed_share")
    figures = {name: getattr(summary, name) for name in names}
    return {
        f"{_key(summary.metric)}/{name}": float(value)
        for name, value in figures.items()
        if value is not None and value == value
    }


def _key(metric: str) -> str:
    """Write a metric's name as a key of MLflow: replace characters of ``metric@judge`` that MLflow refuses."""
    return "".join(char if char.isalnum() or char in "_-./ " else "." for char in metric)
