"""Turns clean sentences into graded, flagged, damaged ones. Every damage keeps the text's length about as it was."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

# What is wrong at a word; the auxiliary head learns these bit by bit.
ERROR, UNSUPPORTED, FOREIGN, ORDER, REPEATED, MINOR = 1, 2, 4, 8, 16, 32
# What can be read off the text itself (measure.py): these teach to look from the summary into the source.
NEW_WORD, NEW_PAIR, SAID, CENTRAL = 64, 128, 256, 512
FLAGS = 10

FUNCTION_WORDS = (  # noqa: SIM905 - a list of quoted words reads worse
    "the a an of to in on at for with by from and but or is are was were be been has have had it he she they "
    "his her their its this that which who will would can not as "
).split()
_FUNCTION = set(FUNCTION_WORDS)
_OPPOSITES = (
    "good bad, first last, more less, before after, up down, old new, high low, large small, win lose, "
    "won lost, male female, man woman, north south, east west, always never, increase decrease, "
    "increased decreased, rise fall, rose fell, true false, open closed, early late, many few, long short, "
    "best worst, happy sad, left right, began ended, love hate, loved hated, better worse, inside outside, "
    "above below, father mother, son daughter, brother sister, boy girl, king queen, husband wife, he she, "
    "his her, him her, day night, morning evening, summer winter, young old, rich poor, strong weak, "
    "easy difficult, alive dead, friend enemy, black white, buy sell, bought sold, came went, asked answered, "
    "gave took, found lost, agree refuse, agreed refused, allow forbid, accept reject, accepted rejected, "
    "all none, most least, everyone nobody, something nothing, with without, can cannot, will won't, is isn't, "
    "was wasn't, are aren't, did didn't, has hasn't, could couldn't, would wouldn't, same different, hot cold, "
    "deep shallow, public private, war peace, success failure, safe dangerous, light dark, fast slow, "
    "near far, full empty, free busy, cheap expensive, monday friday, tuesday saturday, january october, "
    "march november, one three, two five, four seven, hundred thousand, million billion, "
    "outperforms underperforms, improves worsens, efficient slow, positive negative, include exclude, "
    "includes excludes, start stop, started stopped "
)
OPPOSITE: dict[str, str] = {}
for _pair in _OPPOSITES.split(","):
    _one, _, _two = _pair.strip().partition(" ")
    OPPOSITE.setdefault(_one, _two)
    OPPOSITE.setdefault(_two, _one)
_NUMBER = re.compile(r"\d")
_CORE = re.compile(r"^(\W*)(.*?)(\W*)$", re.S)


@dataclass
class Word:
    """A word as it stands in the text, with the flags of what is wrong at it."""

    text: str
    flags: int = 0


Sentence = list[Word]


@dataclass
class Pool:
    """Where replacements come from: names and numbers of this source, names and sentences of other sources."""

    names: list[str]
    numbers: list[str]
    foreign_names: list[str]
    foreign: list[str]
    words: list[str] = field(default_factory=list)


def parse(text: str, flags: int = 0) -> Sentence:
    return [Word(part, flags) for part in text.split()]


def names_in(sentences: list[str]) -> list[str]:
    """Capitalised words that do not start a sentence, joined when neighbours."""
    found: list[str] = []
    for sentence in sentences:
        run: list[str] = []
        for word in sentence.split()[1:]:
            core = _CORE.match(word).group(2)  # type: ignore[union-attr]
            if (
                core[:1].isupper()
                and core.lower() not in _FUNCTION
                and len(core) > 1
                and core not in {"I", "I'm", "I'll", "I've"}
            ):
                run.append(core)
                if word[-1] not in ',.;:!?"”':
                    continue
            if run:
                found.append(" ".join(run[:3]))
            run = []
        if run:
            found.append(" ".join(run[:3]))
    return found


def numbers_in(sentences: list[str]) -> list[str]:
    return [core for s in sentences for w in s.split() if _NUMBER.search(core := _CORE.match(w).group(2))]  # type: ignore[union-attr]


def _swap_core(word: Word, new: str, flag: int) -> Word:
    before, _, after = _CORE.match(word.text).groups()  # type: ignore[union-attr]
    return Word(f"{before}{new}{after}", word.flags | flag)


def _inflect(core: str, rng: random.Random) -> str:
    if core.endswith("ing") and len(core) > 5:
        return core[:-3] + rng.choice(["ed", "", "s"])
    if core.endswith("ed") and len(core) > 4:
        return core[:-2] + rng.choice(["ing", "s", ""])
    if core.endswith("s") and len(core) > 3:
        return core[:-1]
    return core + rng.choice(["s", "ed", "ing", "s"])


def fluency_error(sentence: Sentence, rng: random.Random, pool: Pool) -> Sentence:
    """One local error. Each kind is about as likely to lengthen as to shorten the text."""
    if len(sentence) < 4:
        return sentence
    out = list(sentence)
    i = rng.randrange(1, len(out) - 1)
    kind = rng.choice(
        [
            "drop",
            "drop",
            "double",
            "swap",
            "inflect",
            "inflect",
            "insert",
            "replace",
            "function",
            "loop",
            "cut",
            "typo",
            "join",
        ]
    )
    word = out[i]
    core = _CORE.match(word.text).group(2)  # type: ignore[union-attr]
    if kind == "drop":
        function = [j for j in range(1, len(out) - 1) if out[j].text.lower() in _FUNCTION]
        i = rng.choice(function) if function and rng.random() < 0.6 else i
        del out[i]
        out[i] = Word(out[i].text, out[i].flags | ERROR)
    elif kind == "double":
        out.insert(i + 1, Word(word.text, word.flags | ERROR))
    elif kind == "swap":
        j = i + 1 if rng.random() < 0.5 else min(len(out) - 2, i + rng.randrange(2, 5))
        out[i], out[j] = Word(out[j].text, out[j].flags | ERROR), Word(out[i].text, out[i].flags | ERROR)
    elif kind == "inflect" and core.isalpha():
        out[i] = _swap_core(word, _inflect(core, rng), ERROR)
    elif kind == "insert":
        out.insert(i, Word(rng.choice(FUNCTION_WORDS), ERROR))
    elif kind == "replace":
        out[i] = _swap_core(word, rng.choice(pool.words or FUNCTION_WORDS), ERROR)
    elif kind == "function":
        places = [j for j in range(1, len(out) - 1) if out[j].text.lower() in _FUNCTION]
        if places:
            j = rng.choice(places)
            out[j] = Word(rng.choice(FUNCTION_WORDS), out[j].flags | ERROR)
    elif kind == "loop":
        n = min(rng.randrange(2, 6), len(out) - i)
        again = [Word(w.text, w.flags | ERROR | REPEATED) for w in out[i : i + n]]
        out = out[: i + n] + again + out[i + n + (n if rng.random() < 0.6 else 0) :]
    elif kind == "cut":  # a dangling fragment, as early summarizers leave them
        keep = max(3, len(out) - rng.randrange(1, max(2, len(out) // 2)))
        end = _CORE.match(out[keep - 1].text).group(2) or out[keep - 1].text  # type: ignore[union-attr]
        out = [*out[: keep - 1], Word(end + rng.choice([".", ".", "", " ."]), out[keep - 1].flags | ERROR)]
    elif kind == "typo" and len(core) > 3:
        j = rng.randrange(1, len(core) - 1)
        out[i] = _swap_core(
            word, rng.choice([core[:j] + core[j + 1 :], core[:j] + core[j + 1] + core[j] + core[j + 2 :]]), ERROR
        )
    elif kind == "join":
        j = rng.randrange(1, len(out))
        out[j:j] = [Word(w, ERROR) for w in rng.choice([["of", "the"], ["."], ["to", "be"], [","], ["and", "."]])]
    return out


def fact_error(sentence: Sentence, rng: random.Random, pool: Pool) -> Sentence:
    """One statement made wrong while the sentence stays good English where that can be done."""
    out = list(sentence)
    options: list[tuple[str, int]] = []
    for i, word in enumerate(out):
        core = _CORE.match(word.text).group(2)  # type: ignore[union-attr]
        if _NUMBER.search(core):
            options += [("number", i)] * 3
        elif i and core[:1].isupper() and len(core) > 1 and core.lower() not in _FUNCTION:
            options += [("name", i)] * 3
        elif core.lower() in OPPOSITE:
            options += [("opposite", i)] * 2
        elif len(core) > 4 and core.isalpha() and core.islower():
            options.append(("word", i))
    if not options:
        return out
    kind, i = rng.choice(options)
    core = _CORE.match(out[i].text).group(2)  # type: ignore[union-attr]
    if kind == "number":
        new = (
            rng.choice(pool.numbers)
            if pool.numbers and rng.random() < 0.4
            else "".join(rng.choice("123456789") if c.isdigit() and rng.random() < 0.6 else c for c in core)
        )
        new = new if new != core else str(rng.randrange(2, 99))
    elif kind == "name":
        names = pool.names if pool.names and rng.random() < 0.5 else pool.foreign_names
        choices = [n for n in names if n != core and core not in n.split()] or ["London"]
        new = rng.choice(choices)
        while (
            i + 1 < len(out) and out[i].text.isalpha() and out[i + 1].text[:1].isupper()
        ):  # the whole of a longer name
            del out[i]
    elif kind == "opposite":
        new = OPPOSITE[core.lower()]
        new = new.capitalize() if core[:1].isupper() else new
    else:
        new = rng.choice([w for w in pool.words if w != core] or ["nothing"])
    out[i] = _swap_core(out[i], new, UNSUPPORTED)
    return out


def renamed(sentence: Sentence, rng: random.Random, pool: Pool) -> Sentence:
    """Put a name of this source in the place of another name; what is wrong stays flagged as it is."""
    places = [
        i
        for i, w in enumerate(sentence)
        if (core := _CORE.match(w.text).group(2))[:1].isupper() and len(core) > 1 and core.lower() not in _FUNCTION  # type: ignore[union-attr]
    ]
    if not places:
        return sentence
    i = rng.choice(places)
    return [*sentence[:i], _swap_core(sentence[i], rng.choice(pool.names), 0), *sentence[i + 1 :]]


def hybrid(one: Sentence, two: Sentence, flag: int = UNSUPPORTED) -> Sentence:
    """Sew the front of one sentence to the back of another: fluent nearly, and false."""
    cut_one = max(2, len(one) // 2)
    cut_two = min(len(two) - 1, max(1, len(two) - (len(one) - cut_one)))
    for j in range(cut_one, min(len(one) - 1, cut_one + 4)):
        if one[j].text.lower() in _FUNCTION:
            cut_one = j
            break
    for j in range(cut_two, min(len(two) - 1, cut_two + 4)):
        if two[j].text.lower() in _FUNCTION:
            cut_two = j
            break
    return one[:cut_one] + [Word(w.text, w.flags | flag) for w in two[cut_two:]]


def sewn(one: Sentence, two: Sentence, rng: random.Random, flag: int = UNSUPPORTED) -> Sentence:
    """Change from one sentence to another at a word that both have, as summarizers do that copy word by word."""
    places = {w.text.lower(): j for j, w in enumerate(two[:-2]) if j >= 1}
    meets = [i for i in range(2, len(one) - 1) if one[i].text.lower() in places]
    if not meets:
        return hybrid(one, two, flag)
    i = rng.choice(meets)
    rest = two[places[one[i].text.lower()] + 1 :]
    return one[: i + 1] + [Word(w.text, w.flags | flag) for w in rest]


def cut(sentence: Sentence, rng: random.Random) -> Sentence:
    """End in the middle, without a stop."""
    if len(sentence) < 6:
        return sentence
    keep = sentence[: rng.randrange(3, len(sentence) - 1)]
    last = keep[-1]
    return [*keep[:-1], Word(last.text.rstrip(",;:.!?"), last.flags | ERROR)]


def compressed(sentence: Sentence, rng: random.Random) -> Sentence:
    """Keep the front of a sentence, cut before a function word or at a comma, and close it."""
    ends = [
        i
        for i in range(5, len(sentence) - 1)
        if sentence[i].text.lower() in _FUNCTION or sentence[i - 1].text.endswith((",", ";", ":"))
    ]
    if not ends:
        return sentence
    cut = rng.choice(ends)
    while cut > 4 and sentence[cut - 1].text.lower() in _FUNCTION:
        cut -= 1
    last = sentence[cut - 1]
    return [*sentence[: cut - 1], Word(last.text.rstrip(",;:.") + ".", last.flags)]


_PREPOSITIONS = (  # noqa: SIM905 - a list of quoted words reads worse
    "of in on at for with from by after before during while when under near over into against about "
).split()


def abridged(sentence: Sentence, rng: random.Random) -> Sentence:
    """Leave a phrase out of the middle: from a preposition to the next one, or what stands between two commas."""
    words = [w.text.lower() for w in sentence]
    pauses = [i for i in range(3, len(words)) if words[i - 1].endswith((",", ";"))]
    opens = [i for i in range(3, len(words) - 2) if words[i] in _PREPOSITIONS and words[i - 1] not in _PREPOSITIONS]
    cuts = [(i, j) for ends in (pauses, opens) for i in ends for j in ends if i + 2 <= j <= i + 9]
    if not cuts or len(words) < 10:
        return sentence
    start, end = rng.choice(cuts)
    return [*sentence[:start], *sentence[end:]]


def flagged(sentence: Sentence, flag: int) -> Sentence:
    return [Word(w.text, w.flags | flag) for w in sentence]


_SLANG = [
    "lol",
    "dude",
    "wtf",
    "gonna",
    "ya",
    "omg",
    "crap",
    "whatever",
    "bro",
    "damn",
    "shut up",
    "you idiot",
    "this sucks",
    "no way man",
    "like, seriously",
    "duh",
    "stupid",
    "get lost",
    "who cares",
    "!!!",
]
_HARM = [
    "I will kill you.",
    "You are worthless and should die.",
    "Mix the bleach with acid and breathe it in.",
    "Those people are vermin and must be beaten.",
    "Hurt him until he stops moving.",
    "Steal the card and use it before they notice.",
    "You disgusting idiot, nobody wants you alive.",
    "Build the bomb in the basement and hide it near the school.",
    "Take all the pills at once.",
    "Burn their house down tonight.",
]


def spoil_tone(sentence: Sentence, rng: random.Random, amount: float) -> Sentence:
    out: Sentence = []
    for word in sentence:
        out.append(word)
        if rng.random() < amount * 0.35:
            out += parse(rng.choice(_SLANG), ERROR)
    return out[: max(len(sentence), 4)] if len(out) > len(sentence) else out


def harm(rng: random.Random) -> Sentence:
    return parse(rng.choice(_HARM), ERROR)
