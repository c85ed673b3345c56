"""Thinking: the settings of thoughts, and the error that drawing them leaves in a score. Pure.

The label probabilities of a judge that thinks are the mean over its thoughts, ``P(l) = mean_k P(l | thought k)``, not
yet normalised; the score is a ratio of two means, ``sum_l P(l) value(l) / sum_l P(l)``. Where label mass goes with the
verdict, a ratio of means over few thoughts is biased; from three thoughts on the jackknife corrects it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Tokens of a thought that is closed by force, unless the user names another number.
THOUGHT_TOKENS = 512
#: How a thought ended: by the judge's own mark, by its end-of-text token, or closed at the limit.
Ending = Literal["mark", "end", "cut"]
#: Thoughts from which on the mean over them is corrected, see `mean_distribution`.
CORRECTED = 3


class Drawing(NamedTuple):
    """How tokens are drawn, as a model's own files say; without a word of theirs from the distribution as it is."""

    #: Divides the logits, above 0.
    temperature: float = 1.0
    #: Tokens are drawn from the likeliest ones with this total probability, above 0 and up to 1.
    top_p: float = 1.0
    #: Tokens are drawn from so many likeliest ones; 0 is all of them.
    top_k: int = 0
    #: Tokens are drawn from those with at least this share of the likeliest one's probability, 0 to 1.
    min_p: float = 0.0
    #: Settings of those files that change what is drawn, and that are not obeyed here.
    ignored: tuple[str, ...] = ()


AS_IT_IS = Drawing()


@dataclass(frozen=True)
class Thinking:
    """How a judge thinks."""

    #: Thoughts per form.
    count: int
    #: Most tokens of a thought.
    tokens: int
    #: From what distribution.
    drawing: Drawing
    #: Seed of the draws.
    seed: int
    #: ``template``: between the marks of the chat template; else an analysis before the form, with its edition.
    kind: str

    @property
    def text(self) -> str:
        """The settings as a part of a signature."""
        mean = ",mean=jackknife" if self.count >= CORRECTED else ""
        return f"{self.kind},k={self.count}{mean},{self.drawing_text}"

    @property
    def drawing_text(self) -> str:
        """What a thought depends on apart from judge, prompt and number: a fifth one leaves four as they are."""
        one = self.drawing
        further = f",top_k={one.top_k}" * bool(one.top_k) + f",min_p={_exact(one.min_p)}" * bool(one.min_p)
        return f"n={self.tokens},t={_exact(one.temperature)},p={_exact(one.top_p)}{further},seed={self.seed}"

    def stream(self, ids: NDArray[np.int32], number: int) -> int:
        """Seed the draws of one thought by seed, prompt and number, 0 to 2**63 - 1: whatever else is drawn with it."""
        text = f"{self.seed}/{number}/".encode() + ids.astype("<i4").tobytes()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def _exact(value: float) -> str:
    """Write a number with all its digits: ``1``, ``0.95``, ``1.0000049``."""
    return repr(float(value)).removesuffix(".0")


@dataclass(frozen=True)
class Thought:
    """One thought."""

    #: Its tokens, with the mark that ended it, without an end-of-text token.
    ids: tuple[int, ...]
    #: The same as text, without the mark.
    text: str
    #: How it ended.
    ending: Ending


@dataclass(frozen=True)
class ThoughtFigures:
    """What thoughts leave open in a score, in units of the scale."""

    #: Thoughts that were drawn for each form.
    count: int
    #: Monte Carlo standard error of the score; NaN for a single thought, and for other estimators than the expectation.
    error: float
    #: Standard deviation (n - 1) of the scores after single thoughts; NaN for a single one.
    spread: float
    #: Thoughts that were closed at the limit, of all.
    cut: int
    #: The thoughts, where they are kept.
    texts: tuple[str, ...] = ()
    #: Bias of the plain mean by the jackknife (Quenouille, 1956), which is taken off from `CORRECTED` thoughts on; NaN
    #: where the error is.
    bias: float = math.nan


@dataclass(frozen=True)
class Thoughts:
    """The thoughts about one form, with the label probabilities after each."""

    #: ``P(l | thought)``, not normalised, float64, shape (thoughts, labels).
    p: NDArray[np.float64]
    #: In their order.
    drawn: tuple[Thought, ...]

    def errors(self, values: NDArray[np.float64]) -> tuple[float, float, float]:
        """Return standard error and bias of the expectation, and standard deviation between thoughts; NaN for one.

        The error is that of a ratio of means by the jackknife. For four thoughts whose label masses differ much the
        delta method gives .65 of the observed error, the jackknife 1.05; elsewhere .97 and 1.00 (simulated).
        """
        count = len(self.p)
        if count < 2:
            return math.nan, math.nan, math.nan
        sums, masses = self.p @ values, self.p.sum(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            without = (sums.sum() - sums) / (masses.sum() - masses)
            spread = float(np.std(sums / masses, ddof=1))
            plain = sums.sum() / masses.sum()
        return math.sqrt(count - 1) * float(np.std(without)), (count - 1) * float(np.mean(without) - plain), spread


def mean_distribution(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average label probabilities over thoughts, shape (thoughts, labels); they keep the mean label mass.

    The jackknife takes off the bias of the shares (Quenouille, 1956); for two thoughts it may do harm. If all thoughts
    have the same label mass there is no bias, and the mean is the plain one.
    """
    mean, rest = p.mean(axis=0), p.sum(axis=0) - p
    mass, masses = mean.sum(), rest.sum(axis=1, keepdims=True)
    if len(p) < CORRECTED or not (masses > 0).all():
        return np.asarray(mean)
    shares = len(p) * mean / mass - (len(p) - 1) * (rest / masses).mean(axis=0)
    shares = np.where(mean > 0, np.maximum(shares, 0.0), 0.0)
    return np.asarray(mass * shares / shares.sum())


def thought_figures(
    forms: Sequence[Thoughts], values: Sequence[NDArray[np.float64]], *, is_expectation: bool = True
) -> ThoughtFigures:
    """Sum up the thoughts about all forms of a sample, whose figure is the mean over the forms.

    `values` are those of each form's labels, in the unit of the figure.
    """
    errors, biases, spreads = np.array([form.errors(own) for form, own in zip(forms, values, strict=True)]).T
    drawn = [thought for form in forms for thought in form.drawn]
    return ThoughtFigures(
        len(forms[0].p),
        math.sqrt(float(errors @ errors)) / len(forms) if is_expectation else math.nan,
        math.sqrt(float(spreads @ spreads) / len(forms)),
        sum(thought.ending == "cut" for thought in drawn),
        tuple(thought.text for thought in drawn) if any(thought.text for thought in drawn) else (),
        float(biases.mean()) if is_expectation else math.nan,
    )
