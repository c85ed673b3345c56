"""Rows that hold a pair each, as published sets of human preferences have them, brought to one shape.

The shape: ``prompt``, ``output_a``, ``output_b``, where known ``document``, ``system_a``, ``system_b``, and ``human``,
what people preferred: 1 for the first output, 0 for the second, 0.5 for a tie, as a list with one number per person.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any

from geval_local.errors import DataError
from geval_local.io.results import decoded
from geval_local.io.samples import Sample

__all__ = ["GIVEN", "given_sample"]

_Row = Mapping[str, Any]


def _llmbar(row: _Row) -> dict[str, Any]:
    """LLMBar (Zeng et al., 2024): input, output_1, output_2, label 1 or 2."""
    return {
        "prompt": row["input"],
        "output_a": row["output_1"],
        "output_b": row["output_2"],
        "human": [_coded(row["label"], {"1": 1.0, "2": 0.0}, "label")],
    }


def _pandalm(row: _Row) -> dict[str, Any]:
    """PandaLM's test set (Wang et al., 2024): instruction, input, response1, response2, annotator1 to 3 as 0, 1, 2."""
    people = sorted(name for name in row if name.startswith("annotator"))
    if not people:
        raise KeyError("annotator1")
    prompt, more = str(row["instruction"]), row.get("input")
    if isinstance(more, str) and more.strip():  # the published file has NaN where there is none
        prompt += f"\n\n{more}"
    found = {
        "prompt": prompt,
        "output_a": row["response1"],
        "output_b": row["response2"],
        "human": [_coded(row[name], {"1": 1.0, "2": 0.0, "0": 0.5}, name) for name in people],
    }
    systems = str(row.get("cmp_key", "")).split("_")  # such as opt-7b_pythia-6.9b
    return found | (dict(zip(("system_a", "system_b"), systems, strict=True)) if len(systems) == 2 else {})


def _mt_bench(row: _Row) -> dict[str, Any]:
    """MT-Bench's human judgments (Zheng et al., 2023): conversation_a, conversation_b, winner, turn; one per person."""
    turn = int(row.get("turn") or 1)
    first, second = (_turns(row[name], turn, name) for name in ("conversation_a", "conversation_b"))
    winner = str(row["winner"])
    known = {"model_a": 1.0, "model_b": 0.0}
    return {
        "document": str(row["question_id"]),
        "system_a": str(row["model_a"]),
        "system_b": str(row["model_b"]),
        "turn": turn,
        "judge": row.get("judge"),
        # Answers of a second turn belong to their own first answers, so both conversations are shown whole.
        "prompt": first[0]["content"] if turn == 1 else "\n\n".join(m["content"] for m in first if m["role"] == "user"),
        "output_a": _answer(first, turn),
        "output_b": _answer(second, turn),
        "human": [0.5 if winner.startswith("tie") else _coded(winner, known, "winner")],
    }


def _turns(value: Any, turn: int, name: str) -> list[Mapping[str, Any]]:
    messages = decoded(value)
    if not isinstance(messages, list) or len(messages) < 2 * turn or not all(isinstance(m, Mapping) for m in messages):
        raise ValueError(f"{name} is no list of {2 * turn} messages with role and content")
    return messages[: 2 * turn]


def _answer(messages: list[Mapping[str, Any]], turn: int) -> Any:
    return messages[-1]["content"] if turn == 1 else [m["content"] for m in messages if m["role"] == "assistant"]


def _plain(row: _Row) -> dict[str, Any]:
    """Rows of the one shape already; ``human`` may be one number or a list."""
    human = decoded(row.get("human"))
    for one in human if isinstance(human, list) else [] if human is None else [human]:
        _preferred(one)
    return {"output_a": row["output_a"], "output_b": row["output_b"], **row}


def _preferred(value: Any) -> float:
    """Read a preference of people; from 0 to 1."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number <= 1:
        raise ValueError(f"human is {value!r}, and not 1 for A, 0 for B, 0.5 for a tie, or a list of these")
    return number


#: Format -> reader.
GIVEN: dict[str, Callable[[_Row], dict[str, Any]]] = {
    "plain": _plain,
    "llmbar": _llmbar,
    "pandalm": _pandalm,
    "mt-bench": _mt_bench,
}


def given_sample(sample: Sample, form: str) -> Sample:
    """Bring a row to the one shape; a row that is not of its format keeps its place with the reason."""
    if form not in GIVEN:
        raise DataError(f"pairs are not known in the format {form!r}", hint=f"Known: {', '.join(GIVEN)}.")
    if sample.error is not None:
        return sample
    kept = {"id": sample.fields["id"]} if "id" in sample.fields else {}
    try:
        found = GIVEN[form](sample.fields)
    except KeyError as error:
        reason = f"{sample.where}: not of the format {form}: the column {error.args[0]!r} is missing"
    except (TypeError, ValueError) as error:
        reason = f"{sample.where}: not of the format {form}: {error}"
    else:
        # Pairs of one prompt belong together.
        text = str(found.get("prompt", found.get("source", sample.row)))
        found.setdefault("document", hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12])
        return Sample({**kept, **found}, sample.row, sample.origin, mapping=sample.mapping)
    return Sample(dict(sample.fields), sample.row, sample.origin, reason)


def _coded(value: Any, codes: Mapping[str, float], name: str) -> float:
    """Read what a person preferred from how the set writes it."""
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()
    if text not in codes:
        raise ValueError(f"{name} is {value!r}, not one of {', '.join(codes)}")
    return codes[text]
