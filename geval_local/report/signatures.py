"""Signatures of two runs, and their differences for a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from geval_local.signature import Signature, signature_differences

__all__ = ["Difference", "SignatureInput", "differences", "signatures_by_metric"]

#: One signature for all metrics, or one per metric; as text, in the form of `Signature`.
SignatureInput = Signature | str | Mapping[str, Signature | str]


@dataclass(frozen=True)
class Difference:
    """One key that differs between the signatures of two runs.

    Attributes
    ----------
    key : str
        Key of the signature.
    metrics : tuple of str
        The metrics where it differs in this way.
    first, second : str
        Value in each run; ``not given`` if its signature lacks the key.
    """

    key: str
    metrics: tuple[str, ...]
    first: str
    second: str


def signatures_by_metric(given: SignatureInput | None, metrics: Sequence[str]) -> dict[str, str]:
    """Assign the given signatures to metrics; metrics without one are left out."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {metric: str(given[metric]) for metric in metrics if metric in given}
    return {metric: str(given) for metric in metrics}


def differences(first: Mapping[str, str], second: Mapping[str, str]) -> list[Difference]:
    """List differences if both runs have a signature; metrics with the same difference are grouped."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for metric in first:
        if metric in second:
            differ = signature_differences(first[metric], second[metric], missing="not given")
            for key, values in differ.items():
                found.setdefault((key, *values), []).append(metric)
    return [Difference(key, tuple(metrics), first, second) for (key, first, second), metrics in found.items()]
