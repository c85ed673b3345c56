"""Reads ../shared/text into documents: lists of clean sentences, split into a training and a held-out part."""

from __future__ import annotations

import gzip
import pickle
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEXT_DIR = ROOT.parent / "shared" / "text"
DATA_DIR = ROOT.parent / "shared" / "data"
CACHE_DIR = Path(__file__).resolve().parent / "cache"

_ABBREVIATION = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Sr|Jr|Prof|Gen|Col|Capt|Lt|Rev|No|vs|etc|al|Fig|Eq|Mt|e\.g|i\.e|a\.m|p\.m|U\.S|B\.C|A\.D)|\b[A-Z])\.$"
)
_BREAK = re.compile(r"(?<=[.!?])[\"”’')\]]*\s+(?=[\"“‘'(\[]?[A-Z0-9])")
_TOKENISED = re.compile(r" ([.,;:!?%)\]}]|'s|'re|'ve|'ll|'d|'m|n't|’s)(?=\s|$)")
_TURN = re.compile(r"^(User|System|Assistant): ")


@dataclass
class Document:
    """One source text. `kind` is "prose" or "dialogue"; `summaries` are texts written by people about it."""

    corpus: str
    sentences: list[str]
    kind: str = "prose"
    summaries: list[str] = field(default_factory=list)
    question: str = ""

    @property
    def key(self) -> int:
        """Tell documents apart by their content."""
        return zlib.crc32(" ".join(self.sentences).encode())


@dataclass
class Corpus:
    """Everything read: running prose, dialogues, and a book of facts as (subject, attribute, value)."""

    prose: list[Document]
    dialogue: list[Document]
    facts: list[tuple[str, str, str]]  # (subject, attribute, value)


def detokenise(text: str) -> str:
    """Undo "word , word" spacing: the style is put back at random later, so that the judge meets both."""
    text = text.replace(" @-@ ", "-").replace(" @,@ ", ",").replace(" @.@ ", ".").replace("<unk>", "Unk")
    text = _TOKENISED.sub(r"\1", text)
    text = re.sub(r"([(\[]) ", r"\1", text)
    text = re.sub(r'(^|\s)" ([^"]*?) "(?=\W|$)', r'\1"\2"', text)
    return re.sub(r"\s+", " ", text).strip()


def sentences(text: str) -> list[str]:
    parts: list[str] = []
    start = 0
    for match in _BREAK.finditer(text):
        head = text[start : match.start()]
        if _ABBREVIATION.search(head):
            continue
        cut = match.end()
        parts.append(text[start:cut].strip())
        start = cut
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def _read(name: str) -> str:
    with gzip.open(TEXT_DIR / f"{name}.txt.gz", "rt", encoding="utf-8", errors="replace") as handle:
        return handle.read()


def _good(sentence: str) -> bool:
    words = sentence.split()
    letters = sum(c.isalpha() or c == " " for c in sentence)
    return 3 <= len(words) <= 60 and letters / len(sentence) > 0.8


def _chunks(name: str, lines: list[str], target_words: int) -> list[Document]:
    """Cut running text into documents of about `target_words`, never across a heading or an article's end."""
    documents: list[Document] = []
    buffer: list[str] = []
    count = 0

    def flush() -> None:
        nonlocal buffer, count
        if len(buffer) >= 5:
            documents.append(Document(name, buffer))
        buffer, count = [], 0

    for line in lines:
        line = line.strip()
        if name == "wikitext2" and line.startswith("="):
            flush()
            continue
        if name in {"ud_ewt", "scitldr"} and not line:
            flush()
            continue
        for sentence in sentences(detokenise(line)):
            if not _good(sentence):
                continue
            buffer.append(sentence)
            count += len(sentence.split())
        if count >= target_words:
            flush()
    flush()
    return documents


def _scitldr() -> list[Document]:
    documents: list[Document] = []
    for block in _read("scitldr").split("\n"):
        block = block.strip()
        if block.startswith("TLDR:") and documents:
            documents[-1].summaries.append(detokenise(block[5:]))
        elif block:
            found = [s for s in sentences(detokenise(block)) if _good(s)]
            if len(found) >= 3:
                documents.append(Document("scitldr", found))
    return documents


