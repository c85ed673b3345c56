"""Trains a judge, or goes on where it stopped: `python -m training.train --minutes 95`, with `smol` the adapter."""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import Tensor, nn

from training import packing
from training.losses import losses
from training.model import Nano, Shape
from training.recipes import RECIPES, RUNS
from training.smol import Smol


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m training.train", description=__doc__)
    parser.add_argument("judge", nargs="?", choices=list(RECIPES), default="nano")
    parser.add_argument("--name", help="folder under training/runs, the judge's name when absent; resumed if it exists")
    parser.add_argument(
        "--minutes",
        type=float,
        default=100.0,
        help="processor time of one process, on a GPU the wall's; the learning rate follows this clock",
    )
    parser.add_argument("--workers", type=int, help="processes with one thread each (CPU)")
    parser.add_argument("--trees", type=int, help="trees per optimizer step")
    parser.add_argument("--budget", type=int, help="padded tokens per forward pass; on a CPU about one tree")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument(
        "--lr",
        type=float,
        help="rate of nano's matrices (Muon; the rest a quarter of it, AdamW), of the adapter (AdamW)",
    )
    parser.add_argument("--start", type=Path, help="smol, copies: the folder of an adapter that a new run goes on from")
    parser.add_argument("--save-every", type=float, default=180.0, help="seconds between checkpoints")
    for field, value in Shape().dictionary().items():
        if field in {"hidden", "layers", "heads", "intermediate"}:
            parser.add_argument(f"--{field}", type=int, default=int(value))
    return parser


def progress_rate(share: float) -> float:
    """Warm up, hold, then go in a straight line to nearly nothing: any time budget ends at the lowest rate."""
    if share < 0.02:
        return max(0.05, share / 0.02)
    return 1.0 if share < 0.4 else max(0.02, (1.0 - share) / 0.6)


class Optimizer:
    """Muon for whole matrices inside the layers, AdamW for all else: embeddings, norms, auxiliary heads, adapters."""

    def __init__(self, net: nn.Module, lr: float) -> None:
        trained = [(n, p) for n, p in net.named_parameters() if p.requires_grad]
        inner = [p for n, p in trained if p.dim() == 2 and n.startswith("layers.") and ".lora_" not in n]
        outer = [p for n, p in trained if not any(p is q for q in inner)]
        self.parts: dict[str, tuple[torch.optim.Optimizer, float]] = {}
        if inner:
            self.parts["muon"] = torch.optim.Muon(inner, lr=lr, weight_decay=0.01, momentum=0.95), lr
        slow = lr / 4 if inner else lr
        self.parts["adam"] = torch.optim.AdamW(outer, lr=slow, betas=(0.9, 0.98), weight_decay=0.0), slow

    def step(self, rate: float) -> None:
        """Apply the gradients at a share of the full rate."""
        for optimizer, lr in self.parts.values():
            for group in optimizer.param_groups:
                group["lr"] = lr * rate
            optimizer.step()

    def state(self) -> dict[str, Any]:
        """Give the states for a checkpoint, the running means in half their size."""
        states = {name: optimizer.state_dict() for name, (optimizer, _) in self.parts.items()}
        for state in states.values():
            state["state"] = {
                n: {k: v.bfloat16() if v.dim() else v for k, v in own.items()} for n, own in state["state"].items()
            }
        return states

    def restore(self, state: dict[str, Any]) -> None:
        """Take the states from a checkpoint."""
        for name, (optimizer, _) in self.parts.items():
            optimizer.load_state_dict(state[name])


def trained(net: nn.Module) -> dict[str, Tensor]:
    """Give what training changes: all that a checkpoint holds."""
    return {name: p.detach() for name, p in net.named_parameters() if p.requires_grad}


