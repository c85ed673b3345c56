"""Models that read images, sound or video beside text: as judges they are their text model alone."""

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
#: What a checkpoint may hold beside its language model: towers for images and sound with what joins them to the text,
#: heads that predict several tokens at once, and tables that older versions of transformers stored.
_SENSE = re.compile(_SENSES)
_BESIDE_THE_TEXT = re.compile(
    rf"{_SENSES}|(^|\.)(mtp\w*|\w*nextn\w*)\.|(^|[._])((original_)?inv_freq|position_ids|(cos|sin)_cached|masked_bias)$"
)


def is_beside_the_text(name: str) -> bool:
    """Whether a weight is known, by its name, to be no part of a language model."""
    return _BESIDE_THE_TEXT.search(name) is not None


def senses_of(names: Iterable[str]) -> list[str]:
    """Name the parts of a model that read or write something else than text, from the names of its weights."""
    found = (_SENSE.search(name) for name in names)
    return sorted({match.string[: match.end()] for match in found if match is not None})


def reads_text(config: dict[str, Any]) -> bool:
    """Whether a configuration is that of a wrapper around a causal model of text."""
    text = config.get("text_config")
    if config["model_type"] not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES or not isinstance(text, dict):
        return False
    kind = str(text.get("model_type"))
    return not (kind in CONFIG_MAPPING and CONFIG_MAPPING[kind].is_encoder_decoder)


def loader_for(kind: str | None) -> Any:
    """Choose transformers' class that loads a model type as a model of text."""
    if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or kind not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        return AutoModelForCausalLM
    return AutoModelForImageTextToText


def drop_other_senses(model: Any) -> None:
    """Take out of a loaded model what reads something else than text, and free its memory."""
    inner = getattr(model, model.base_model_prefix or "model", model)
    for holder in {id(part): part for part in (model, inner)}.values():
        for name in [name for name, _ in holder.named_children() if _SENSE.search(f"{name}.")]:
            delattr(holder, name)
