"""A judge's scores against an enumeration: score, every label probability and label mass, over the full vocabulary.

The spellings of every label are written down here, the whole prompt goes through transformers' own template and
tokenizer, and the probability of every label string is multiplied out token by token in float64. `test_exactness.py`
has the engine alone; this is the path that users take, from a directory to a score.
"""

from __future__ import annotations

import numpy as np
import pytest
from brute_force import brute_force_labels
from tiny import KINDS, byte_tokenizer, save_judge, shared_tokenizer, tiny_model

from geval_local.judge.judge import Judge
from geval_local.metric import Metric
from geval_local.prompt import render_form


def _numbers(*labels: str) -> dict[str, tuple[float, list[str]]]:
    return {label: (float(label), [label]) for label in labels}


#: Scale as it is given -> label -> its value, and all ways to write it; whether case variants are asked for.
SCALES: dict[str, tuple[object, dict[str, tuple[float, list[str]]], bool]] = {
    "1-5": ("1-5", _numbers("1", "2", "3", "4", "5"), False),
    "0-10": ("0-10", _numbers(*map(str, range(11))), False),
    "quarters": ("0-1 step 0.25", _numbers("0", "0.25", "0.5", "0.75", "1"), False),
    "minus": ("-2 to 2", _numbers("-2", "-1", "0", "1", "2"), False),
    "yes-no": (
        {"Yes": 1, "No": 0},
        {"Yes": (1.0, ["Yes", "yes", "YES"]), "No": (0.0, ["No", "no", "NO"])},
        True,
    ),
    "words": (
        {"poor": 1, "fair": 2, "very good": 4},
        {"poor": (1.0, ["poor"]), "fair": (2.0, ["fair"]), "very good": (4.0, ["very good"])},
        False,
    ),
    "spellings": (
        {"not good": -1, "good": 1.5},
        {
            "not good": (-1.0, ["not good", "Not good", "Not Good", "NOT GOOD"]),
            "good": (1.5, ["good", "Good", "GOOD"]),
        },
        True,
    ),
    "0-100": ("0-100", _numbers(*map(str, range(101))), False),
}
TOKENIZERS = ("gpt2", "mistral", "olmo2", "pythia", "qwen")
STYLES = ("completion", "chat")
#: A template without special tokens, for tokenizers that have none of their own.
PLAIN = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
CASES = [
    *((kind, "bytes", style) for kind in KINDS for style in STYLES),
    *(("llama", name, style) for name in TOKENIZERS for style in STYLES),
]
ROWS = (
    {"source": "The ferry stops for 10 days.", "output": "It stops."},
    {"source": "The ferry stops for 10 days.", "output": "It stops for 1 or 100 days; No, it is very good."},
)
#: The attention, scan or router of these models is computed in float32 whatever the dtype of the rest, and rounds by
#: the shape of the pass.
TOLERANCE = dict.fromkeys(("mpt", "deepseek_v3", "gemma2", "gptj", "falcon_h1", "mamba2"), 1e-5)


def metric_of(scale: str) -> Metric:
    given, _, case_variants = SCALES[scale]
    return Metric(
        name="x/quality",
        introduction="Rate it.",
        criteria="Is it good?",
        scale=given,
        fields={"source": "Source", "output": "Text"},
        case_variants=case_variants,
    ).with_steps(("Read.",))


def enumerated(model, tokenizer, metric, scale, row, style):
    """Give score, probabilities and label mass of a row, from all strings of all labels."""
    prompt = render_form(metric, row)
    form = prompt.text
    if style == "chat":
        messages = [{"role": "user", "content": prompt.question}]
        form = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False) + prompt.cue
    _, labels, _ = SCALES[scale]
    spellings = [[lead + text for text in texts for lead in ("", " ")] for _, texts in labels.values()]
    joint = brute_force_labels(model, tokenizer, form, spellings, rendered=style == "chat")
    mass = float(joint.sum())
    score = float(joint @ [value for value, _ in labels.values()]) / mass
    return score, dict(zip(labels, (joint / mass).tolist(), strict=True)), mass


@pytest.mark.sweep("llama-bytes-chat")
@pytest.mark.parametrize(("kind", "name", "style"), CASES)
def test_score_probabilities_and_mass_equal_the_enumeration_of_all_label_strings(kind, name, style, tmp_path):
    tokenizer = byte_tokenizer() if name == "bytes" else shared_tokenizer(name)
    if name != "bytes" and style == "chat":
        tokenizer.chat_template = PLAIN
    sizes = {} if name == "bytes" else {"num_hidden_layers": 1}
    model = tiny_model(kind, len(tokenizer), **sizes)
    judge = Judge.load(save_judge(tmp_path / "judge", model, tokenizer), dtype="float64", style=style)
    # 101 labels repeat the same trie, so four kinds of model have them.
    wanted = [one for one in SCALES if one != "0-100" or kind in ("gemma2", "bloom", "gpt2", "gpt_neox")]
    for scale in wanted:
        metric = metric_of(scale)
        scores = judge.score_many(metric, list(ROWS))
        # One row of the long scales, and of the case that always runs.
        rows = ROWS[: 1 if scale == "0-100" or (kind, name) == ("llama", "bytes") else 2]
        for found, row in zip(scores, rows, strict=False):
            score, p, mass = enumerated(model, tokenizer, metric, scale, row, style)
            assert found.error is None, (scale, found.error)
            tolerance = TOLERANCE.get(kind, 1e-9)
            assert found.label_mass == pytest.approx(mass, rel=tolerance, abs=1e-14), scale
            assert list(found.probabilities) == list(p)
            np.testing.assert_allclose(list(found.probabilities.values()), list(p.values()), rtol=0, atol=tolerance)
            low, high = min(metric.scale.values), max(metric.scale.values)
            assert found.value == pytest.approx(score, abs=tolerance * (high - low)), scale
