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

import torch
from torch import nn

from geval_local.errors import (
    ConfigurationError,
    GevalError,
    JudgeError,
    UnsupportedModelError,
    WeightsError,
    first_line,
)
from geval_local.models.config_checks import probe_logits
from geval_local.models.fingerprint import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from geval_local.models.options import quiet
from geval_local.models.registry import JudgeEntry
from geval_local.models.stored import widen_module
from geval_local.models.verdicts import verdict_of

_SHOWN = 3
#: Initialisations of an adapter's matrices that leave the base weights unchanged; irrelevant after training.
_PLAIN_STARTS = {True, False, None, "gaussian", "orthogonal"}
#: Initialisations by factors of the base weights: every load computes the same factors again, in float32 at most. All
#: except MiCA subtract them from the base.
_FACTORED = {"pissa", "olora", "mica"}
_AS_PLAIN = (
    "Where it was trained, save it once more with peft's `save_pretrained(DIR, "
    "path_initial_model_for_weight_conversion=DIR_BEFORE_TRAINING)`, which makes it a plain LoRA."
)
#: Keys whose effect depends on more than weights, or that several layers share: reason, remedy.
NO_MERGE = {
    "layer_replication": (
        "repeats layers of the model (layer_replication), which share their weights, so that it cannot be merged into "
        "one without the others",
        "Write the larger model to files first: copy the repeated layers under numbers of their own, then merge the "
        "adapter into them.",
    ),
    "alora_invocation_tokens": (
        "is an activated LoRA (alora_invocation_tokens): it works from certain tokens on, which merged weights cannot",
        "Take a plain LoRA, or the model without the adapter.",
    ),
    "arrow_config": (
        "chooses among several adapters for each token (arrow_config), which merged weights cannot",
        "Take one of its adapters.",
    ),
}
#: Largest median change of the log-probabilities by merging, as a share of their standard deviation. Ten models and
#: kinds of LoRA, merged correctly, changed by 5e-6 (float32), 0.05 (float16), 0.1 (bfloat16) and 1e-15 (float64).
_ROUNDING = {torch.float64: 1e-9, torch.float32: 5e-5, torch.float16: 0.05, torch.bfloat16: 0.2}
#: Seconds that an adapter's patterns may take on all modules of a model; usual ones take milliseconds.
PATIENCE = 10.0
_QUANTIFIER = re.compile(r"[*+{]")
#: Peft matches a pattern with the end of a module's name.
_TRY = (
    "import json, re, sys\ntask = json.load(sys.stdin)\n"
    "for name in task['names']:\n    for pattern in task['patterns']:\n"
    "        re.match(pattern, name), re.fullmatch(rf'(.*\\.)?({pattern})', name)\n"
)


def check_adapter(
    entry: JudgeEntry, *, quantized: bool, dtype: str = "auto", is_gguf: bool = False, merged: bool = True
) -> dict[str, Any]:
    """Check that a judge's adapter, if any, can be merged into weights that are computed in `dtype`.

    Returns its configuration; without `merged` another program applies it, which needs no peft.
    """
    if entry.adapter is None:
        return {}
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
    _check_start(entry, config, dtype, is_gguf=is_gguf)
    if not (entry.adapter / ADAPTER_WEIGHTS).is_file():
        raise WeightsError(
            f"judge {entry.name!r}: {entry.adapter} holds no {ADAPTER_WEIGHTS}",
            hint="Only safetensors are loaded. A pickled adapter_model.bin is converted by loading it with peft, where "
            "you trust it, and `save_pretrained`.",
        )
    if merged and importlib.util.find_spec("peft") is None:
        raise ConfigurationError(
            f"judge {entry.name!r} has an adapter ({entry.adapter}), which needs the package peft",
            hint="Install it: pip install 'geval-local[peft]'.",
        )
    if quantized:
        raise ConfigurationError(
            f"judge {entry.name!r}: an adapter is merged into the weights, which quantization has no room for",
            hint="Leave `quantization` out, or merge the adapter into the model's files beforehand.",
        )
    return dict(config)


