"""Metrics: YAML in, YAML out, rejected files and their messages, the presets, the hash."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from geval_local.errors import MetricError
from geval_local.judge.steps import unfit
from geval_local.metric import DEFAULT_INTRODUCTION, Metric, StepsProvenance
from geval_local.metric_file import FRAME, preset_names
from geval_local.prompt import render_form, render_steps_prompt
from geval_local.questions.pair import pair_metric
from geval_local.scale import Scale

MINIMAL = """\
name: style/tone
criteria: Whether the tone is friendly.
scale: 1-5
"""
PROVENANCE = StepsProvenance(
    judge="nano", fingerprint="ab12", prompt_sha256="cd34", created="2025-01-31T12:00:00Z", version="0.1.0"
)


def refusal(text: str) -> str:
    with pytest.raises(MetricError) as caught:
        Metric.from_yaml(text, origin="tone.yaml")
    return str(caught.value)


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_minimal_metric_has_the_documented_defaults():
    metric = Metric.from_yaml(MINIMAL)
    assert metric.title == "Tone"
    assert metric.introduction == DEFAULT_INTRODUCTION
    assert metric.fields == {"output": "Output"}
    assert metric.scale == Scale.parse("1-5")
    assert (metric.steps, metric.rubric, metric.threshold, metric.shorten) == (None, None, None, None)
    assert metric.needs_steps


def test_every_key_is_read():
    metric = Metric.from_yaml(
        """\
name: a/b_c-d
title: Own Title
introduction: |
  First paragraph.

  Second paragraph.
criteria: >-
  Folded
  text.
scale: {poor: 1, fair: 2, good: 3}
rubric:
  poor: bad
  fair-good: not bad
