"""README says what the program does: its first output is what the first command prints."""

from __future__ import annotations

import re

import pytest
from readme_output import first_output, shown_output

NUMBER = re.compile(r"-?\d+\.\d+")


def words_and_numbers(text: str) -> tuple[list[str], list[float]]:
    """Text without its numbers and rules, and the numbers; versions and hashes of the signature are left out."""
    lines = [line for line in text.splitlines() if not line.startswith("signature") and not set(line) <= set(" ─")]
    numbers = [float(number) for line in lines for number in NUMBER.findall(line)]
    return [re.sub(r"\s+", " ", NUMBER.sub("#", line)) for line in lines], numbers


@pytest.mark.slow
def test_the_first_output_is_what_the_first_command_prints():
    words, numbers = words_and_numbers(shown_output())
    found_words, found_numbers = words_and_numbers(first_output())
    assert found_words == words
    # Another processor rounds the last digit differently; another judge or metric does far more than that.
    assert found_numbers == pytest.approx(numbers, abs=0.0021)
