"""Evaluation steps (auto chain-of-thought): written once per metric and judge, then pinned and reused.

Liu et al. (2023), section 2: the model reads the task introduction and the criteria, and writes the steps.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from geval_local import __version__
from geval_local.errors import JudgeError, MetricError
from geval_local.files import home_directory, home_folder, safe_file_name, write_atomically
from geval_local.metric import Metric, StepsProvenance
from geval_local.prompt import render_steps_prompt
from geval_local.scale_words import other_scale

#: A `geval_local.judge.judge.Judge`, whose module imports this one.
Writer: TypeAlias = Any

logger = logging.getLogger("geval_local")

MAX_STEPS_TOKENS = 512
_ITEM = re.compile(r"\s*(?P<bold>\**)(?P<number>\d+)(?P<mark>\**[.)]\**)\s+(?P<text>.*\S)\s*")
#: Numbers are ignored: "Sentence 2: ..." after "Sentence 1: ..." adds nothing.
_WORD = re.compile(r"[^\W\d]+")
_REMEDY = "Write `steps:` into the metric's YAML file yourself, or take a judge that writes."
_FIRST_ITEM = re.compile(r"^\s*\**1\**[.)]", re.MULTILINE)


#: Called with the metric whose steps are being written, and the number of tokens so far: 0 at the start.
OnSteps = Callable[[Metric, int], object]


#: Judge -> metric whose steps it could not write; saves another minute of trying for the next metric.
_UNABLE: WeakKeyDictionary[Writer, str] = WeakKeyDictionary()


def parse_steps(text: str) -> tuple[str, ...]:
    """Parse a numbered list; it ends where the numbering or the text breaks off."""
    steps: list[str] = []
    blank = 0
    for line in text.strip().splitlines():
        item = _ITEM.fullmatch(line)
        if not line.strip():
            blank += 1
            continue
        if blank > 1 and steps:
            break
        if item and int(item["number"]) == len(steps) + 1:
            # "**1. Read** it" opens its emphasis before the number; "**1.** Read it" also closes it there.
            steps.append(item["text"] if "*" in item["mark"] else item["bold"] + item["text"])
        elif item or not steps or (blank and not line[0].isspace()):
            break
        else:
            steps[-1] = f"{steps[-1]} {line.strip()}"
        blank = 0
    return tuple(steps)


def write_steps(judge: Writer, metric: Metric, *, on_steps: OnSteps = lambda metric, tokens: None) -> Metric:
    """Let a judge write the evaluation steps of a metric."""
    prompt = render_steps_prompt(metric, instruct=judge.is_chat)
    on_steps(metric, 0)
    written = judge.continue_text(prompt, max_new_tokens=MAX_STEPS_TOKENS, on_token=partial(on_steps, metric))
    steps = _in_sentence_case(_distinct(_read_answer(prompt.cue, written)))
    problem = unfit(steps, metric)
    if len(steps) < 2 or problem is not None:
        told = f"evaluation steps for {metric.name} that cannot be used: {problem}"
        told = f"no two different evaluation steps for {metric.name}" if len(steps) < 2 else told
        raise JudgeError(
            f"the judge {judge.name} wrote {told}; it wrote: {written.strip()[:200]!r}",
            hint=_REMEDY,
        )
    provenance = StepsProvenance(
        judge=judge.name,
        fingerprint=judge.fingerprint,
        prompt_sha256=hashlib.sha256(prompt.text.encode()).hexdigest(),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        version=__version__,
        generation=f"{judge.generation}, at most {MAX_STEPS_TOKENS} tokens",
    )
    return metric.with_steps(steps, provenance)


#: Words in a row that are a repetition, and those that are copied from the form.
_REPEATED, _COPIED = 7, 12
_FORM = re.compile(r"evaluation form|scores? only|\byes or no\b|\byes/no\b", re.IGNORECASE)


def unfit(steps: Sequence[str], metric: Metric) -> str | None:
    """Say why steps cannot go with a metric: another scale, repetition, text copied from the form; None if they can."""
    introduction, criteria = (set(_word_runs(text, _COPIED)) for text in (metric.introduction, metric.criteria))
    within = {run for line in re.split(r"(?<=[.?!])\s+", metric.criteria) for run in _word_runs(line, _COPIED)}
    seen: set[tuple[str, ...]] = set()
    for number, step in enumerate(steps, start=1):
        if _FORM.search(step) and not {"Yes", "No"} <= set(metric.scale.labels):
            return f"step {number} is a piece of a form"
        if (found := other_scale(step, metric.scale, strictly=True)) is not None:
            return f"step {number} names another scale than {metric.scale.text}: {found!r}"
        runs = _word_runs(step, _REPEATED)
        if len(set(runs)) < len(runs) or seen & set(runs):
            return f"step {number} repeats itself or an earlier one"
        seen |= set(runs)
        # "Check whether ..." may say one sentence of the criteria to its end; the criteria as a step are no check.
        copied = _word_runs(step, _COPIED)
        if not introduction.isdisjoint(copied) or not criteria.isdisjoint({*copied[:1], *(set(copied) - within)}):
            return f"step {number} copies the criteria"
    return None


def _word_runs(text: str, length: int) -> list[tuple[str, ...]]:
    """List the runs of so many words in a text."""
    words = _WORD.findall(text.casefold())
    return [tuple(words[place : place + length]) for place in range(len(words) - length + 1)]


def _read_answer(cue: str, written: str) -> tuple[str, ...]:
    """Parse the text after the cue: the rest of the first step, or, from a chatty model, a complete list."""
    first = _FIRST_ITEM.search(written)
    if first is None or written[: first.start()].strip():
        # The space is explicit: some tokenizers drop a leading space when decoding.
        steps = parse_steps(f"{cue} {written.lstrip(' ')}")
        if len(steps) > 1 or first is None:
            return steps
    return parse_steps(written[first.start() :])


def _distinct(steps: tuple[str, ...]) -> tuple[str, ...]:
    """Cut a list before the first step that repeats an earlier one, ignoring case and punctuation."""
    seen: set[tuple[str, ...]] = set()
    for number, step in enumerate(steps):
        words = tuple(_WORD.findall(step.casefold()))
        if words in seen:
            return steps[:number]
        seen.add(words)
    return steps


def _in_sentence_case(steps: tuple[str, ...]) -> tuple[str, ...]:
    """Capitalize each step if the judge's tokenizer has no upper case; otherwise leave the steps as written."""
    if any(char.isupper() for step in steps for char in step):
        return steps
    return tuple(step[:1].upper() + step[1:] for step in steps)


