"""The tables of a run's store. Migrations are only ever appended."""

from __future__ import annotations

from typing import NamedTuple

from geval_local.runs.database import Migration

__all__ = ["MIGRATIONS", "Origin", "PlanRecord"]

MIGRATIONS: tuple[Migration, ...] = (
    (
        "outcomes, plans, limits of memory, retries",
        (
            "CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
            """CREATE TABLE outcomes (
                judge INTEGER NOT NULL, metric INTEGER NOT NULL, row INTEGER NOT NULL, origin INTEGER NOT NULL,
                logprobs BLOB, other TEXT, prompt_tokens INTEGER NOT NULL, dropped_tokens INTEGER NOT NULL,
                sample_key INTEGER NOT NULL, error TEXT,
                PRIMARY KEY (judge, metric, row)) WITHOUT ROWID""",
            """CREATE TABLE plans (
                judge INTEGER NOT NULL, metric INTEGER NOT NULL, window INTEGER NOT NULL,
                prompt_tokens INTEGER NOT NULL, planned_tokens INTEGER NOT NULL,
                PRIMARY KEY (judge, metric, window)) WITHOUT ROWID""",
            """CREATE TABLE limits (
                judge INTEGER NOT NULL, round INTEGER NOT NULL, window INTEGER NOT NULL, metric INTEGER NOT NULL,
                unit INTEGER NOT NULL, pack INTEGER NOT NULL, tokens INTEGER NOT NULL,
                PRIMARY KEY (judge, round, window, metric, unit, pack)) WITHOUT ROWID""",
            """CREATE TABLE retries (
                judge INTEGER NOT NULL, metric INTEGER NOT NULL, row INTEGER NOT NULL, round INTEGER NOT NULL,
                PRIMARY KEY (judge, metric, row, round)) WITHOUT ROWID""",
        ),
    ),
    ("no limits of memory, no retries", ("DROP TABLE limits", "DROP TABLE retries")),
)


class Origin:
    """Where an outcome came from."""

    MODEL = 0
    CACHE = 1
    INPUT = 2  # the row itself cannot be scored; no model saw it


class PlanRecord(NamedTuple):
    """Tokens of the prompts of a window, and tokens that go through the model for them."""

    prompt_tokens: int
    planned_tokens: int
