"""Composes a form in the package's prompt format, in many styles, from the wordings' pool."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from geval_local.metric_file import FRAME
from geval_local.prompt import LABELS_SHOWN
from geval_local.scale import listed_labels
from training import wordings
from training.wordings import Concept

#: Of scales made of words: up to which share usual ones, words of one family, and of several; the rest are any words.
USUAL, ONE_FAMILY, FAMILIES = 0.45, 0.75, 0.8
QUALITY, LISTED = 0.4, 0.8  # of families: up to which share the one of quality, and one of those that are listed
EVERYDAY, OFTEN = 4, 0.9  # so many words of a tier are those of everyday, and so often one of them is taken


@dataclass(frozen=True)
class Scale:
    """Labels in order of their values; scales in words may be written from the best to the worst."""

    name: str
    labels: tuple[str, ...]
    values: tuple[float, ...]

    @property
    def shown(self) -> tuple[str, ...]:
        """The labels in the order of the scale's name."""
        return self.labels[::-1] if self.name.split("/")[0] == self.labels[-1] else self.labels

    @property
    def written(self) -> str:
        """The scale between a form's parentheses."""
        return listed_labels(self.shown) if "/" in self.name else self.name

    def target(self, quality: float, spread: float = 0.55) -> dict[str, float]:
        """Spread the mass around the value: neighbouring labels share it, so that the expectation is taught."""
        low, high = self.values[0], self.values[-1]
        if len(self.labels) == 2:
            yes = 0.03 + 0.94 * quality
            return {self.labels[0]: 1 - yes, self.labels[1]: yes}
        value = low + quality * (high - low)
        width = spread * max(1.0, (high - low) / 6)
        raw = [math.exp(-0.5 * ((value - v) / width) ** 2) + 1e-3 for v in self.values]
        total = sum(raw)
        return {label: weight / total for label, weight in zip(self.labels, raw, strict=True)}


def scale(name: str) -> Scale:
    words = name.split("/")
    if len(words) > 1:  # of two words the first is the better one, as in the package
        words = words[::-1] if len(words) == 2 or words[0] in wordings.BEST_FIRST else words
        return Scale(name, tuple(words), tuple(float(n) for n in range(len(words))))
    low, high = (int(part) for part in name.split("-"))
    return Scale(name, tuple(str(n) for n in range(low, high + 1)), tuple(float(n) for n in range(low, high + 1)))


def family(rng: random.Random) -> list[list[str]]:
    """Draw five tiers of words, from the worst to the best: most often the words of quality, which come first."""
    kind = rng.random()
    return wordings.GRADES[0] if kind < QUALITY else rng.choice(wordings.GRADES if kind < LISTED else wordings.DEGREES)


def of_tier(tier: list[str], rng: random.Random) -> str:
    """Draw a word of a tier, mostly one of everyday."""
    return rng.choice(tier[:EVERYDAY] if rng.random() < OFTEN else tier)


def made(rng: random.Random, words: Sequence[str], usual: Sequence[float] | None = None) -> Scale:
    """Make a scale of two to five words, from the worst to the best or the other way. `usual` weighs the listed ones.

    A small judge learns the scales that people write by heart; words of families, and any `words`, have to be read.
    """
    count, kind = rng.choice((2, 3, 3, 4, 4, 5, 5)), rng.random()
    if kind < USUAL:
        drawn = rng.choices(wordings.USUAL, usual)[0]
    elif kind < FAMILIES:
        tiers = family(rng)
        places = [0, *sorted(rng.sample(range(1, len(tiers) - 1), count - 2)), len(tiers) - 1]
        families = [tiers if kind < ONE_FAMILY else family(rng) for _ in places]
        drawn = [of_tier(own[place], rng) for own, place in zip(families, places, strict=True)]
    else:
        drawn = rng.choices(words, k=count)
        drawn = [f"{word} {rng.choice(words)}" if rng.random() < 0.25 else word for word in drawn]
    style = rng.choice((str, str.capitalize, str.capitalize, str.title))
    labels = tuple(map(style, drawn))
    if len({label.lower() for label in labels}) < len(labels):
        return made(rng, words, usual)
    best_first = len(labels) == 2 or rng.random() < 0.3  # of two words the first is the better one, as in the package
    return Scale("/".join(labels[::-1] if best_first else labels), labels, tuple(map(float, range(len(labels)))))


