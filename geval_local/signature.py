"""Signature: all settings that a score depends on, on one line, in the manner of sacreBLEU."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from geval_local.backends import BACKENDS
from geval_local.canary import Canary
from geval_local.errors import DataError
from geval_local.scale import Scale

#: Keys that name versions of libraries: a change may shift scores by rounding only.
LIBRARIES = ("transformers", "torch", "version")


def short_signature(signature: str) -> str:
    """Name a signature by the first eight digits of its hash."""
    return hashlib.sha256(signature.encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Signature:
    """Everything that must be equal for two scores to be comparable.

    Attributes
    ----------
    judge : str
        Name (with an adapter's name) and content fingerprint of the weights, including the adapter.
    tokenizer : str
        Hash of tokenizer and chat template.
    metric : str
        Name and hash of the metric.
    steps : str
        Hash of the evaluation steps, or ``none``.
    scale : str
        The scale's text.
    style : str
        Prompt style, and whether thinking was closed.
    dtype, attention : str
        Settings that the model ran with; the dtype includes the quantization, if it was quantized while loading.
    estimator : str
        See `Estimator.text`.
    transformers, torch, version : str
        Versions of transformers, torch and geval-local.
    further : mapping of str to str
        Settings that only some metrics or judges have, under keys of their own: ``context`` where a metric shortens a
        field, since the judge's context decides what is cut; ``thinking`` where the judge thinks; ``backend`` and
        its settings where it is not transformers; ``canary`` where nobody verifies its weights.
    """

    judge: str
    tokenizer: str
    metric: str
    steps: str
    scale: str
    style: str
    dtype: str
    attention: str
    estimator: str
    transformers: str
    torch: str
    version: str
    further: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        own = {name: getattr(self, name) for name in _OWN}
        # Versions stand at the end.
        settings = {name: value for name, value in own.items() if name not in LIBRARIES}
        return written_signature(settings | dict(self.further) | own)

    @classmethod
    def parse(cls, text: str) -> Signature:
        """Read a written signature.

        Raises
        ------
        DataError
            If a key is missing or stands twice.
        """
        own, further = own_and_further(signature_parts(text))
        if missing := [name for name in _OWN if name not in own]:
            raise DataError(f"the signature {text!r} lacks {', '.join(missing)}", hint=_DAMAGED)
        return cls(**own, further=further)


_OWN = tuple(one.name for one in fields(Signature) if one.name != "further")
#: All keys that a signature may have.
KEYS = (*_OWN, "context", "thinking", "backend", *dict.fromkeys(key for one in BACKENDS.values() for key in one.keys))
_DAMAGED = "The file is damaged or was edited. Score the rows again."
#: What would end a value, or the line, is written as in a URL.
_ESCAPED = {char: f"%{ord(char):02X}" for char in "%|\n\r"}
_UNESCAPED = {code: char for char, code in _ESCAPED.items()}


def own_and_further(settings: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Divide settings into those that every signature has, and the `Signature.further` ones."""
    own = {name: value for name, value in settings.items() if name in _OWN}
    return own, {name: value for name, value in settings.items() if name not in own}


def written_signature(parts: Mapping[str, str]) -> str:
    """Write the parts of a signature on one line; no value can end its part, see `signature_parts`."""
    table = str.maketrans(_ESCAPED)
    return "|".join(f"{key}:{value.translate(table)}" for key, value in parts.items())


def signature_parts(text: str) -> dict[str, str]:
    """Read a written signature, ``key:value|key:value``; other versions may have other keys.

    Raises
    ------
    DataError
        If a key stands twice: nobody can say which one holds.
    """
    parts: dict[str, str] = {}
    for part in re.split(r"\|(?=\w+:)", text):
        key, _, value = part.partition(":")
        if key in parts:
            raise DataError(f"the signature {text!r} has the key {key!r} twice", hint=_DAMAGED)
        parts[key] = re.sub("|".join(_UNESCAPED), lambda match: _UNESCAPED[match[0]], value)
    return parts


#: The rounding of scores as a share of their scale: in float32 what docs/exactness.md promises, in half precision the
#: largest that was measured there.
_ROUNDING = {"bfloat16": 0.016, "float16": 0.0005, "": 1e-5}


def rounding_of(signature: str, scale: Scale | None = None) -> float:
    """Return the largest difference of scores that rounding alone makes under a signature, in units of the scale."""
    dtype = signature_parts(signature).get("dtype", "")
    share = next(share for name, share in _ROUNDING.items() if name in dtype)
    return share if scale is None else share * (scale.high - scale.low)


def signature_differences(first: str, second: str, *, missing: str = "-") -> dict[str, tuple[str, str]]:
    """List the differences of two written signatures: ``{key: (first, second)}``; `missing` for a key that one lacks.

    Judges are compared by content: the same weights under another name or path are not a difference. Canaries are
    compared by their tolerance.
    """
    one, other = signature_parts(first), signature_parts(second)
    pairs = {key: (one.get(key, missing), other.get(key, missing)) for key in [*one, *other]}
    return {key: pair for key, pair in pairs.items() if not _is_same(key, *pair)}


def with_canary_of(signature: str, before: str) -> str:
    """Return a signature with the canary of an equal one: what is on record stays as it is."""
    parts, known = signature_parts(signature), signature_parts(before).get("canary")
    return signature if known is None else written_signature(parts | {"canary": known})


def told_differences(differ: Mapping[str, tuple[str, str]], pair: str = "{} there, {} here") -> str:
    """Format differences of signatures for a message; `pair` formats the two values."""
    return "; ".join(f"{key}: {pair.format(*values)}" for key, values in differ.items())


def judge_name(name: str) -> str:
    """Shorten a judge's name for display: the last part of a directory or hub id."""
    return name.rstrip("/").rpartition("/")[2] or name


def _is_same(key: str, first: str, second: str) -> bool:
    if key == "judge":
        return first.rpartition("@")[2] == second.rpartition("@")[2]
    if key == "canary" and first != second:
        try:
            return Canary.parse(first).agrees(Canary.parse(second))
        except ValueError:
            return False
    return first == second
