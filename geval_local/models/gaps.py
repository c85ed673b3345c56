"""What a loaded model must be: all of its weights and no others, in memory, with finite logits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from geval_local.errors import JudgeError, WeightsError
from geval_local.models.entry import JudgeEntry
from geval_local.models.fingerprint import weight_files

__all__ = ["check_finite", "check_gaps", "check_placement", "check_surplus"]

#: What a checkpoint may hold beside its language model: towers for images and sound with what joins them to the text,
#: heads that predict several tokens at once, and tables that older versions of transformers stored.
_BESIDE_THE_TEXT = re.compile(
    r"(^|\.)(\w*(vision|visual|image|audio|speech|video)\w*|(multi_modal|multimodal|mm)_projector|aligner|"
    r"mtp\w*|\w*nextn\w*|talker|code2wav|token2wav)\.|"
    r"(^|[._])((original_)?inv_freq|position_ids|(cos|sin)_cached|masked_bias)$"
)
#: The causal mask that GPT-2, GPT-J and GPT-NeoX stored as a buffer, under the name of a bias.
_STORED_MASK = re.compile(r"\.(attn|attention|self_attn)(\.attention)?\.bias$")
_LAYER = re.compile(r"(^|\.)layers\.(\d+)\.")
_SHOWN = 3
_PROBE_TOKENS = 16


def check_gaps(entry: JudgeEntry, directory: Path, report: dict[str, Any]) -> None:
    """Refuse what transformers only warns about: a parameter without weights would hold random numbers.

    Parameters
    ----------
    entry : JudgeEntry
        Whose model it is.
    directory : Path
        Where its files are.
    report : dict
        What transformers tells of its loading.

    Raises
    ------
    WeightsError
        If parameters are missing or have another shape.
    """
    missing = sorted(str(key) for key in report["missing_keys"])
    mismatched = sorted(str(item[0]) for item in report["mismatched_keys"])
    if missing or mismatched:
        raise WeightsError(
            f"judge {entry.name!r}: the weights in {directory} do not fit its config.json: {len(missing)} parameters "
            f"are missing and {len(mismatched)} have another shape ({_some(missing + mismatched)})",
            hint="They would be initialised at random. Check that config.json and weights belong together and that "
            "this is a causal language model with its head.",
        )


def check_surplus(entry: JudgeEntry, directory: Path, model: Any, report: dict[str, Any]) -> None:
    """Refuse weights that the model has no place for: it would be another model than the one that was trained.

    What transformers itself knows to be of no use to an architecture is not in its report.

    Parameters
    ----------
    entry : JudgeEntry
        Whose model it is.
    directory : Path
        Where its files are.
    model : PreTrainedModel
        What was loaded from them.
    report : dict
        What transformers tells of its loading.

    Raises
    ------
    WeightsError
        If the checkpoint holds weights that are left over and none of what surrounds a language model.
    """
    config = model.config.get_text_config()
    # Heads for several tokens are numbered on behind the layers in some checkpoints.
    extra = range(config.num_hidden_layers, config.num_hidden_layers + _count(config, "num_nextn_predict_layers"))
    surplus = []
    for key in sorted(str(key) for key in report["unexpected_keys"]):
        layer = _LAYER.search(key)
        is_known = _BESIDE_THE_TEXT.search(key) or (layer and int(layer[2]) in extra)
        if not is_known and not (_STORED_MASK.search(key) and _is_mask(directory, key)):
            surplus.append(key)
    if surplus:
        raise WeightsError(
            f"judge {entry.name!r}: {directory} holds {len(surplus)} weights that its config.json has no place for "
            f"({_some(surplus)})",
            hint="Without them it is not the model that was trained. Check that config.json and weights belong "
            f"together: the configuration has {config.num_hidden_layers} layers.",
        )


def check_finite(entry: JudgeEntry, model: Any) -> None:
    """Refuse a model whose logits are no numbers: each of its scores would be none.

    Raises
    ------
    WeightsError
        If weights are not finite; with their names.
    JudgeError
        If the weights are, but the dtype has no room for what is computed from them.
    """
    vocabulary = int(model.config.get_text_config().vocab_size)
    ids = torch.arange(_PROBE_TOKENS, device=model.device).unsqueeze(0) * 7 % max(1, vocabulary // 2)
    with torch.inference_mode():
        logits = model(input_ids=ids, use_cache=False).logits
    if torch.isfinite(logits).all():
        return
    broken = [
        name for name, weight in model.named_parameters() if not weight.is_meta and not torch.isfinite(weight).all()
    ]
    if broken:
        raise WeightsError(
            f"judge {entry.name!r}: {len(broken)} of its weights are not finite numbers ({_some(broken)})",
            hint="Get the weights again: these are damaged, or come from a training that failed.",
        )
    raise JudgeError(
        f"judge {entry.name!r}: its logits are not finite in {str(model.dtype).removeprefix('torch.')}, although its "
        "weights are",
        hint="Load it with more range: --dtype bfloat16 or --dtype float32.",
    )


def _count(config: Any, name: str) -> int:
    value = getattr(config, name, None)
    return value if isinstance(value, int) else 0


def _is_mask(directory: Path, key: str) -> bool:
    """Whether a stored tensor has the shape of a causal mask, ``(1, 1, length, length)``."""
    for file in weight_files(directory):
        with safe_open(file, framework="pt") as tensors:
            if key in tensors.keys():  # noqa: SIM118 - the opened file is no mapping
                shape = tensors.get_slice(key).get_shape()
                return len(shape) == 4 and shape[:2] == [1, 1] and shape[2] == shape[3]
    return False


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def check_placement(entry: JudgeEntry, model: Any) -> None:
    """Refuse a placement that leaves all weights on disk: accelerate then runs into tensors without data.

    Raises
    ------
    JudgeError
        If a device map has put everything there.
    """
    places = set((getattr(model, "hf_device_map", None) or {}).values())
    if places == {"disk"}:
        size = model.get_memory_footprint() / 1e6
        tied = ", which it shares with its head," if model.config.get_text_config().tie_word_embeddings else ""
        raise JudgeError(
            f"judge {entry.name!r} ({size:,.0f} MB of weights): the device map found no memory for any part of it, not "
            f"even for its embedding{tied} and a model cannot run from the disk alone",
            hint="Make memory free, halve the weights with --dtype bfloat16, take a smaller judge, or have all of it "
            "loaded into main memory, whatever is free there, with --device cpu instead of --device-map.",
        )
