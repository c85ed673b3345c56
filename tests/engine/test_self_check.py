"""The self-check passes a judge that computes what it should, and fails one that is broken, check by check."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from prompts import VOCAB
from tiny import tiny_model

from geval_local.engine import self_check
from geval_local.engine.backend import EngineReport
from geval_local.engine.batched import PaddedEngine
from geval_local.engine.choose import choose_engine
from geval_local.engine.interface import Readout
from geval_local.engine.prefix_sharing import attention
from geval_local.engine.prefix_sharing import engine as sharing
from geval_local.engine.prefix_sharing.engine import PrefixSharingEngine
from geval_local.engine.prefix_sharing.flex import FlexKernel
from geval_local.engine.probe import synthetic_requests
from geval_local.engine.self_check import attention_errors, check_engine
from geval_local.models import head as read_out
from geval_local.models.head import Head

#: Every test loads judges and checks them as `judges check` does.
pytestmark = pytest.mark.slow

PACKED = "packed against one at a time"


def trie_of(model, kind=PrefixSharingEngine, kernel=None, batch_tokens=256):
    padded = PaddedEngine(model, Head(model), batch_tokens=1)
    return kind(model, Head(model), batch_tokens=batch_tokens, padded=padded, kernel=kernel)


def checked(model, engine):
    return check_engine(model, engine, EngineReport(engine.name, None, 1e-6, 2e-3, 48))


def results(check):
    return {finding.name: finding.passed for finding in check.findings}


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("llama", torch.bfloat16), ("gemma2", torch.float64), ("gpt_oss", torch.float32), ("mistral", torch.float16)],
)
def test_a_judge_that_computes_what_it_should_passes(kind, dtype):
    model = tiny_model(kind, VOCAB, dtype, initializer_range=0.1)
    engine, report = choose_engine(model, Head(model), "trie")
    before = engine.batch_tokens, engine.limit, engine.look_ahead
    check = check_engine(model, engine, report)
    assert check.failed == (), [finding.text for finding in check.findings if finding.passed is False]
    found = results(check)
    assert found["attention"] is found[PACKED] is found["computed ahead"] is found["out of memory"] is True
    assert found.get("beyond the window") is (True if kind in ("mistral", "gemma2", "gpt_oss") else None)
    packs = [finding.figures for finding in check.findings if finding.name == PACKED]
    assert len({one["batch_tokens"] for one in packs}) == 3
    assert all(one["packs"] >= 3 for one in packs)
    assert (engine.batch_tokens, engine.limit, engine.look_ahead) == before
    assert check.device["probe"]["tolerance"] == report.tolerance


@pytest.mark.sweep
@pytest.mark.parametrize("choice", ["cache", "padded"])
def test_the_other_engines_are_checked_for_what_they_do(choice):
    model = tiny_model("falcon_h1" if choice == "cache" else "llama", VOCAB, torch.float32)
    engine, report = choose_engine(model, Head(model), choice)
    check = check_engine(model, engine, report)
    found = results(check)
    assert check.failed == ()
    assert found[PACKED] is found["out of memory"] is True
    assert found["attention"] is None
    assert found["computed ahead"] is (True if choice == "cache" else None)


def test_prompts_that_go_one_at_a_time_have_nothing_to_compare():
    model = tiny_model("llama", VOCAB, torch.float32)
    found = results(checked(model, PaddedEngine(model, Head(model), batch_tokens=1)))
    assert found[PACKED] is found["out of memory"] is None


def test_the_synthetic_prompts_are_read_in_digits_too():
    requests = synthetic_requests(VOCAB, prefix=5, document=9, candidate=4)
    assert [request.trie.labels for request in requests] == [5, 5, 5, 101] * 3
    assert requests[3].trie.depth == 2
    assert len({request.ids[:14].tobytes() for request in requests}) == 3
    assert all(np.array_equal(request.ids[:5], request.prefix) for request in requests)


def test_a_window_that_is_too_long_for_a_check_is_said(monkeypatch):
    monkeypatch.setitem(self_check.OPERATIONS, "cpu", 1e8)
    model = tiny_model("mistral", VOCAB, torch.float32, sliding_window=3000)
    (finding,) = [one for one in checked(model, trie_of(model)).findings if one.name == "beyond the window"]
    assert finding.passed is None
    assert "3000 tokens not reached" in finding.text


class WrongAtTheEnd(FlexKernel):
    """A kernel whose last tile is wrong, which few prompts would show."""

    def __call__(self, *given, **options):
        out = super().__call__(*given, **options).clone()
        out[:, -128:] *= 1.5
        return out


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_kernel_that_errs_is_far_from_the_definition(dtype):
    model = tiny_model("llama", VOCAB, dtype, initializer_range=0.1)
    requests = synthetic_requests(VOCAB, prefix=20, document=40, candidate=30)
    right, wrong = (
        attention_errors(model, trie_of(model, kernel=kind(backend=None), batch_tokens=512), requests)[None]
        for kind in (FlexKernel, WrongAtTheEnd)
    )
    assert right < 0.01 < 0.1 < wrong


@pytest.mark.slow
def test_a_kernel_that_errs_fails():
    model = tiny_model("llama", VOCAB, torch.bfloat16, initializer_range=0.1)
    wrong = checked(model, trie_of(model, kernel=WrongAtTheEnd(backend=None), batch_tokens=512))
    assert wrong.device["attention"] == "FlexAttention, one kernel"
    assert "attention" in wrong.failed


def test_a_window_that_is_not_applied_fails(monkeypatch):
    call = attention.PackAttention.__call__

    def without_window(self, query, key, value, *, span, **options):
        out = call(self, query, key, value, span=None, **options)
        self.spans[-1] = span
        return out

    monkeypatch.setattr(attention.PackAttention, "__call__", without_window)
    model = tiny_model("mistral", VOCAB, torch.float32)
    assert {"attention", PACKED, "beyond the window"} <= set(checked(model, trie_of(model)).failed)


class Shifted(PrefixSharingEngine):
    """Gives the prompts of some packs a little more of the first label; of one scale only."""

    labels = 101

    def execute(self, requests, packs):
        for pack, found in super().execute(requests, packs):
            wrong = [
                Readout(one.label_logprobs + 0.5 * np.eye(len(one.label_logprobs))[0])
                if requests[index].trie.labels == self.labels
                else one
                for index, one in zip(pack.requests, found, strict=True)
            ]
            yield pack, wrong


class ShiftedFlat(Shifted):
    labels = 5


@pytest.mark.sweep
@pytest.mark.parametrize("kind", [Shifted, ShiftedFlat])
def test_an_engine_that_errs_on_one_scale_fails(kind):
    model = tiny_model("llama", VOCAB, torch.float32)
    assert PACKED in checked(model, trie_of(model, kind)).failed


def test_figures_that_are_overwritten_before_they_are_read_fail(monkeypatch):
    """As by a buffer on the host that is used again while a pack is still waited for."""
    held = {}

    class Reusing(read_out.Arriving):
        def __init__(self, tensor):
            super().__init__(tensor)
            held[tensor.shape[1]] = self._host

        def wait(self):
            latest, own = held[self._host.shape[1]], self._host.clone()
            rows = min(len(latest), len(own))
            own[:rows] = latest[:rows]
            return own.numpy()

    monkeypatch.setattr(read_out, "Arriving", Reusing)
    model = tiny_model("llama", VOCAB, torch.float32)
    assert "computed ahead" in checked(model, trie_of(model)).failed


@pytest.mark.sweep
@pytest.mark.parametrize("broken", ["is_not_understood", "is_not_halved"])
def test_memory_that_runs_out_and_is_not_coped_with_fails(monkeypatch, broken):
    if broken == "is_not_understood":
        monkeypatch.setattr("geval_local.models.memory.is_out_of_memory", lambda error: False)
    else:
        monkeypatch.setattr(sharing, "FLOOR", 1 << 20)
    model = tiny_model("llama", VOCAB, torch.float32)
    check = checked(model, trie_of(model))
    assert check.failed == ("out of memory",)
    (finding,) = [one for one in check.findings if one.name == "out of memory"]
    told = {"is_not_understood": "OutOfMemoryError", "is_not_halved": "budget"}  # a small pass is tried once more
    assert told.get(broken, "does not fit") in finding.text


@pytest.mark.sweep
def test_a_device_that_raises_has_failed_and_is_told(monkeypatch):
    model = tiny_model("llama", VOCAB, torch.float32)

    def broken(*_, **__):
        raise RuntimeError("an illegal memory access was encountered\nand more")

    monkeypatch.setattr(model.model, "forward", broken)
    check = checked(model, trie_of(model))
    assert {"attention", PACKED, "computed ahead", "out of memory"} <= set(check.failed)
    assert all("\n" not in finding.text for finding in check.findings)
