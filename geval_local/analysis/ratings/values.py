"""People's ratings: which columns hold them, their numbers, and the scale that these are on."""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import TypedDict

from geval_local.direction import Better, Direction
from geval_local.errors import ConfigurationError, DataError
from geval_local.fields import EVERY, field_value, nearest
from geval_local.io.results import LARGEST, ResultRows, decoded
from geval_local.options import RatingOptions
from geval_local.scale import Scale
from geval_local.wording import say_once

#: How JSON, Python and CSV files write the ratings yes and no.
_YES_AND_NO = {"true": 1.0, "false": 0.0}
#: How people write that nobody rated.
_UNRATED = ("", "na", "n/a", "nan", "none", "null", "-", "\u2013", "\u2014")
_ONE = r"(-?\d+(?:[.,]\d+)?)"
#: How people write a number -> how it is read, given the match and the scale; infinity if the scale does not say.
_WRITTEN: Mapping[re.Pattern[str], Callable[[re.Match[str], RatingScale], float]] = {
    re.compile(pattern, re.IGNORECASE): read
    for pattern, read in {
        r"([★⭐]+)(½?)☆*": lambda found, scale: len(found[1]) + 0.5 * len(found[2]),
        rf"{_ONE}\s*(?:/|out of)\s*{_ONE}": lambda found, scale: (
            _decimal(found[1], scale) if _decimal(found[2], scale) == scale.high else math.inf
        ),
        rf"{_ONE}\s*%": lambda found, scale: _decimal(found[1], scale) * {100: 1, 1: 0.01}.get(scale.high, math.inf),
        rf"{_ONE}(?:\s*stars?|\s*[-\u2013:(=]\s*[^\d\s].*)?": lambda found, scale: _decimal(found[1], scale),
    }.items()
}


def _decimal(text: str, scale: RatingScale) -> float:
    """Read a number with a decimal comma; infinity where the comma may be that of thousands."""
    return math.inf if scale.high >= 1000 and re.fullmatch(r".*,\d{3}", text) else float(text.replace(",", "."))


#: Distinct ratings that a message names.
_NAMED = 5


@dataclass(frozen=True)
class RatingScale:
    """Which ratings count: those between two ends; every number where no scale is known."""

    low: float = -math.inf
    high: float = math.inf
    text: str = ""
    #: Whether ratings outside are left out; otherwise they are refused.
    skip_outside: bool = False
    #: Words in lower case -> what they mean, if its labels are no numbers.
    words: Mapping[str, float] = field(default_factory=dict)
    #: Whether its other end is the good one, unlike that of the scores.
    is_turned: bool = False

    @classmethod
    def of_people(
        cls, people: RatingOptions, metric: Scale | str | None, direction: Direction = Direction.HIGH
    ) -> RatingScale:
        """Return the scale that people rated on: the named one, else that of the metric."""
        is_turned = people.human_better not in (None, direction.value)
        return cls.of(people.human_scale or metric, skip_outside=people.skip_outside, is_turned=is_turned)

    @classmethod
    def of(cls, scale: Scale | str | None, *, skip_outside: bool = False, is_turned: bool = False) -> RatingScale:
        """Take the ends of a scale; None where nobody knows it."""
        if scale is None:
            if skip_outside:
                raise ConfigurationError(
                    "nothing says which scale the ratings are on, so none is outside of it",
                    hint="Name the scale: `human_scale=1-5`.",
                )
            return cls(is_turned=is_turned)
        found = Scale.parse(scale)
        ends = "" if found.is_numeric else f" ({found.low:g} to {found.high:g})"
        labels = zip(found.labels, found.values, strict=True)
        words = {} if found.is_numeric else {label.strip().casefold(): value for label, value in labels}
        return cls(found.low, found.high, f"{found.text}{ends}", skip_outside, words, is_turned)

    def holds(self, rating: float) -> bool:
        """Whether a rating is on the scale, up to the rounding of a mean."""
        margin = 1e-9 * max(1.0, abs(rating))
        return self.low - margin <= rating <= self.high + margin

    def mean(self, ratings: Sequence[float], *, is_share: bool = False) -> float:
        """Return the mean of ratings, from the end that the scores call good: 1 of ranks 1 to 3 is 3; NaN of none."""
        mean = _mean(ratings)
        if not self.is_turned:
            return mean
        return 1 - mean if is_share else -mean if math.isinf(self.high) else self.low + self.high - mean


class RatingReading(TypedDict, total=False):
    """How people's ratings are read.

    Attributes
    ----------
    human_scale : Scale or str
        The scale of the human ratings; by default the metric's.
    human_better : ``high`` or ``low``
        Which ratings are good: ``low`` for ranks. By default those that are good scores of the metric.
    skip_outside : bool
        Skip ratings outside of this scale; by default they are an error.
    rater_column : str
        The column with the person who rated a row; rows with the same texts are merged.
    ratings : path
        A second file that holds the ratings.
    on : str
        The column that both files share: a key. ``id=trace`` if it is called ``trace`` in the second.
    """

    human_scale: Scale | str | None
    human_better: Better | None
    skip_outside: bool
    rater_column: str | None
    ratings: str | Path | None
    on: str | None