@dataclass
class Form:
    """`head` ends before the first field; `steps` is the numbered list's span in it, for the language-model loss."""

    head: str
    steps: tuple[int, int]
    headings: dict[str, str]
    heading: str
    cue: str
    scale: Scale
    newline: str
    gap: str
    apart: str = "\n\n"

    @property
    def tail(self) -> str:
        """What follows the judged text in one text: heading and cue."""
        return self.heading + self.apart + self.cue

    def asked(self, after: str) -> str:
        """Write what follows the judged text in a chat: heading, request, end of the turn, cue."""
        lines = [f"{self.cue} {label}" for label in self.scale.shown]
        lines = lines if len(lines) <= LABELS_SHOWN else [*lines[:2], "...", lines[-1]]
        return "\n".join([f"{self.heading}\n\n{FRAME['answer']}", "", *lines]) + after + self.cue

    def field(self, role: str) -> str:
        """Write the heading of a field, up to its text."""
        return f"{self.headings[role]}:{self.gap}{self.newline}{self.newline}"


def fill(template: str, thing: str, source: str) -> str:
    text = template.replace("{t}", thing).replace("{s}", source)
    return re.sub(r"\b([Aa]) ([aeiou])", r"\1n \2", re.sub(r"\b([Aa])n ([^aeiou\W])", r"\1 \2", text))


def sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "?")) else text + "."


#: Words of a criterion that a check repeats at most: most sentences that open a criterion are shorter, and stay whole.
MOST_COPIED = 16
#: Words that a sentence can end before. Before "that" or "which" it cannot: "something that a person would say".
_OPENS = {"and", "or", "when", "because", "if", "so", "but", "even"}
#: Words that no sentence ends with; it is cut before one of them where there is nothing better.
_LOOSE = {"to", "of", "in", "on", "by", "from", "at", "for", "with", "after", "as", "than", "that", "which", "the", "a"}


def short(text: str) -> str:
    """End a sentence before a word that opens something new, where it is too long for a check."""
    words = text.split()
    if len(words) <= MOST_COPIED:
        return text
    places = [
        n for n in range(8, MOST_COPIED + 1) if words[n].lower() in _OPENS or words[n - 1].endswith((",", ";", ":"))
    ]
    places = places or [n for n in range(8, MOST_COPIED + 1) if words[n].lower() in _LOOSE] or [MOST_COPIED]
    kept = words[: places[-1]]
    while kept[-1].lower() in _OPENS | _LOOSE:
        kept.pop()
    return " ".join(kept).rstrip(",;:.") + ("?" if text.endswith("?") else ".")


def copied(criterion: str, rng: random.Random) -> list[str]:
    """Make checks that say the criterion's own sentences: the first always, another one at times.

    A sentence that tells how to answer is no check; a short list of short checks is what a small model can write.
    """
    first, *more = map(short, re.split(r"(?<=[.?!]) ", criterion))
    more = [line for line in more if not line.lower().startswith(("answer", "reply", "give", "say"))]
    if first.lower().startswith(("whether", "how", "if ", "the degree", "the quality")):
        pool = wordings.COPY_WHETHER
    elif first.endswith("?"):
        pool = wordings.COPY_QUESTION
    else:
        pool = wordings.COPY_CLAIM
    checks = [rng.choice(pool).replace("{c}", first[:1].lower() + first[1:])]
    if more and rng.random() < 0.4:
        checks.append(rng.choice(wordings.COPY_MORE).replace("{c}", more[0][:1].lower() + more[0][1:]))
    return [sentence(check) for check in checks]


def steps(
    concept: Concept,
    rng: random.Random,
    thing: str,
    source: str,
    title: str,
    labels: Scale,
    criterion: str,
) -> list[str]:
    """Read the source, read the text, check what the criterion says, assign a score."""
    found = []
    alone = len(concept.fields) == 1
    if not alone:
        found.append(rng.choice(wordings.READ_SOURCE))
    read = rng.choice(wordings.READ_ALONE if alone else wordings.READ_OUTPUT)
    found += [read, *copied(criterion, rng)]
    low, high = labels.labels[0], labels.labels[-1]
    if len(labels.labels) == 2 and not low.isdigit():
        line = rng.choice(("{hi} or {lo}.", "{hi} if the {t} meets the criteria and {lo} if it does not."))
        found.append("Answer " + line.replace("{lo}", low).replace("{hi}", high))
    else:
        found.append(
            rng.choice(wordings.ASSIGN).replace("{m}", title.lower()).replace("{lo}", low).replace("{hi}", high)
        )
    return [fill(line, thing, source) for line in found]


