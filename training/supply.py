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
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from training import packing, teacher
from training.packing import Tensors

if TYPE_CHECKING:
    from training.recipes import Adapting

ROUND = 192  # trees that a process draws together
AHEAD = 12  # batches that wait


def draw(recipe: Adapting, rank: int, seed: int, budget: int, asked: Any, answers: Any, made: Any) -> None:
    """Make batches without end, as one of the processes that never use the GPU."""
    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    rng, code = random.Random(seed + rank), recipe.tokenizer()
    maker = recipe.maker("train", rng)
    while True:
        round_ = [fitted for fitted in (recipe.fresh(maker) for _ in range(ROUND)) if fitted]
        told = [teacher.wanted(*fitted, code) if fitted[1].leaves else teacher.Wanted() for fitted in round_]
        asked.put((rank, pickle.dumps(told)))
        for own, answer in zip(told, answers.get(), strict=True):
            own.take(answer)
        trees = [
            recipe.graded(*fitted, own, rng) if fitted[1].leaves else fitted[1]
            for fitted, own in zip(round_, told, strict=True)
        ]
        for group in packing.batches(trees, budget, rng):
            made.put(pickle.dumps(packing.collate(group, rng)))


def batches(recipe: Adapting, net: Any, seed: int, budget: int) -> Iterator[Tensors]:
    """Give batches without end; while few of them wait, read for the processes that make them."""
    own = multiprocessing.get_context("fork")  # as they never use the GPU, they may be forks of one that does
    teacher.rarity(recipe.tokenizer())  # once for all of them
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
            except queue.Empty:
                pass
            else:
                told = pickle.loads(packed)
                teacher.tell(net, told, recipe.dtype, budget)
                answers[rank].put([wanted.answers() for wanted in told])
                continue
        try:
            yield pickle.loads(made.get(timeout=0.1))
        except queue.Empty:
            continue
