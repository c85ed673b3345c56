"""From label log-probabilities to a score: pure, in float64, all arithmetic written once.

`Distribution` holds the labels' probabilities for one form, `Estimator` makes one number of it, `Score` has the figures
of one sample on one metric, and `Outcome` what runs keep of them.
"""

from __future__ import annotations

import json
import math
import operator
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partialmethod
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from geval_local.direction import Direction
from geval_local.errors import Cause, ConfigurationError, ErrorCode, code_of
from geval_local.figures import FIGURES, as_dict
from geval_local.notebook import facts_html, share_bar
from geval_local.scale import Scale
from geval_local.thinking import Thought, ThoughtFigures, Thoughts, mean_distribution, thought_figures

if TYPE_CHECKING:
    from geval_local.metric import Metric

# What is left of a sum of a thousand probabilities by rounding.
_SUM_ERROR = 1e-12


class Distribution:
    """The labels' probabilities for one form, and every figure derived from them.

    Parameters
    ----------
    scale : Scale
        The labels and their values.
    label_logprobs : array_like, shape (labels,)
        Natural logarithms of ``P(l | form)``, the probability that the model's next text is the label (not
        normalised over the labels); ``-inf`` is allowed, but not for all labels.

    Raises
    ------
    ValueError
        If the shape is wrong, a value is NaN or ``+inf``, or no label has any probability.
    """

    __slots__ = ("label_logprobs", "label_mass", "p", "scale")

    def __init__(self, scale: Scale, label_logprobs: ArrayLike) -> None:
        logprobs = np.asarray(label_logprobs, dtype=np.float64)
        if logprobs.shape != (len(scale.labels),):
            raise ValueError(f"expected {len(scale.labels)} label log-probabilities, got shape {logprobs.shape}")
        if np.isnan(logprobs).any() or np.isposinf(logprobs).any():
            raise ValueError("a label log-probability is NaN or infinite")
        top = float(logprobs.max())
        if math.isinf(top):
            raise ValueError("no label of the scale has any probability")
        weights = np.exp(logprobs - top)
        total = float(weights.sum())
        self.scale = scale
        self.label_logprobs: NDArray[np.float64] = logprobs
        self.p: NDArray[np.float64] = weights / total
        self.label_mass: float = math.exp(top) * total

    @property
    def probabilities(self) -> dict[str, float]:
        """``{label: p(label)}``, summing to 1, in the order of the scale."""
        return dict(zip(self.scale.labels, self.p.tolist(), strict=True))

    @property
    def score(self) -> float:
        """The exact expectation ``sum p(l) * value(l)``, on the scale's own units."""
        return self._on_scale(float(self.p @ self.scale.array))

    @property
    def std(self) -> float:
        """Standard deviation of the label's value under the distribution."""
        return math.sqrt(float(self.p @ (self.scale.array - self.score) ** 2))

    @property
    def entropy(self) -> float:
        """Shannon entropy in nats: 0 for a certain label, ``log(labels)`` for a uniform distribution."""
        positive = self.p[self.p > 0]
        return max(0.0, -float((positive * np.log(positive)).sum()))

    @property
    def mode_index(self) -> int:
        """Index of the most likely label; the first one of the scale on an exact tie."""
        return int(self.p.argmax())

    @property
    def mode(self) -> str:
        """The most likely label."""
        return self.scale.labels[self.mode_index]

    @property
    def margin(self) -> float:
        """Difference between the two largest probabilities, 0 to 1."""
        top_two = np.sort(self.p)[-2:]
        return float(top_two[1] - top_two[0])

    def probability_at_least(self, threshold: float) -> float:
        """Probability that the label's value is at least `threshold`."""
        return self.probability_of_passing(threshold, Direction.HIGH)

    def probability_of_passing(self, threshold: float, direction: Direction) -> float:
        """Probability that the label's value is at `threshold` or on its good side."""
        passing = [direction.passes(value, threshold) for value in self.scale.values]
        return min(1.0, float(self.p[passing].sum()))

    @property
    def median(self) -> float:
        """The median of the label's value; halfway between two values where each side holds exactly half."""
        lower, upper = self._reaching(0.5, beyond=False), self._reaching(0.5, beyond=True)
        return (lower + upper) / 2

    def _reaching(self, q: float, *, beyond: bool) -> float:
        """Smallest value whose cumulated probability reaches `q`, or exceeds it."""
        order = np.argsort(self.scale.array, kind="stable")
        cumulated = np.cumsum(self.p[order])
        # A sum of decimals such as .1 + .2 + .2 is half, whatever its last bits say.
        reached = cumulated > q + _SUM_ERROR if beyond else cumulated >= q - _SUM_ERROR
        return self.scale.values[order[int(reached.argmax())]] if reached.any() else self.scale.high

    def sample_mean(self, n: int, seed: int | Sequence[int]) -> float:
        """Mean value of `n` labels drawn from the distribution: the estimator of judges that can only sample."""
        if n < 1:
            raise ValueError(f"the number of draws must be at least 1, not {n}")
        counts = np.random.default_rng(seed).multinomial(n, self.p)
        return self._on_scale(float(counts @ self.scale.array) / n)

    def _on_scale(self, mean: float) -> float:
        # Float error may leave the interval by an ulp when one label holds everything.
        return min(max(mean, self.scale.low), self.scale.high)


