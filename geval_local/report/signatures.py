"""Signatures as key-value pairs, and what two runs do not share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from geval_local.signature import Signature

__all__ = ["Difference", "SignatureInput", "differences", "signature_parts", "signatures_by_metric"]

#: One signature for all metrics, or one per metric; as text it is `Signature`'s own form.
SignatureInput = Signature | str | Mapping[str, Signature | str]


@dataclass(frozen=True)
class Difference:
    """One key that differs between the signatures of two runs.

    Attributes
    ----------
    key : str
        Which one.
    metrics : tuple of str
        The metrics where it differs in this way.
    first, second : str
        What each run has; ``not given`` where its signature lacks the key.
    """

    key: str
    metrics: tuple[str, ...]
    first: str
    second: str


def signatures_by_metric(given: SignatureInput | None, metrics: Sequence[str]) -> dict[str, str]:
    """Spread what was given over the metrics; those without a signature are left out."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {metric: str(given[metric]) for metric in metrics if metric in given}
    return {metric: str(given) for metric in metrics}


def signature_parts(signature: str) -> dict[str, str]:
    """Take a signature apart: ``key:value|key:value``; a part without a key is kept under its own text."""
    parts: dict[str, str] = {}
    for part in signature.split("|"):
        key, separator, value = part.partition(":")
        parts[key] = value if separator else part
    return parts


def differences(first: Mapping[str, str], second: Mapping[str, str]) -> list[Difference]:
    """List what differs, where both runs have a signature; metrics that differ in the same way stand together."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for metric in first:
        if metric not in second:
            continue
        one, other = signature_parts(first[metric]), signature_parts(second[metric])
        for key in dict.fromkeys([*one, *other]):
            if one.get(key) != other.get(key):
                values = (key, one.get(key, "not given"), other.get(key, "not given"))
                found.setdefault(values, []).append(metric)
    return [Difference(key, tuple(metrics), first, second) for (key, first, second), metrics in found.items()]
