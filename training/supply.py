"""Trees for a GPU: other processes draw and pack them, and one more reads for their teacher.

A process draws a round of trees, asks what the teacher wants to know of them, grades them by the answers and makes
batches of those of like length.
"""

from __future__ import annotations

import contextlib
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
from training.smol import Smol

if TYPE_CHECKING:
    from training.recipes import Adapting

ROUND = 384  # trees that a process draws together
AHEAD = 24  # batches that wait
WAIT = 10.0  # seconds until the processes that make them are looked after


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


def read(device: torch.device, dtype: torch.dtype, budget: int, asked: Any, answers: Sequence[Any]) -> None:
    """Read for the processes that draw, as one that never trains."""
    torch.set_num_threads(1)
    net = Smol(adapter=None).load_trunk().to(device)
    while True:
        rank, packed = asked.get()
        answers[rank].put(answered(net, packed, dtype, budget))


def batches(recipe: Adapting, device: torch.device, seed: int, budget: int) -> Iterator[Tensors]:
    """Give batches without end, which other processes make; one of these uses the GPU too."""
    teacher.rarity(recipe.tokenizer())  # once for all of them
    apart, forked = multiprocessing.get_context("spawn"), multiprocessing.get_context("fork")
    count = max(1, (os.cpu_count() or 2) - 2)
    asked, made = apart.Queue(), apart.Queue(AHEAD)
    answers = [apart.Queue() for _ in range(count)]
    reader = apart.Process(target=read, args=(device, recipe.dtype, budget, asked, answers), daemon=True)
    drawing = [  # as these never use the GPU, they may be forks of a process that does
        forked.Process(target=draw, args=(recipe, rank, seed, budget, asked, answers[rank], made), daemon=True)
        for rank in range(count)
    ]
    for process in (reader, *drawing):
        process.start()
    try:
        while all(process.is_alive() for process in (reader, *drawing)):
            with contextlib.suppress(queue.Empty):
                yield pickle.loads(made.get(timeout=WAIT))
        raise SystemExit("a process that makes trees has ended; its error stands above")
    finally:
        for process in (reader, *drawing):
            process.terminate()