def _squality() -> list[Document]:
    """Answers to one question about one story, written by several people, are summaries of each other."""
    text = _read("squality")
    blocks = [
        b.strip()
        for b in re.split(r"\n(?=(?:What|Who|How|Why|Where|When|Describe|Discuss|Explain|Which)\b[^\n]*[?.]\n)", text)
    ]
    documents: list[Document] = []
    answers: dict[str, list[list[str]]] = {}
    last = ""

    def flush() -> None:
        for question, group in answers.items():
            for index, own in enumerate(group):
                others = [" ".join(g[:6]) for j, g in enumerate(group) if j != index]
                documents.append(Document("squality", own, summaries=others, question=question))
        answers.clear()

    for block in blocks:
        question, _, body = block.partition("\n")
        if len(body) > 20000 or not question.endswith(("?", ".")):
            documents += _chunks("squality", body.split("\n"), 420)  # the stories themselves
            continue
        found = [s for s in sentences(detokenise(body)) if _good(s)]
        if len(found) < 4:
            continue
        if question != last:
            flush()
        last = question
        answers.setdefault(question, []).append(found)
    flush()
    return documents


def _dialogues(name: str) -> list[Document]:
    documents = []
    for block in _read(name).split("\n\n"):
        turns = [_TURN.sub("", line).strip() for line in block.split("\n") if line.strip()]
        if len(turns) >= 3:
            documents.append(Document(name, turns, kind="dialogue"))
    return documents


def _quoted_dialogues(documents: list[Document]) -> list[Document]:
    """Talk in novels gives open-domain dialogue: the spoken parts of neighbouring sentences in order."""
    found = []
    for document in documents:
        if document.corpus not in {"standardebooks", "squality"}:
            continue
        text = " ".join(document.sentences)
        turns = [t.strip(" ,") for t in re.findall(r"[“\"]([^”\"]{15,220})[”\"]", text)]
        turns = [t for t in turns if len(t.split()) >= 4]
        if len(turns) >= 5:
            found.append(Document(document.corpus, turns, kind="dialogue"))
    return found


def _factbook() -> tuple[list[Document], list[tuple[str, str, str]]]:
    facts = []
    documents = []
    for block in _read("factbook").split("\n\n"):
        lines = [line for line in block.split("\n") if line.strip()]
        if len(lines) < 5:
            continue
        country = lines[0].strip()
        running: list[str] = []
        for line in lines[1:]:
            head, separator, value = line.partition(". ")
            attribute = head.split(":")[-1].strip()
            if not separator or not value or len(attribute.split()) > 6:
                continue
            if 1 <= len(value.split()) <= 25:
                facts.append((country, attribute.lower(), value.strip().rstrip(".")))
            running += [s for s in sentences(value) if _good(s) and len(s.split()) >= 6]
            if sum(len(s.split()) for s in running) > 300:
                documents.append(Document("factbook", running))
                running = []
        if len(running) >= 5:
            documents.append(Document("factbook", running))
    return documents, facts


def held_out(document: Document) -> bool:
    """By content hash: a document's part never depends on the order of reading or on a seed."""
    return zlib.crc32(" ".join(document.sentences[:3]).encode()) % 40 == 0


def load(part: str = "train") -> Corpus:
    """Load the `train` or `held_out` part, cached as a pickle because splitting 64 M characters takes a while."""
    cached = CACHE_DIR / f"corpus-{part}.pkl"
    if cached.exists():
        with cached.open("rb") as handle:
            return pickle.load(handle)  # our own file, written below
    prose: list[Document] = []
    for name in ("nltk", "standardebooks", "wikitext2", "ud_ewt"):
        prose += _chunks(name, _read(name).split("\n"), 420)
    fact_documents, facts = _factbook()
    prose += _scitldr() + _squality() + fact_documents
    dialogue = _dialogues("sgd") + _dialogues("taskmaster4") + _quoted_dialogues(prose)
    CACHE_DIR.mkdir(exist_ok=True)
    for name in ("train", "held_out"):
        wanted = name == "held_out"
        corpus = Corpus(
            [d for d in prose if held_out(d) == wanted],
            [d for d in dialogue if held_out(d) == wanted],
            [f for f in facts if (zlib.crc32(f[0].encode()) % 40 == 0) == wanted],
        )
        with (CACHE_DIR / f"corpus-{name}.pkl").open("wb") as handle:
            pickle.dump(corpus, handle)
    return load(part)
