"""Identity of judges: the files that contain the weights, and the digests of their content."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from geval_local.errors import WeightsError
from geval_local.files import write_atomically
from geval_local.models.gguf_file import gguf_files
from geval_local.paths import home_directory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["ADAPTER_CONFIG", "ADAPTER_WEIGHTS", "file_digest", "fingerprint", "tokenizer_hash", "weight_files"]

#: The files of an adapter, as peft names them.
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_HEX_DIGITS = 16
_LONGEST_NAME = 200
_SAVED_BY = {"transformers_version", "_name_or_path", "use_cache", "peft_version", "base_model_name_or_path"}


def weight_files(directory: Path) -> list[Path]:
    """List the weight files that loading reads, whether they exist or not.

    Other safetensors in a repository (other formats of the same weights, adapters) are not part of the
    model.

    Parameters
    ----------
    directory : Path
        The model's directory, or its GGUF file.

    Returns
    -------
    list of Path
        ``model.safetensors``, or the shards of its index, sorted by name; empty when there is neither. For a GGUF file
        that file, or all parts of a split one.

    Raises
    ------
    WeightsError
        If the index cannot be read, or names a file outside the directory.
    """
    if directory.is_file():
        return gguf_files(directory)
    if (directory / _SINGLE).exists():
        return [directory / _SINGLE]
    index = directory / _INDEX
    if not index.exists():
        return []
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{index} is not an index of safetensors shards: {error!r}") from error
    for name in names:
        if (
            not isinstance(name, str)
            or len(name) > _LONGEST_NAME
            or "\0" in name
            or Path(name).name != name
            or not name.endswith(".safetensors")
        ):
            raise WeightsError(f"{index} names {name!r}, which is not a safetensors file of its own directory")
    return [directory / name for name in names]


def fingerprint(directory: Path, adapter: Path | None = None) -> str:
    """Identify a judge by the content of its weights, of its configuration and of its adapter.

    The same weights under another configuration (rotary scaling, a sliding window) are a different judge.

    Parameters
    ----------
    directory : Path
        The model's directory, complete, or its GGUF file.
    adapter : Path, optional
        Directory of the adapter merged into the weights.

    Returns
    -------
    str
        16 hex digits of the SHA-256 over config.json (without the notes of the program that saved it) and the weight
        files' names and SHA-256 digests, sorted by name. The directory's path and the files' times do not count, nor
        does a GGUF file's name, which Ollama generates.
    """
    if directory.is_file():
        lines = ["gguf", *_digests(weight_files(directory))]
    else:
        lines = [_configuration(directory / "config.json"), *_named_digests(weight_files(directory))]
    if adapter is not None:
        lines += [_configuration(adapter / ADAPTER_CONFIG), *_named_digests([adapter / ADAPTER_WEIGHTS])]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:_HEX_DIGITS]


def _named_digests(files: Sequence[Path]) -> list[str]:
    return [f"{file.name}:{digest}" for file, digest in zip(files, _digests(files), strict=True)]


def _configuration(file: Path) -> str:
    record = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    kept = {key: value for key, value in record.items() if key not in _SAVED_BY}
    return json.dumps(kept, sort_keys=True, ensure_ascii=False)


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase, directory: Path) -> str:
    """Hash all files and settings that turn text into tokens: tokenizer.json, begin and end tokens, chat template.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        The tokenizer loaded from `directory`.
    directory : Path
        The model's directory. Without a ``tokenizer.json`` in it, the loaded backend's serialisation is used.

    Returns
    -------
    str
        16 hex digits.
    """
    file = directory / "tokenizer.json"
    content = file.read_bytes() if file.is_file() else tokenizer.backend_tokenizer.to_str().encode()
    settings = {
        "tokenizer": hashlib.sha256(content).hexdigest(),
        "chat_template": tokenizer.chat_template,
        "bos_token": tokenizer.bos_token,
        "eos_token": tokenizer.eos_token,
        # tokenizer_config.json may override these settings of tokenizer.json.
        "add_bos_token": getattr(tokenizer, "add_bos_token", None),
        "add_eos_token": getattr(tokenizer, "add_eos_token", None),
    }
    record = json.dumps(settings, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(record.encode()).hexdigest()[:_HEX_DIGITS]


def _digests(files: Sequence[Path]) -> list[str]:
    """Return the SHA-256 of each file's content, computed or from the notes if the file has not changed."""
    notes_file = home_directory() / "digests.json"
    notes = _read_notes(notes_file)
    fresh: dict[str, str] = {}
    digests = []
    for file in files:
        key = _file_identity(file)
        digest = notes.get(key, "")
        if not _SHA256.fullmatch(digest):
            digest = file_digest(file)
            if _file_identity(file) == key:  # else the file changed meanwhile
                fresh[key] = digest
        digests.append(digest)
    if fresh:
        _write_notes(notes_file, fresh)
    return digests


def _file_identity(file: Path) -> str:
    """Identify the state of a file, following links: any write changes the ctime, which cannot be set by hand."""
    status = file.stat()
    return f"{status.st_dev}|{status.st_ino}|{status.st_size}|{status.st_mtime_ns}|{status.st_ctime_ns}"


def file_digest(path: Path) -> str:
    """Compute the SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def _read_notes(path: Path) -> dict[str, str]:
    try:
        notes = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in notes.items() if isinstance(value, str)} if isinstance(notes, dict) else {}


def _write_notes(path: Path, fresh: dict[str, str]) -> None:
    """Add digests to the notes. They only save time: if they cannot be saved, the next run reads the file again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({**_read_notes(path), **fresh}), private=True)
    except OSError:
        return
