"""Text becomes token ids: prompts with their control tokens, and the labels that may follow them.

- `encoder`: prompts in a judge's prompt style; special tokens stay out of sample text
- `shared_text`: texts shared by many prompts are tokenized once
- `label_forms`: spellings of each label after a form; `label_trie`: all of these token sequences, merged
- `requests`: samples become requests for an engine, or errors with reasons

An engine receives a prompt's tokens and a label trie, nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from geval_local.tokens.encoder import PromptEncoder
    from geval_local.tokens.label_trie import LabelTrie
    from geval_local.tokens.requests import Prepared, Request, RequestMaker

_HOMES = {
    "LabelTrie": "label_trie",
    "Prepared": "requests",
    "PromptEncoder": "encoder",
    "Request": "requests",
    "RequestMaker": "requests",
}

__all__ = ["LabelTrie", "Prepared", "PromptEncoder", "Request", "RequestMaker"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
