"""Encoders of the real tokenizers, made once per test process: copying a large vocabulary takes seconds."""

from __future__ import annotations

import functools

from tiny import shared_tokenizer

from geval_local.tokens.encoder import PromptEncoder

__all__ = ["real_encoder"]


@functools.cache
def real_encoder(name: str) -> PromptEncoder:
    """Encode completion prompts with a tokenizer of ../shared; skips the test where it is absent."""
    return PromptEncoder(shared_tokenizer(name))
