"""Which library computes float32 products faster on this processor: `python benchmarks/products.py`.

Interleaved, best of several runs of each; the error is against float64. The last line is one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from machine import machine

#: Rows of a pack, and the sides of the matrices of SmolLM2-135M and of an 8 B model.
SHAPES = [(3072, 576, 1536), (3072, 1536, 576), (2048, 4096, 4096), (256, 576, 1536), (64, 576, 1536), (8, 576, 1536)]
ROUNDS = 12


def seconds(work: Callable[[], torch.Tensor]) -> float:
    """Time a product once."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Print a line for each shape."""
    torch.manual_seed(0)
    found = []
    for rows, inner, columns in SHAPES:
        given, weight = torch.randn(rows, inner), torch.randn(columns, inner)
        arms = {
            "PyTorch's choice": lambda given=given, weight=weight: torch.nn.functional.linear(given, weight),
            "oneDNN": lambda given=given, weight=weight: torch.ops.mkldnn._linear_pointwise(
                given, weight, None, "none", [], ""
            ),
        }
        taken: dict[str, list[float]] = {name: [] for name in arms}
        for _ in range(ROUNDS):
            for name, work in arms.items():
                taken[name].append(seconds(work))
        exact = given.double() @ weight.double().T
        rates = {name: 2e-9 * rows * inner * columns / min(own) for name, own in taken.items()}
        errors = {name: float((work().double() - exact).abs().max()) for name, work in arms.items()}
        shown = ", ".join(f"{name} {rates[name]:.0f} GFLOP/s, error {errors[name]:.1e}" for name in arms)
        print(f"{rows} x {inner} by {inner} x {columns}: {shown}")
        found.append({"shape": [rows, inner, columns], "rates": rates, "errors": errors})
    print(json.dumps({"machine": machine(), "products": found}))


if __name__ == "__main__":
    main()
