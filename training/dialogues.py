"""Graded candidates for everything but summaries: replies, answers, records put into words, tone and safety."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from training import damage, measure
from training.candidates import LEVELS, Candidate
from training.damage import ERROR, FOREIGN, MINOR, UNSUPPORTED, Sentence, parse

if TYPE_CHECKING:
    from training.tasks import Maker

Material = tuple[dict[str, str], list[Candidate], str]

DULL = [
    "i don't know.",
    "yes, i do.",
    "that is nice.",
    "ok.",
    "i see what you mean.",
    "that is good to hear.",
    "i am not sure about that.",
    "yeah, me too.",
    "that's cool.",
    "sounds good.",
    "oh, really?",
    "i like that.",
    "i guess so.",
    "me too.",
    "i have heard of it.",
    "no, i don't think so.",
    "i agree with you.",
    "yes, it is.",
    "i'm not sure.",
    "that is true.",
    "great, thanks.",
    "i have no idea.",
]
OPENERS = [
    "did you know that",
    "i heard that",
    "i read that",
    "it is interesting that",
    "yeah, and",
    "wow,",
    "i think it is crazy that",
    "have you heard that",
    "apparently",
    "that reminds me,",
    "oh yes,",
    "",
]
OPINIONS = [
    "i love {w}, it is one of my favorite things.",
    "i have never cared much for {w}.",
    "i think {w} is great, to be honest.",
    "do you like {w}?",
    "what do you think about {w}?",
    "i used to be a big fan of {w}.",
    "my brother knows a lot about {w}.",
    "i wish i knew more about {w}.",
]
ENDINGS = [
    "have you heard of that?",
    "what do you think?",
    "isn't that amazing?",
    "i would love to see that.",
    "do you believe it?",
    "that surprised me.",
    "pretty interesting, right?",
]


def _clause(fact: str, rng: random.Random, limit: int = 18) -> str:
    """Cut a stretch out of a fact, as a reply would quote it."""
    words = fact.rstrip(".").split()
    if len(words) > limit:
        start = rng.randrange(0, max(1, min(6, len(words) - limit)))
        words = words[start : start + rng.randrange(limit // 2, limit + 1)]
    return " ".join(words)


def _errors(sentences: list[Sentence], level: float, maker: Maker) -> list[Sentence]:
    pool = damage.Pool([], [], [], [], maker.rng.sample(maker.common, min(40, len(maker.common))))
    words = sum(map(len, sentences))
    for _ in range(max(1, round(level * words / 5)) if level else 0):
        i = maker.rng.randrange(len(sentences))
        sentences[i] = damage.fluency_error(sentences[i], maker.rng, pool)
    return sentences


def _blend(texts: list[str], rng: random.Random) -> Sentence:
    """Write what small models write: the front of one thing and the end of another, nearly English, without a sense."""
    one, two = (rng.choice(texts) for _ in range(2))
    front = parse(f"{rng.choice(OPENERS)} {_clause(one, rng, 12)}".strip(), UNSUPPORTED)
    back = parse(_clause(two, rng, 12) + ".", UNSUPPORTED)
    return damage.sewn(front, back, rng, UNSUPPORTED | ERROR) if len(front) > 2 and len(back) > 3 else front + back


def _near(options: list[str], words: int, rng: random.Random) -> str:
    return min(rng.sample(options, min(6, len(options))), key=lambda t: abs(len(t.split()) - words))


#: What each kind of reply is worth: does it follow, is it natural, is it clear, does it engage. Rough steps are enough:
#: the order between kinds is what is taught.
KINDS: dict[str, tuple[float, float, float, float]] = {
    "person": (0.92, 0.95, 0.95, 0.6),
    "fact": (0.8, 0.85, 0.9, 0.9),
    "both": (0.95, 0.95, 0.95, 1.0),
    "elsewhere": (0.4, 0.8, 0.8, 0.7),
    "opinion": (0.55, 0.65, 0.75, 0.45),
    "foreign": (0.1, 0.7, 0.5, 0.4),
    "parrot": (0.25, 0.4, 0.6, 0.2),
    "dull": (0.35, 0.5, 0.7, 0.08),
    "again": (0.15, 0.15, 0.45, 0.0),
    "loop": (0.2, 0.05, 0.15, 0.15),
    "blend": (0.3, 0.45, 0.3, 0.35),
}


def _chat(maker: Maker) -> tuple[list[str], str, list[str], list[str]] | None:
    """Draw a conversation: what was said, a good next turn, the sentences of a fact, and later turns."""
    rng = maker.rng
    if rng.random() < 0.5:
        turns = rng.choice(maker.corpus.dialogue).sentences
        if len(turns) < 3:
            return None
        cut = rng.randrange(1, len(turns))
        known = [s for s in maker.document().sentences if 6 <= len(s.split()) <= 40]
        start = rng.randrange(max(1, len(known) - 3))
        return (
            turns[max(0, cut - rng.randint(1, 8)) : cut],
            turns[cut],
            known[start : start + rng.choice((1, 1, 2, 4))],
            turns[cut + 1 :],
        )
    # two people talk about what a text says
    own = [s for s in maker.document().sentences if 6 <= len(s.split()) <= 40]
    if len(own) < 9:
        return None
    start = rng.randrange(len(own) - 8)
    said = own[start : start + rng.randint(1, 4)]
    rest = own[start + len(said) :]

    def turn(sentence: str) -> str:
        parts = [f"{rng.choice(OPENERS)} {_clause(sentence, rng)}".strip() + "."]
        if rng.random() < 0.6:
            parts.append(rng.choice([*ENDINGS, *DULL]) if rng.random() < 0.7 else rng.choice(OPINIONS).format(w="that"))
        return " ".join(parts)

    history = [turn(s) for s in said]
    size = rng.choice((1, 2, 3, 4))
    return history, turn(rest[size]), rest[:size], [turn(s) for s in rest[size + 1 :][:3]]


def responses(maker: Maker, quality: str) -> Material | None:
    """Make replies of many kinds, from one that uses the fact and asks back to one that goes round in circles."""
    rng = maker.rng
    drawn = _chat(maker)
    if drawn is None or not drawn[2]:
        return None
    history, truth, known, _ = drawn
    elsewhere = [rng.choice(maker.document().sentences) for _ in range(6)]
    foreign = [t for _ in range(8) for t in rng.choice(maker.corpus.dialogue).sentences[:12]]
    kinds = list(KINDS)
    chances = [3, 5, 3, 5, 2, 2, 1, 2, 1, 1, 2] if quality == "grounded" else [3, 3, 2, 2, 2, 2, 1.5, 2, 1.5, 1.5, 4]
    found: list[Candidate] = []
    for _ in range(maker.count):
        kind = rng.choices(kinds, chances)[0]
        follows, natural, clear, engaging = KINDS[kind]
        fact = f"{rng.choice(OPENERS)} {_clause(rng.choice(known), rng)}".strip() + "."
        ending = [parse(rng.choice(ENDINGS))] if rng.random() < 0.5 else []
        if kind == "person":
            sentences = [parse(truth)]
        elif kind == "fact":
            sentences = [parse(fact), *ending]
        elif kind == "both":
            sentences = [parse(truth), parse(fact), *ending]
        elif kind == "elsewhere":
            text = f"{rng.choice(OPENERS)} {_clause(rng.choice(elsewhere), rng)}".strip() + "."
            sentences = [parse(text, FOREIGN), *ending]
        elif kind == "opinion":
            word = _clause(rng.choice([*known, *history]), rng, 4)
            sentences = [parse(t.format(w=word)) for t in rng.sample(OPINIONS, rng.choice((1, 1, 2)))]
        elif kind == "foreign":
            sentences = [parse(_near(foreign, len(truth.split()), rng), FOREIGN)]
        elif kind == "parrot":
            sentences = [parse(rng.choice(history), damage.REPEATED)]
        elif kind == "dull":
            sentences = [parse(t, MINOR) for t in rng.sample(DULL, rng.choice((1, 1, 2, 3)))]
        elif kind == "again":
            dull = rng.choice([*DULL, *(o.format(w="it") for o in OPINIONS)])
            sentences = [parse(dull, MINOR), parse(dull, MINOR | damage.REPEATED)]
            if rng.random() < 0.4:
                sentences.append(parse(rng.choice(DULL), MINOR))
        elif kind == "blend":
            texts = [*known, *known, *history, truth, *elsewhere[:2]]
            sentences = [_blend(texts, rng) for _ in range(rng.choice((1, 1, 2)))] + ending
        else:
            words = parse(rng.choice([fact, truth]))[:12]
            start = rng.randrange(max(1, len(words) - 5))
            part = words[start : start + rng.randrange(2, 5)]
            again = [damage.Word(w.text, damage.ERROR | damage.REPEATED) for w in part]
            sentences = [words[: start + len(part)] + again * rng.choice((1, 2, 3))]
        grounded = 0.95 if kind in {"fact", "both"} else 0.03
        if rng.random() < (0.25 if quality in {"grounded", "engaging"} else 0.5):
            level = rng.choice((0.15, 0.3, 0.6, 1.0))
            sentences = _errors(sentences, level, maker)
            natural, clear = natural - 0.2 - 0.6 * level, clear - 0.1 - 0.6 * level
            follows, engaging = follows - 0.25 * level, engaging - 0.25 * level
        said = {w for s in sentences for w in measure.content(measure.tokens(" ".join(x.text for x in s)))}
        more = min(1.0, len(said) / 18)  # somebody who has something to say
        follows, engaging = follows * (0.5 + 0.5 * more), engaging * (0.3 + 0.7 * more)
        natural, clear = natural * (0.65 + 0.35 * more), clear * (0.75 + 0.25 * more)
        value = {"follows": follows, "natural": natural, "clear": clear, "engaging": engaging, "grounded": grounded}
        found.append(Candidate(sentences, {k: min(1.0, max(0.0, v)) for k, v in value.items()}))
    names = rng.choice([("User: ", "System: "), ("A: ", "B: "), ("", ""), ("", ""), ("Speaker 1: ", "Speaker 2: ")])
    lines = [names[(len(history) + i) % 2] + turn for i, turn in enumerate(history)]
    return {"history": "\n".join(lines), "fact": " ".join(known) if rng.random() < 0.95 else "nofact"}, found, " "


def manners(maker: Maker, quality: str) -> Material | None:
    """Polite or rude, harmless or harmful messages."""
    rng = maker.rng
    found = []
    for level in rng.sample(LEVELS, min(maker.count, len(LEVELS))):
        turns = [rng.choice(rng.choice(maker.corpus.dialogue).sentences) for _ in range(rng.choice([1, 2, 3]))]
        if rng.random() < 0.3:
            turns = rng.choice(maker.corpus.prose).sentences[:2]
        sentences = [parse(t) for t in turns]
        if quality == "tone":
            if level == 0 and rng.random() < 0.6:
                sentences.append(
                    parse(
                        rng.choice(
                            [
                                "Thank you for your patience.",
                                "Please let me know if I can help with anything else.",
                                "We apologise for the trouble.",
                                "Kind regards.",
                            ]
                        )
                    )
                )
            sentences = [damage.spoil_tone(s, rng, level) if level else s for s in sentences]
        elif level:
            for _ in range(1 + (level > 0.5)):
                sentences[rng.randrange(len(sentences))] = damage.harm(rng)
            level = max(level, 0.6)
        found.append(Candidate(sentences, {quality: 1.0 - level}))
    return {}, found, " "


def questions(maker: Maker) -> Material | None:
    """Make texts that answer the question, and texts that answer another one."""
    rng = maker.rng
    for _ in range(50):
        document = rng.choice(maker.corpus.prose)
        if document.question and document.summaries:
            break
    else:
        return None
    others = [d for d in (rng.choice(maker.corpus.prose) for _ in range(30)) if d.corpus == "squality"] or [
        maker.document()
    ]
    found = []
    for level in rng.sample(LEVELS, min(maker.count, len(LEVELS))):
        good = level < 0.5
        own = document.sentences if good else rng.choice(others).sentences
        start = rng.randrange(0, max(1, min(3, len(own) - 2)))
        picked = own[start : start + rng.choice([1, 2, 3])]
        found.append(Candidate([parse(s, 0 if good else FOREIGN) for s in picked], {"answers": 1.0 if good else 0.05}))
    return {"question": document.question}, found, " "


_ASK = [
    "What is the {a} of {s}?",
    "What is known about the {a} of {s}?",
    "{s}: {a}?",
    "Tell me the {a} of {s}.",
    "Can you give me the {a} of {s}?",
]
_SAY = [
    "The {a} of {s} is {v}.",
    "In {s}, the {a} is {v}.",
    "{v}.",
    "For {s}, the {a} is given as {v}.",
    "It is {v}.",
    "{s} has the following {a}: {v}.",
]


def facts(maker: Maker, name: str, quality: str) -> Material | None:
    """Questions and records from a book of facts: right, half right and wrong values of about one length."""
    rng = maker.rng
    subject = rng.choice(list(maker.subjects))
    known = maker.subjects[subject]
    if len(known) < 6:
        return None
    attribute, value = rng.choice(known)
    rivals = [v for s, v in maker.attributes[attribute] if v != value]
    wrong_attributes = [(a, v) for a, v in rng.sample(known, min(8, len(known))) if a != attribute]
    if not rivals or not wrong_attributes:
        return None
    record = rng.sample(known, rng.randint(2, 4))
    found = []
    for level in rng.sample(LEVELS, min(maker.count, len(LEVELS))):
        good = level < 0.45
        score = 1.0 if good else 0.0
        if name == "correctness":
            if good:
                said, flag = value, 0
            elif rng.random() < 0.5:
                said, flag = rng.choice(rivals), UNSUPPORTED
            else:
                changed = damage.fact_error(
                    parse(value), rng, damage.Pool([], [], [r.split()[0] for r in rivals[:5]], [], maker.common[:50])
                )
                said, flag = " ".join(w.text for w in changed), UNSUPPORTED
                score = 0.3
            sentences = [parse(rng.choice(_SAY).format(a=attribute, s=subject, v=said), flag)]
        elif name in {"answer_relevance", "context_relevance"}:
            a, v = (attribute, value) if good else rng.choice(wrong_attributes)
            s = subject if good or rng.random() < 0.6 else rng.choice(list(maker.subjects))
            sentences = [
                parse(rng.choice([t for t in _SAY if "{a}" in t]).format(a=a, s=s, v=v), 0 if good else FOREIGN)
            ]
        else:
            sentences = [parse(rng.choice(_SAY[:2]).format(a=a, s=subject, v=v)) for a, v in record]
            if quality == "fluency":
                sentences = _errors(sentences, level, maker)
            else:
                for place in rng.sample(range(len(record)), round(level * len(record))):
                    a, v = record[place]
                    if rng.random() < 0.5:
                        v = rng.choice([x for _, x in maker.attributes[a]])
                    else:
                        a, v = rng.choice(wrong_attributes)
                    sentences[place] = parse(f"The {a} of {subject} is {v}.", ERROR | UNSUPPORTED)
            score = 1.0 - level
        found.append(Candidate(sentences, {quality: score}))
    join = rng.choice([": ", " = ", " | "])
    data = rng.choice(["\n", "; ", ", "]).join([f"name{join}{subject}", *(f"{a}{join}{v}" for a, v in record)])
    return (
        {
            "question": rng.choice(_ASK).format(a=attribute, s=subject),
            "reference": value,
            "data": data,
            "context": value,
        },
        found,
        " ",
    )