_PLAIN = ("exact", "mode", "median")
_MOST_DRAWS = 1 << 31
_ESTIMATORS = "Choose exact, mode or median; the ablations of meta-eval show the mean of 20 draws."


@dataclass(frozen=True)
class Estimator:
    """How a label distribution becomes one number.

    All but the expectation are Wang, Zhang and Choi's (2025, "Improving LLM-as-a-Judge Inference with the Judgment
    Distribution", arXiv:2503.03064) or Liu et al.'s; all take a distribution and nothing else, so they can be applied
    to stored results as well.

    Parameters
    ----------
    kind : {"exact", "mode", "sample", "median"}
        ``exact`` is the expectation. ``mode`` is the value of the most likely label (the paper's "- Probs" row).
        ``sample`` is the mean of `n` seeded draws (what the paper had to do for GPT-4), a row of the ablations only.
        ``median`` is that of the label's value.
    n : int
        Draws per sample, for ``sample`` only.
    seed : int
        Seed of the draws, for ``sample`` only.

    Raises
    ------
    ConfigurationError
        If the kind is unknown, or a number out of range.
    """

    kind: Literal["exact", "mode", "sample", "median"] = "exact"
    n: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in (*_PLAIN, "sample"):
            raise ConfigurationError(f"unknown estimator {self.kind!r}", hint=_ESTIMATORS)
        if not 1 <= self.n <= _MOST_DRAWS:
            raise ConfigurationError(f"an estimator draws at least once, not {self.n} times, and {_MOST_DRAWS} at most")
        if self.seed < 0:
            raise ConfigurationError(f"a seed is not negative: {self.seed}")

    @classmethod
    def parse(cls, text: str) -> Estimator:
        """Read an estimator as the command line has it."""
        kind = text.strip()
        if kind not in _PLAIN:
            raise ConfigurationError(f"unknown estimator {kind!r}", hint=_ESTIMATORS)
        return cls(kind)  # type: ignore[arg-type]  # checked here

    @property
    def text(self) -> str:
        """Short form for the signature: ``exact``, ``sample(n=20,seed=0)``, ..."""
        if self.kind == "sample":
            return f"sample(n={self.n},seed={self.seed})"
        return self.kind


def estimate(distribution: Distribution, estimator: Estimator, *, sample_key: int = 0) -> float:
    """Reduce a distribution to one value.

    Parameters
    ----------
    distribution : Distribution
        The label distribution of one form.
    estimator : Estimator
        The reduction to use.
    sample_key : int
        A number that belongs to the sample itself (a hash of its prompt), so that the draws of ``sample`` do not
        depend on the sample's place in a file.

    Returns
    -------
    float
        A value between the scale's lowest and highest.
    """
    if estimator.kind == "mode":
        return distribution.scale.values[distribution.mode_index]
    if estimator.kind == "median":
        return distribution.median
    if estimator.kind == "sample":
        return distribution.sample_mean(estimator.n, seed=[estimator.seed, sample_key])
    return distribution.score


