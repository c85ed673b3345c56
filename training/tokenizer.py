"""An uncased byte-level BPE tokenizer in which every digit is a token of its own (" 4" is one token).

A judge of five million parameters finds a name of the summary in the source by its tokens. Systems write names in
either case and punctuation with or without a space before it; "Townsend", "townsend" and "townsend ." would be three
unlike sequences. So both differences are taken out before the text is cut: upper case and spaces before punctuation.
"""

from __future__ import annotations

import random
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from training import corpus, style, wordings

BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
VOCABULARY = 8192

# Runs of newlines are pieces of their own, so that a text tokenizes alike whatever follows it: the trunk of a form and
# its candidates can then be tokenized apart.
SPLIT = r"n't\b|'(?:[sdmt]|ll|ve|re)\b|[\r\n]+| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|[^\S\r\n]+(?!\S)|\s+"

#: The space that tokenised text has before punctuation and clitics.
LOOSE = r" (?=[.,;:!?)\]](?:\s|$)|'(?:s|d|m|ll|ve|re)\b|n't\b)"

#: Where a word stands first in its line or quotation: it gets the space that it has everywhere else.
FIRST = r"(?<=[\n\"“‘])(?=\p{L})"


def train(path: Path, seed: int = 1) -> Tokenizer:
    rng = random.Random(seed)
    loaded = corpus.load("train")
    texts = [" ".join(d.sentences) for d in rng.sample(loaded.prose, min(14000, len(loaded.prose)))]
    texts += ["\n".join(d.sentences) for d in rng.sample(loaded.dialogue, min(6000, len(loaded.dialogue)))]
    tokenised = style.Style(tokenised=True)
    texts += [style.plain(text, tokenised) for text in rng.sample(texts, len(texts) // 4)]
    texts += [
        f"Scores: {label}\n\n- Output: {label}"
        for label in ("Yes", "No", "yes", "no", "True", "False", "good", "bad", "fair", "poor")
    ] * 400
    texts += ["\n\n".join(wordings.all_text()[i : i + 6]) for i in range(0, len(wordings.all_text()), 3)] * 60
    texts += wordings.all_text() * 40  # forms are most of what the judge reads: give their words whole tokens
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace("’", "'"),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(LOOSE), ""),
            normalizers.Replace(Regex(FIRST), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BEGIN, END, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A $B", special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))]
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return tokenizer


def load(path: Path | None = None) -> Tokenizer:
    path = path or corpus.CACHE_DIR / "tokenizer.json"
    return Tokenizer.from_file(str(path)) if path.exists() else train(path)
