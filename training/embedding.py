"""A first guess of the token embeddings from co-occurrence, so that topical likeness is there from the first step."""

from __future__ import annotations

import numpy as np
import torch
from tokenizers import Tokenizer

from training.corpus import CACHE_DIR, Corpus


def start(corpus: Corpus, tokenizer: Tokenizer, hidden: int, std: float = 1.0, window: int = 6) -> torch.Tensor:
    """Factor the positive PMI. Case variants of a token share their counts: outputs are often lower-cased."""
    cached = CACHE_DIR / f"embedding-{tokenizer.get_vocab_size()}-{hidden}.npy"
    if cached.exists():
        return torch.from_numpy(np.load(cached))
    size = tokenizer.get_vocab_size()
    names = [tokenizer.id_to_token(i).lower() for i in range(size)]
    classes = {name: n for n, name in enumerate(dict.fromkeys(names))}
    of = np.array([classes[name] for name in names])
    n = len(classes)
    counts = np.zeros(n * n, dtype=np.float32)
    texts = [" ".join(d.sentences) for d in corpus.prose] + [" ".join(d.sentences) for d in corpus.dialogue[::3]]
    for begin in range(0, len(texts), 500):
        ids = [
            of[e.ids]
            for e in tokenizer.encode_batch(texts[begin : begin + 500], add_special_tokens=False)
            if len(e.ids) > window
        ]
        for distance in range(1, window + 1):
            pairs = np.concatenate([x[:-distance] * n + x[distance:] for x in ids])
            counts += np.bincount(pairs, minlength=n * n).astype(np.float32) / distance
    table = counts.reshape(n, n)
    table = table + table.T
    rows = table.sum(1, keepdims=True) + 1e-6
    columns = (table.sum(0, keepdims=True) + 1e-6) ** 0.75
    pmi = np.log(np.maximum(table * columns.sum() / (rows * columns), 1e-9))
    matrix = torch.from_numpy(np.maximum(pmi, 0.0))
    u, s, _ = torch.svd_lowrank(matrix, q=hidden, niter=3)
    vectors = (u * s.sqrt()).numpy()
    vectors = vectors / (vectors.std() + 1e-9)
    vectors = np.clip(vectors[of], -4, 4)
    noise = np.random.default_rng(0).standard_normal(vectors.shape)
    result = (std * (0.8 * vectors + 0.6 * noise)).astype(np.float32)
    np.save(cached, result)
    return torch.from_numpy(result)
