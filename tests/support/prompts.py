"""Token prompts for tests of the engines, and the engines' results."""

from __future__ import annotations

import weakref

import numpy as np
import torch
from tiny import KINDS

from geval_local.tokens.label_trie import LabelTrie, SurfaceForm
from geval_local.tokens.requests import Request

VOCAB = 61
MUST_FALL_BACK = {"gptj", "falcon", "bloom", "mpt", "falcon_h1", "mamba", "mamba2"}
SERVED = [kind for kind in KINDS if kind not in MUST_FALL_BACK]


def label_trie(*paths):
    return LabelTrie([SurfaceForm(number, str(path), path) for number, path in enumerate(paths)], len(paths))


FLAT = label_trie((1,), (2,), (3,))
DEEP = label_trie((1,), (1, 4), (1, 4, 5), (2, 6), (7, 8, 9))


def request(ids, trie=FLAT):
    return Request(np.array(ids, dtype=np.int32), trie)


def documents(seed=0, stem=13, documents=3, candidates=4):
    """Prompts as in an evaluation, and unusual ones: duplicates, prefixes, single tokens."""
    random = np.random.default_rng(seed)
    prefix = random.integers(0, VOCAB, stem)
    made = [request(prefix, DEEP), request(prefix[:1]), request([5], DEEP), request([5], DEEP)]
    for _ in range(documents):
        document = np.concatenate([prefix, random.integers(0, VOCAB, random.integers(5, 40))])
        for number in range(candidates):
            tail = random.integers(0, 3, random.integers(0, 12))
            made.append(request(np.concatenate([document, tail]), DEEP if number % 2 else FLAT))
    made.append(made[-1])
    return [made[index] for index in random.permutation(len(made))]


def readouts(engine, requests):
    found = {}
    for pack, results in engine.execute(requests, engine.plan(requests)):
        for index, readout in zip(pack.requests, results, strict=True):
            assert index not in found
            found[index] = readout
    return [found[index] for index in range(len(requests))]


def logprobs(engine, requests):
    return [readout.label_logprobs for readout in readouts(engine, requests)]


def largest_difference(first, second):
    return max(np.abs(one - other).max() for one, other in zip(first, second, strict=True))


def by_plain_passes(model, one):
    """Label log-probabilities by the whole model: a pass for every inner node, over the tokens up to it and no more."""
    edges = np.empty(one.trie.edges)
    for node, part in zip(one.trie.inner_nodes, one.trie.edge_slices, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*one.ids.tolist(), *node.path]]), use_cache=False).logits[0, -1]
        edges[part] = torch.log_softmax(logits.double(), dim=-1)[list(node.tokens)].numpy()
    return one.trie.label_logprobs(edges)


def distinct_tokens(requests):
    sequences = [(*entry.ids.tolist(), *path) for entry in requests for path in entry.trie.reading_paths]
    return len({sequence[: size + 1] for sequence in sequences for size in range(len(sequence))})


def logprobs_in_turns(engine, first, second):
    """Run an engine over two lists of requests at once, pack by pack in turns."""
    found = ({}, {})
    runs = [engine.execute(requests, engine.plan(requests)) for requests in (first, second)]
    while runs[0] or runs[1]:
        for number in (0, 1):
            step = next(runs[number], None) if runs[number] else None
            if step is None:
                runs[number] = None
                continue
            found[number].update(zip(step[0].requests, step[1], strict=True))
    return [
        [results[index].label_logprobs for index in range(len(requests))]
        for requests, results in zip((first, second), found, strict=True)
    ]


def short_of_memory(forward, fails):
    """Give a trunk's forward that runs out of memory whenever `fails(input_ids, **options)`, and the sizes it saw."""
    sizes, alive = [], []

    def limited(input_ids, **options):
        # What an earlier failure held must be gone by the time of the retry.
        assert not any(reference() is not None for reference in alive)
        sizes.append(input_ids.numel())
        if fails(input_ids, **options):
            activations = torch.empty(10)
            alive.append(weakref.ref(activations))
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return forward(input_ids=input_ids, **options)

    return limited, sizes