def work(rank: int, options: argparse.Namespace, net: Nano | Smol, shared: dict[str, Any]) -> None:
    """One process. All share the weights; each takes trees until the step has enough; the first applies the step."""
    if rank:
        os.setsid()  # the kernel shares the processors out by sessions
    torch.set_num_threads(1 if options.device == "cpu" else 8)
    device = torch.device(options.device)
    seed = options.seed + 1000 * rank + shared["first_step"]
    torch.manual_seed(seed)
    rng = random.Random(seed)
    recipe = RECIPES[options.judge]
    source = recipe.stream(net, rng, shared["share"], options.budget)
    data: packing.Tensors | None = next(source)  # before the clock starts: on a GPU the first are waited for
    parameters = [p for p in net.parameters() if p.requires_grad]
    grads: Tensor = shared["grads"][rank]
    if rank == 0:
        optimizer = Optimizer(net, options.lr)
        folder = RUNS / options.name
        checkpoint = folder / "checkpoint.pt"
        if checkpoint.exists():
            try:
                optimizer.restore(torch.load(checkpoint, weights_only=True, map_location="cpu")["optimizer"])
            except (KeyError, ValueError):  # none yet, or another set of parameters: the momenta start anew
                print("the optimizer starts afresh", flush=True)
        elapsed: float = shared["elapsed"]
        # on a shared machine the wall's clock would end a run that hardly trained; a GPU's work is not the process's
        clock = time.process_time if device.type == "cpu" else time.monotonic
        ticked, saved, logged = clock(), time.time(), time.time()
        totals: dict[str, float] = defaultdict(float)
    step = shared["first_step"]
    while not shared["stop"].value:
        for p in parameters:
            p.grad = None
        parts: dict[str, float] = defaultdict(float)
        weights = recipe.weights(shared["share"].value)
        while True:
            data = data or next(source)
            count = len(data.batch.trunk)
            with shared["taken"].get_lock():
                if shared["taken"].value >= options.trees:
                    break  # keep `data` for the next step
                shared["taken"].value += count
            if device.type != "cpu":
                data = packing.to(data, device)
            total, values = losses(net, data, weights, recipe.dtype, recipe.most_lm)
            (total * count / options.trees).backward()
            for key, value in values.items():
                parts[key] += value * count
            parts["trees"] += count
            parts["leafy"] += count if "label" in values else 0
            parts["tokens"] += data.tokens
            data = None
        flat = [p.grad.reshape(-1) if p.grad is not None else torch.zeros(p.numel(), device=device) for p in parameters]
        grads.copy_(torch.cat(flat))
        shared["parts"][rank] = torch.tensor([parts[k] for k in KEYS])
        shared["barrier"].wait()
        if rank == 0:
            summed = shared["grads"].sum(0)
            norm = summed.norm().item()
            if math.isfinite(norm):
                summed *= min(1.0, recipe.clip / (norm + 1e-6))
                start = 0
                for p in parameters:
                    p.grad = summed[start : start + p.numel()].view_as(p)
                    start += p.numel()
                now = clock()
                elapsed += now - ticked
                ticked = now
                shared["share"].value = elapsed / (options.minutes * 60)
                optimizer.step(progress_rate(shared["share"].value))
            shared["taken"].value = 0
            step += 1
            for key, value in zip(KEYS, shared["parts"].sum(0).tolist(), strict=True):
                totals[key] += value
            totals["norm"] += norm
            totals["steps"] += 1
            now = time.time()
            if now - logged > 30:
                report(folder, step, elapsed, totals, now - logged)
                totals, logged = defaultdict(float), now
            if now - saved > options.save_every or shared["share"].value >= 1.0:
                saved = now
                torch.save(
                    {
                        "net": trained(net),
                        "optimizer": optimizer.state(),
                        "step": step,
                        "elapsed": elapsed,
                        "shape": recipe.sizes(net),
                    },
                    checkpoint.with_suffix(".new"),
                )
                os.replace(checkpoint.with_suffix(".new"), checkpoint)
            shared["stop"].value = int(shared["share"].value >= 1.0)
        shared["barrier"].wait()


LOSSES = ("label", "rank", "right", "flags", "counts", "told", "lm", "steps_lm", "mass")
KEYS = (*LOSSES, "trees", "leafy", "tokens")


def report(folder: Path, step: int, elapsed: float, totals: dict[str, float], seconds: float) -> None:
    trees = dict.fromkeys(KEYS, totals["leafy"] or 1.0) | {"steps_lm": totals["trees"] or 1.0}
    line = {
        "step": step,
        "minutes": round(elapsed / 60, 2),
        **{k: round(totals[k] / trees[k], 4) for k in LOSSES},
        "norm": round(totals["norm"] / totals["steps"], 2),
        "tokens": int(totals["tokens"]),
        "tokens_per_s": int(totals["tokens"] / seconds),
    }
    with (folder / "log.jsonl").open("a") as handle:
        handle.write(json.dumps(line) + "\n")
    print(json.dumps(line), flush=True)


def main() -> None:
    options = arguments().parse_args()
    recipe = RECIPES[options.judge]
    options.name = options.name or options.judge
    for name, value in (recipe.defaults if options.device == "cpu" else recipe.on_gpu).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    folder = RUNS / options.name
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # before the fork: a forked OpenMP pool would hang
    torch.manual_seed(options.seed)
    checkpoint = folder / "checkpoint.pt"
    first, elapsed = 0, 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True, map_location="cpu")
        net = recipe.load(options.name)
        first, elapsed = state["step"], state["elapsed"]
    else:
        net = recipe.start(options)
        torch.save({"net": trained(net), "step": 0, "elapsed": 0.0, "shape": recipe.sizes(net)}, checkpoint)
    net.to(options.device)
    size = sum(p.numel() for p in net.parameters() if p.requires_grad)
    print(
        f"{size / 1e6:.2f} M trained parameters, step {first}, "
        f"{elapsed / 60:.1f} of {options.minutes:.0f} minutes done",
        flush=True,
    )
    workers = options.workers if options.device == "cpu" else 1
    shared = {
        "grads": torch.zeros(workers, size, device=options.device),
        "parts": torch.zeros(workers, len(KEYS)),
        "barrier": mp.Barrier(workers),
        "taken": mp.Value("i", 0),
        "stop": mp.Value("i", 0),
        "share": mp.Value("d", elapsed / (options.minutes * 60)),
        "first_step": first,
        "elapsed": elapsed,
    }
    if workers == 1:
        work(0, options, net, shared)
        return
    net.share_memory()
    shared["grads"].share_memory_()
    shared["parts"].share_memory_()
    mp.set_start_method("fork", force=True)
    children = [mp.Process(target=work, args=(rank, options, net, shared), daemon=True) for rank in range(1, workers)]
    for child in children:
        child.start()
    work(0, options, net, shared)
    for child in children:
        child.join()


if __name__ == "__main__":
    main()