def _check_start(entry: JudgeEntry, config: dict[str, Any], dtype: str, *, is_gguf: bool) -> None:
    """Reject an adapter whose training started from other base weights, or that no merge can represent.

    Peft repeats the initialisation at every load, before it reads the trained matrices. If that changes the base at
    random (randomised factors) or by data, every load gives another model.
    """
    for key, (reason, remedy) in NO_MERGE.items():
        if config.get(key):
            raise UnsupportedModelError(f"judge {entry.name!r}: the adapter in {entry.adapter} {reason}", hint=remedy)
    start = config.get("init_lora_weights", True)
    name = start.lower() if isinstance(start, str) else start
    if isinstance(name, list | dict) or name not in _PLAIN_STARTS | _FACTORED:
        raise UnsupportedModelError(
            f"judge {entry.name!r}: the adapter in {entry.adapter} began with base weights that chance, data or a rule "
            f"unknown here changed (init_lora_weights: {start!r}), so that they cannot be computed again",
            hint=_AS_PLAIN,
        )
    if name not in _FACTORED and not config.get("kasa_config"):
        return
    what = f"init_lora_weights: {start!r}" if name in _FACTORED else "kasa_config"
    if is_gguf and name != "mica":
        raise UnsupportedModelError(
            f"judge {entry.name!r}: the adapter in {entry.adapter} began with factors of the base weights ({what}); "
            "those of a GGUF file are not the ones that it was trained on",
            hint=f"Take the model's safetensors. {_AS_PLAIN}",
        )
    if dtype == "float64":
        raise ConfigurationError(
            f"judge {entry.name!r}: the adapter in {entry.adapter} began with factors of the base weights ({what}), "
            "which peft computes in float32 at most",
            hint=f"Take `dtype=float32`. {_AS_PLAIN}",
        )


@contextmanager
def without_adapter(directory: Path) -> Iterator[Path]:
    """Yield a view of a model's directory without its adapter, which transformers would otherwise apply on its own.

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


def merge_adapter(entry: JudgeEntry, model: Any, fingerprint: str) -> Any:
    """Merge a judge's adapter into its loaded weights; compare the merged model once for each fingerprint."""
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
                widen_module(base)  # merged weights keep the dtype of the computation
        verdict, key = verdict_of(inner, fingerprint), f"merged by peft {peft.__version__}"
        before = None if verdict.read(key, float) is not None else probe_logits(entry, inner.eval())
        try:
            merged = adapted.merge_and_unload(safe_merge=True)
        except Exception as error:
            raise JudgeError(
                f"judge {entry.name!r}: the adapter in {entry.adapter} cannot be merged: {first_line(error)}",
                hint="Train it without `lora_bias`: the model's layers have no bias that could hold it."
                if getattr(config, "lora_bias", False)
                else "Peft cannot merge it, so no tool does. Take a plain LoRA, or the model without the adapter.",
            ) from error
        if before is not None:
            verdict.keep(key, _moved_by_merge(entry, before, probe_logits(entry, merged), merged.dtype))
        return merged


def _moved_by_merge(entry: JudgeEntry, before: torch.Tensor, after: torch.Tensor, dtype: torch.dtype) -> float:
    """Refuse a merged model if its log-probabilities differ from those of the model with an unmerged adapter.

    Merging rounds the weights, which changes every log-probability slightly. At single positions the change may be
    large, because a mixture sends a token to another expert.
    """
    first, second = (torch.log_softmax(one.double(), dim=-1) for one in (before, after))
    moved = float((first - second).square().mean(dim=-1).sqrt().median() / first.std().clamp(min=1.0))
    if not moved <= _ROUNDING.get(dtype, _ROUNDING[torch.bfloat16]):
        raise JudgeError(
            f"judge {entry.name!r}: merged with the adapter in {entry.adapter} it is another model than with the "
            f"adapter beside it: on a probe the log-probabilities differ by {float((first - second).abs().max()):.2g} "
            "nats at most, which is more than rounding",
            hint="Peft does not merge adapters of this kind rightly. Take a plain LoRA, or the model without the "
            "adapter.",
        )
    return moved


def _check_patterns(entry: JudgeEntry, config: Any, names: list[str]) -> None:
    """Try an adapter's regular expressions in a process that can be killed: some never finish (backtracking)."""
    given = [getattr(config, key, None) for key in ("target_modules", "exclude_modules", "layers_pattern")]
    listed = [*(getattr(config, "rank_pattern", None) or ()), *(getattr(config, "alpha_pattern", None) or ())]
    patterns = [one for one in (*given, *listed) if isinstance(one, str) and len(_QUANTIFIER.findall(one)) > 1]
    if not patterns:
        return
    task = json.dumps({"patterns": patterns, "names": names}).encode()
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TRY], input=task, capture_output=True, timeout=PATIENCE, check=False
        )
        problem = "are no regular expressions" if done.returncode else None
    except subprocess.TimeoutExpired:
        problem = f"do not come to an end within {PATIENCE:.0f} s"
    if problem is not None:
        raise JudgeError(
            f"judge {entry.name!r}: the patterns in {entry.adapter and entry.adapter / ADAPTER_CONFIG} {problem}: "
            f"{', '.join(patterns)[:200]}",
            hint="Write target_modules as a list of names.",
        )
