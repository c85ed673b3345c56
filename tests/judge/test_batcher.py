"""Batcher: calls of many threads computed together, fairly, each with its own answer."""

from __future__ import annotations

import threading
import time
from concurrent.futures import FIRST_COMPLETED, CancelledError, ThreadPoolExecutor, wait

import numpy as np
import pytest
from tokenizers import Regex, pre_tokenizers
from waiting import until

from geval_local import Judge, Metric, PredicateQuestion
from geval_local.errors import BusyError, GevalError
from geval_local.judge.batcher import Batcher
from geval_local.testing import MockEngine, MockJudge, byte_tokenizer

METRIC = Metric(name="quality", criteria="Is it good?", scale="1-5", steps=())


def predicates(count):
    return [PredicateQuestion(name=f"p{number}", instructions=f"Statement {number} holds.") for number in range(count)]


class Gate(MockEngine):
    """An engine that waits for a signal, and counts its requests."""

    def __init__(self):
        super().__init__(batch_tokens=1 << 20)
        self.open = threading.Event()
        self.entered = threading.Event()
        self.read_prompts = 0
        self.windows = []

    def execute(self, requests, packs):
        self.entered.set()
        assert self.open.wait(300)
        self.windows.append(len(requests))
        self.read_prompts += len(requests)
        return super().execute(requests, packs)


def test_calls_that_arrive_together_are_computed_together():
    engine = Gate()
    judge = MockJudge(engine)
    with Batcher(judge) as batcher:
        first = batcher.decide("start", predicates(1))
        assert engine.entered.wait(300)
        futures = [batcher.decide(f"text {number}", predicates(2)) for number in range(30)]
        engine.open.set()
        assert first.result(300).answers
        for number, future in enumerate(futures):
            assert future.result(300).to_dict() == MockJudge().decide(f"text {number}", predicates(2)).to_dict()
    assert sum(engine.windows) == 61
    assert len(engine.windows) <= 8


def test_scores_and_decisions_share_a_queue():
    judge = MockJudge()
    with Batcher(judge) as batcher:
        scores = batcher.score(METRIC, [{"output": "one"}, {"output": ""}])
        decision = batcher.decide("x", predicates(1))
        assert scores.result(300)[0].value == MockJudge().score(METRIC, output="one").value
        assert "empty" in scores.result(300)[1].error
        assert decision.result(300)[0].is_answered
        assert batcher.score(METRIC, []).result(300) == []
        assert batcher.call(lambda: 7).result(300) == 7


@pytest.mark.slow
def test_a_large_call_does_not_hold_up_small_ones():
    judge = MockJudge(MockEngine(seconds=0.01, batch_tokens=1000))
    with Batcher(judge) as batcher:
        large = batcher.decide("large", predicates(500))
        time.sleep(0.1)
        small = batcher.decide("small", predicates(1))
        small.result(300)
        assert not large.done()
        assert len(large.result(300)) == 500


def test_an_error_is_the_callers_own():
    poison = MockJudge().encoder.encode_texts(["poison"])[0].astype(np.uint8).tobytes()

    class FailingOnText(MockEngine):
        def read(self, requests):
            if any(poison in request.ids.astype(np.uint8).tobytes() for request in requests):
                raise RuntimeError("device lost")
            return super().read(requests)

    with Batcher(MockJudge(FailingOnText())) as batcher:
        futures = [batcher.decide(text, predicates(1)) for text in ("a", "poison", "b")]
        assert futures[0].result(300)[0].is_answered
        assert futures[2].result(300)[0].is_answered
        with pytest.raises(RuntimeError, match="device lost"):
            futures[1].result(300)
        assert batcher.decide("c", predicates(1)).result(300)[0].is_answered


def test_a_cancelled_call_frees_its_work():
    engine = Gate()
    with Batcher(MockJudge(engine)) as batcher:
        first = batcher.decide("start", predicates(1))
        assert engine.entered.wait(300)
        dropped = batcher.decide("dropped", predicates(300))
        kept = batcher.decide("kept", predicates(1))
        assert dropped.cancel()
        engine.open.set()
        first.result(300)
        kept.result(300)
        with pytest.raises(CancelledError):
            dropped.result(300)
    assert engine.read_prompts == 2