#: Below this label mass a score lists the tokens that received the rest, and the row counts as low mass.
LOW_LABEL_MASS = 0.9
#: So many of them, at most.
OTHER_TOKENS = 8
#: Below this one the judge does not answer: its score passes no threshold, and no gate of its mean holds.
LEAST_LABEL_MASS = 0.1


def silence(label_mass: float, what: str = "") -> str:
    """Say that a judge does not answer, where its label mass (of an answer, or a mean) is too low; else empty."""
    if not label_mass < LEAST_LABEL_MASS:
        return ""
    return f"this judge does not answer{what and ' '}{what} (label mass {label_mass:.3g})"


#: Figures of a score that are properties of its distribution.
_OF_DISTRIBUTION = ("probabilities", "label_mass", "std", "entropy", "mode", "margin")


class OrderFigures(NamedTuple):
    """Figures of one order of a pair."""

    #: By the same estimator as the whole, on the metric's scale.
    score: float
    #: Probability that the model's next text is any label, 0-1.
    label_mass: float


@dataclass(frozen=True, eq=False)
class Score:
    """The figures of one sample on one metric.

    A sample that could not be scored has `error` set and NaN figures; it is never 0. ``float(score)`` is its value.
    Scores are ordered by their value and compared with numbers, ``score >= 3``; in ``sorted`` unscored ones come last,
    and they pass no comparison with a number. Two scores are equal if all their figures are. NumPy takes a score as its
    value: ``np.mean(scores)``, or ``np.nanmean(scores)`` where some are unscored. ``json.dumps(scores,
    default=Score.to_dict)`` writes them, and `to_json` a single one.

    Attributes
    ----------
    metric : str
        Name of the metric.
    value : float
        The score on the metric's own scale; NaN if unscored.
    normalized : float
        The score mapped linearly to 0-1; NaN if unscored.
    probabilities : dict of str to float
        ``{label: p}``, normalised over the labels; empty if unscored.
    label_mass : float
        Probability that the model's next text is any label at all, 0-1. Low mass means that the model did not
        treat the form as a form.
    std, entropy : float
        Spread of the distribution: in units of the scale, and in nats.
    mode : str or None
        The most likely label.
    margin : float
        Difference between the two largest probabilities.
    threshold, threshold_probability : float or None
        The threshold in use, and the probability that the label is at it or on its good side.
    passed : bool or None
        Whether `value` is at the threshold or on its good side; None without a threshold or a score.
    direction : Direction
        Which scores of the metric are good.
    calibrated : float or None
        The value on the scale of the human ratings, where a calibration was applied; all other figures are raw.
    other_tokens : tuple of (str, float)
        The likeliest next tokens outside the labels, when the label mass is low.
    prompt_tokens : int
        Length of the filled form in tokens, 0 if it was never tokenized.
    dropped_tokens : int
        Tokens removed from the field that the metric allows to shorten; 0 almost always.
    orders : tuple of OrderFigures
        Figures of each order in which a pair was shown, see `geval_local.questions.pair`. All other
        figures are those of the mean distribution.
    thoughts : ThoughtFigures or None
        What the thoughts of a judge that thinks leave open; all other figures are those of the mean distribution.
    error : str or None
        Why the sample is unscored; `error_code` is its code.
    """

    metric: str
    value: float = math.nan
    normalized: float = math.nan
    probabilities: dict[str, float] | None = None
    label_mass: float = math.nan
    std: float = math.nan
    entropy: float = math.nan
    mode: str | None = None
    margin: float = math.nan
    threshold: float | None = None
    threshold_probability: float | None = None
    passed: bool | None = None
    calibrated: float | None = None
    other_tokens: tuple[tuple[str, float], ...] = ()
    prompt_tokens: int = 0
    dropped_tokens: int = 0
    orders: tuple[OrderFigures, ...] = ()
    thoughts: ThoughtFigures | None = None
    error: str | None = None
    direction: Direction = Direction.HIGH

    @classmethod
    def from_distribution(
        cls,
        metric: str,
        distribution: Distribution,
        *,
        estimator: Estimator,
        sample_key: int = 0,
        threshold: float | None = None,
        other_tokens: tuple[tuple[str, float], ...] = (),
        prompt_tokens: int = 0,
        dropped_tokens: int = 0,
        orders: Sequence[Distribution] = (),
        direction: Direction = Direction.HIGH,
        thoughts: Sequence[Thoughts] = (),
    ) -> Score:
        """Derive every figure from a label distribution, the mean of several `orders` where there are any."""
        value = estimate(distribution, estimator, sample_key=sample_key)
        return cls(
            metric=metric,
            value=value,
            normalized=distribution.scale.normalize(value),
            **{name: getattr(distribution, name) for name in _OF_DISTRIBUTION},
            threshold=threshold,
            threshold_probability=None
            if threshold is None
            else distribution.probability_of_passing(threshold, direction),
            passed=None
            if threshold is None
            else direction.passes(value, threshold) and distribution.label_mass >= LEAST_LABEL_MASS,
            direction=direction,
            other_tokens=other_tokens,
            prompt_tokens=prompt_tokens,
            dropped_tokens=dropped_tokens,
            orders=tuple(
                OrderFigures(estimate(order, estimator, sample_key=sample_key), order.label_mass) for order in orders
            ),
            thoughts=thought_figures(
                thoughts, [distribution.scale.array] * len(thoughts), is_expectation=estimator.kind == "exact"
            )
            if thoughts
            else None,
        )

    @classmethod
    def unscored(cls, metric: str, reason: str, *, prompt_tokens: int = 0) -> Score:
        """Return the score of a sample that cannot be scored, with the reason; a `Cause` has a code."""
        return cls(metric=metric, error=reason, prompt_tokens=prompt_tokens)

    @property
    def is_scored(self) -> bool:
        """Whether there is a value."""
        return self.error is None

    @property
    def error_code(self) -> str | None:
        """One of `geval_local.errors.ErrorCode` for an unscored sample, such as ``too_long``; None for a score."""
        return None if self.error is None else code_of(self.error).value

    def __float__(self) -> float:
        return self.value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.float64]:
        return np.asarray(self.value, dtype=dtype)

    def _compare(self, compare: Callable[[Any, Any], bool], other: object) -> bool:
        if isinstance(other, Score):
            # Whatever is compared with NaN is false, and would leave a list in no order.
            return compare((not self.is_scored, self._key), (not other.is_scored, other._key))
        return compare(self.value, other) if isinstance(other, Real) else NotImplemented

    __lt__ = partialmethod(_compare, operator.lt)
    __le__ = partialmethod(_compare, operator.le)
    __gt__ = partialmethod(_compare, operator.gt)
    __ge__ = partialmethod(_compare, operator.ge)

    @property
    def _key(self) -> float:
        return self.value if self.is_scored else 0.0

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Score):
            mine, theirs = (tuple(getattr(one, name) for name in self.__dataclass_fields__) for one in (self, other))
            return mine == theirs
        return self.value == other if isinstance(other, Real) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.value) if self.is_scored else hash((self.metric, self.error))

    def __repr__(self) -> str:
        if self.error is not None:
            return f"Score({self.metric}: unscored, {reprlib.repr(self.error)})"
        passed = {None: "", True: ", passed", False: ", not passed"}[self.passed]
        return f"Score({self.metric}: {self.value:.4g}, label mass {self.label_mass:.3f}{passed})"

    def _repr_html_(self) -> str:
        """Show the score in a notebook, with its label distribution."""
        if self.error is not None:
            return facts_html(self.metric, {"unscored": self.error})
        facts: dict[str, object] = {"score": f"{self.value:.4g}", "label mass": f"{self.label_mass:.3f}"}
        if self.passed is not None:
            facts["passed"] = "yes" if self.passed else "no"
        shares = {f"p({label})": f"{p:.3f} {share_bar(p)}" for label, p in (self.probabilities or {}).items()}
        return facts_html(self.metric, facts | shares)

    def to_json(self) -> str:
        """Write the figures of `to_dict` as one line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain JSON values; unscored samples have ``score: null``, not 0, with a reason."""
        return as_dict(FIGURES, self) if self.error is None else {"score": None, **as_dict(FIGURES, self)}


