"""Models on this machine: lookup by name, checks, loading, identity.

- `registry`: the known judges and the location of their files; `fetch` downloads them from the hub
- `load`: model and tokenizer from local files; `options`: arguments for transformers; `precision`: the dtype
- `config_checks`: requirements on a judge, before and after its weights are loaded
- `gguf_file`, `gguf_model`: judges from GGUF files
- `adapter`: LoRA adapters, merged into the weights
- `chat_template`, `render_template`: the text around a prompt, up to the start of the answer
- `fingerprint`: the identity of a judge, by the content of its files
- `head`, `rope`, `memory`: parts of a model and of its device that engines use
- `generate`: evaluation steps and reasons

Names are loaded on first use: `registry` alone imports neither torch nor transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from geval_local.models.load import LoadedModel, check_judge, load_model, load_tokenizer
    from geval_local.models.registry import JudgeEntry, find_judge, load_registry

_HOMES = {
    "JudgeEntry": "registry",
    "LoadedModel": "load",
    "check_judge": "load",
    "find_judge": "registry",
    "load_model": "load",
    "load_registry": "registry",
    "load_tokenizer": "load",
}

__all__ = [
    "JudgeEntry",
    "LoadedModel",
    "check_judge",
    "find_judge",
    "load_model",
    "load_registry",
    "load_tokenizer",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
