"""Rated rows, a second tiny judge, and runs of both over them, for the tests of the analysis verbs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from cli_run import METRIC, judge_directory, run, write_rows
from tiny import byte_tokenizer, save_judge, tiny_model

_DIRECTORY = TemporaryDirectory(prefix="other-judge-")


@cache
def other_judge() -> Path:
    """Another random Llama with the same tokenizer."""
    tokenizer = byte_tokenizer(chat=False)
    return save_judge(
        Path(_DIRECTORY.name), tiny_model("llama", len(tokenizer), dtype=torch.float32, seed=5), tokenizer
    )


def rated_rows(documents: int = 6) -> list[dict[str, object]]:
    """Two texts per document, by a person and by a machine, with ratings that vary within and between documents."""
    return [
        {
            "id": f"d{document}-{side}",
            "doc": f"d{document}",
            "side": side,
            "source": "A tale of old. " * (document % 3 + 1),
            "output": f"It {'ends' if side == 'human' else 'is over'} at {document}." + " Yes." * (document % 4),
            "reference": f"It ends at {document}.",
            "rating": {"clarity": 1 + (document * 2 + (side == "human")) % 5},
        }
        for document in range(documents)
        for side in ("human", "machine")
    ]


def prepare(directory: Path) -> None:
    """Write ``data.jsonl`` and ``clarity.yaml``."""
    write_rows(directory / "data.jsonl", rated_rows())
    (directory / "clarity.yaml").write_text(METRIC, encoding="utf-8")


def score(directory: Path, output: str, *arguments: object, judge: Path | None = None):
    """Score ``data.jsonl`` into `output`."""
    done = run(
        *("score", directory / "data.jsonl", "-m", directory / "clarity.yaml", "-o", directory / output),
        *("--judge", judge or judge_directory(), *arguments),
        home=directory / "home",
    )
    assert done.exit_code == 0, done.stderr
    return done
