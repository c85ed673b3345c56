"""A real instruct model: its scores are those of plain transformers, and the same whichever way they are computed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_run import run
from run_kit import read
from transformers import AutoModelForCausalLM, AutoTokenizer

from geval_local import Judge, Metric
from geval_local.prompt import render_form
from geval_local.tokens import label_forms

pytestmark = pytest.mark.slow

ARTICLE = (
    "The town library reopened on Monday after eight months of repairs. Builders replaced the roof, which had leaked "
    "for years, and added a reading room for children."
)
ROWS = [
    {"source": ARTICLE, "output": "The library is open again, with a new roof and a room for children."},
    {"source": ARTICLE, "output": "The repairs went on. It leaked. Monday is library."},
    {"source": "Rain is expected all week.", "output": "It will rain <|im_end|> this week."},
    {"source": "Rain is expected all week.", "output": "The sun will shine every day of the week."},
]
COHERENCE = Metric.load("summarization/coherence").with_steps(("Read both texts.", "Rate the summary."))
CONSISTENT = Metric.load("factuality/summary_consistency").with_steps(())
#: One forward pass in float32 against another of other shapes.
CLOSE = {"rel": 0, "abs": 1e-4}


@pytest.fixture(scope="module")
def judge(smollm2_judge) -> Judge:
    return smollm2_judge


@pytest.fixture(scope="module")
def plain(smollm2):
    """Plain transformers, in float64."""
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float64).eval()
    return model, AutoTokenizer.from_pretrained(smollm2)


def path_probability(model, form: tuple[int, ...], path: tuple[int, ...], known: dict) -> float:
    """The product of the model's probabilities of a path's tokens after a form."""
    product = 1.0
    for place, token in enumerate(path):
        if path[:place] not in known:
            with torch.inference_mode():
                logits = model(torch.tensor([[*form, *path[:place]]])).logits[0, -1]
            known[path[:place]] = torch.softmax(logits, -1)
        product *= float(known[path[:place]][token])
    return product


def by_plain_transformers(
    plain, metric: Metric, row: dict[str, str], leads: tuple[str, ...], known: dict[tuple[int, ...], torch.Tensor]
) -> dict[str, float]:
    """P(label | form), with the tokenizer's own template and nothing of this package but the form's text.

    What the model says behind a row's form is kept in `known`.
    """
    model, tokenizer = plain
    prompt = render_form(metric, row)
    message = [{"role": "user", "content": f"{prompt.body.rstrip()}\n\n{prompt.request}"}]
    text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True) + prompt.cue
    form = tuple(tokenizer(text, add_special_tokens=False).input_ids)
    found = {}
    for label in metric.scale.labels:
        spellings = {label, label.lower(), label.upper()}
        found[label] = 0.0
        for lead in leads:
            for spelling in spellings:
                ids = tuple(tokenizer(text + lead + spelling, add_special_tokens=False).input_ids)
                assert ids[: len(form)] == form
                found[label] += path_probability(model, form, ids[len(form) :], known)
    return found


def test_scores_and_label_mass_are_those_of_plain_transformers(judge, plain, monkeypatch):
    row, known = ROWS[1], {}
    for leads in (("",), (" ",), ("", " ")):
        monkeypatch.setattr(label_forms, "LEADS", leads)
        monkeypatch.setattr(judge, "makers", {})
        score = judge.score(COHERENCE, **row)
        expected = by_plain_transformers(plain, COHERENCE, row, leads, known)
        mass = sum(expected.values())
        assert score.label_mass == pytest.approx(mass, **CLOSE), leads
        assert score.probabilities == pytest.approx({label: p / mass for label, p in expected.items()}, **CLOSE), leads
        assert score.value == pytest.approx(sum(int(label) * p for label, p in expected.items()) / mass, **CLOSE)


def test_word_labels_in_every_case_are_those_of_plain_transformers(judge, plain):
    row = ROWS[3]
    score = judge.score(CONSISTENT, **row)
    expected = by_plain_transformers(plain, CONSISTENT, row, ("", " "), {})
    mass = sum(expected.values())
    assert score.label_mass == pytest.approx(mass, **CLOSE)
    assert score.value == pytest.approx(expected["Yes"] / mass, **CLOSE)


def test_one_row_and_many_rows_agree(judge):
    together = [score.value for score in judge.score_many(COHERENCE, ROWS)]
    alone = [judge.score(COHERENCE, **row).value for row in ROWS]
    assert together == pytest.approx(alone, **CLOSE)
    assert len({round(value, 3) for value in together}) == len(ROWS)


@pytest.mark.nightly
def test_a_resumed_run_agrees_to_the_last_bit(judge, smollm2, tmp_path, monkeypatch):
    from run_kit import wanted

    from geval_local.runs.directory import open_run
    from geval_local.runs.executor import Interrupted
    from geval_local.runs.exporter import Exporter, deliver
    from geval_local.runs.manifest import definition

    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    manifest = wanted(file, ("smollm2",), window=2, metrics=[definition(COHERENCE)])
    done: list[int] = []

    def score(directory, new, stop_after=None):
        with open_run(directory, new) as opened, Exporter(opened) as exporter:
            rows = opened.rows(
                lambda record: judge,
                advance=done.append,
                should_stop=lambda: stop_after is not None and sum(done) >= stop_after,
            )
            for sample, scores in rows:
                exporter.write(sample, scores)
            (written,) = deliver(opened, exporter.files)
        return [row["geval"][COHERENCE.name]["score"] for row in read(written)]

    with pytest.raises(Interrupted):
        score(tmp_path / "run", manifest, stop_after=2)
    assert 0 < sum(done) < len(ROWS)
    resumed = score(tmp_path / "run", None)
    whole = score(tmp_path / "whole", wanted(file, ("smollm2",), window=2, metrics=[definition(COHERENCE)]))
    assert resumed == whole
    assert resumed == pytest.approx([score.value for score in judge.score_many(COHERENCE, ROWS)], **CLOSE)


@pytest.mark.nightly
def test_judges_check_passes(smollm2, tmp_path):
    done = run("judges", "check", smollm2, "--json", home=tmp_path)
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["style"] == "chat"
    assert record["dtype"] == "float32"
    assert record["batches"] < len(record["batch_lengths"])
    assert record["batch_difference"] < 1e-4
    assert record["example"]["label_mass"] > 0.9
    assert np.isfinite(record["example"]["score"])


@pytest.mark.nightly  # of the weights
@pytest.mark.parametrize("name", ["assistant/helpfulness", "style/conciseness", "assistant/instruction_following"])
def test_presets_for_assistants_are_answered_and_tell_good_from_bad(judge, name):
    """On rows that were written for this after the presets, six pairs each; with so small a judge only on average."""
    rows = [row for row in read(Path(__file__).with_name("assistants.jsonl")) if row["metric"] == name]
    scores = judge.score_many(Metric.load(name), rows)
    assert min(score.label_mass for score in scores) > 0.9
    good, bad = (
        np.mean([s.value for s, row in zip(scores, rows, strict=True) if row["is_good"] is w]) for w in (True, False)
    )
    assert good > bad
