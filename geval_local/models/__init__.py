"""Models on this machine: found by name, checked, loaded, identified.

- `registry`: which judges there are, and where their files are; `fetch` brings them from the hub
- `load`: model and tokenizer from local files; `options`: how transformers is called for that; `precision`: the dtype
- `checks`: what a judge must be, before and after its weights are loaded
- `gguf_file`, `gguf_model`: judges from GGUF files; `multimodal`: wrappers around a text model
- `adapter`: LoRA adapters, merged into the weights
- `chat_template`, `prompt_ending`, `render_template`: what stands around a prompt, up to where an answer starts
- `fingerprint`: what makes two judges the same judge
- `head`, `rope`, `memory`: parts of a model, and its device, as engines use them
- `likelihood`, `generate`: the probability of a text, and evaluation steps

Names are loaded on first use: `registry` alone imports neither torch nor transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from geval_local.models.load import LoadedModel, check_judge, load_model, load_tokenizer
    from geval_local.models.options import LoadOptions
    from geval_local.models.registry import JudgeEntry, find_judge, load_registry

_HOMES = {
    "JudgeEntry": "registry",
    "LoadOptions": "options",
    "LoadedModel": "load",
    "check_judge": "load",
    "find_judge": "registry",
    "load_model": "load",
    "load_registry": "registry",
    "load_tokenizer": "load",
}

__all__ = [
    "JudgeEntry",
    "LoadOptions",
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