#: Ratings in the rows that were scored, on the metric's scale.
AS_SCORED = RatingOptions()


class ByRater(dict[str, Any]):
    """What several people said of one text, by person, in a column of its row."""


#: Every number is a rating.
ANY_NUMBER = RatingScale()


def number_at(row: Mapping[str, Any], field: str, where: str) -> float:
    """Read a number from a row: NaN if the field is absent or empty, 1 and 0 of yes and no; the mean of a list."""
    return _mean(_numbers_at(row, field, where, ANY_NUMBER, {}))


def read_ratings(
    rows: Iterable[tuple[int, Mapping[str, Any]]], field: str, path: str | Path, scale: RatingScale = ANY_NUMBER
) -> list[float]:
    """Read a column of ratings: one per row, NaN where there is none; the mean where a row holds several.

    Ratings outside of the scale are refused or left out one by one, before any mean is taken. Ratings that are all 0
    or 1 are yes and no, whatever the scale.

    Parameters
    ----------
    rows : iterable of (int, mapping)
        Rows with their numbers in the file.
    field : str
        Column of the ratings, or a dotted path into one.
    path : str or Path
        The file, for messages.
    scale : RatingScale
        The scale that people rated on.

    Raises
    ------
    DataError
        If a rating is not a number, or ratings are outside of the scale.
    """
    numbers, found, written, known = [], [], dict[str, float](), dict[Any, list[float]]()
    for number, row in rows:
        cell = row.get(field)
        plain = field in row and (cell is None or isinstance(cell, str | int | float))
        key = (type(cell), cell) if plain else number
        if key not in known:
            known[key] = _numbers_at(row, field, f"{path}, row {number}", scale, written)
        numbers.append(number)
        found.append(known[key])
    if written:
        told = ", ".join(f"{text!r} is {value:g}" for text, value in [*written.items()][:_NAMED])
        say_once(f"the ratings in {field!r} are read so: {told}{', ...' if len(written) > _NAMED else ''}")
    ratings = [rating for own in found for rating in own]
    outside = Counter(rating for rating in ratings if not scale.holds(rating))
    if is_share := set(ratings) <= {0.0, 1.0}:
        outside.clear()
    if scale.is_turned:
        told = f"the good end of the ratings in {field!r} is not that of the scores"
        say_once(f"{told}: they are counted from the other end")
    if not outside:
        return [scale.mean(own, is_share=is_share) for own in found]
    first = next(number for number, own in zip(numbers, found, strict=True) if not all(map(scale.holds, own)))
    values = [f"{rating:g} ({count} times)" if count > 1 else f"{rating:g}" for rating, count in outside.most_common()]
    more = f" and {len(values) - _NAMED} other values" if len(values) > _NAMED else ""
    told = (
        f"{path}: {sum(outside.values())} of {len(ratings)} ratings in {field!r} are outside of the scale {scale.text}"
        f": {', '.join(values[:_NAMED])}{more}; the first is in row {first}"
    )
    if not scale.skip_outside:
        raise DataError(
            told,
            hint="If people rated on another scale, name it, such as `human_scale=0-100`. If such a value means that "
            "nobody rated, `skip_outside=True` leaves it out.",
        )
    say_once(f"{told}; they are left out", level=logging.WARNING)
    return [scale.mean([rating for rating in own if scale.holds(rating)]) for own in found]


def _numbers_at(
    row: Mapping[str, Any], field: str, where: str, scale: RatingScale, written: dict[str, float]
) -> list[float]:
    """Read the numbers that a row holds in a field; empty if there is none. `written` keeps those not plain."""
    value = decoded(field_value(row, field))
    value = value.tolist() if isinstance(value, np.ndarray) else value
    value = list(value.values()) if isinstance(value, ByRater) else value
    read = [_number(one, scale, written) for one in (value if isinstance(value, list | tuple) else [value])]
    if any(map(math.isinf, read)):
        inner = f"; its keys are: {', '.join(map(str, value))}" if isinstance(value, Mapping) and value else ""
        shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:77]}..."
        raise DataError(
            f"{where}: {field} is not a number: {shown}{inner}",
            hint="A rating is a number, or a list of numbers; a dotted path leads into a column: scores.coherence. "
            "Leave it empty where nobody rated. If it is a word, say what words mean: "
            '`human_scale={"yes": 1, "no": 0}`. If it is 7/10 or 70 %, name the scale: `human_scale=0-10`.',
        )
    given = [number for number in read if not math.isnan(number)]
    if isinstance(value, list | tuple) and given:
        say_once(f"{field} holds lists of ratings: the mean of each is taken")
    return given


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else math.nan