steps: [Read., Rate.]
steps_provenance: {judge: nano, fingerprint: ab12, prompt_sha256: cd34, created: "2025-01-31T12:00:00Z", version: 0.1.0}
fields: {source: Source, output: Output}
threshold: 2.5
shorten: source
case_variants: true
"""
    )
    assert metric.title == "Own Title"
    assert metric.introduction == "First paragraph.\n\nSecond paragraph."
    assert metric.criteria == "Folded text."
    assert metric.scale == Scale(("poor", "fair", "good"), (1, 2, 3))
    assert metric.rubric == {"poor": "bad", "fair-good": "not bad"}
    assert metric.steps == ("Read.", "Rate.")
    assert metric.steps_provenance == PROVENANCE
    assert list(metric.fields) == ["source", "output"]
    assert (metric.threshold, metric.shorten, metric.case_variants) == (2.5, "source", True)
    assert not metric.needs_steps


@pytest.mark.parametrize("words", ["Yes/No", "{Yes: 1, No: 0}", "{yes: 1, no: 0}", "{On: 1, Off: 0}", "{Y: 1, N: 0}"])
def test_word_labels_stay_words(words):
    metric = Metric.from_yaml(MINIMAL.replace("1-5", words))
    assert metric.scale.labels == tuple(re.findall(r"[A-Za-z]+", words))
    assert metric.scale.values == (1, 0)


def test_true_and_false_are_still_booleans():
    assert Metric.from_yaml(MINIMAL + "case_variants: true\n").case_variants is True
    assert Metric.from_yaml(MINIMAL + "case_variants: False\n").case_variants is False
    assert Metric.from_yaml(MINIMAL).case_variants is True


def test_dates_are_text():
    assert Metric.from_yaml(MINIMAL + "title: 2025-01-31\n").title == "2025-01-31"
    assert Metric.from_yaml(MINIMAL + "title: 2025-99-99\n").title == "2025-99-99"


def test_rubric_keys_may_be_written_as_numbers():
    metric = Metric.from_yaml(MINIMAL + "rubric:\n  1: curt\n  2-4: neutral\n  5: warm\n")
    assert metric.rubric == {"1": "curt", "2-4": "neutral", "5": "warm"}
    metric = Metric.from_yaml(MINIMAL.replace("1-5", "0-1 step 0.5") + "rubric:\n  0.50: half\n")
    assert metric.rubric == {"0.5": "half"}


def test_an_empty_list_of_steps_means_without_steps():
    metric = Metric.from_yaml(MINIMAL + "steps: []\n")
    assert metric.steps == ()
    assert not metric.needs_steps
    assert Metric.from_yaml(metric.to_yaml()).steps == ()


def test_a_byte_order_mark_is_ignored(tmp_path):
    path = tmp_path / "tone.yaml"
    path.write_text(MINIMAL, encoding="utf-8-sig")
    assert Metric.load(path) == Metric.from_yaml(MINIMAL)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_unknown_keys_are_named_with_line_and_suggestion():
    message = refusal(MINIMAL + "treshold: 3\nzzz: 1\n")
    assert "tone.yaml, line 4: unknown key 'treshold'; did you mean 'threshold'?" in message
    assert "tone.yaml, line 5: unknown key 'zzz'\n" in message
    assert "Known keys: name, title, introduction" in message


def test_an_unknown_nested_key_is_named_with_its_line():
    nested = "steps_provenance: {judge: j, fingerprint: f, prompt_sha256: p, created: c, version: v,\n  by: me}\n"
    assert "tone.yaml, line 5: unknown key 'steps_provenance.by'" in refusal(MINIMAL + nested)


@pytest.mark.parametrize("key", ["name", "criteria", "scale"])
def test_a_missing_key_is_named(key):
    text = "".join(line for line in MINIMAL.splitlines(keepends=True) if not line.startswith(key))
    assert f"the key '{key}' is missing" in refusal(text)


@pytest.mark.parametrize(
    ("addition", "message"),
    [
        ("name: twice\n", "the key 'name' occurs twice"),
        ("fields:\n  output: A\n  output: B\n", "the key 'output' occurs twice"),
        ("threshold: 6\n", "threshold: 6 is outside the scale 1-5"),
        ("threshold: .nan\n", "threshold: nan is outside the scale 1-5"),
        ("threshold: high\n", "line 4: threshold: Input should be a valid number"),
        ("shorten: source\n", "shorten: 'source' is not one of the fields output"),
        ("fields: {}\n", "fields: a metric needs at least one field"),
        ("fields: [output]\n", "line 4: fields: Input should be a valid dictionary"),
        ("steps:\n- Read.\n- ' '\n", "steps.1: a step is empty"),
        ("steps: Read.\n", "line 4: steps: Input should be a valid tuple"),
        ("rubric:\n  1: [a]\n", "line 5: rubric.1: Input should be a valid string"),
        ("rubric:\n  true: a\n", "line 4: rubric: the label True was read as a boolean"),
        ("title: 0x_\n", "not valid YAML"),
        ("1: 2\n", "line 4: 1: Keys should be strings"),
        ("title: [", "not valid YAML"),
        ("title: a\x00b\n", "not valid YAML"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(addition, message):
    text = refusal(MINIMAL + addition)
    assert text.startswith("tone.yaml")
    assert message in text


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        ("five", "line 3: scale: cannot read the scale 'five'"),
        ("5", "line 3: scale: a scale cannot be read from int"),
        ("{true: 1, false: 0}", "line 3: scale: the label True was read as a boolean"),
        ("{~: 1, a: 0}", "line 3: scale: a label of the scale is empty or null"),
        ("[a, b]", "line 3: scale: the value of a label of a list scale is not a number: 'a'"),
        ("{a: 1, a: 0}", "the key 'a' occurs twice"),
    ],
)
def test_a_bad_scale_is_refused_with_its_line(scale, message):
    assert message in refusal(MINIMAL.replace("1-5", scale))


PROBLEMS = """\
name: two words
criteria: c
scale: 1-5
treshold: 3
threshold: 9
shorten: sorce
fields:
  source: Source
  output: Output
rubric:
  1-2: low
  7: best
  poor: worst
steps:
  - Read.
  - ""
template: |
  {{ source }}
  {{ nope }} and {{ outptu }}
  - {{ output }}:
