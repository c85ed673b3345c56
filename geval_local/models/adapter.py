"""LoRA adapters: checked before the weights are read, merged into them afterwards, never applied silently.

After the merge the model has its original layers only, so every engine can serve it like the plain model.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from geval_local.errors import (
    ConfigurationError,
    GevalError,
    JudgeError,
    UnsupportedModelError,
    WeightsError,
    first_line,
)
from geval_local.models.fingerprint import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from geval_local.models.options import quiet
from geval_local.models.registry import JudgeEntry
from geval_local.models.stored import widen_module

_SHOWN = 3
#: How long the patterns of an adapter may take on all modules of a model; usual ones take milliseconds.
_PATIENCE = 10.0
_QUANTIFIER = re.compile(r"[*+{]")
#: Peft matches a pattern with the end of a module's name.
_TRY = (
    "import json, re, sys\ntask = json.load(sys.stdin)\n"
    "for name in task['names']:\n    for pattern in task['patterns']:\n"
    "        re.match(pattern, name), re.fullmatch(rf'(.*\\.)?({pattern})', name)\n"
)


def check_adapter(entry: JudgeEntry, *, quantized: bool) -> None:
    """Check that a judge's adapter, if any, can be merged."""
    if entry.adapter is None:
        return
    file = entry.adapter / ADAPTER_CONFIG
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        kind = config["peft_type"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise JudgeError(f"judge {entry.name!r}: {file} is not the configuration of an adapter: {error!r}") from error
    if kind != "LORA":
        raise UnsupportedModelError(
            f"judge {entry.name!r}: the adapter in {entry.adapter} is of the kind {kind!r}; only LoRA is merged",
            hint="Merge it with peft's own `merge_and_unload` where it can, and give the merged model as `judge`.",
        )
    if not (entry.adapter / ADAPTER_WEIGHTS).is_file():
        raise WeightsError(
            f"judge {entry.name!r}: {entry.adapter} holds no {ADAPTER_WEIGHTS}",
            hint="Only safetensors are loaded. A pickled adapter_model.bin is converted by loading it with peft, where "
            "you trust it, and `save_pretrained`.",
        )
    if importlib.util.find_spec("peft") is None:
        raise ConfigurationError(
            f"judge {entry.name!r} has an adapter ({entry.adapter}), which needs the package peft",
            hint="Install it: pip install 'geval-local[peft]'.",
        )
    if quantized:
        raise ConfigurationError(
            f"judge {entry.name!r}: an adapter is merged into the weights, which quantization has no room for",
            hint="Leave `quantization` out, or merge the adapter into the model's files beforehand.",
        )


@contextmanager
def without_adapter(directory: Path) -> Iterator[Path]:
    """Yield a view of a model's directory without its adapter, which transformers would otherwise apply by itself.

    No argument of transformers turns that off in all versions (5.17 ignores them all), so the view consists of links
    to the other files.
    """
    if not (directory / ADAPTER_CONFIG).is_file():
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="geval-local-") as folder:
        for file in directory.iterdir():
            if not file.name.startswith("adapter_"):
                (Path(folder) / file.name).symlink_to(file.resolve())
        yield Path(folder)


def merge_adapter(entry: JudgeEntry, model: Any) -> Any:
    """Merge a judge's adapter into its loaded weights."""
    import peft

    if any(parameter.is_meta for parameter in model.parameters()):
        raise JudgeError(
            f"judge {entry.name!r}: an adapter cannot be merged into weights that the device map left on the disk",
            hint="Load all of it into memory: `device=cpu`, a smaller `dtype` or a smaller judge.",
        )
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    is_tied = head is not None and head.weight is embedding.weight
    with quiet():
        try:
            config = peft.PeftConfig.from_pretrained(str(entry.adapter), local_files_only=True)
            _check_patterns(entry, config, [name for name, _ in model.named_modules()])
            adapted = peft.PeftModel(model, config)
            loaded = adapted.load_adapter(str(entry.adapter), "default", torch_device=str(model.device))
        except GevalError:
            raise
        except Exception as error:  # peft passes on any exception of its parts
            raise JudgeError(
                f"judge {entry.name!r}: the adapter in {entry.adapter} does not fit it: {first_line(error)}",
                hint=f"An adapter belongs to the model that it was trained on; see {ADAPTER_CONFIG}.",
            ) from error
        wrong = sorted([*loaded.missing_keys, *loaded.unexpected_keys])
        if wrong:
            raise WeightsError(
                f"judge {entry.name!r}: the weights of the adapter in {entry.adapter} are not those that its "
                f"configuration asks for in this model: {len(loaded.missing_keys)} are missing and "
                f"{len(loaded.unexpected_keys)} have no place ({', '.join(wrong[:_SHOWN])})",
                hint=f"An adapter belongs to the model that it was trained on; see {ADAPTER_CONFIG}.",
            )
        inner: Any = adapted.get_base_model()
        ends = (inner.get_input_embeddings(), inner.get_output_embeddings())
        if is_tied and any(hasattr(part, "base_layer") or hasattr(part, "modules_to_save") for part in ends):
            raise JudgeError(
                f"judge {entry.name!r}: the adapter in {entry.adapter} changes the embedding or the head, which are "
                "one in this model, so that it cannot be merged into one without the other",
                hint="Merge it into the model's files beforehand, with the two untied.",
            )
        for module in adapted.modules():
            if isinstance(base := getattr(module, "base_layer", None), nn.Module):
                widen_module(base)  # what is merged is kept in the dtype of the computation
        try:
            return adapted.merge_and_unload(safe_merge=True)
        except Exception as error:
            raise JudgeError(
                f"judge {entry.name!r}: the adapter in {entry.adapter} cannot be merged: {first_line(error)}"
            ) from error


def _check_patterns(entry: JudgeEntry, config: Any, names: list[str]) -> None:
    """Try an adapter's regular expressions in a process that can be ended: one may take longer than anybody lives."""
    given = [getattr(config, key, None) for key in ("target_modules", "exclude_modules", "layers_pattern")]
    listed = [*(getattr(config, "rank_pattern", None) or ()), *(getattr(config, "alpha_pattern", None) or ())]
    patterns = [one for one in (*given, *listed) if isinstance(one, str) and len(_QUANTIFIER.findall(one)) > 1]
    if not patterns:
        return
    task = json.dumps({"patterns": patterns, "names": names}).encode()
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TRY], input=task, capture_output=True, timeout=_PATIENCE, check=False
        )
        problem = "are no regular expressions" if done.returncode else None
    except subprocess.TimeoutExpired:
        problem = f"do not come to an end within {_PATIENCE:.0f} s"
    if problem is not None:
        raise JudgeError(
            f"judge {entry.name!r}: the patterns in {entry.adapter and entry.adapter / ADAPTER_CONFIG} {problem}: "
            f"{', '.join(patterns)[:200]}",
            hint="Write target_modules as a list of names.",
        )
