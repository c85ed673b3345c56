"""Trees for a GPU: other processes draw and pack them, and the process that trains reads for their teacher.

A process draws a round of trees, asks what the teacher wants to know of them, grades them by the answers and makes
batches of those of like length.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from training import packing, teacher
from training.packing import Tensors

if TYPE_CHECKING:
    from training.recipes import Adapting

ROUND = 192  # trees that a process draws together
AHEAD = 12  # batches that wait


def rounds(
    recipe: Adapting, rng: random.Random, budget: int, ask: Callable[[list[teacher.Wanted]], Sequence[Any]]
) -> Iterator[Tensors]:
    """Give batches without end; `ask` gives an answer for each tree of a round."""
    code, maker = recipe.tokenizer(), recipe.maker("train", rng)
    while True:
        drawn = [fitted for fitted in (recipe.fresh(maker) for _ in range(ROUND)) if fitted]
        asked = [teacher.wanted(*fitted, code) if fitted[1].leaves else teacher.Wanted() for fitted in drawn]
        trees = []
        for (tree, packed), own, answer in zip(drawn, asked, ask(asked), strict=True):
            own.take(answer)
            trees.append(recipe.graded(tree, packed, own, rng) if packed.leaves else packed)
        for group in packing.batches(trees, budget, rng):
            yield packing.collate(group, rng)


def draw(recipe: Adapting, rank: int, seed: int, budget: int, asked: Any, answers: Any, made: Any) -> None:
    """Make batches, as one of the processes that never use the GPU."""
    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"

    def ask(wanted: list[teacher.Wanted]) -> Any:
        asked.put((rank, pickle.dumps(wanted)))
        return answers.get()

    for data in rounds(recipe, random.Random(seed + rank), budget, ask):
        made.put(pickle.dumps(data))


def answered(net: Any, packed: bytes, dtype: torch.dtype, budget: int) -> list[Any]:
    """Read what a process wants to know."""
    asked: list[teacher.Wanted] = pickle.loads(packed)
    teacher.tell(net, asked, dtype, budget)
    return [wanted.answers() for wanted in asked]


def batches(recipe: Adapting, net: Any, seed: int, budget: int) -> Iterator[Tensors]:
    """Give batches without end; while few of them wait, read for the processes that make them."""
    teacher.rarity(recipe.tokenizer())  # once for all of them
    own = multiprocessing.get_context("fork")  # as they never use the GPU, they may be forks of one that does
    count = max(1, (os.cpu_count() or 2) - 2)
    asked, made = own.Queue(), own.Queue(4 * AHEAD)
    answers = [own.Queue() for _ in range(count)]
    for rank in range(count):
        options = (recipe, rank, seed, budget, asked, answers[rank], made)
        own.Process(target=draw, args=options, daemon=True).start()
    while True:
        if made.qsize() < AHEAD:
            try:
                rank, packed = asked.get(timeout=0.01)
                answers[rank].put(answered(net, packed, recipe.dtype, budget))
                continue
            except queue.Empty:
                pass
        try:
            ready = made.get(timeout=0.1)
        except queue.Empty:
            continue
        yield pickle.loads(ready)
