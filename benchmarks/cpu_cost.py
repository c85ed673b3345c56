"""What a judge costs on this machine's processor, by engine and dtype, and what one of 8 B parameters would.

    PYTHON benchmarks/cpu_cost.py nano smol DIR [--eight-billion TOKENIZER] [--output RECORD.json]

PYTHON is that of an environment with vLLM; without it only the own engine is timed. Rows are those of
`judges check --speed`. One of 8 B parameters takes too long for a benchmark: a model of Qwen3-8B's shape with random
weights is timed with 2 and with 4 layers, and the time of its 36 layers follows from both; it has the vocabulary of
TOKENIZER, a model directory. Each arm is a process of its own, and rows are counted by the clock: nothing else may run.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from machine import save
from rich.console import Console

#: Qwen3-8B's, and the numbers of layers that are timed.
LAYERS, TIMED = 36, (2, 4)


def write_layers(tokenizer: Path, layers: int, directory: Path) -> None:
    """Write a model of Qwen3-8B's shape with so many layers and random weights."""
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    shape = {"hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8}
    vocabulary = len(AutoTokenizer.from_pretrained(tokenizer))
    config = Qwen3Config(**shape, num_hidden_layers=layers, head_dim=128, vocab_size=vocabulary)
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (tokenizer / name).exists():
            shutil.copy(tokenizer / name, directory)


def times(judge: str) -> dict[tuple[str, str], float]:
    """Return the seconds that a row takes, by engine and dtype."""
    from geval_local import Metric
    from geval_local.judge.speed import measure
    from geval_local.options import JudgeOptions

    steps = ("Read the source text.", "Compare the summary with it.", "Rate coherence on the scale given above.")
    metric = Metric.load("summarization/coherence").with_steps(steps)
    return {
        (one.arm.engine, one.arm.dtype): 60 / one.rows_per_minute for one in measure(JudgeOptions(name=judge), metric)
    }


def times_of_layers(tokenizer: Path, layers: int) -> dict[tuple[str, str], float]:
    """Return what a row takes with so many layers of 8 B parameters' shape."""
    with TemporaryDirectory(prefix="cpu-cost-") as folder:
        write_layers(tokenizer, layers, Path(folder))
        return times(folder)


def main() -> None:
    """Time the judges and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("judges", nargs="+")
    parser.add_argument("--eight-billion", type=Path, metavar="TOKENIZER")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    found: dict[str, dict[tuple[str, str], float]] = {Path(name).name: times(name) for name in given.judges}
    if given.eight_billion:
        low, high = (times_of_layers(given.eight_billion, layers) for layers in TIMED)
        found["8 B (computed)"] = {
            arm: low[arm] + (LAYERS - TIMED[0]) * (high[arm] - low[arm]) / (TIMED[1] - TIMED[0]) for arm in low
        }
    console, records = Console(record=True, width=120), list[dict[str, Any]]()
    for judge, arms in found.items():
        for (engine, dtype), seconds in sorted(arms.items()):
            console.print(f"{judge:24} {engine:6} {dtype:9} {seconds:8.3f} s a row", highlight=False)
            records.append({"judge": judge, "engine": engine, "dtype": dtype, "seconds": seconds})
    if given.output is not None:
        save(console, given.output, records)


if __name__ == "__main__":
    main()
