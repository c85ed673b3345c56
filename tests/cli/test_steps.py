"""``steps``: written once, kept with their provenance, the rest of the file untouched."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_run import STEPS, judge_directory, run

from geval_local import Judge, Metric
from geval_local.errors import MetricError
from geval_local.metric import StepsProvenance, written_into

PROVENANCE = StepsProvenance(judge="j", fingerprint="f", prompt_sha256="p", created="2025-01-01", version="1")
HEAD = "# My metric.\nname: clarity  # the name\ncriteria: How clear it is.\n"
TAIL = "\n# The scale.\nscale: 1-5\n"
OLD = "steps:\n  - First.\n  # a note\n  - Second.\n"
OLD_PROVENANCE = "steps_provenance: {judge: a, fingerprint: b, prompt_sha256: c, created: d, version: e}\n"


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Texts that the judge writes, next one first."""
    texts = [STEPS]
    monkeypatch.setattr(Judge, "continue_text", lambda *_, **__: texts[0])
    return texts


def steps(tmp_path: Path, *arguments: object):
    return run("steps", *arguments, "--judge", judge_directory(), home=tmp_path / "home")


@pytest.mark.parametrize(
    "text",
    [
        HEAD + TAIL,
        HEAD + TAIL.rstrip(),
        HEAD + OLD + TAIL,
        HEAD + OLD + OLD_PROVENANCE + TAIL,
        OLD_PROVENANCE + HEAD + TAIL + OLD,
        HEAD + "steps: []\n" + TAIL + "\n# The end.\n",
        (HEAD + OLD + TAIL).replace("\n", "\r\n"),
        "steps: >-\n".replace(">-", "[a, b]") + HEAD + TAIL,
    ],
)
def test_only_the_steps_change_in_the_text(text):
    metric = Metric.from_yaml(text).with_steps(("Read: it.", "# Score it."), PROVENANCE)
    result = written_into(text, metric, "m.yaml")
    assert Metric.from_yaml(result) == metric
    kept = text.replace("\r\n", "\n")
    for block in (OLD, OLD_PROVENANCE, "steps: []\n", "steps: [a, b]\n"):
        kept = kept.replace(block, "")
    new = result.replace("\r\n", "\n").splitlines()
    assert [line for line in kept.splitlines() if line not in new] == []
    assert ("\r\n" in result) == ("\r\n" in text)
    assert result.count("steps:") == 1


def test_indentation_quotes_and_notes_beside_the_steps_are_kept():
    own = "fields:\n    source: 'S'\n    output: \"O\"\nrubric: {1: 'a', 5: b}  # the ends\nthreshold: 0x3\n"
    old = "steps:  # by me\n    - First.  # one\n    - |\n      Second.\n      # no comment\n# the rest\n"
    text = "---\n" + HEAD + old + own + TAIL
    metric = Metric.from_yaml(text).with_steps(("A.",), PROVENANCE)
    result = written_into(text, metric, "m.yaml")
    assert Metric.from_yaml(result) == metric
    assert result.startswith("---\n" + HEAD + "steps:\n- A.\n")
    assert result.endswith("# the rest\n" + own + TAIL)


@pytest.mark.parametrize("text", ["{name: a, criteria: b, scale: 1-5}\n", HEAD + TAIL + "...\n"])
def test_a_file_of_another_layout_is_refused(text):
    metric = Metric.from_yaml(text).with_steps(("A.", "B."))
    with pytest.raises(MetricError, match="without touching"):
        written_into(text, metric, "m.yaml")


def test_steps_are_written_into_the_file_with_their_provenance(tmp_path, writes):
    file = tmp_path / "clarity.yaml"
    file.write_text(HEAD + TAIL, encoding="utf-8")
    done = steps(tmp_path, file)
    assert done.exit_code == 0, done.stderr
    assert done.stdout == "1. Read both texts.\n2. Compare them.\n3. Choose a score.\n"
    metric = Metric.load(file)
    assert metric.steps == ("Read both texts.", "Compare them.", "Choose a score.")
    assert metric.steps_provenance is not None
    assert metric.steps_provenance.fingerprint == Judge.load(judge_directory()).fingerprint
    assert file.read_text(encoding="utf-8").startswith(HEAD + TAIL)


def test_existing_steps_stay_without_force_and_are_compared_with_it(tmp_path, writes):
    file = tmp_path / "clarity.yaml"
    file.write_text(HEAD + OLD + TAIL, encoding="utf-8")
    kept = steps(tmp_path, file)
    assert kept.exit_code == 0
    assert kept.stdout == "1. First.\n2. Second.\n"
    assert file.read_text(encoding="utf-8") == HEAD + OLD + TAIL
    forced = steps(tmp_path, file, "--force")
    assert "-1. First." in forced.stderr
    assert "+1. Read both texts." in forced.stderr
    assert Metric.load(file).steps == ("Read both texts.", "Compare them.", "Choose a score.")


def test_a_preset_shows_its_steps_and_asks_no_judge(tmp_path, writes):
    shown = steps(tmp_path, "summarization/fluency")
    preset = Metric.load("summarization/fluency")
    assert shown.stdout == "".join(f"{number}. {step}\n" for number, step in enumerate(preset.steps, start=1))
    assert "-o FILE.yaml" in shown.stderr
    refused = steps(tmp_path, "summarization/fluency", "--force")
    assert refused.exit_code == 2
    assert "-o FILE.yaml" in refused.stderr


def test_a_new_file_gets_the_whole_metric(tmp_path, writes):
    file = tmp_path / "full.yaml"
    assert steps(tmp_path, "summarization/fluency", "-o", file).exit_code == 0
    preset = Metric.load("summarization/fluency")
    assert Metric.load(file).hash == preset.hash
    assert Metric.load(file).steps == ("Read both texts.", "Compare them.", "Choose a score.")
    again = steps(tmp_path, "summarization/fluency", "-o", file)
    assert again.exit_code == 2
    assert "is there already" in again.stderr


@pytest.mark.slow
def test_a_judge_without_words_leaves_the_file_alone(tmp_path):
    file = tmp_path / "clarity.yaml"
    file.write_text(HEAD + TAIL, encoding="utf-8")
    done = steps(tmp_path, file)
    assert done.exit_code == 2
    assert "wrote no two different evaluation steps" in done.stderr
    assert file.read_text(encoding="utf-8") == HEAD + TAIL