def pinned_path(metric: Metric, fingerprint: str) -> Path:
    """Return the path of the file that pins a judge's steps for a metric; it need not exist."""
    return home_directory() / "steps" / f"{safe_file_name(metric.name)}-{metric.hash}-{fingerprint}.yaml"


def read_pinned(metric: Metric, fingerprint: str) -> Metric | None:
    """Return a metric with the steps pinned for this judge; None if there are none."""
    path = pinned_path(metric, fingerprint)
    try:
        if not path.is_file():
            return None
    except OSError:  # an unreadable home directory has no pins
        return None
    pinned = Metric.load(path)
    if pinned.hash != metric.hash or pinned.steps is None:
        raise MetricError(
            f"the pinned steps in {path} belong to another version of {metric.name}", hint="Delete the file."
        )
    return metric.with_steps(pinned.steps, pinned.steps_provenance)


def with_pinned_steps(metric: Metric, fingerprint: str) -> Metric:
    """Return a metric that needs steps with the judge's pinned ones, if any; write nothing."""
    return (read_pinned(metric, fingerprint) if metric.needs_steps else None) or metric


def pinned_steps(
    judge: Writer, metric: Metric, *, on_steps: OnSteps = lambda metric, tokens: None
) -> tuple[Metric, Path | None]:
    """Return a metric with steps: its own, those pinned for this metric and judge, or newly written and pinned ones.

    A judge that writes none that can be used is not asked again: the metric goes without, which is said and pinned too.
    """
    if not metric.needs_steps:
        return metric, None
    pinned = read_pinned(metric, judge.fingerprint)
    if pinned is not None:
        return pinned, None
    if not judge.writes_steps or judge in _UNABLE:
        told = f"it could not write those of {_UNABLE[judge]}" if judge in _UNABLE else "it is known not to write any"
        logger.warning("%s is scored without evaluation steps: %s is not asked, %s", metric.name, judge.name, told)
        return metric.with_steps(()), None
    try:
        complete = write_steps(judge, metric, on_steps=on_steps)
    except JudgeError as error:
        _UNABLE[judge] = metric.name
        logger.warning("%s is scored without evaluation steps: %s. %s", metric.name, error.message, error.hint)
        complete = metric.with_steps(())
    else:
        steps = "".join(f"\n  {number}. {step}" for number, step in enumerate(complete.steps or (), start=1))
        logger.info(
            "%s wrote the evaluation steps of %s; `steps=False` goes without:%s", judge.name, metric.name, steps
        )
    if home_folder("steps") is None:
        return complete, None
    path = pinned_path(metric, judge.fingerprint)
    try:
        write_atomically(path, complete.to_yaml(), private=True)
    except OSError as error:  # minutes of writing must not be lost with it
        logger.warning("the evaluation steps of %s are not pinned: %s: %s", metric.name, path, error.strerror or error)
        return complete, None
    return complete, path
