"""What differs between the judges: where a run starts, what it draws, and how much each loss counts."""

from __future__ import annotations

import argparse
import random
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from tokenizers import Tokenizer

from geval_local.prompt import Prompt
from training import corpus, embedding, gather, initial, shelf, smol, tokenizer
from training.losses import Weights
from training.model import Nano, Shape
from training.packing import Packed
from training.smol import Smol
from training.tasks import WEIGHTS, Maker
from training.teacher import Teacher

#: A trunk that knows how to copy needs few random criteria, and replies need more than a tenth of so few trees.
MORE = {"unseen": 7, "naturalness": 8, "dialogue_coherence": 8, "engagingness": 8, "groundedness": 8}
LONG = 1000  # tokens of a tree
RUNS = Path(__file__).resolve().parent / "runs"


class Recipe:
    """Trains nano: from nothing, on summaries that the rules grade."""

    dtype = torch.bfloat16
    most_lm = 0.12  # share of the positions that the language model learns at
    defaults: ClassVar[dict[str, Any]] = {"workers": 2, "trees": 12, "lr": 0.008}

    def tokenizer(self) -> Tokenizer:
        """Load the judge's tokenizer."""
        return tokenizer.load()

    def start(self, options: argparse.Namespace, new: bool) -> Nano | Smol:
        """Make the network; with `new` as a run starts it."""
        sizes = {name: getattr(options, name) for name in ("hidden", "layers", "heads", "intermediate")}
        net = Nano(Shape(**sizes))
        if new:
            initial.prepare(net, embedding.start(corpus.load("train"), tokenizer.load(), options.hidden, std=1.0))
        return net

    def sizes(self, net: Any) -> dict[str, float]:
        """Give what is needed to make the network again."""
        return dict(net.shape.dictionary())

    def load(self, name: str) -> Nano | Smol:
        """Read a run's network from its checkpoint."""
        state = torch.load(RUNS / name / "checkpoint.pt", weights_only=True)
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

    def renew(self, maker: Maker, share: float) -> float:
        """Set what changes while training goes on; give the share of sources with language-model loss."""
        grow = min(1.0, share / 0.35)
        maker.words = (int(40 + 10 * grow), int(110 + 320 * grow))
        return 0.6 - 0.4 * grow

    def kept(self, tree: Packed) -> float:
        """Tell how often such a tree is used."""
        return 1.0

    def weights(self, share: float) -> Weights:
        """Give the losses' weights."""
        return Weights(language=0.5 - 0.1 * min(1.0, share / 0.35))


@dataclass
class Adapting(Recipe):
    """Trains the adapter of SmolLM2: on the shelf's summaries, graded by rules and likelihoods together."""

    dtype = torch.float32
    most_lm = 0.0
    defaults: ClassVar[dict[str, Any]] = {"workers": 2, "trees": 4, "lr": 0.0002}
    known: int = 0
    raw: list[shelf.Material] = field(default_factory=list)

    def tokenizer(self) -> Tokenizer:
        """Load the judge's tokenizer."""
        return smol.tokenizer().backend_tokenizer

    def start(self, options: argparse.Namespace, new: bool) -> Smol:
        """Make the network with the package's weights."""
        net = Smol().load_trunk()
        if new:
            print(gather.prepare(net, self.maker("train", random.Random(options.seed)), self.tokenizer()), flush=True)
        return net

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
        """Make the source of trees; the shelf must hold something."""
        found = Maker(
            corpus.load(part),
            rng,
            words=(50, 200),
            weights={**WEIGHTS, **MORE},
            corpora=shelf.CORPORA,
            chat=smol.chat(),
        )
        self.known, self.raw = 0, []
        self.restock(found, part)
        if not found.shelf:
            raise SystemExit("The shelf is empty: python -m training.prepare smol")
        return found

    def restock(self, maker: Maker, part: str = "train") -> None:
        """Take in what has been read meanwhile, and measure the teacher's parts anew."""
        folder = shelf.FOLDER / part
        count = len(list(folder.glob("*.pkl")))
        if count > self.known:
            self.raw += shelf.load(folder, self.known)
            self.known = count
            teacher = Teacher.of(self.raw)
            maker.shelf = [teacher.graded(material) for material in self.raw]

    def renew(self, maker: Maker, share: float) -> float:
        """Look for new files on the shelf; no language-model loss on sources."""
        self.restock(maker)
        return 0.0

    def kept(self, tree: Packed) -> float:
        """Tell how often such a tree is used: a long one costs twice as much and has no more labels."""
        return 1.0 if len(tree.trunk) + sum(map(len, tree.leaves)) < LONG else 0.25

    def weights(self, share: float) -> Weights:
        """Give the losses' weights: the dense ones lead at first."""
        return Weights(label=3.0, rank=2.0, flags=4.0 - 2.0 * share, counts=2.0, language=0.0, steps=0.5)


RECIPES: dict[str, Recipe] = {"nano": Recipe(), "smol": Adapting()}
