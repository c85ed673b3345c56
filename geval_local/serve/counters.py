"""Counters of ``/metrics``, in Prometheus's text format. Numbers only, never request texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from geval_local.judging.batcher import Batcher, BatchRecord

__all__ = ["CONTENT_TYPE", "Counters"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Counters:
    """One server's counters, in their own registry."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "geval_requests", "Requests by route and status.", ["route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "geval_request_seconds", "Time of a request.", ["route"], buckets=_SECONDS, registry=self._registry
        )
        self._questions = Counter("geval_questions", "Questions and rows answered.", ["model"], registry=self._registry)
        self._tokens = Counter(
            "geval_prompt_tokens", "Distinct prompt tokens of decisions.", ["model"], registry=self._registry
        )
        self._batches = Histogram(
            "geval_batch_prompts",
            "Prompts per batch.",
            ["model"],
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
            registry=self._registry,
        )
        self._batch_seconds = Histogram(
            "geval_batch_seconds", "Time of a batch.", ["model"], buckets=_SECONDS, registry=self._registry
        )
        self._pending = Gauge(
            "geval_pending_calls", "Calls that wait or are under way.", ["model"], registry=self._registry
        )

    def watch(self, model: str, batcher: Batcher) -> None:
        """Expose the length of a judge's queue."""
        self._pending.labels(model).set_function(lambda: batcher.pending)

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def answered(self, model: str, questions: int, tokens: int) -> None:
        """Count answered questions and their tokens."""
        self._questions.labels(model).inc(questions)
        self._tokens.labels(model).inc(tokens)

    def batch(self, model: str, record: BatchRecord) -> None:
        """Count a batch."""
        self._batches.labels(model).observe(record.items)
        self._batch_seconds.labels(model).observe(record.seconds)

    def text(self) -> bytes:
        """Return all counters in text format."""
        return generate_latest(self._registry)
