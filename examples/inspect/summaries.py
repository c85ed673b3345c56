"""A task for Inspect whose answers were written before; the judge reads them from the samples' metadata.

Run it with ``inspect eval examples/inspect/summaries.py --model none/none``. For answers of a model, put ``generate()``
in the place of ``recorded()`` and name the model.
"""

from __future__ import annotations

from pathlib import Path

from inspect_ai import Task, task
from inspect_ai.dataset import FieldSpec, json_dataset
from inspect_ai.model import ModelOutput
from inspect_ai.solver import Generate, Solver, TaskState, solver

from geval_local.hosts.inspect import geval

DATA = Path(__file__).parents[1] / "summaries.jsonl"


@solver
def recorded() -> Solver:
    """Take the output that is in a sample's metadata."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        state.output = ModelOutput.from_content("recorded", state.metadata["output"])
        return state

    return solve


@task
def summaries(judge: str = "nano") -> Task:
    """Rate recorded summaries on two metrics."""
    return Task(
        dataset=json_dataset(str(DATA), FieldSpec(id="id", input="source", metadata=["output"])),
        solver=recorded(),
        scorer=[geval("summarization/relevance", judge), geval("summarization/coherence", judge)],
    )