def members_of(rows: Sequence[Mapping[str, Any]], field: str) -> list[str]:
    """Spell out the raters of a path that meets a list of objects, one for each place in it; empty for other paths.

    ``annotations.coherence`` is ``annotations.0.coherence``, ``annotations.1.coherence``, ... Who rates is taken for
    the same person in every row, which the file does not say, so the log does.
    """
    parts = field.split(".")
    if named := dict.fromkeys(
        f"{field}.{who}" for row in rows if isinstance(one := row.get(field), ByRater) for who in one
    ):
        return list(named) if len(named) > 1 else []
    for row in rows:
        for place in range(1, len(parts)) if field not in row else ():
            held = decoded(field_value(row, ".".join(parts[:place])))
            if isinstance(held, list | tuple) and any(isinstance(one, Mapping) for one in held):
                if parts[place] == EVERY or parts[place].removeprefix("-").isdecimal():
                    return []
                found = each_place(rows, ".".join([*parts[:place], EVERY, *parts[place:]]))
                if len(found) > 1:
                    say_once(
                        f"{field} meets lists of objects: their {len(found)} places are taken for {len(found)} raters"
                    )
                return found if len(found) > 1 else []
    return []


def each_place(rows: Sequence[Mapping[str, Any]], path: str) -> list[str]:
    """Spell out the last ``*`` of a path: ``ratings.*`` is ``ratings.0``, ``ratings.1``, ... as far as any row goes."""
    before, star, after = path.rpartition(f".{EVERY}")
    if not star:
        return [path]
    keys: dict[str, None] = {}
    for row in rows:
        held = decoded(field_value(row, before))
        if isinstance(held, Mapping):
            keys |= dict.fromkeys(map(str, held))
        elif isinstance(held, list | tuple):
            keys |= dict.fromkeys(map(str, range(len(held))))
    return [f"{before}.{key}{after}" for key in keys] or [path]


def ratings_of(
    rows: ResultRows,
    raters: Sequence[str],
    path: str | Path,
    scale: RatingScale = ANY_NUMBER,
    *,
    every: bool = False,
) -> dict[str, list[float]]:
    """Read the ratings of single people: field -> one per row, NaN where there is none; `every` field must have one."""
    found = dict[str, list[float]]()
    for name in dict.fromkeys(one for given in raters for one in each_place(rows, given)):
        held, file = rows.holding(name, path)
        found[name] = read_ratings(held, name, file, scale)
    if every and (empty := next((name for name, own in found.items() if all(map(math.isnan, own))), None)) is not None:
        raise no_values(rows, empty, path)
    return found


def _number(value: Any, scale: RatingScale, written: dict[str, float]) -> float:
    """Read one number: NaN for an empty value, infinity for what is none."""
    text = "" if value is None else f"{value:g}" if isinstance(value, float) else str(value).strip().casefold()
    text = text.replace("\ufe0f", "")  # shows the character before as a picture
    if text in _UNRATED and text not in scale.words:
        return math.nan
    try:
        known = scale.words.get(text, _YES_AND_NO.get(text))
        number = float(value if known is None else known)
    except (TypeError, ValueError, OverflowError):
        found = ((pattern.fullmatch(text), read) for pattern, read in _WRITTEN.items())
        number = next((read(match, scale) for match, read in found if match is not None), math.inf)
    if known is None and any(word[0].isdecimal() for word in scale.words):  # ranks: between them lies no number
        return math.inf
    if isinstance(value, str) and not re.fullmatch(r"[-+.\de]+", text) and math.isfinite(number):
        written[value.strip()] = number
    return math.inf if abs(number) > LARGEST else number


#: Field of the human ratings of one metric, as a dotted path; ``METRIC=FIELD`` for some of several; or a mapping.
HumanFields = str | Sequence[str] | Mapping[str, str]


def rating_fields(human: HumanFields | None, metrics: Sequence[str]) -> dict[str, str]:
    """Return the field of the human ratings of every metric that has one."""
    if isinstance(human, Mapping):
        return dict(human)
    found: dict[str, str] = {}
    for one in [human] if isinstance(human, str) else human or ():
        metric = next((name for name in metrics if one.startswith(f"{name}=")), None)
        if metric is None and (len(metrics) > 1 or "=" in one):
            raise ConfigurationError(
                f"`human={one!r}` does not say which metric it rates{nearest(one.partition('=')[0], metrics)}",
                hint=f"Write `human=METRIC=FIELD`, once for each metric that people rated, of: {', '.join(metrics)}.",
            )
        name = metric or metrics[0]
        if name in found:
            raise ConfigurationError(f"`human` names two fields for {name}: {found[name]!r} and {one!r}")
        found[name] = one if metric is None else one[len(metric) + 1 :]
    return found


def no_values(
    rows: Sequence[Mapping[str, Any]], field: str, path: str | Path, what: str = "a human rating"
) -> DataError:
    """Return the error for a field that is empty in every row."""
    columns = list(dict.fromkeys(str(name) for row in rows for name in row))
    return DataError(
        f"{path}: no row has {what} in {field!r}{nearest(field, columns)}",
        hint=f"Columns: {', '.join(columns)}.",
    )
