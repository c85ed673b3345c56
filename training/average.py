"""Averages adapters of several runs: `python -m training.average .5 RUN .5 OTHER --to FOLDER`.

Runs that go on from one another lie near enough that the mean of their weights judges better than most of them alone
(Wortsman et al., 2022, "Model soups"). Runs that began apart change the trunk in other directions, and their mean would
change it less than each: their weights may add up to more than 1 (Ilharco et al., 2023, "task arithmetic"). What a run
changed is its adapter less the one that it went on from: a weight below 0. The sum of the products of the low-rank maps
is brought back to their rank.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from geval_local.models.fingerprint import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from training import export


def mean(adapters: Sequence[dict[str, Tensor]], weights: Sequence[float]) -> tuple[dict[str, Tensor], float]:
    """Add up the weighted products of the maps by their singular values; also give the share of the squares kept.

    Where an adapter has no maps for a matrix, it adds nothing there.
    """
    found: dict[str, Tensor] = {}
    kept = total = 0.0
    for name in sorted({name for adapter in adapters for name in adapter if ".lora_A." in name}):
        other = name.replace(".lora_A.", ".lora_B.")
        parts = [(w, adapter) for w, adapter in zip(weights, adapters, strict=True) if name in adapter]
        rank = len(parts[0][1][name])
        # The sum of products is one product of all maps beside each other, so no whole matrix is made.
        narrow = torch.cat([adapter[name].float() for _, adapter in parts])
        wide = torch.cat([w * adapter[other].float() for w, adapter in parts], 1)
        out, left = torch.linalg.qr(wide)
        into, right = torch.linalg.qr(narrow.T)
        u, s, v = torch.linalg.svd(left @ right.T)
        root = s[:rank].sqrt()
        found[other] = (out @ u[:, :rank] * root).half().contiguous()
        found[name] = (root[:, None] * (v[:rank] @ into.T)).half().contiguous()
        kept, total = kept + float(s[:rank].square().sum()), total + float(s.square().sum())
    return found, kept / total


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.average", description=__doc__)
    parser.add_argument("parts", nargs="+", metavar="WEIGHT FOLDER", help="weights, and adapters")
    parser.add_argument("--to", type=Path, required=True)
    options = parser.parse_args()
    folders = [Path(folder) for folder in options.parts[1::2]]
    try:
        weights = [float(weight) for weight in options.parts[::2]]
    except ValueError as error:
        parser.error(f"one weight before each folder: {error}")
    if len(weights) != len(folders) or not all(weight and math.isfinite(weight) for weight in weights):
        parser.error("one weight other than 0 before each folder")
    for folder in folders:
        if not (folder / ADAPTER_WEIGHTS).is_file() or not (folder / ADAPTER_CONFIG).is_file():
            parser.error(f"{folder} holds no adapter: it needs {ADAPTER_WEIGHTS} and {ADAPTER_CONFIG}")
    if options.to.exists():
        parser.error(f"{options.to} exists; name a new folder")
    settings = [json.loads((folder / ADAPTER_CONFIG).read_text()) for folder in folders]
    layers = sorted({layer for own in settings for layer in own.pop("layers_to_transform")})
    if any(own != settings[0] for own in settings):
        parser.error("adapters that differ in their layers only: their settings differ")
    found, kept = mean([load_file(folder / ADAPTER_WEIGHTS) for folder in folders], weights)
    options.to.mkdir(parents=True)
    export.save_maps(found, options.to)
    export.save_settings(settings[0] | {"layers_to_transform": layers}, options.to)
    print(f"{options.to}: the weighted sum of {len(folders)} adapters, {kept:.4f} of it at their rank")


if __name__ == "__main__":
    main()
