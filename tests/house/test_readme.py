"""README says what the program does: its commands parse, and its first output is what the command prints."""

from __future__ import annotations

import re

import pytest
from cli_run import run
from readme_output import README, first_output, shown_output

NUMBER = re.compile(r"-?\d+\.\d+")


def words_and_numbers(text: str) -> tuple[list[str], list[float]]:
    """Text without its numbers and rules, and the numbers; versions and hashes of the signature are left out."""
    lines = [line for line in text.splitlines() if not line.startswith("signature") and not set(line) <= set(" ─")]
    numbers = [float(number) for line in lines for number in NUMBER.findall(line)]
    return [re.sub(r"\s+", " ", NUMBER.sub("#", line)) for line in lines], numbers


def test_the_first_output_is_what_the_first_command_prints():
    words, numbers = words_and_numbers(shown_output())
    found_words, found_numbers = words_and_numbers(first_output())
    assert found_words == words
    # Another processor rounds the last digit differently; another judge or metric does far more than that.
    assert found_numbers == pytest.approx(numbers, abs=0.0021)


def commands() -> list[list[str]]:
    blocks = re.findall(r"```bash\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line.split("#")[0] for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    found = [part.split() for line in lines for part in re.findall(r"geval-local ([^&|]*)", line)]
    return [words for words in found if words and words[0] != "FILE"]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_names_verbs_and_options_that_exist(words, tmp_path):
    verb = words[:2] if words[0] in ("judges", "metrics") else words[:1]
    help_text = run(*verb, "--help", home=tmp_path).stdout
    assert help_text, verb
    for option in (word.strip("[]") for word in words):
        if re.fullmatch(r"--?[a-z][a-z-]*", option):
            assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", help_text), f"{' '.join(verb)} has no {option}"