#: The reason where there is neither a figure nor a reason.
UNEXPLAINED = Cause("unknown reason", ErrorCode.UNKNOWN)


@dataclass(frozen=True, eq=False)
class Outcome:
    """The model's result for one form: label log-probabilities, or the reason why there are none.

    Attributes
    ----------
    label_logprobs : ndarray of float64, shape (labels,), or None
        ``log P(l | form)``; None if there is no score.
    other_tokens : tuple of (str, float)
        The likeliest next tokens outside the labels, if the label mass is low.
    prompt_tokens, dropped_tokens : int
        Length of the form, and number of tokens removed from the field that may be shortened.
    sample_key : int
        Hash of the prompt, 0 to 2**64 - 1: the seed of the sampled estimator.
    error : Cause or None
        Why there is no score.
    orders : tuple of ndarray of float64, shape (labels,)
        ``log P(l | form)`` of every order where `label_logprobs` is the mean over several.
    written : mapping or None
        What the judge wrote, where it was asked to write and not for labels.
    thoughts : tuple of Thoughts
        The thoughts about every form where `label_logprobs` is the mean over them, see `mean_over_thoughts`.
    """

    label_logprobs: NDArray[np.float64] | None = None
    other_tokens: tuple[tuple[str, float], ...] = ()
    prompt_tokens: int = 0
    dropped_tokens: int = 0
    sample_key: int = 0
    error: Cause | None = None
    orders: tuple[NDArray[np.float64], ...] = ()
    written: Mapping[str, Any] | None = None
    thoughts: tuple[Thoughts, ...] = ()

    def score(self, metric: Metric, *, estimator: Estimator, threshold: float | None = None) -> Score:
        """Compute the score."""
        if self.label_logprobs is None:
            return Score.unscored(metric.name, self.error or UNEXPLAINED, prompt_tokens=self.prompt_tokens)
        return Score.from_distribution(
            metric.name,
            Distribution(metric.scale, self.label_logprobs),
            estimator=estimator,
            sample_key=self.sample_key,
            threshold=threshold,
            other_tokens=self.other_tokens,
            prompt_tokens=self.prompt_tokens,
            dropped_tokens=self.dropped_tokens,
            orders=[Distribution(metric.scale, order) for order in self.orders],
            direction=metric.direction,
            thoughts=self.thoughts,
        )


