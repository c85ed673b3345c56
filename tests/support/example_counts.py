"""How many examples Hypothesis makes: a share of what a test asks for, and several times as many every night."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["example_count"]


def example_count(count: int) -> int:
    """Return how many of `count` examples the profile wants, which says it for a hundred."""
    return max(1, count * settings().max_examples // 100)