def test_a_full_queue_refuses_and_recovers():
    engine = Gate()
    with Batcher(MockJudge(engine), queue=3) as batcher:
        futures = [batcher.decide(f"{number}", predicates(1)) for number in range(3)]
        with pytest.raises(BusyError, match="3 calls"):
            batcher.decide("more", predicates(1))
        assert 1 <= batcher.retry_after <= 60
        engine.open.set()
        for future in futures:
            future.result(300)
        until(lambda: not batcher.pending)
        assert batcher.decide("more", predicates(1)).result(300)[0].is_answered


def test_closing_finishes_what_waits_and_refuses_more():
    engine = Gate()
    batcher = Batcher(MockJudge(engine))
    futures = [batcher.decide(f"{number}", predicates(3)) for number in range(5)]
    threading.Timer(0.1, engine.open.set).start()
    batcher.close()
    assert all(future.done() and len(future.result()) == 3 for future in futures)
    with pytest.raises(BusyError, match="closed"):
        batcher.decide("late", predicates(1))


def test_closing_at_once_cancels_what_waits():
    engine = Gate()
    batcher = Batcher(MockJudge(engine))
    first = batcher.decide("start", predicates(1))
    assert engine.entered.wait(300)
    waiting = batcher.decide("waiting", predicates(1))
    engine.open.set()
    batcher.close(finish=False)
    assert first.done()
    assert waiting.cancelled()


def test_many_threads_each_get_their_own_answer():
    judge = MockJudge()
    expected = {number: MockJudge().decide(f"text {number}", predicates(1))[0].p for number in range(8)}
    with Batcher(judge) as batcher, ThreadPoolExecutor(16) as pool:
        found = pool.map(lambda n: (n % 8, batcher.decide(f"text {n % 8}", predicates(1)).result(300)[0].p), range(400))
        for number, p in found:
            assert p == expected[number]


@pytest.mark.slow
def test_company_changes_nothing_and_a_repeated_evidence_is_kept():
    judge = Judge.load("nano")
    state = "The committee met on Tuesday and agreed to postpone the vote until the spring session. " * 8
    alone = [judge.decide(state, [question])[0].p for question in predicates(6)]
    with Batcher(judge) as batcher:
        crowd = [batcher.decide(f"Some other text, number {number}.", predicates(2)) for number in range(20)]
        together = batcher.decide(state, predicates(6)).result(300)
        for future in crowd:
            future.result(300)
        for answer, p in zip(together, alone, strict=True):
            np.testing.assert_allclose(answer.p, p, rtol=0, atol=1e-5)
        batcher.decide(state, predicates(1)).result(300)  # known now, and kept
        before = judge.engine.computed_tokens
        again = batcher.decide(state, predicates(6)).result(300)
        assert judge.engine.computed_tokens - before < 6 * 60
        for answer, p in zip(again, alone, strict=True):
            np.testing.assert_allclose(answer.p, p, rtol=0, atol=1e-5)


def test_repeated_evidence_does_not_leave_its_company():
    """Candidates of one document, two of them equal, all of them twice: one window each time."""
    document = "A long document about a vote. " * 20
    engine = Gate()
    with Batcher(MockJudge(engine)) as batcher:
        first = batcher.decide("start", predicates(1))
        assert engine.entered.wait(300)
        for _ in range(2):
            engine.open.clear()
            engine.entered.clear()
            if first.done():
                first = batcher.decide("start again", predicates(1))
                assert engine.entered.wait(300)
            texts = [f"{document}\n\nsummary:\nCandidate {min(number, 7)}." for number in range(9)]
            futures = [batcher.decide(text, predicates(1)) for text in texts]
            engine.open.set()
            for future in (first, *futures):
                assert future.result(300)[0].is_answered
    assert engine.windows == [1, 9, 1, 9]