def mean_over_thoughts(outcomes: Sequence[Outcome], thoughts: Sequence[Thought | None], count: int) -> list[Outcome]:
    """Bring the outcomes after `count` thoughts about each form, side by side, to one per form.

    `mean_distribution` averages label probabilities, which are normalised afterwards. An outcome without figures leaves
    its form without any: a mean over fewer thoughts would be another figure.
    """
    starts = range(0, len(outcomes), count)
    return [_mean_outcome(outcomes[at : at + count], thoughts[at : at + count]) for at in starts]


def _mean_outcome(outcomes: Sequence[Outcome], thoughts: Sequence[Thought | None]) -> Outcome:
    tokens = sum(one.prompt_tokens for one in outcomes)
    found = [one.label_logprobs for one in outcomes if one.label_logprobs is not None]
    if len(found) < len(outcomes):
        return replace(next(one for one in outcomes if one.label_logprobs is None), prompt_tokens=tokens)
    p = np.exp(np.stack(found))
    with np.errstate(divide="ignore"):
        logprobs = found[0] if len(found) == 1 else np.log(mean_distribution(p))
    return replace(
        outcomes[0],
        label_logprobs=logprobs,
        other_tokens=mean_other_tokens(outcomes),
        prompt_tokens=tokens,
        thoughts=(Thoughts(p, tuple(one for one in thoughts if one is not None)),),
    )


def mean_other_tokens(outcomes: Sequence[Outcome]) -> tuple[tuple[str, float], ...]:
    """Average what stood outside of the labels in several outcomes, likeliest first."""
    other: dict[str, float] = {}
    for one in outcomes:
        for token, share in one.other_tokens:
            other[token] = other.get(token, 0.0) + share / len(outcomes)
    return tuple(sorted(other.items(), key=lambda pair: -pair[1])[: len(outcomes[0].other_tokens) or 5])