"""


@pytest.mark.parametrize("name", ["x/../../y", "..", ".", "a/..", "../a", "a/...", "/a", "a/", "a//b"])
def test_a_name_that_leads_elsewhere_as_a_path_is_refused(name):
    assert "may hold letters" in refusal(f"name: {name}\ncriteria: c\nscale: 1-5\n")
    assert Metric.from_yaml("name: a.b/..c/.d\ncriteria: c\nscale: 1-5\n").name == "a.b/..c/.d"


def test_every_problem_is_named_with_its_line():
    assert "tone.yaml, line 4: unknown key 'treshold'; did you mean 'threshold'?" in refusal(PROBLEMS)
    message = refusal(PROBLEMS.replace("treshold: 3", "# treshold"))
    expected = {
        1: "name: name 'two words' may hold letters",
        5: "threshold: 9 is outside the scale 1-5",
        6: "shorten: 'sorce' is not one of the fields source, output; did you mean 'source'?",
        12: "rubric.7: is not a label of the scale 1-5, nor a band of its labels such as 1-5",
        13: "rubric.poor: is not a label of the scale 1-5",
        16: "steps.1: a step is empty",
        17: "template: the placeholder {{ nope }} names none of the fields source, output",
    }
    for line, text in expected.items():
        assert f"tone.yaml, line {line}: {text}" in message
    assert "{{ outptu }} names none of the fields source, output; did you mean 'output'?" in message
    assert "line 17: template: its last line is the form's cue" in message
    assert message.count("tone.yaml, line") == len(expected) + 2


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        (
            "Rate it.\n- X:",
            "holds no placeholder of a field, such as {{output}}: every row would score alike",
        ),
        ("- X {{output}}:", "holds no placeholder of a field"),
        ("{{ nope }} {{output}}\n- X:", "the placeholder {{ nope }} names none of the fields output"),
        ("{{ output.text }} {{output}}\n- X:", "the placeholder {{ output.text }} names none of the fields"),
    ],
)
def test_templates_that_cannot_be_filled(template, message):
    with pytest.raises(ValidationError, match=re.escape(message)):
        Metric(name="a", criteria="c", scale="1-5", template=template)


@pytest.mark.parametrize(
    ("scale", "good", "bad"),
    [
        ("1-5", ["1", "2-3", "4 to 5", "1, 2", "3/4", "1-5"], ["0", "6", "4-6", "5-4", "one", "", "1, 9", "1-"]),
        ("-2-2", ["-2--1", "-2 to 0", "1"], ["-3", "-3-1"]),
        ("Yes/No", ["Yes", "no", "Yes-No"], ["Maybe", "Yes-Maybe"]),
        ({"poor": 1, "fair": 2, "very good": 3}, ["poor-fair", "very good", "fair or very good", "2"], ["4", "bad"]),
        ("0-1 step 0.25", ["0.5", "0-0.5", ".25"], ["0.3", "0.3-0.4", "2"]),
    ],
)
def test_rubrics_are_of_labels_and_bands(scale, good, bad):
    for band in good:
        Metric(name="a", criteria="c", scale=scale, rubric={band: "x"})
    for band in bad:
        with pytest.raises(ValidationError, match="is not a label of the scale"):
            Metric(name="a", criteria="c", scale=scale, rubric={band: "x"})


@pytest.mark.parametrize("scale", [(0, 100), [0, 100], (100, 0), ("1", "5"), (1, 5.5)])
def test_the_ends_of_a_range_are_no_scale_of_two_labels(scale):
    with pytest.raises(ValueError, match=r'(?s)two labels with nothing between.*Write "\d+-'):
        Metric(name="a", criteria="c", scale=scale)
    assert Metric(name="a", criteria="c", scale={0: 0, 100: 100}).scale.labels == ("0", "100")
    assert Metric(name="a", criteria="c", scale=(0, 1)).scale.labels == ("0", "1")


def test_a_field_of_the_metrics_own_comes_before_what_published_files_mean():
    metric = Metric(name="a", criteria="c", scale="1-5", fields={"summary": "S"}, template="{{Summary}}\n- X:")
    assert render_form(metric, {"summary": "text"}).text == "text\n- X:"


@pytest.mark.sweep
@pytest.mark.parametrize(
    "line",
    [
        "threshold: !!timestamp foo",
        "case_variants: !!bool foo",
        "threshold: !!int foo",
        "title: !!python/object/apply:os.system [ls]",
        "steps: " + "[" * 3000,
        "steps: " + "[" * 3000 + "]" * 3000,
        "steps: &a [*a]",
        "fields: &a {output: *a}",
        'title: "\\ud800"',
        'criteria2: "\\ud800"',
        '"\\ud800": 1',
        'fields: {output: "\\ud800"}',
        "threshold: " + "9" * 400,
        "threshold: " + "9" * 5000,
        "rubric: {" + "9" * 400 + ": x}",
        "? [a, b]\n: 1",
        "? {a: b}\n: 1",
        "title: !!set {a, b}",
        "title: !!omap [a]",
        "<<: 3",
        "name2: *nothing",
        "%YAML 9.9",
        "threshold: 1:30",
        "threshold: .inf",
    ],
)
@pytest.mark.parametrize("replaced", [None, "scale"])
def test_hostile_yaml_is_refused_in_words(line, replaced):
    text = MINIMAL if replaced is None else MINIMAL.replace("scale: 1-5", f"scale: {line.partition(': ')[2] or '~'}")
    message = refusal(text + line + "\n")
    assert message.startswith("tone.yaml")
    message.encode()
    assert len(message) < 3000


def nested(kind: str, first: str) -> str:
    """Aliases of aliases: nine times as many values with every line."""
    lines = [f"n0: &n0 {first}\n"]
    for level in range(1, 12):
        below = f"*n{level - 1}"
        inner = {
            "list": f"[{', '.join([below] * 9)}]",
            "mapping": "{" + ", ".join(f"k{place}: {below}" for place in range(9)) + "}",
            "merge": "{<<: [" + ", ".join([below] * 9) + "]}",
        }[kind]
        lines.append(f"n{level}: &n{level} {inner}\n")
    return "".join(lines)


@pytest.mark.parametrize(
    "bomb",
    [nested("list", "[x]"), nested("mapping", "{k: x}"), nested("merge", "{k: x}")],
    ids=["list", "map", "merge"],
)
@pytest.mark.parametrize("line", ["scale: {a: *n9, b: *n11}", "scale: *n11", "steps: *n11", "title: x"])
def test_alias_bombs_are_refused_before_they_grow(bomb, line):
    text = refusal(f"name: a\ncriteria: c\n{bomb}{line}\n")
    assert "each alias counted as what it stands for" in text
    assert len(text) < 200


@pytest.mark.parametrize("declared", ["", "%YAML 1.1\n---\n", "%YAML 1.2\n---\n"])
def test_words_are_read_alike_under_every_declared_version(declared):
    metric = Metric.from_yaml(declared + MINIMAL.replace("1-5", "{Yes: 1, off: 0.5, No: 0}") + "title: on\n")
    assert metric.scale.labels == ("Yes", "off", "No")
    assert metric.title == "on"
    assert Metric.from_yaml(metric.to_yaml()) == metric


def test_a_value_that_contains_itself_is_refused_with_its_line():
    assert "line 4: a value contains itself" in refusal(MINIMAL + "steps: &a [*a]\n")


def test_a_file_of_any_length_is_refused_at_once():
    assert "characters, more than" in refusal(MINIMAL + "#" * 2_000_000)


def test_a_metric_file_that_is_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "m.yaml")
    with pytest.raises(MetricError, match="is a pipe"):
        Metric.load(tmp_path / "m.yaml")


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just words", "3"])
def test_a_file_that_is_no_mapping_is_refused(text):
    assert refusal(text) == "tone.yaml: a metric is a mapping of keys such as name, criteria and scale"


@pytest.mark.parametrize("name", ["a b", "", "/a", "a/", "a//b", "a\\b"])
def test_names_are_identifiers(name):
    with pytest.raises(ValidationError, match="may hold letters, digits"):
        Metric(name=name, criteria="c", scale="1-5")


def test_empty_criteria_are_refused():
    assert "criteria: must not be empty" in refusal(MINIMAL.replace("Whether the tone is friendly.", "' '"))


def test_a_missing_or_unreadable_file_is_a_metric_error(tmp_path):
    with pytest.raises(MetricError, match=r"cannot read the metric file .*none\.yaml"):
        Metric.load(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9")
    with pytest.raises(MetricError, match=r"cannot read the metric file .*latin\.yaml"):
        Metric.load(tmp_path / "latin.yaml")


def test_an_unknown_preset_names_its_neighbours():
    with pytest.raises(MetricError) as caught:
        Metric.load("summarisation/coherence")
    assert "did you mean summarization/coherence" in str(caught.value)
    assert "geval-local metrics list" in caught.value.hint


# --- writing ----------------------------------------------------------------------------------------------------------


def test_written_yaml_is_meant_to_be_edited():
    metric = Metric(
        name="a/b",
        criteria="One line, longer than the eighty characters at which YAML writers like to fold a plain text.",
        introduction="First.\n\nSecond.",
        scale="Yes/No",
    )
    assert metric.to_yaml() == (
        "name: a/b\n"
        "title: B\n"
        "introduction: |-\n"
        "  First.\n"
        "\n"
        "  Second.\n"
        "criteria: One line, longer than the eighty characters at which YAML writers like to fold a plain text.\n"
        "scale: Yes/No\n"
    )


def test_a_whole_metric_reads_back_equal():
    metric = Metric(
        name="x/y",
        title="Yes",
        introduction="null",
        criteria="- 1: [a]\n  # not a comment",
        scale={"No": 0, "Maybe": 0.5, "Yes": 1},
        rubric={"Yes": "on", "No": "0o7", "1": "~"},
        steps=("1. Read: carefully", "'quoted' \"twice\"", "tab\there", "Ünïcödé ☃ 𝄞"),
        steps_provenance=PROVENANCE,
        fields={"output": "No", "source": "3"},
        threshold=0.5,
        shorten="source",
        case_variants=True,
        template="{{Output}}\r\n\n- Y: \n\n",
    )
    again = Metric.from_yaml(metric.to_yaml())
    assert again == metric
    assert again.hash == metric.hash
    assert list(again.fields) == ["output", "source"]


_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
_tricky = st.sampled_from(["Yes", "no", "null", "~", "1", "1:30", "0x1f", "2025-01-01", "a: b", "- a", "# a", "{{x}}"])
_lines = st.text("ab :-#\n\t\x85\u2028'\"\\", min_size=1).filter(str.strip)
_any_text = _text | _tricky | _lines


@given(
    criteria=_any_text,
    introduction=_any_text,
    steps=st.none() | st.lists(_any_text, max_size=3).map(tuple),
    fields=st.dictionaries(_any_text, _any_text, min_size=1, max_size=3),
    descriptions=st.none() | st.lists(_any_text, max_size=2),
    scale=st.sampled_from(["1-5", "0-100", "0-1 step 0.25", "Yes/No", {"Off": 0, "null": 1, "~": 2}, [1, 2, 4]]),
    template=st.none() | _any_text.filter(lambda text: "{{" not in text),
    threshold=st.none() | st.just(1),
)
def test_every_metric_survives_yaml(descriptions, template, scale, **keys):
    labels = Scale.parse(scale).labels
    rubric = None if descriptions is None else dict(zip(labels, descriptions, strict=False))
    fields = {**keys.pop("fields"), "text": "Text"}
    template = None if template is None else f"{template}{{{{ text }}}}\n- Cue:"
    metric = Metric(name="a/b", rubric=rubric, template=template, scale=scale, fields=fields, **keys)
    again = Metric.from_yaml(metric.to_yaml())
    assert again == metric
    assert list(again.fields) == list(metric.fields)
    assert list(again.rubric or {}) == list(metric.rubric or {})
    assert again.hash == metric.hash


# --- presets ----------------------------------------------------------------------------------------------------------

PRESETS = {
    "agent/task_completion": ("1-5", ["conversation"]),
    "agent/tool_use": ("1-5", ["conversation"]),
    "assistant/helpfulness": ("1-5", ["question", "output"]),
    "assistant/instruction_following": ("1-5", ["question", "output"]),
    "conversation/coherence": ("1-5", ["conversation"]),
    "conversation/goal_completion": ("1-5", ["conversation"]),
    "conversation/helpfulness": ("1-5", ["conversation"]),
    "conversation/role_adherence": ("1-5", ["system_prompt", "conversation"]),
    "conversation/turn_helpfulness": ("1-5", ["history", "output"]),
    "conversation/turn_memory": ("1-5", ["history", "output"]),
    "conversation/turn_role": ("1-5", ["system_prompt", "history", "output"]),
    "correctness/answer_correctness": ("1-5", ["question", "reference", "output"]),
    "data_to_text/informativeness": ("1-6", ["source", "output"]),
    "data_to_text/naturalness": ("1-6", ["source", "output"]),
    "dialogue/coherence": ("1-3", ["source", "output"]),
    "dialogue/engagingness": ("1-3", ["source", "fact", "output"]),
    "dialogue/groundedness": ("0-1", ["source", "fact", "output"]),
    "dialogue/naturalness": ("1-3", ["source", "output"]),
    "dialogue/understandability": ("1-3", ["source", "output"]),
    "factuality/summary_consistency": ("Yes/No", ["source", "output"]),
    "rag/answer_relevance": ("1-5", ["question", "output"]),
    "rag/context_relevance": ("1-5", ["question", "context"]),
    "rag/faithfulness": ("1-5", ["question", "context", "output"]),
    "safety/harmlessness": ("1-5", ["output"]),
    "style/conciseness": ("1-5", ["output"]),
    "style/professionalism": ("1-5", ["output"]),
    "summarization/coherence": ("1-5", ["source", "output"]),
    "summarization/consistency": ("1-5", ["source", "output"]),
    "summarization/fluency": ("1-5", ["output"]),
    "summarization/relevance": ("1-5", ["source", "output"]),
}


def test_the_presets_are_these():
    assert preset_names() == list(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_preset_holds_together(name):
    metric = Metric.load(name)
    scale, fields = PRESETS[name]
    assert metric.name == name
    assert metric.scale == Scale.parse(scale)
    assert list(metric.fields) == fields
    assert len(metric.steps) >= 3
    assert unfit(metric.steps, metric) is None
    assert metric.introduction != DEFAULT_INTRODUCTION
    assert 2 <= len(re.findall(r"[.?](?:\s|$)", metric.introduction)) <= 4
    assert 2 <= len(re.findall(r"[.?](?:\s|$)", metric.criteria)) <= 5
    assert set(metric.rubric or metric.scale.labels) == set(metric.scale.labels)
    assert Metric.from_yaml(metric.to_yaml()) == metric


@pytest.mark.parametrize("name", PRESETS)
def test_preset_renders_its_form_and_its_steps_prompt(name):
    metric = Metric.load(name)
    prompt = render_form(metric, {field: f"<{field}>" for field in metric.fields})
    assert prompt.cue == f"- {metric.title}:"
    assert prompt.body.endswith(f"{FRAME['form']}\n\n")
    places = [prompt.body.index(f"\n{heading}:\n\n<{field}>\n") for field, heading in metric.fields.items()]
    assert places == sorted(places)
    assert f"{metric.title} ({metric.scale.shown}) - {metric.criteria}" in prompt.body
    steps_prompt = render_steps_prompt(metric)
    assert not any(f"\n{heading}:" in steps_prompt.text for heading in metric.fields.values())


def test_titles_are_unique_within_a_group():
    titles = [(name.split("/")[0], Metric.load(name).title) for name in preset_names()]
    assert len(set(titles)) == len(titles)


# --- hash -------------------------------------------------------------------------------------------------------------

BASE = Metric(
    name="a/b",
    criteria="c",
    scale="1-3",
    fields={"source": "S", "output": "O"},
    rubric={"1": "low", "3": "high"},
    threshold=2,
)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "a/c"},
        {"title": "T"},
        {"introduction": "Other."},
        {"criteria": "d"},
        {"scale": Scale.parse("1-4")},
        {"scale": Scale(("1", "2", "3"), (1, 2, 4))},
        {"scale": Scale(("3", "2", "1"), (3, 2, 1))},
        {"fields": {"output": "O", "source": "S"}},
        {"fields": {"source": "S", "output": "P"}},
        {"rubric": {"1": "low", "3": "top"}},
        {"rubric": {"3": "high", "1": "low"}},
        {"rubric": None},
        {"template": "{{Output}}\n- B:"},
    ],
    ids=str,
)
def test_hash_changes_with_all_that_the_prompt_is_made_from(change):
    assert BASE.model_copy(update=change).hash != BASE.hash


def test_hash_counts_the_cases_of_word_labels_alone():
    words = BASE.model_copy(update={"scale": Scale.parse("Yes/No"), "rubric": None})
    assert words.model_copy(update={"case_variants": False}).hash != words.hash
    assert BASE.model_copy(update={"case_variants": False}).hash == BASE.hash


@pytest.mark.parametrize(
    ("scale", "counts"),
    [("Yes/No", True), ({"poor": 1, "fair": 2, "good": 3}, True), ([1, 2, 4], True), ("1-5", False)],
)
def test_hash_counts_how_a_form_shows_single_labels(scale, counts, monkeypatch):
    """A form that shows them in other tokens is another prompt, whose scores have another signature."""
    metric = BASE.model_copy(update={"scale": Scale.parse(scale), "rubric": None})
    verbatim = metric.model_copy(update={"template": "{{output}}\n\n- A:"})
    metrics = [metric, pair_metric(metric), verbatim]
    before = [one.hash for one in metrics]
    for module in ("scale", "metric"):
        monkeypatch.setattr(f"geval_local.{module}.shown_labels", "/".join)
    assert [one.hash != old for one, old in zip(metrics, before, strict=True)] == [counts, True, False]


def test_hash_counts_which_field_may_be_shortened():
    """Two runs that cut different fields do not score the same prompts."""
    assert BASE.model_copy(update={"shorten": "source"}).hash != BASE.hash


def test_hash_leaves_threshold_and_steps_out():
    changed = BASE.model_copy(update={"threshold": 3.0}).with_steps(("Read.",), PROVENANCE)
    assert changed.hash == BASE.hash
    assert re.fullmatch("[0-9a-f]{16}", BASE.hash)


def test_steps_hash_follows_the_steps():
    assert BASE.steps_hash == BASE.with_steps(()).steps_hash == "none"
    one, two = BASE.with_steps(("Read.", "Rate.")), BASE.with_steps(("Rate.", "Read."))
    assert len({one.steps_hash, two.steps_hash, "none"}) == 3
    assert one.with_steps(("Read.", "Rate."), PROVENANCE).steps_hash == one.steps_hash


def test_a_metric_cannot_be_changed_in_place():
    with pytest.raises(ValidationError, match="frozen"):
        BASE.criteria = "other"


# --- examples ---------------------------------------------------------------------------------------------------------

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_commented_example_is_a_metric_that_uses_every_editable_key():
    path = EXAMPLES / "metric.yaml"
    metric = Metric.load(path)
    assert metric.needs_steps
    assert metric.rubric is not None
    assert list(metric.rubric) == ["1-2", "3", "4-5"]
    written = set(re.findall(r"^(?:# )?([a-z_]+):", path.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert written == set(Metric.model_fields) - {"steps_provenance"}
    assert not metric.examples


def test_the_example_rows_fit_the_example_metric():
    lines = (EXAMPLES / "summaries.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert all(list(row) == ["id", "source", "output"] for row in rows)
    assert len({row["id"] for row in rows}) == len({row["output"] for row in rows}) == 8
    assert len({row["source"] for row in rows}) == 2
    metric = Metric.load(EXAMPLES / "metric.yaml")
    assert all(row["output"] in render_form(metric, row).text for row in rows)
