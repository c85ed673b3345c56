"""Figures in documents are those of the records that they name.

A paragraph or table row that links to a file of benchmarks/results may only hold numbers of that file, or numbers that
follow from them as `DERIVED` says.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import geval_local

ROOT = Path(geval_local.__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NUMBER = re.compile(r"(?<![\w.])-?\d*\.?\d+(?:,\d{3})*(?![\w]|\.\d)")
RECORD = re.compile(r"\]\([./]*benchmarks/results/([\w.-]+)\)")

#: Page and number as written -> the arithmetic on the record's numbers that gives it, rounded as it is written.
DERIVED = {
    ("prefix-sharing.md", "13"): "100 - 87",
    ("alternatives.md", "18"): "81.61 / 4.59",
    ("choose-a-judge.md", "96"): "500 / 5.192",
    ("choose-a-judge.md", "65"): "500 / 7.677",
    ("choose-a-judge.md", "26"): "500 / 19.222",
    ("choose-a-judge.md", "1.7"): "500 / 4.8 / 60",
    ("choose-a-judge.md", "0.1"): "500 / 129.9 / 60",
    ("choose-a-judge.md", "0.6"): "632952 * 1024 / 1e9",
    ("choose-a-judge.md", "1.3"): "1264452 * 1024 / 1e9",
    ("choose-a-judge.md", "0.7"): "39.866 / 60",
    ("choose-a-judge.md", "3.0"): "182.622 / 60",
    ("choose-a-judge.md", "3.4"): "201.313 / 60",
    ("choose-a-judge.md", "4.8"): "4831.442 / 1000",
    ("choose-a-judge.md", "6.4"): "6398.692 / 1000",
    ("choose-a-judge.md", "18.2"): "18172.312 / 1000",
}
#: Numbers that are no figures: names of models and formats, rows asked for, bounds of what is described.
WORDS = re.compile(
    r"`[^`]*`|\]\([^)]*\)|\d{1,2} November(?: 2026)?|95 %|Q\d_\w+|[\d.]+ ?(?:B|M)\b|bfloat16|float\d+|\b500 rows|two|"
    r"SmolLM2-135M[\w-]*|G-Eval-[\d.]+|GPT-[\d.]+|QAGS-\w+|ROUGE-\d|1-5|50 documents|98 MB|Zen 4|vLLM [\d.]+|AVX-\d+"
)


def paragraphs(text: str) -> list[str]:
    """Paragraphs outside code, and each row of a table by itself."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    parts = [
        part
        for block in text.split("\n\n")
        for part in (block.split("\n") if block.startswith("|") else re.split(r"\n(?=- )", block))
    ]
    return [part for part in parts if part.strip()]


def plain(number: str) -> str:
    """A number without its commas and leading zero."""
    return re.sub(r"^(-?)0?\.", r"\1.", number.replace(",", ""))


def unknown_in(page: str, paragraph: str) -> list[str]:
    """The numbers of a paragraph that its records do not hold."""
    known = set()
    for name in RECORD.findall(paragraph):
        known |= {
            plain(number)
            for number in re.findall(r"-?\d*\.?\d+(?:,\d{3})*", (ROOT / "benchmarks/results" / name).read_text("utf-8"))
        }
    missing = []
    for number in NUMBER.findall(WORDS.sub(" ", paragraph)):
        decimals = len(number.partition(".")[2])
        rounded = {plain(f"{float(one):.{decimals}f}") for one in known}
        if plain(number) in known | rounded:
            continue
        formula = DERIVED.get((page, number))
        if formula is None or f"{eval(formula):.{decimals}f}" != number:
            missing.append(number)
        elif lost := [one for one in re.findall(r"\d*\.\d+", formula) if plain(one) not in known]:
            missing += lost
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_figures_are_those_of_the_records_that_they_name(page):
    wrong = [
        f"{missing} in: {paragraph[:90]}"
        for paragraph in paragraphs(page.read_text("utf-8"))
        if RECORD.search(paragraph)
        for missing in [unknown_in(page.name, paragraph)]
        if missing
    ]
    assert not wrong, "numbers without a record:\n" + "\n".join(wrong)


def test_a_number_that_no_record_holds_is_found():
    said = "128 prompts take 4.77 s ([record](benchmarks/results/2026-11-21-engine-26m-vocabularies.txt))"
    assert unknown_in("README.md", said) == ["4.77"]
