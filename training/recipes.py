"""What differs between the judges: where a run starts, what it draws, and how much each loss counts."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import torch
from tokenizers import Tokenizer

from geval_local.prompt import Prompt
from training import corpus, embedding, initial, packing, smol, supply, teacher, tokenizer, written
from training.losses import Weights
from training.model import Nano, Shape
from training.packing import Packed, Tensors
from training.smol import Smol
from training.tasks import Maker, Tree

#: How often the adapter's trees ask for each concept: of so few, most are of summaries and replies.
FEW = {
    "coherence": 7,
    "consistency": 4,
    "relevance": 9,
    "fluency": 8,
    "factual": 5,
    "faithfulness": 1,
    "naturalness": 1.4,
    "dialogue_coherence": 2.2,
    "engagingness": 1.2,
    "groundedness": 1.6,
    "understandability": 0.8,
    "unseen": 4,
    "correctness": 0.4,
    "data_naturalness": 0.2,
    "informativeness": 0.3,
    "answer_relevance": 0.3,
    "context_relevance": 0.2,
    "tone": 0.2,
    "safety": 0.2,
}
#: Fiction fills most of the corpus; a judge of articles should read more of what is written like one.
CORPORA = {"nltk": 30, "wikitext2": 22, "squality": 14, "standardebooks": 12, "scitldr": 10, "ud_ewt": 6, "factbook": 6}
LONGEST = 1800  # tokens of a tree of the adapter's
FEWEST = 5  # candidates, so that a tree is worth its source
LEAVES = 12  # candidates of a source: what they share is most of the cost
KEPT = 60  # trees at hand for another reading
READINGS = 3
RUNS = Path(__file__).resolve().parent / "runs"


class Recipe:
    """Trains nano: from nothing, on summaries that the rules grade."""

    dtype = torch.bfloat16
    clip = 2.0  # longest gradient
    most_lm = 0.12  # share of the positions that the language model learns at
    defaults: ClassVar[dict[str, Any]] = {"workers": 2, "trees": 12, "budget": 1000, "lr": 0.008}
    on_gpu: ClassVar[dict[str, Any]] = {"trees": 256, "budget": 60000, "lr": 0.008}

    def tokenizer(self) -> Tokenizer:
        """Load the judge's tokenizer."""
        return tokenizer.load()

    def start(self, options: argparse.Namespace) -> Nano | Smol:
        """Make the network as a run starts it."""
        sizes = {name: getattr(options, name) for name in ("hidden", "layers", "heads", "intermediate")}
        net = Nano(Shape(**sizes))
        initial.prepare(net, embedding.start(corpus.load("train"), tokenizer.load(), options.hidden, std=1.0))
        return net

    def sizes(self, net: Any) -> dict[str, float]:
        """Give what is needed to make the network again."""
        return dict(net.shape.dictionary())

    def load(self, name: str) -> Nano | Smol:
        """Read a run's network from its checkpoint."""
        state = torch.load(RUNS / name / "checkpoint.pt", weights_only=True, map_location="cpu")
        net = self.again(state["shape"])
        net.load_state_dict(state["net"], strict=False)
        return net

    def again(self, sizes: dict[str, Any]) -> Nano | Smol:
        """Make the network of such sizes."""
        return Nano(Shape(**sizes))

    def form(self, prompt: Prompt, style: str) -> str:
        """Write a prompt as the judge reads it."""
        return prompt.text

    def maker(self, part: str, rng: random.Random) -> Maker:
        """Make the source of trees."""
        return Maker(corpus.load(part), rng)

    def stream(self, net: Any, rng: random.Random, share: Any, budget: int) -> Iterator[Tensors]:
        """Give batches without end; sources grow while training goes on, and fewer of them teach the language."""
        maker, code = self.maker("train", rng), self.tokenizer()
        while True:
            grow = min(1.0, share.value / 0.35)
            maker.words = (int(40 + 10 * grow), int(110 + 320 * grow))
            trees: list[Packed] = []
            while len(trees) < (24 if budget < 4000 else 512):
                tree = maker.tree()
                packed = packing.pack(tree, code, rng, 0.6 - 0.4 * grow) if tree else None
                if packed and len(packed.trunk) < 1100:
                    trees.append(packed)
            for group in packing.batches(trees, budget, rng):
                yield packing.collate(group, rng)

    def weights(self, share: float) -> Weights:
        """Give the losses' weights."""
        return Weights(language=0.5 - 0.1 * min(1.0, share / 0.35))


