"""Makes what training needs: `python -m training.prepare`, or for the adapter `python -m training.prepare smol`.

For nano: the cut-up corpus, the tokenizer, the first embeddings. For smol: the package's weights as they are, the
corpus, a shelf of graded summaries that the trunk has read, and trees of them with the states in front of the adapter;
training may start while trees are written.
"""

from __future__ import annotations

import argparse
import random

import torch

from training import corpus, embedding, shelf, smol, states, tokenizer
from training.model import Shape
from training.recipes import RECIPES
from training.tasks import Maker


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.prepare", description=__doc__)
    parser.add_argument("judge", nargs="?", choices=("nano", "smol"), default="nano")
    parser.add_argument("--hidden", type=int, default=Shape().hidden, help="nano: width of the embeddings")
    parser.add_argument("--files", type=int, default=100, help="smol: files of eight sources to read, 40 s each")
    parser.add_argument("--trees", type=int, default=1000, help="smol: trees whose states are kept, 3 s each")
    parser.add_argument("--threads", type=int, default=1, help="smol: threads of the trunk")
    options = parser.parse_args()
    for part in ("train", "held_out"):
        loaded = corpus.load(part)
        words = sum(len(s.split()) for d in [*loaded.prose, *loaded.dialogue] for s in d.sentences)
        print(
            f"{part}: {len(loaded.prose)} texts, {len(loaded.dialogue)} dialogues, "
            f"{len(loaded.facts)} facts, {words / 1e6:.1f} M words",
            flush=True,
        )
    if options.judge == "smol":
        torch.set_num_threads(options.threads)
        if not (smol.FOLDER / "tokenizer.json").exists():
            smol.prepare()
        net, code = smol.Smol(None).load_trunk(), smol.tokenizer()
        for part, files in (("held_out", 3), ("train", options.files)):
            maker = Maker(corpus.load(part), random.Random(part), corpora=shelf.CORPORA)
            shelf.fill(maker, net, code, shelf.FOLDER / part, files)
        frozen, recipe = smol.Smol().load_trunk(), RECIPES["smol"]
        for part, trees in (("held_out", 24), ("train", options.trees)):
            states.fill(recipe.maker(part, random.Random(part)), frozen, states.FOLDER / part, range(trees))
        return
    code = tokenizer.load()
    print(f"tokenizer: {code.get_vocab_size()} tokens", flush=True)
    print(f"embeddings: {tuple(embedding.start(corpus.load('train'), code, options.hidden).shape)}")


if __name__ == "__main__":
    main()
