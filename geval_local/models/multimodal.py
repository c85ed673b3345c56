"""Models that read images, sound or video beside text: only their text model serves as a judge."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

__all__ = ["drop_other_senses", "is_beside_the_text", "loader_for", "reads_text", "senses_of"]

_SENSES = (
    r"(^|\.)(\w*(vision|visual|image|audio|speech|video)\w*|(multi_modal|multimodal|mm)_projector|aligner|"
    r"talker|code2wav|token2wav)(?=\.)"
)
#: Weights allowed beside the language model: image and audio towers with their projectors,
#: heads that predict several tokens at once, and tables that older versions of transformers stored.
_SENSE = re.compile(_SENSES)
_BESIDE_THE_TEXT = re.compile(
    rf"{_SENSES}|(^|\.)(mtp\w*|\w*nextn\w*)\.|(^|[._])((original_)?inv_freq|position_ids|(cos|sin)_cached|masked_bias)$"
)


def is_beside_the_text(name: str) -> bool:
    """Whether a weight's name shows that it is not part of a language model."""
    return _BESIDE_THE_TEXT.search(name) is not None


def senses_of(names: Iterable[str]) -> list[str]:
    """List the non-text parts of a model, from the names of its weights."""
    found = (_SENSE.search(name) for name in names)
    return sorted({match.string[: match.end()] for match in found if match is not None})


def reads_text(config: dict[str, Any]) -> bool:
    """Whether a configuration describes a wrapper around a causal text model."""
    text = config.get("text_config")
    if config["model_type"] not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES or not isinstance(text, dict):
        return False
    kind = str(text.get("model_type"))
    return not (kind in CONFIG_MAPPING and CONFIG_MAPPING[kind].is_encoder_decoder)


def loader_for(kind: str | None) -> Any:
    """Return the transformers class that loads a model type as a text model."""
    if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or kind not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        return AutoModelForCausalLM
    return AutoModelForImageTextToText


def drop_other_senses(model: Any) -> None:
    """Remove the non-text parts from a loaded model, and free their memory."""
    inner = getattr(model, model.base_model_prefix or "model", model)
    for holder in {id(part): part for part in (model, inner)}.values():
        for name in [name for name, _ in holder.named_children() if _SENSE.search(f"{name}.")]:
            delattr(holder, name)
