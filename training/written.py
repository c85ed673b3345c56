"""Summaries that the trunk writes itself, unrated: texts in words of their own, which no damage to a source gives.

People put systems that write in their own words first, and a judge that met new words only as damage puts them last.
The package's model, without an adapter, writes a few summaries of the beginning of documents, from careful (a low
temperature) to careless (a higher one). Those that stay with their text are kept; what they are worth is measured like
that of any candidate.
"""

from __future__ import annotations

import json
import random
import re
import time
import zlib

import torch
from transformers import AutoModelForCausalLM, LogitsProcessor, LogitsProcessorList

from training import corpus, measure, smol
from training.corpus import CACHE_DIR, Document

FILE = CACHE_DIR / "written.jsonl"
TEMPERATURES = (0.2, 0.4, 0.6)  # of the summaries of a document
NEW = 0.35  # share of words that the text has not, at most: more of them is another text
NUCLEUS = 0.9
WORDS = 160  # of a document that are shown
TOKENS = 80  # of a summary at most
BATCH = 8  # documents
_REQUEST = "Summarize this text in {n} sentences. Write nothing else.\n\n{text}"
#: Sentences in which the model speaks of its answer.
_TALK = re.compile(r"^(?:alright|okay|sure|certainly|here (?:is|are)|here's)\b|\bsummar(?:y|ize)", re.IGNORECASE)


class Warmth(LogitsProcessor):
    """Give every row of a batch a temperature of its own."""

    def __init__(self, temperatures: torch.Tensor) -> None:
        self.temperatures = temperatures[:, None]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Divide the logits."""
        return scores / self.temperatures


def key(document: Document) -> int:
    """Tell documents apart by their content."""
    return zlib.crc32(" ".join(document.sentences).encode())


def shown(document: Document) -> str:
    """Take the beginning of a document, in whole sentences."""
    found: list[str] = []
    for sentence in document.sentences:
        found.append(sentence)
        if sum(len(s.split()) for s in found) >= WORDS:
            break
    return " ".join(found)


def clean(text: str, rng: random.Random) -> list[str]:
    """Cut into sentences; leave out a heading, a list's marks and mostly an end that is cut."""
    lines = [line.strip().lstrip("-*0123456789. ") for line in text.split("\n")]
    found = corpus.sentences(" ".join(line for line in lines if line and not line.endswith(":")))
    found = [sentence for sentence in found if not _TALK.search(sentence)]
    if found and not found[-1].endswith((".", "!", "?", '"')) and rng.random() < 0.8:
        found.pop()
    return found[:5]


def write(seconds: float, corpora: dict[str, float]) -> None:
    """Write summaries of training documents for so many seconds, in the order of their keys; what is there stays."""
    done = set(load())
    chosen = [d for d in corpus.load("train").prose if d.corpus in corpora and len(d.sentences) >= 5]
    rng = random.Random(1)
    ends = time.monotonic() + seconds
    code = smol.tokenizer()
    code.padding_side = "left"
    net = AutoModelForCausalLM.from_pretrained(smol.FOLDER, dtype=torch.bfloat16).eval()
    before, after = smol.chat()
    # A draw without the order of the corpus: each collection by its share in the training.
    sizes = {name: sum(d.corpus == name for d in chosen) for name in corpora}
    chosen.sort(key=lambda d: random.Random(key(d)).random() ** (sizes[d.corpus] / corpora[d.corpus]), reverse=True)
    waiting = [d for d in chosen if key(d) not in done]
    while waiting and time.monotonic() < ends:
        batch, waiting = waiting[:BATCH], waiting[BATCH:]
        batch.sort(key=lambda d: len(shown(d)))
        asked = [
            before + _REQUEST.format(n=rng.choice(("two", "three", "three", "four")), text=shown(d)) + after
            for d in batch
        ]
        given = code(asked, return_tensors="pt", padding=True, add_special_tokens=False)
        several = len(TEMPERATURES)
        torch.manual_seed(key(batch[0]))
        with torch.inference_mode():
            ids, mask = given["input_ids"], given["attention_mask"]
            places = (mask.cumsum(1) - 1).clamp(min=0)[:, :-1]  # of text behind padding
            read = net(ids[:, :-1], attention_mask=mask[:, :-1], position_ids=places, logits_to_keep=1)
            cache = read.past_key_values
            cache.batch_repeat_interleave(several)  # the text is read once for all of its summaries
            out = net.generate(
                ids.repeat_interleave(several, 0),
                attention_mask=mask.repeat_interleave(several, 0),
                past_key_values=cache,
                logits_processor=LogitsProcessorList([Warmth(torch.tensor(TEMPERATURES).repeat(len(batch)))]),
                do_sample=True,
                top_k=0,
                top_p=NUCLEUS,
                max_new_tokens=TOKENS,
            )
        texts = [clean(text, rng) for text in code.batch_decode(out[:, ids.shape[1] :], skip_special_tokens=True)]
        rows = [texts[n * several : (n + 1) * several] for n in range(len(batch))]
        with FILE.open("a", encoding="utf-8") as file:
            for document, row in zip(batch, rows, strict=True):
                source = measure.Source(document.sentences)
                kept = [text for text in row if sum(len(s.split()) for s in text) >= 8]
                kept = [text for text in kept if source.measure(text).novel_words <= NEW]
                file.write(json.dumps({"key": key(document), "summaries": kept}, ensure_ascii=False) + "\n")


def load() -> dict[int, list[list[str]]]:
    """Read what was written, by the documents' keys; empty where nothing was."""
    if not FILE.exists():
        return {}
    with FILE.open(encoding="utf-8") as file:
        return {row["key"]: row["summaries"] for row in map(json.loads, file)}
