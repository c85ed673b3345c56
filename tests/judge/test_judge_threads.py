"""One judge in many threads: every call has the figures that it has alone, whatever the others do meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tiny import byte_tokenizer, save_judge, tiny_model

from geval_local import Judge, Metric
from geval_local.runs.run_file import score_file

THREADS, CALLS = 8, 500
FIELDS = {"source": "Source", "output": "Output"}
METRIC = Metric(name="tale", criteria="How well it ends.", scale="1-5", fields=FIELDS, steps=["R."])
OTHER = METRIC.model_copy(update={"name": "other", "criteria": "Whether it is short."})
DIGITS = Metric.model_validate(METRIC.model_dump() | {"name": "digits", "scale": "0-10"})
QUESTIONS = {"wet": {"type": "predicate", "instructions": "Does it rain in the tale?"}}
#: Rounding of float64, over several packs.
TOLERANCE = 1e-10


def a_row(number: int) -> dict[str, str]:
    ending = f"Ending {number}, " + "and so on, " * (number % 7)
    return {"source": f"Tale {number // 4}, told by the fire.", "output": ending}


def score(judge: Judge, number: int) -> list[float]:
    return [judge.score(METRIC, **a_row(number)).value]


def score_many(judge: Judge, number: int) -> list[float]:
    found = judge.score_many([METRIC, OTHER], [a_row(number), a_row(number + 1)])
    return [one.value for scores in found.values() for one in scores]


def iter_scores(judge: Judge, number: int) -> list[float]:
    return [one.value for one in judge.iter_scores(DIGITS, (a_row(number + step) for step in range(3)))]


def ascore_many(judge: Judge, number: int) -> list[float]:
    return [one.value for one in asyncio.run(judge.ascore_many(DIGITS, [a_row(number)]))]


def decide(judge: Judge, number: int) -> list[float]:
    return [answer.probability for answer in judge.decide(a_row(number)["output"], QUESTIONS).answers]


def nested(judge: Judge, number: int) -> list[float]:
    """Call the judge from where it tells how far it is."""
    inner: list[float] = []

    def tell(done: int, total: int) -> None:
        inner.extend(score(judge, number + 1))

    scores = judge.score_many(METRIC, [a_row(number)], progress=tell)
    return [scores[0].value, *inner[:1]]


WAYS: list[Callable[[Judge, int], list[float]]] = [score, score_many, iter_scores, ascore_many, decide, nested]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = byte_tokenizer()
    return save_judge(tmp_path_factory.mktemp("judge") / "tiny", tiny_model("llama", len(tokenizer)), tokenizer)


@pytest.fixture(scope="module", params=[None, 96, "cache", "padded"], ids=["trie", "several-packs", "cache", "padded"])
def judge(request: pytest.FixtureRequest, directory: Path) -> Judge:
    """With the engine's own budget, with one that cuts each call into several packs, and with the other engines."""
    options: dict[str, Any] = {"engine": request.param} if isinstance(request.param, str) else {}
    if isinstance(request.param, int):
        options = {"batch_tokens": request.param}
    return Judge.load(directory, dtype="float64", style="completion", **options)


def in_threads(work: Callable[[int], Any], count: int) -> list[Any]:
    """Do work in eight threads that begin at once."""
    gate = threading.Barrier(THREADS)

    def waiting(number: int) -> Any:
        if number < THREADS:
            gate.wait(300)
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(waiting, range(count)))


@pytest.mark.slow
@pytest.mark.sweep("several-packs")
def test_all_methods_mixed_in_eight_threads(judge: Judge) -> None:
    def call(number: int) -> list[float]:
        return WAYS[number % len(WAYS)](judge, 10 * number)

    expected = [call(number) for number in range(CALLS)]
    found = in_threads(call, CALLS)

    wrong = [
        (WAYS[number % len(WAYS)].__name__, one, other)
        for number, (one, other) in enumerate(zip(found, expected, strict=True))
        if one != pytest.approx(other, abs=TOLERANCE)
    ]
    assert wrong == []


@pytest.mark.sweep("several-packs")
def test_a_run_beside_single_calls(judge: Judge, tmp_path: Path) -> None:
    rows = [a_row(number) for number in range(64)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"source": "{row["source"]}", "output": "{row["output"]}"}}\n' for row in rows))
    expected = [one.value for one in judge.score_many(METRIC, rows)]
    runs: list[list[float]] = []

    def call(number: int) -> list[float] | None:
        if number % 20 == 7:
            out = tmp_path / f"{number}.jsonl"
            score_file(file, METRIC, judge, out, use_cache=False)
            runs.append([one.value for one in judge.score_many(METRIC, rows)])
            return None
        return score(judge, number)

    found = in_threads(call, 60)

    assert all(one == pytest.approx(expected, abs=TOLERANCE) for one in runs)
    assert all(one is None or one == pytest.approx([expected[n]], abs=TOLERANCE) for n, one in enumerate(found))
