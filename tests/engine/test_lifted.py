"""Log-probabilities by lifted tokens, against the softmax over the full vocabulary."""

from __future__ import annotations

import numpy as np
import pytest

from geval_local.engine.lifted import BIASES, lifted_logprobs, restored


class Lists:
    """Lists the likeliest tokens of float32 logits under a bias, as llama.cpp does: sums in double, sent as float32."""

    def __init__(self, logits, most=64):
        self.logits, self.most = np.asarray(logits, dtype=np.float32), most
        self.biases = []

    def exact(self):
        logits = self.logits.astype(np.float64)
        with np.errstate(divide="ignore"):
            return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())

    def __call__(self, tokens, bias):
        self.biases.append(bias)
        moved = self.logits.copy()
        moved[list(tokens)] += np.float32(bias)
        shares = np.exp((moved - moved.max()).astype(np.float32))
        shares = (shares / shares.sum(dtype=np.float64)).astype(np.float32)
        order = np.argsort(-shares, kind="stable")[: max(self.most, len(tokens) + 16)]
        return {int(token): float(shares[token]) for token in order}


def logits_of(seed, size=5000, width=3.0):
    return np.random.default_rng(seed).normal(0, width, size)


@pytest.mark.parametrize("count", [1, 2, 5, 101])
@pytest.mark.parametrize("seed", range(6))
def test_every_token_is_that_of_the_full_vocabulary(seed, count):
    logits = logits_of(seed)
    tokens = np.random.default_rng(seed + 100).choice(len(logits), count, replace=False).tolist()
    lists = Lists(logits, most=256)

    found = lifted_logprobs(lists, tokens)

    exact = lists.exact()
    assert [found[token] for token in tokens] == pytest.approx([exact[token] for token in tokens], abs=3e-5)


@pytest.mark.parametrize("share", [1e-30, 1e-12, 1e-6, 0.01, 0.5, 0.99, 1 - 1e-6])
def test_however_much_the_tokens_have(share):
    logits = logits_of(3)
    tokens = [7, 8, 9, 4000]
    rest = np.setdiff1d(np.arange(len(logits)), tokens)
    logits[tokens] -= np.log(np.exp(logits[tokens]).sum())
    logits[rest] -= np.log(np.exp(logits[rest]).sum())
    logits[tokens] += np.log(share)
    logits[rest] += np.log1p(-share)
    lists = Lists(logits)

    found = lifted_logprobs(lists, tokens)

    exact = lists.exact()
    assert [found[token] for token in tokens] == pytest.approx([exact[token] for token in tokens], abs=3e-5)


def test_tokens_that_the_first_bias_does_not_lift_are_measured_with_larger_ones():
    logits = logits_of(1)
    tokens = [10, 11, 12, 13]
    logits[tokens] = [logits.max(), logits.max() - 25, logits.max() - 45, logits.max() - 85]
    lists = Lists(logits)

    found = lifted_logprobs(lists, tokens)

    exact = lists.exact()
    assert lists.biases == [*BIASES]
    assert [found[token] for token in tokens] == pytest.approx([exact[token] for token in tokens], abs=3e-5)


def test_where_the_likeliest_token_is_one_of_them():
    logits = logits_of(2)
    logits[[20, 21]] = [40.0, -20.0]
    lists = Lists(logits)

    found = lifted_logprobs(lists, [20, 21])

    assert [found[20], found[21]] == pytest.approx(lists.exact()[[20, 21]].tolist(), abs=3e-5)


def test_one_list_suffices_where_it_holds_them():
    logits = logits_of(4)
    tokens = np.argsort(-logits)[:5].tolist()
    lists = Lists(logits)
    lifted_logprobs(lists, tokens)
    assert lists.biases == [BIASES[0]]


def test_a_token_that_nothing_lifts_is_absent_and_not_impossible():
    logits = logits_of(5)
    logits[30] = -np.inf
    found = lifted_logprobs(Lists(logits), [30, 31])
    assert 30 not in found
    assert found[31] == pytest.approx(Lists(logits).exact()[31], abs=3e-5)


def test_figures_that_are_no_probabilities_are_refused():
    with pytest.raises(ValueError, match="sum to more than 1"):
        restored({1: 0.9, 2: 0.4}, [1, 2], 5.0)