class Adapting(Recipe):
    """Trains the adapter of SmolLM2: fresh trees, whose summaries the teacher grades with the trunk that is at hand."""

    clip = 1.0
    most_lm = 0.0
    defaults: ClassVar[dict[str, Any]] = {"workers": 2, "trees": 4, "budget": 1000, "lr": 0.001}
    on_gpu: ClassVar[dict[str, Any]] = {"trees": 48, "budget": 48000, "lr": 0.0015}

    def tokenizer(self) -> Tokenizer:
        """Load the judge's tokenizer."""
        return smol.tokenizer().backend_tokenizer

    def start(self, options: argparse.Namespace) -> Smol:
        """Make the network with the package's weights, or with an adapter to go on from, in its sizes."""
        if options.start is None:
            return Smol().load_trunk()
        return Smol(smol.Adapter.of(options.start)).load_trunk().load_adapter(options.start)

    def sizes(self, net: Smol) -> dict[str, float]:
        """Give the adapter's sizes."""
        return asdict(net.adapter) if net.adapter else {}

    def again(self, sizes: dict[str, Any]) -> Smol:
        """Make the network with an adapter of such sizes."""
        return Smol(smol.Adapter(**sizes)).load_trunk()

    def form(self, prompt: Prompt, style: str) -> str:
        """Write a prompt as the judge reads it: a chat, or in one text."""
        if style == "completion":
            return prompt.text
        before, after = smol.chat()
        return before + prompt.question + after + prompt.cue

    def maker(self, part: str, rng: random.Random) -> Maker:
        """Make the source of trees."""
        return Maker(
            corpus.load(part),
            rng,
            count=LEAVES,
            weights=FEW,
            corpora=CORPORA,
            chat=smol.chat(),
            chatty=0.12,
            writing=0.2,
            mild=0.9,
            several=0.55,
            worded=0.4,
            versions=0.2,
            copies=0.7,
            written=written.load() if part == "train" else {},
        )

    def fresh(self, maker: Maker) -> tuple[Tree, Packed] | None:
        """Draw a tree, its source short or long; None where it does not fit."""
        maker.words = (50, 220) if maker.rng.random() < 0.55 else (250, 430)
        return self.fitted(maker)

    def fitted(self, maker: Maker) -> tuple[Tree, Packed] | None:
        """Draw a tree with a source of the maker's length; None where it does not fit."""
        drawn = maker.tree()
        return packing.fit(drawn, self.tokenizer(), maker.rng, LONGEST, FEWEST) if drawn else None

    def draw(self, net: Smol, maker: Maker) -> Packed | None:
        """Draw a tree, read it by the trunk and let the teacher grade it; None where it does not fit."""
        fitted = self.fresh(maker)
        if fitted is None or not fitted[1].leaves:
            return fitted and fitted[1]
        tree, packed = fitted
        packed.states = net.below(packing.collate_trees([packed]), self.dtype)
        told = teacher.wanted(tree, packed, self.tokenizer())
        teacher.tell(net, [told], self.dtype)
        return self.graded(tree, packed, told, maker.rng)

    def graded(self, tree: Tree, packed: Packed, told: teacher.Wanted, rng: random.Random) -> Packed:
        """Pack a tree again with the labels that the teacher gives it."""
        code = self.tokenizer()
        graded = packing.pack(teacher.grade(tree, told, code), code, rng, 0.0)
        if graded is None:
            return packed
        if packed.told:
            rows = zip(packed.told, graded.leaves, strict=True)  # after the candidate the label's tokens may differ
            graded.told = [(row + [float("nan")] * 9)[: len(leaf)] for row, leaf in rows]
        graded.states = packed.states if graded.leaves == packed.leaves else None
        return graded

    def stream(self, net: Any, rng: random.Random, share: Any, budget: int) -> Iterator[Tensors]:
        """Give trees without end, one at a time; each with states is read three times, as what is dear is the trunk.

        On a GPU other processes draw them, many together, and each is read once.
        """
        device = net.embed_tokens.weight.device
        if device.type != "cpu":
            yield from supply.batches(self, device, rng.randrange(2**31), budget)
        maker = self.maker("train", rng)
        kept: list[tuple[Packed, int]] = []
        while True:
            if len(kept) >= KEPT and rng.random() < 2 / 3:
                packed, left = kept.pop(rng.randrange(len(kept)))
            else:
                drawn = self.draw(net, maker)
                if drawn is None:
                    continue
                packed, left = drawn, READINGS if drawn.states is not None else 1
            if left > 1:
                kept.append((packed, left - 1))
            data = packing.collate([packed], rng)
            data.batch.states = packed.states
            yield data

    def weights(self, share: float) -> Weights:
        """Give the losses' weights; the auxiliary ones lead to the evidence, and go."""
        rest = max(0.0, 1.0 - share / 0.7)
        return Weights(
            label=1.5, rank=3.0, flags=1.0 * rest, counts=0.5 * rest, language=0.0, steps=0.5, told=0.5 * rest
        )


class Copies(Adapting):
    """Goes on from an adapter (`--start`), mostly on short sources.

    It teaches what a long run teaches too little: that a copy of the source is no summary, and whether all of a text is
    supported, which is another question than how much of it.
    """

    defaults: ClassVar[dict[str, Any]] = Adapting.defaults | {"lr": 0.0004}
    on_gpu: ClassVar[dict[str, Any]] = Adapting.on_gpu | {"lr": 0.0004}

    def start(self, options: argparse.Namespace) -> Smol:
        """Make the network with the adapter to go on from."""
        if options.start is None:
            raise SystemExit("copies: name the adapter to go on from, --start FOLDER")
        return super().start(options)

    def maker(self, part: str, rng: random.Random) -> Maker:
        """Make the source of trees."""
        found = super().maker(part, rng)
        found.copies, found.writing = 0.85, 0.1
        found.weights = FEW | {"factual": 24, "consistency": 9, "coherence": 5, "relevance": 5, "fluency": 5}
        return found

    def fresh(self, maker: Maker) -> tuple[Tree, Packed] | None:
        """Draw a tree, two in three with a source that is short enough for a copy; None where it does not fit."""
        maker.words = (50, 170) if maker.rng.random() < 0.67 else (250, 430)
        return self.fitted(maker)

    def weights(self, share: float) -> Weights:
        """Give the losses' weights: the heads of the auxiliary ones are new, and what they ask for was learnt."""
        return super().weights(1.0)


RECIPES: dict[str, Recipe] = {"nano": Recipe(), "smol": Adapting(), "copies": Copies()}
