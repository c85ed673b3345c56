"""Trees of training data: a shared trunk (form head and source) and graded leaves (candidate, form tail, target)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from geval_local.metric_file import FRAME
from training import candidates, corpus, damage, dialogues, forms, style, traps, wordings
from training.candidates import Candidate, Grader
from training.corpus import Corpus, Document
from training.damage import Pool


@dataclass
class Question:
    """A further criterion of a form. Labels are left out between them, so that none is copied from another."""

    cue: str
    dimension: str
    quality: float
    target: dict[str, float]


@dataclass
class Leaf:
    """One candidate in its form, with the flags of its characters and the target over the labels."""

    before: str
    body: str
    flags: list[int]
    tail: str
    target: dict[str, float]
    quality: float
    fixed: bool = False  # a trap, whose value no teacher changes
    more: list[Question] = field(default_factory=list)


@dataclass
class Tree:
    """A trunk and its leaves. The spans say where steps and source lie in the trunk."""

    concept: str
    trunk: str
    leaves: list[Leaf]
    scale: forms.Scale
    steps: tuple[int, int] = (0, 0)
    source_span: tuple[int, int] = (0, 0)
    unseen: bool = False
    sourced: bool = True
    measured: bool = False  # whether its words carry the flags that are read off the text
    source: str = ""  # what the teacher compares candidates with: the source, or the last turn of a conversation


# How often each concept is drawn. The four of summarization carry most of what is to be learnt.
WEIGHTS = {
    "coherence": 19,
    "consistency": 22,
    "fluency": 20,
    "relevance": 21,
    "factual": 4,
    "faithfulness": 4,
    "naturalness": 6,
    "dialogue_coherence": 6,
    "engagingness": 5,
    "understandability": 5,
    "groundedness": 6,
    "data_naturalness": 1,
    "informativeness": 2,
    "correctness": 3,
    "answer_relevance": 2,
    "context_relevance": 2,
    "tone": 1.5,
    "safety": 1.5,
    "unseen": 28,
}

END_OF_TURN = "<|im_end|>"
DIMENSIONS = ("coherence", "consistency", "fluency", "relevance")
SUMMARIES = {*DIMENSIONS, "factual", "faithfulness"}


@dataclass
class Maker:
    """Draws trees from a corpus. `words` bounds the source's length, so that training can start short."""

    corpus: Corpus
    rng: random.Random
    count: int = 9
    words: tuple[int, int] = (60, 400)
    weights: dict[str, float] = field(default_factory=lambda: WEIGHTS)
    chat: tuple[str, str] | None = None  # what a chat template writes around the user's turn; None: forms in one text
    chatty: float = 0.2  # the share of trees that are chats: their leaves are twice as long
    writing: float = 0.04  # the share of forms that ask for their steps; with a criterion that no preset has, all do
    mild: float = 0.0  # the share of summaries whose damage is light, as systems' own texts differ little
    several: float = 0.0  # the share of summaries' forms that ask for several criteria: a text gets a label for each
    worded: float = 0.15  # the share of forms whose scale is made of words
    usual: list[float] | None = None  # how often each of the listed ones is drawn; None: all alike
    versions: float = 0.0  # the share of summaries' trees whose texts are undamaged, with more or less left out
    copies: float = 0.4  # the share of short sources' trees in which one candidate is a copy of the source
    corpora: dict[str, float] | None = None  # how often documents of each collection are drawn; None: as they are
    written: dict[int, list[list[str]]] = field(default_factory=dict)  # a model's summaries, by the document's key
    common: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        sample = self.rng.sample(self.corpus.prose, min(400, len(self.corpus.prose)))
        self.common = [
            w
            for d in sample
            for s in d.sentences
            for w in s.split()
            if w.isalpha() and w.islower() and len(w) > 3 and w not in wordings.KEPT_OUT
        ]
        self.of: dict[str, list[Document]] = {}
        for document in self.corpus.prose:
            self.of.setdefault(document.corpus, []).append(document)
        self.summarized = [d for d in self.corpus.prose if self.written.get(d.key)] if self.written else []
        self.attributes: dict[str, list[tuple[str, str]]] = {}
        self.subjects: dict[str, list[tuple[str, str]]] = {}
        for subject, attribute, value in self.corpus.facts:
            self.attributes.setdefault(attribute, []).append((subject, value))
            self.subjects.setdefault(subject, []).append((attribute, value))

    def tree(self, name: str | None = None) -> Tree | None:
        """None when the drawn document does not fit; the caller draws again."""
        name = name or self.rng.choices(list(self.weights), list(self.weights.values()))[0]
        clause = self.clause() if name == "unseen" else ""
        concept = wordings.BY_NAME[self.rng.choice(["fluency", "coherence", "tone", "relevance"]) if clause else name]
        title = ""
        if clause and self.rng.random() < 0.7:
            title = " ".join(self.rng.choices(self.common, k=self.rng.choice((1, 2)))).title()
        form = forms.compose(
            concept, self.rng, clause, title=title, worded=self.worded, words=self.common, usual=self.usual
        )
        source_style, own_style = style.draw(self.rng)
        made = self.material(concept.name, concept.damage)
        if made is None:
            return None
        if self.chat and form.steps[1] and (clause or self.rng.random() < self.writing):
            return self.steps(name, form, self.chat)
        shared, found, separator = made
        found = [c for c in found if c.sentences and sum(len(s) for s in c.sentences) <= 110]
        if len(found) < 3:
            return None
        chat = self.chat if self.rng.random() < self.chatty else None
        others: list[str] = []
        cues: list[str] = []
        if name in DIMENSIONS and len(concept.fields) > 1 and not chat and self.rng.random() < self.several:
            others = self.rng.sample([d for d in DIMENSIONS if d != name], self.rng.choice((2, 3)))
            form, cues = forms.widened(form, [wordings.BY_NAME[d] for d in others], self.rng)
        title, top, source = form.cue[2:-1], form.scale.labels[-1], shared.get("source", "")
        # of a copy all is supported: "Yes" would teach that it is a good summary, "No" what is not true
        copies = 0.0 if name == "factual" else self.copies
        found = traps.set_in(found, title, top, source, copies, self.rng)
        trunk = chat[0] + form.head if chat else form.head
        shift = len(trunk) - len(form.head)
        span = (0, 0)
        pieces = []
        for role in concept.fields[:-1]:
            text = "\n".join(style.plain(line, source_style) for line in shared[role].split("\n"))
            start = len(trunk) + sum(map(len, pieces)) + len(form.field(role))
            if role in {"source", "history", "context"}:
                span = (start, start + len(text))
            pieces.append(form.field(role) + text + form.newline * 2)
        trunk += "".join(pieces)
        if pieces:  # the trunk ends with the last shared text; the blank line opens each leaf
            before = form.newline * 2
            trunk = trunk[: -len(before)]
            before += form.field(concept.fields[-1])
        else:
            stripped = trunk.rstrip("\r\n")
            before = trunk[len(stripped) :] + form.field(concept.fields[-1])
            trunk = stripped
        leaves = []
        tail = form.asked(chat[1]) if chat else form.tail
        for candidate in found:
            body, flags = style.render(candidate.sentences, own_style, separator)
            quality = candidate.quality[concept.damage]
            leaf = Leaf(before, body, flags, tail, form.scale.target(quality), quality, candidate.fixed)
            for dimension, cue in zip(others, cues, strict=True):
                value = candidate.quality[dimension]
                leaf.more.append(Question(cue, dimension, value, form.scale.target(value)))
            leaves.append(leaf)
        return Tree(
            name,
            trunk,
            leaves,
            form.scale,
            (form.steps[0] + shift, form.steps[1] + shift) if form.steps[1] else (0, 0),
            span,
            bool(clause),
            len(concept.fields) > 1,
            concept.name in SUMMARIES,
            shared.get("source") or shared.get("history", "").rpartition("\n")[2],
        )

    @staticmethod
    def steps(name: str, form: forms.Form, chat: tuple[str, str]) -> Tree:
        """Turn a form into the request for its steps, with the answer; a tree without leaves."""
        instructions, line, _ = form.head[: form.steps[0]].rpartition(wordings.STEPS_LINE)
        asked = f"{chat[0]}{instructions.rstrip()}\n\n{FRAME['write_steps']}\n\n{line}{chat[1]}1."
        trunk = asked + form.head[slice(*form.steps)].replace("\r\n", "\n") + END_OF_TURN
        return Tree(name, trunk, [], form.scale, (len(asked), len(trunk)))

    def material(self, name: str, quality: str) -> tuple[dict[str, str], list[Candidate], str] | None:
        """Shared fields, graded candidates and the separator between a candidate's sentences."""
        rng = self.rng
        if name in SUMMARIES:
            return self.summary(quality, candidates.BRIEF if name == "factual" else candidates.SIZES)
        if name in {"naturalness", "dialogue_coherence", "engagingness", "understandability", "groundedness"}:
            return dialogues.responses(self, quality)
        if name in {"tone", "safety"}:
            return dialogues.manners(self, quality)
        if name in {"answer_relevance", "context_relevance"} and rng.random() < 0.6:
            return dialogues.questions(self)
        return dialogues.facts(self, name, quality)

    def clause(self) -> str:
        """Draw a criterion that no preset has; some are a piece of any text, which can only be copied."""
        if self.rng.random() < 0.35:
            return wordings.clause(self.rng, self.common)
        words = self.rng.choice(self.document().sentences).rstrip(".!?").split()
        start = self.rng.randrange(max(1, len(words) - 12))
        part = " ".join(words[start : start + self.rng.randint(4, 14)])
        return part.replace("?", ",").replace(". ", ", ").replace("! ", ", ")

    def document(self) -> Document:
        """Draw a prose document."""
        if self.corpora is None:
            return self.rng.choice(self.corpus.prose)
        return self.rng.choice(self.of[self.rng.choices(list(self.corpora), list(self.corpora.values()))[0]])

    def pool(self, source: list[str], other: list[Document]) -> Pool:
        """Collect what damage to this source may draw on."""
        near = [s for d in other for s in d.sentences]
        names = damage.names_in(near)
        return Pool(
            damage.names_in(source),
            damage.numbers_in(source),
            names or ["London"],
            [s for s in near if 5 <= len(s.split()) <= 45] or near,
            self.rng.sample(self.common, min(40, len(self.common))),
        )

    def foreign_documents(self, document: Document) -> list[Document]:
        """Draw other documents, mostly of the same collection: style alone should not give foreign text away."""
        found: list[Document] = []
        same = self.rng.random() < 0.6
        for _ in range(60):
            other = self.rng.choice(self.corpus.prose)
            if (
                other is not document
                and (not same or other.corpus == document.corpus)
                and other.question != (document.question or "-")
            ):
                found.append(other)
            if len(found) == 4:
                break
        return found or [self.rng.choice(self.corpus.prose)]

    def summary(
        self, main: str, sizes: Sequence[int] = candidates.SIZES
    ) -> tuple[dict[str, str], list[Candidate], str] | None:
        """Cut a source out of a document and grade candidates for it."""
        rng = self.rng
        own = bool(self.summarized) and rng.random() < 0.6
        document = rng.choice(self.summarized) if own else self.document()
        wanted = rng.randint(*self.words)
        start = rng.randrange(len(document.sentences)) if not own and rng.random() < 0.4 else 0
        source: list[str] = []
        for sentence in document.sentences[start:]:
            source.append(sentence)
            if sum(len(s.split()) for s in source) >= wanted:
                break
        if len(source) < 4:
            return None
        summary = None
        if document.summaries and start == 0:
            summary = corpus.sentences(rng.choice(document.summaries))
        pool = self.pool(source, self.foreign_documents(document))
        levels = candidates.MILD if rng.random() < self.mild else candidates.LEVELS
        texts = self.written[document.key] if own else []
        grader = Grader(source, pool, rng, summary, texts)
        if self.versions and rng.random() < self.versions:
            found = grader.versions(self.count)
        else:
            found = grader.graded(main, self.count, levels, sizes)
        question = document.question or f"What does the text say about {rng.choice(pool.names or ['this'])}?"
        text = " ".join(source)
        return {"source": text, "context": text, "question": question}, found, rng.choice([" "] * 6 + ["\n"])
