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
from collections import Counter

import torch
from transformers import AutoModelForCausalLM, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from training import corpus, measure, smol
from training.corpus import CACHE_DIR, Document

FILE = CACHE_DIR / "written.jsonl"
TEMPERATURES = (0.2, 0.4, 0.6)  # of the summaries of a document
NEW = 0.35  # share of words that the text has not, at most: more of them is another text
NUCLEUS = 0.9
WORDS = 160  # of a document that are shown
TOKENS = 80  # of a summary at most
BATCH, GPU_BATCH = 8, 256  # documents
_REQUEST = "Summarize this text in {n} sentences. Write nothing else.\n\n{text}"
_MARK = re.compile(r"^(?:[-*]|\d+[.)])\s+")
#: Sentences in which the model speaks of its answer.
_TALK = re.compile(r"^(?:alright|okay|sure|certainly|here (?:is|are)|here's)\b|\bsummar(?:y|ize)", re.IGNORECASE)


class Warmth(LogitsProcessor):
    """Give every row of a batch a temperature of its own."""

    def __init__(self, temperatures: torch.Tensor) -> None:
        self.temperatures = temperatures[:, None]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Divide the logits."""
        return scores / self.temperatures


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
    lines = [_MARK.sub("", line.strip()) for line in text.split("\n")]
    found = corpus.sentences(" ".join(line for line in lines if line and not line.endswith(":")))
    found = [sentence for sentence in found if not _TALK.search(sentence)]
    if found and not found[-1].endswith((".", "!", "?", '"')) and rng.random() < 0.8:
        found.pop()
    return found[:5]


def drawn(corpora: dict[str, float]) -> list[Document]:
    """Put training documents in an order that takes each collection by its share, whatever order they are read in."""
    found = [d for d in corpus.load("train").prose if d.corpus in corpora and len(d.sentences) >= 5]
    sizes = Counter(d.corpus for d in found)
    found.sort(key=lambda d: random.Random(d.key).random() ** (sizes[d.corpus] / corpora[d.corpus]), reverse=True)
    return found


def sample(net: PreTrainedModel, asked: list[str], seed: int) -> list[str]:
    """Answer each request once by every temperature; the requests are read once."""
    code = smol.tokenizer()
    given = code(asked, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    given, warm = given.to(net.device), torch.tensor(TEMPERATURES, device=net.device).repeat(len(asked))
    ids, mask, several = given["input_ids"], given["attention_mask"], len(TEMPERATURES)
    torch.manual_seed(seed)
    with torch.inference_mode():
        places = (mask.cumsum(1) - 1).clamp(min=0)[:, :-1]  # padding counts for no place
        read = net(ids[:, :-1], attention_mask=mask[:, :-1], position_ids=places, logits_to_keep=1)
        read.past_key_values.batch_repeat_interleave(several)
        out = net.generate(
            ids.repeat_interleave(several, 0),
            attention_mask=mask.repeat_interleave(several, 0),
            past_key_values=read.past_key_values,
            logits_processor=LogitsProcessorList([Warmth(warm)]),
            do_sample=True,
            top_k=0,
            top_p=NUCLEUS,
            max_new_tokens=TOKENS,
        )
    answers: list[str] = code.batch_decode(out[:, ids.shape[1] :], skip_special_tokens=True)
    return answers


def write(seconds: float, corpora: dict[str, float], device: str = "cpu") -> None:
    """Write summaries of training documents for so many seconds; those that are there stay."""
    done, rng = set(load()), random.Random(1)
    waiting = [document for document in drawn(corpora) if document.key not in done]
    net = AutoModelForCausalLM.from_pretrained(smol.FOLDER, dtype=torch.bfloat16).eval().to(device)
    size = BATCH if device == "cpu" else GPU_BATCH
    before, after = smol.chat()
    ends = time.monotonic() + seconds
    while waiting and time.monotonic() < ends:
        batch, waiting = waiting[:size], waiting[size:]
        counts = rng.choices(("two", "three", "three", "four"), k=len(batch))
        asked = [before + _REQUEST.format(n=n, text=shown(d)) + after for n, d in zip(counts, batch, strict=True)]
        texts = iter([clean(answer, rng) for answer in sample(net, asked, batch[0].key)])
        with FILE.open("a", encoding="utf-8") as file:
            for document in batch:
                source = measure.Source(document.sentences)
                own = [text for text in (next(texts) for _ in TEMPERATURES) if sum(len(s.split()) for s in text) >= 8]
                kept = [text for text in own if source.measure(text).novel_words <= NEW]
                file.write(json.dumps({"key": document.key, "summaries": kept}, ensure_ascii=False) + "\n")


def load() -> dict[int, list[list[str]]]:
    """Read what was written, by the documents' keys; empty where nothing was."""
    if not FILE.exists():
        return {}
    with FILE.open(encoding="utf-8") as file:
        return {row["key"]: row["summaries"] for row in map(json.loads, file)}
