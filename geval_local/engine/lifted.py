"""Exact log-probabilities from a program that lists only its likeliest next tokens, but lets logits be raised.

A bias on the logits of the tokens asked for lifts them into the list. Let b be the bias, q the listed probabilities and
Q their sum over the biased tokens. Then Z = 1 / (1 - (1 - e^-b) Q), a biased token's own probability is q Z e^-b, and
any other token's is q Z. The list is in float32, so the error of Z grows with b: the first bias is small. A token that
it does not lift far enough is asked for with a larger one, and compared with the likeliest token of the same list. A
token that no list holds has no figure; it never counts as impossible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

#: Biases, in the order in which they are tried. The first keeps Z below 149, so that float32 moves it by 1e-5 at most;
#: float32 logits of 90 are 8e-6 apart.
BIASES = (5.0, 30.0, 60.0, 90.0)


def lifted_logprobs(
    ask: Callable[[Sequence[int], float], Mapping[int, float]], tokens: Sequence[int]
) -> dict[int, float]:
    """Find the log-probabilities of some next tokens, asking as often as it takes.

    Parameters
    ----------
    ask : callable
        Takes tokens and the bias on each of their logits; gives the probabilities of the likeliest tokens under it, by
        token: more tokens than are biased, the list complete down to its least.
    tokens : sequence of int
        At least one.

    Returns
    -------
    dict
        Of every listed token; those that no bias lifts are absent.

    Raises
    ------
    ValueError
        If the figures are no probabilities.
    """
    first, *larger = BIASES
    listed = dict(ask(tokens, first))
    missing = [token for token in tokens if not listed.get(token)]
    for bias in larger if missing else ():
        listed |= _measured(listed, tokens, ask(missing, bias), missing, bias)
        missing = [token for token in missing if not listed.get(token)]
        if not missing:
            break
    return restored(listed, tokens, first)


def _measured(
    listed: Mapping[int, float],
    tokens: Collection[int],
    second: Mapping[int, float],
    missing: Collection[int],
    bias: float,
) -> dict[int, float]:
    """Give the figures that the first list would have of what it lacks, by a second one that lifts only that."""
    # The likeliest token of all, and its share under the first bias if that were not on it.
    share, anchor = max((q * math.exp(-BIASES[0] if token in tokens else 0.0), token) for token, q in listed.items())
    if not second.get(anchor):
        return {}
    scale = share * math.exp(BIASES[0] - bias) / second[anchor]
    return {token: second[token] * scale for token in missing if second.get(token)}


def restored(listed: Mapping[int, float], lifted: Collection[int], bias: float) -> dict[int, float]:
    """Take a bias out of listed probabilities: log-probabilities over the full vocabulary, of all that are above 0.

    Raises
    ------
    ValueError
        If the lifted tokens have more than all of the probability.
    """
    rest = 1.0 + math.expm1(-bias) * math.fsum(listed.get(token, 0.0) for token in lifted)
    if rest <= 0.0:
        raise ValueError("the probabilities of the biased tokens sum to more than 1")
    taken = dict.fromkeys(lifted, bias)
    log_z = -math.log(rest)
    return {token: math.log(q) + log_z - taken.get(token, 0.0) for token, q in listed.items() if q > 0.0}
