"""Makes what training needs: `python -m training.prepare`, or for the adapter `python -m training.prepare smol`.

For nano: the cut-up corpus, the tokenizer, the first embeddings. For smol: the corpus, the package's weights as
transformers has them, and summaries that this model writes.
"""

from __future__ import annotations

import argparse

from training import corpus, embedding, smol, tokenizer, written
from training.model import Shape
from training.recipes import CORPORA


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.prepare", description=__doc__)
    parser.add_argument("judge", nargs="?", choices=("nano", "smol"), default="nano")
    parser.add_argument("--hidden", type=int, default=Shape().hidden, help="nano: width of the embeddings")
    parser.add_argument("--minutes", type=float, default=25.0, help="smol: how long it may write summaries of its own")
    parser.add_argument("--device", default="cpu", help="smol: where it writes them")
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
        smol.prepare()
        written.write(60 * options.minutes, CORPORA, options.device)
        print(f"summaries by the model: of {len(written.load())} texts")
        return
    code = tokenizer.load()
    print(f"tokenizer: {code.get_vocab_size()} tokens", flush=True)
    print(f"embeddings: {tuple(embedding.start(corpus.load('train'), code, options.hidden).shape)}")


if __name__ == "__main__":
    main()
