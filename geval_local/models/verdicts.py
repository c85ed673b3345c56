"""Results of the probes of a judge on a device, kept for its next start.

The probes of precision and engine take longer than a small run: half of a small judge's start on a CPU. Their results
depend only on the weights, the device and the software, so these are the key; the software includes the source of the
engine itself.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import TypeAdapter, ValidationError
from transformers import PreTrainedModel

from geval_local.files import home_folder, write_atomically
from geval_local.io.ownership import checksummed, is_unedited
from geval_local.models.head import gpus_of, input_device

#: Packages with kernels that a model's layers use if they are installed.
KERNEL_PACKAGES = ("triton", "triton-windows", "flash-linear-attention", "causal-conv1d", "mamba-ssm", "kernels")
_PACKAGES = ("geval_local", "torch", "transformers", *KERNEL_PACKAGES)

_T = TypeVar("_T")


class Verdict:
    """The recorded findings about one model on its device: one file; without one, nothing is found or kept."""

    def __init__(self, file: Path | None = None, identity: Mapping[str, Any] | None = None) -> None:
        self._file = file or Path(os.devnull, "none")
        self._identity = identity

    def read(self, name: str, kind: type[_T]) -> _T | None:
        """Return a finding; None if there is none for exactly this model, device and software.

        A record that is damaged or has another shape counts as none: the caller probes again and keeps the result.
        """
        try:
            return TypeAdapter(kind).validate_python(self._all()[name])
        except (KeyError, ValidationError):
            return None

    def keep(self, name: str, finding: Any) -> None:
        """Keep a finding; if it cannot be written, the next start probes again."""
        plain = TypeAdapter(type(finding)).dump_python(finding)
        record = {"identity": self._identity, "findings": self._all() | {name: plain}}
        with suppress(OSError):
            write_atomically(self._file, json.dumps(checksummed(record)), private=True)

    def _all(self) -> dict[str, Any]:
        try:
            record = json.loads(self._file.read_text(encoding="utf-8"))
            is_own = is_unedited(record) and record["identity"] == self._identity
            return dict(record["findings"]) if is_own else {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return {}


def verdict_of(model: PreTrainedModel, fingerprint: str) -> Verdict:
    """Return the record of a loaded model in its present dtype."""
    devices = gpus_of(model) or [input_device(model)]
    content = {
        "fingerprint": fingerprint,
        "dtype": str(model.dtype),
        "attention": str(getattr(model.config, "_attn_implementation", None)),
        "quantization": str(getattr(model.config, "quantization_config", None)),
        "cuda": [torch.version.cuda, torch.version.hip],
    }
    return verdict_on(devices, content)


def verdict_on(devices: Sequence[torch.device], content: dict[str, Any]) -> Verdict:
    """Return the record of a judge, identified by content and options."""
    if (folder := home_folder("verdicts")) is None:
        return Verdict()
    identity = content | {
        "devices": [_device(device) for device in devices],
        "engine": digest_of_sources(),
        "packages": {name: version for name in _PACKAGES if (version := version_of(name)) is not None},
    }
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
    return Verdict(folder / f"{name}.json", identity)


def version_of(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def digest_of_sources() -> str:
    """Return the SHA-256 of the modules that compute and probe, so that a changed module is probed again."""
    package = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for file in sorted(file for room in ("engine", "models") for file in (package / room).rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _device(device: torch.device) -> list[str]:
    if device.type == "cpu":
        return [str(device), platform.machine(), torch.backends.cpu.get_cpu_capability()]
    if device.type != "cuda":
        return [str(device)]
    properties = torch.cuda.get_device_properties(device)
    return [str(device), properties.name, f"{properties.major}.{properties.minor}", str(properties.total_memory)]
