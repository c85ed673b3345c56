"""Running the command line inside a test: a tiny judge on disk, its own home directory, separate stdout and stderr."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tiny import byte_tokenizer, save_judge, tiny_model
from typer import testing
from typer.testing import CliRunner, Result

METRIC = """\
name: clarity
criteria: How clear the text is.
fields:
  source: Source
  output: Text
scale: 1-5
steps:
  - Read the text.
  - Choose a score.
"""
#: A metric whose steps a judge is to write.
STEPLESS = METRIC.partition("steps:")[0].replace("clarity", "plain")
STEPS = " Read both texts.\n2. Compare them.\n3. Choose a score.\n\n"


_DIRECTORY = TemporaryDirectory(prefix="tiny-judge-")  # goes when the test process ends


@cache
def judge_directory() -> Path:
    """A random Llama with a byte tokenizer; it scores, and cannot write a numbered list."""
    tokenizer = byte_tokenizer(chat=False)
    model = tiny_model("llama", len(tokenizer), dtype=torch.float32)
    return save_judge(Path(_DIRECTORY.name), model, tokenizer)


# The commands of all verbs are made once, not for every call: that takes some hundredths of a second.
testing._get_command = cache(testing._get_command)


def run(*arguments: object, home: Path) -> Result:
    """Run ``geval-local`` with these arguments; `home` is its home directory."""
    from geval_local.cli.app import app

    environment = {"GEVAL_LOCAL_HOME": str(home), "HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE")}
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env=environment, prog_name="geval-local")


def write_rows(path: Path, rows: Iterable[object]) -> Path:
    """Write JSONL."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def good_rows(count: int) -> list[dict[str, object]]:
    """Rows of different lengths that all can be scored."""
    return [
        {"id": f"r{number}", "source": "A tale. " * (number % 4 + 1), "output": f"It ends at {number}."}
        for number in range(count)
    ]


def read_rows(path: Path) -> list[dict[str, object]]:
    """Read JSONL back."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