def widened(form: Form, others: Sequence[Concept], rng: random.Random) -> tuple[Form, list[str]]:
    """Let a form ask for more criteria on the same scale: the form without steps, and the further lines of its end."""
    head = form.head[: form.steps[0]].rpartition(wordings.STEPS_LINE)[0] if form.steps[1] else form.head
    head, cues = head.rstrip(), []
    for other in others:
        title = rng.choice([t for t in other.titles if t not in head] or list(other.titles))
        criterion = fill(rng.choice(other.criteria), "summary", "text")
        head += f"{form.newline * 2}{title} ({form.scale.written}) - {criterion}"
        cues.append(f"{form.newline}- {title}:")
    return replace(form, head=head + form.newline * 2, steps=(0, 0)), cues


def compose(
    concept: Concept,
    rng: random.Random,
    clause: str = "",
    plain: bool = False,
    title: str = "",
    worded: float = 0.0,
    words: Sequence[str] = (),
    usual: Sequence[float] | None = None,
) -> Form:
    """Compose a form of one concept. With `clause` the criterion is one that no preset has."""
    labels = scale(rng.choice(concept.scales)) if plain or rng.random() >= worded else made(rng, words, usual)
    thing = rng.choice(wordings.THINGS[concept.thing])
    source = rng.choice([word for word in wordings.SOURCES[concept.source] if word != thing])
    title = title or rng.choice(wordings.CLAUSE_TITLES) if clause else rng.choice(concept.titles)
    criterion = rng.choice(wordings.CLAUSE_CRITERIA).replace("{c}", clause) if clause else rng.choice(concept.criteria)
    if rng.random() < 0.45:
        more = [
            *(sentence(c) for c in rng.sample(concept.criteria, 1) if not clause),
            *rng.sample(wordings.ASIDES, rng.choice([1, 2])),
        ]
        criterion = " ".join([sentence(criterion), *(m for m in more if m.lower() != sentence(criterion).lower())])
    preset = plain or rng.random() < 0.5
    newline = "\n" if preset or rng.random() < 0.85 else "\r\n"
    care = "" if preset and rng.random() < 0.6 else rng.choice(wordings.CARES)
    parts = [fill(p, thing, source) for p in (rng.choice(concept.introductions), rng.choice(wordings.RATES), care) if p]
    if preset and rng.random() < 0.4:
        parts = [" ".join(parts)]
    loose = not preset and rng.random() < 0.5
    between = newline * (3 if loose else 2)
    mark = " - " if preset else rng.choice([" - ", ": ", " - ", " "])
    line = f"{title} ({labels.written}){mark}{fill(criterion, thing, source)}"
    if rng.random() < 0.2:
        bands = [(labels.labels[0], 0.0), (labels.labels[-1], 1.0)]
        if len(labels.labels) > 2:
            bands.insert(1, (labels.labels[len(labels.labels) // 2], 0.5))
        score = "" if preset or rng.random() < 0.5 else "A score of "
        for label, level in bands:
            text = fill(rng.choice(wordings.BANDS[level]), thing, source).replace("{m}", title.lower())
            line += f"{newline}- {score}{label}{':' if not score else ' means that it is'} {text}"
    head = (
        (newline * 2).join(parts)
        + between
        + ("Evaluation Criteria:" if preset else rng.choice(wordings.CRITERIA_LINES))
        + newline * 2
        + line
    )
    span = (0, 0)
    if rng.random() < 0.6 or clause:
        lines = steps(concept, rng, thing, source, title, labels, fill(criterion, thing, source))
        head += f"{newline * 2}{wordings.STEPS_LINE}{newline * 2}"
        start = len(head) + 2  # behind "1."
        head += newline.join(f"{n}. {text}" for n, text in enumerate(lines, 1))
        span = (start, len(head))
    head += newline * 2
    if loose:
        head += rng.choice(["", newline + "Example:" + newline * 2 + newline])
    headings = {
        role: wordings.HEADINGS[role][0] if preset and rng.random() < 0.5 else rng.choice(wordings.HEADINGS[role])
        for role in concept.fields
    }
    if len(set(headings.values())) < len(headings):
        headings = {role: wordings.HEADINGS[role][0] for role in concept.fields}
    form_line = wordings.FORM_LINES[0] if preset else rng.choice(wordings.FORM_LINES)
    shown = title if preset or rng.random() < 0.8 else f"{title} ({labels.written})"
    apart = newline * (2 if preset or rng.random() < 0.5 else 1)
    gap = " " if not preset and rng.random() < 0.15 else ""
    return Form(head, span, headings, between + form_line, f"- {shown}:", labels, newline, gap, apart)