@pytest.mark.slow
def test_a_document_that_two_batches_share_is_kept_for_the_second():
    judge = Judge.load("nano")
    alone = Judge.load("nano")
    texts = [
        f"{document * 12}\n\nsummary:\n{number} is the candidate." for document in DOCUMENTS for number in range(6)
    ]
    with Batcher(judge, gather_seconds=3.0) as batcher:
        for start, stop in ((0, 9), (9, 12)):  # the first batch ends amid the second document
            before = judge.engine.computed_tokens
            futures = [batcher.decide(text, predicates(1)) for text in texts[start:stop]]
            found = [future.result(300)[0].p for future in futures]
            computed = judge.engine.computed_tokens - before
            for p, text in zip(found, texts[start:stop], strict=True):
                np.testing.assert_allclose(p, alone.decide(text, predicates(1))[0].p, rtol=0, atol=1e-5)
    assert computed < 3 * 60


DOCUMENTS = (
    "The committee met on Tuesday and agreed to postpone the vote until the spring session. ",
    "A storm off the coast kept the fishing boats in the harbour for the third day in a row. ",
)


def test_a_call_is_answered_before_its_batch_ends():
    """The units of a batch are answered one by one, so that a caller's own work goes on beside the rest."""
    gate = threading.Event()

    class Units(MockEngine):
        def read(self, requests):
            if self.executed_packs > 1:
                assert gate.wait(300)
            return super().read(requests)

    engine = Units(batch_tokens=1)  # every prompt is a unit
    with Batcher(MockJudge(engine), gather_seconds=3.0) as batcher:
        asked = [batcher.decide(f"state {number}", predicates(1)) for number in range(3)]
        done, late = wait(asked, timeout=300, return_when=FIRST_COMPLETED)
        assert len(done) == 1
        assert engine.executed_packs == 2
        gate.set()
        expected = MockJudge().decide("state 0", predicates(1))
        assert asked[0].result(300) == expected
    assert all(one.done() for one in late)


class Panic(BaseException):
    """What PyO3 raises for a panic in Rust: no Exception."""


#: A text on which the tokenizer of `panicking` gives up in Rust, which is no `Exception` in Python.
POISON = f"{'a' * 60}!"


def panicking(context=1 << 20):
    tokenizer = byte_tokenizer()
    backend = tokenizer.backend_tokenizer
    never_done = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([never_done, backend.pre_tokenizer])
    return MockJudge(tokenizer=tokenizer, context=context)


def test_a_tokenizer_that_panics_costs_its_row_and_no_other():
    expected = panicking().score(METRIC, output="good")
    with Batcher(panicking()) as batcher:
        rows = [{"output": text} for text in ("good", POISON, "good")]
        first, second, third = batcher.score(METRIC, rows).result(20)
        assert first.value == third.value == expected.value
        assert second.value is None or np.isnan(second.value)
        assert "tokenizer cannot encode this text" in second.error
        assert POISON not in second.error


@pytest.mark.parametrize("context", [1 << 20, 30_000], ids=["short", "cut to be counted"])
def test_a_tokenizer_that_panics_costs_its_question_and_no_other(context):
    poison = POISON.ljust(70_000, "." if context < 70_000 else " ").strip()
    options = [{"value": "x"}, {"value": "y", "description": poison}]
    asked = [*predicates(1), PredicateQuestion(instructions=poison), {"type": "choice", "options": options}]
    with Batcher(panicking(context)) as batcher:
        answers = batcher.decide("fine", asked).result(20)
        assert [answer.is_answered for answer in answers] == [True, False, False]
        for answer in answers[1:]:
            assert "tokenizer cannot encode this text" in answer.error
            assert answer.error_code == "not_encodable"
        assert not any(answer.is_answered for answer in batcher.decide(poison, predicates(2)).result(20))
        assert batcher.decide("fine", predicates(1)).result(20)[0].is_answered


@pytest.mark.parametrize("error", [Panic, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_nothing_that_a_call_raises_ends_the_thread(error):
    class Failing(MockEngine):
        def read(self, requests):
            raise error("in the engine")

    def fail():
        raise error("in a call")

    judge = MockJudge()
    with Batcher(judge) as batcher:
        with pytest.raises(GevalError, match=error.__name__):
            batcher.call(fail).result(20)
        judge.engine = Failing()
        with pytest.raises(GevalError, match=error.__name__):
            batcher.decide("x", predicates(1)).result(20)
        judge.engine = MockEngine()
        assert batcher.decide("x", predicates(1)).result(20)[0].is_answered
