"""Rotary embeddings of GGUF files: every key is set in transformers' configuration, or refused by name.

If a factor has no type, llama.cpp scales linearly; it also knows an old name of the factor. Its keys of YaRN are those
of a config.json (``attention_factor`` is written as ``yarn_attn_factor``). Transformers has no setting for keys that
multiply attention further.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

from geval_local.models.gguf.file import GGUFHeader
from geval_local.models.gguf.keys import refuse_key

_FACTORS = ("scaling.factor", "scale_linear")
#: Keys of YaRN -> names in configurations.
_YARN = {
    "scaling.yarn_beta_fast": "beta_fast",
    "scaling.yarn_beta_slow": "beta_slow",
    "scaling.yarn_attn_factor": "attention_factor",
}
#: Keys that transformers has no setting for -> values that change nothing. A negative extrapolation factor is unset.
_NEUTRAL: dict[str, tuple[float, ...]] = {
    "scaling.attn_factor": (1.0,),
    "scaling.alpha": (0.0,),
    "scaling.yarn_log_multiplier": (0.0,),
    "scaling.yarn_ext_factor": (-1.0,),
}
_WIDTHS = ("dimension_count", "dimension_count_swa")
_BASES = ("freq_base", "freq_base_swa")
#: Numbers that have to be above zero; numbers whose zero means the default.
_ABOVE_ZERO, _ZERO_IS_DEFAULT = {*_BASES, *_YARN}, {*_FACTORS, "scaling.original_context_length", *_WIDTHS}
#: All keys that are read here, and one that only describes a model's training.
ROTARY_KEYS = {
    *_ABOVE_ZERO,
    *_ZERO_IS_DEFAULT,
    *_NEUTRAL,
    "scaling.type",
    "scaling.finetuned",
    "dimension_sections",
}
_SCALED = ("linear", "yarn")
#: If layers differ, layers with a sliding window have parameters of their own.
_FULL, _SLIDING = "full_attention", "sliding_attention"


def check_rotary(header: GGUFHeader) -> None:
    """Reject keys that transformers has no setting for, and invalid values."""
    start, kind = f"{header.architecture}.rope.", scaling_type(header)
    for key, value in {**header.metadata, **header.arrays}.items():
        name = key.removeprefix(start)
        if name == key or name in ("scaling.type", "scaling.finetuned", "dimension_sections"):
            continue
        if name not in ROTARY_KEYS or type(value) not in (int, float) or not math.isfinite(value):
            _refuse(header, name)
        neutral = _NEUTRAL.get(name)
        if name == "scaling.yarn_ext_factor":
            neutral = (-1.0, 1.0 if kind == "yarn" else 0.0)
        elif name == "scaling.yarn_attn_factor" and kind != "yarn":
            neutral = (1.0,)
        is_wrong = value < 0 if name in _ZERO_IS_DEFAULT else name in _ABOVE_ZERO and value <= 0
        if is_wrong or (neutral is not None and value not in neutral):
            _refuse(header, name)


def scaling_type(header: GGUFHeader) -> str:
    """Name the scaling: ``none``, ``linear``, ``yarn``, or another type that the file names."""
    kind = header.own("rope.scaling.type")
    if kind is None:
        return "linear" if _factor(header) != 1.0 else "none"
    return str(kind)


def _factor(header: GGUFHeader) -> float:
    found = next((one for name in _FACTORS if (one := header.own(f"rope.{name}")) is not None), None)
    return float(found) if isinstance(found, int | float) and found else 1.0


def set_rotary(config: Any, header: GGUFHeader) -> None:
    """Set a file's rotary embeddings in a configuration; refuse keys that have no setting there."""
    rope = getattr(config, "rope_parameters", None)
    if not rope:
        for name in (*_FACTORS, *_BASES):
            if header.own(f"rope.{name}") is not None:
                _refuse(header, name)
        return
    full, sliding = rope.get(_FULL, rope), rope.get(_SLIDING)
    if (base := header.own("rope.freq_base")) is not None:
        full["rope_theta"] = float(base)
    if (base := header.own("rope.freq_base_swa")) is not None:
        if sliding is not None:
            sliding["rope_theta"] = float(base)
        elif float(base) != full["rope_theta"]:
            _refuse(header, "freq_base_swa")
    _set_width(config, header, full)
    kind = scaling_type(header)
    if kind in _SCALED:
        full |= {"rope_type": kind, "factor": _factor(header)}
        if original := header.own("rope.scaling.original_context_length"):
            full["original_max_position_embeddings"] = int(original)
        elif kind == "yarn":
            full["original_max_position_embeddings"] = config.max_position_embeddings
        if kind == "yarn":
            given = {name: header.own(f"rope.{key}") for key, name in _YARN.items()}
            full |= {name: float(value) for name, value in given.items() if value is not None}
    elif full.get("rope_type") in _SCALED:  # by default (gpt-oss), which the file does not say
        full["rope_type"] = "default"


def _set_width(config: Any, header: GGUFHeader, rope: dict[str, Any]) -> None:
    """Set the rotated part of a head for architectures that rotate a part; others rotate the whole head."""
    sections = header.arrays.get(f"{header.architecture}.rope.dimension_sections", (0, ()))[1]
    if any(sections) and "mrope_section" not in rope:
        _refuse(header, "dimension_sections")
    for name, own in zip(_WIDTHS, ("attention.key_length", "attention.key_length_swa"), strict=True):
        width, head = header.own(f"rope.{name}"), header.own(own) or _head_width(header)
        if not width or not head:
            continue
        is_usual = name == "dimension_count" and rope.get("rope_type", "default") in ("default", *_SCALED)
        if is_usual and width <= head and "partial_rotary_factor" in rope:
            rope["partial_rotary_factor"] = width / head
        elif width != head:
            _refuse(header, name, f"while its heads have {head} dimensions, ")


def _head_width(header: GGUFHeader) -> int | None:
    width = header.own("attention.key_length")
    heads, hidden = header.own("attention.head_count"), header.own("embedding_length")
    return width or (hidden // heads if type(heads) is type(hidden) is int and heads else None)


def _refuse(header: GGUFHeader, name: str, beside: str = "") -> NoReturn:
    refuse_key(header, f"rope.{name}", beside)
