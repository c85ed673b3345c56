"""Identity of judges: the files that loading reads, the digests of their content, and the tokenizer as loaded."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geval_local.errors import WeightsError
from geval_local.files import file_system, home_directory, private_home, write_atomically
from geval_local.io.ownership import file_sha256
from geval_local.models.gguf.file import gguf_files

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from geval_local.models.chat_template import ChatFrame

#: The files of an adapter, as peft names them.
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
#: The first bytes of a file that Git LFS keeps elsewhere.
_POINTER = b"version https://git-lfs.github.com/spec/"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_HEX_DIGITS = 16
_LONGEST_NAME = 200
_SAVED_BY = {"transformers_version", "_name_or_path", "use_cache", "peft_version", "base_model_name_or_path"}
#: Keys of a config.json that no causal language model of transformers reads: names of classes, and notes. Code of the
#: model's own may read any.
_UNREAD = {
    *("_commit_hash", "finetuning_task", "id2label", "label2id", "name_or_path", "num_labels", "problem_type"),
    *("task_specific_params", "tf_legacy_loss", "torchscript", "use_bfloat16"),
}
#: Endings of the files in a model's directory that transformers may read.
_READ = {".jinja", ".json", ".model", ".safetensors", ".tiktoken", ".txt"}
#: Files that transformers reads: their content counts as it was loaded, whoever wrote it down.
_OWN_TO_TRANSFORMERS = {
    *("config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json", "merges.txt"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("vocab.txt", "tokenizer.model", "spiece.model", "chat_template.jinja", "chat_template.json"),
}
#: How names of the same weights for other libraries begin.
_OTHER_WEIGHTS = ("pytorch_model", "tf_model", "flax_model", "rust_model")
#: Local file systems whose ctime changes with every write and cannot be set. Not overlay: what lies under it may be an
#: image whose times are what its maker wrote.
_REAL_CTIME = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "nilfs2", "tmpfs", "xfs", "zfs"}
#: Endings of files that are too large to be read only in order to know them again.
_WEIGHTS = {".gguf", ".safetensors", ""}
#: A ctime this young may stay the same at another write: kernels count in ticks of up to 10 ms.
TICKS_NS = 20_000_000


def weight_files(directory: Path) -> list[Path]:
    """List the weight files that loading reads, whether they exist or not.

    Other safetensors in a repository (other formats of the same weights, adapters) are not part of the
    model.
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


def check_pointers(name: str, directory: Path, adapter: Path | None = None) -> None:
    """Reject files that loading reads and that Git LFS has left as pointers to their content."""
    files = [directory] if directory.is_file() else _needed(directory)
    files += [] if adapter is None else [adapter / ADAPTER_CONFIG, adapter / ADAPTER_WEIGHTS]
    for file in files:
        if _is_pointer(file):
            raise WeightsError(
                f"judge {name!r}: {file} is a Git LFS pointer, not the file itself; the clone left it out",
                hint=f"Bring it with `git -C {file.parent} lfs pull` (once before: `git lfs install`).",
            )


def _needed(directory: Path) -> list[Path]:
    """List the files of a directory without which a judge is not read; a clone may leave out others on purpose."""
    entries = _entries(directory)
    other = {".safetensors"} | ({".model"} if (directory / "tokenizer.json").is_file() else set())
    small = [file for file in entries if file.suffix in _READ - other]
    if any(map(_is_pointer, small)):  # of the index too, which cannot be read then
        return small
    has_config = (directory / "config.json").is_file()
    return [*small, *(weight_files(directory) if has_config else [one for one in entries if one.suffix == ".gguf"])]


def _is_pointer(file: Path) -> bool:
    try:
        if not file.is_file():  # a pipe would wait for its writer
            return False
        with file.open("rb") as stream:
            return stream.read(len(_POINTER)) == _POINTER
    except OSError:
        return False


def resume_hint(directory: Path) -> str | None:
    """Tell how to finish a download from the hub that broke off, by what it left; None if there is none."""
    is_cached = directory.parent.name == "snapshots"
    places = [directory / ".cache" / "huggingface" / "download"]
    places += [directory.parent.parent / "blobs"] if is_cached else []
    part = next((file for place in places for file in sorted(place.rglob("*.incomplete"))), None)
    if part is None:
        return None
    if is_cached:
        repository = directory.parent.parent.name.removeprefix("models--").replace("--", "/", 1)
        command = f"hf download {repository} --revision {directory.name}"
    else:
        command = f"hf download HUB_ID --local-dir {directory}"
    return f"Its download broke off (it left {part}): run `{command}` again, which goes on where it stopped."


def trusted_files(directory: Path) -> list[Path]:
    """List the files that trusted code consists of or may open, at any depth, also behind links, sorted by path.

    All regular files but those that are part of the identity in another way or of none: what transformers reads
    itself, weights, and hidden ones such as a download's notes.
    """
    found, seen = [], set()
    for folder, below, names in os.walk(directory, followlinks=True):
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:  # a link to a folder above
            below.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        below[:] = [name for name in below if name != "__pycache__" and not name.startswith(".")]
        is_top = Path(folder) == directory
        found += [Path(folder) / name for name in names if _may_be_opened(name, is_top=is_top)]
    return sorted(file for file in found if file.is_file())


def _may_be_opened(name: str, *, is_top: bool) -> bool:
    """Whether trusted code may open a file of this name that has no other part in a judge's identity."""
    is_known = is_top and (name in _OWN_TO_TRANSFORMERS or name.endswith(".safetensors.index.json"))
    is_weights = name.startswith(_OTHER_WEIGHTS) or name.endswith((".safetensors", ".gguf", ".onnx"))
    return not (is_known or is_weights or name.startswith("."))


class FileStates:
    """State of the files that loading a judge reads; taken before, compared afterwards."""

    def __init__(self, directory: Path, adapter: Path | None = None, *, code: bool = False) -> None:
        self._asked = (directory, adapter, code)
        self._is_told = False
        self._states = {file: _state(file) for file in self._files()}
        # Of weights, the digests follow when they are read.
        small = (file for file in self._states if file.suffix not in _WEIGHTS and file.is_file())
        self._digests = {file: digest for file in small if (digest := _digest_of(file))}

    def learn(self, digests: Mapping[str, str]) -> None:
        """Note the digests of weights that were hashed while they were read, by their states before that."""
        self._digests |= {file: digests[state] for file, state in self._states.items() if state in digests}

    def _files(self) -> Iterator[Path]:
        directory, adapter, code = self._asked
        if directory.is_file():
            yield from weight_files(directory)
        else:
            for folder in (directory, directory / "additional_chat_templates"):
                yield from (file for file in _entries(folder) if file.suffix in _READ)
        if code:
            yield from trusted_files(directory)
        if adapter is not None:
            yield from (adapter / ADAPTER_CONFIG, adapter / ADAPTER_WEIGHTS)

    def state(self, file: Path) -> str:
        """Return the state of a file at the time."""
        return self._states.get(file, "")

    def moved(self) -> list[Path]:
        """List the files that were written to, replaced or removed since; cheap, no file is read if nothing was."""
        return [file for file, state in self._states.items() if _state(file) != state and not self._is_the_same(file)]

    def newly_moved(self) -> Path | None:
        """Return one of these, the first time that there is any."""
        if self._is_told or not (moved := self.moved()):
            return None
        self._is_told = True
        return moved[0]

    def _is_the_same(self, file: Path) -> bool:
        """Whether a file has its old content, though its state is another one: a link or a mode changes the ctime."""
        before, now = self._states[file], _state(file)
        if not now or _size_and_time(before) != _size_and_time(now):
            return False
        known = self._digests.get(file) or _read_notes(home_directory() / "digests.json").get(before)
        if known is None or _digest_of(file) != known:
            return False
        self._digests[file], self._states[file] = known, now
        return True

    def moved_or_new(self) -> list[Path]:
        """List these files and those that were not there."""
        new = (file for file in dict.fromkeys(self._files()) if file not in self._states)
        return [*self.moved(), *new]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def fingerprint(
    directory: Path, adapter: Path | None = None, *, code: bool = False, read: Mapping[str, str] | None = None
) -> str:
    """Identify a judge by the content of its weights, of its configuration, of its adapter and of its code.

    The same weights under another configuration (rotary scaling, a sliding window) are a different judge. `read` has
    the digests of files that were hashed while they were read, by their states before that.
    """
    if directory.is_file():
        lines = ["gguf", *_digests(weight_files(directory), read)]
    else:
        files = weight_files(directory)
        unread = set[str]() if code else _UNREAD
        lines = [
            _configuration(directory / "config.json", _SAVED_BY | unread),
            *_named_digests(files, _digests(files, read)),
        ]
        if code:
            files = trusted_files(directory)
            names = [file.relative_to(directory).as_posix() for file in files]
            lines += [f"{name}:{digest}" for name, digest in zip(names, _digests(files), strict=True)]
    if adapter is not None:
        files = [adapter / ADAPTER_WEIGHTS]
        lines += [_configuration(adapter / ADAPTER_CONFIG, _SAVED_BY), *_named_digests(files, _digests(files))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:_HEX_DIGITS]


def weights_digest(place: Path) -> str:
    """Return the SHA-256 of a GGUF file, or that of its parts' digests where it is split."""
    digests = _digests(weight_files(place))
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


def noted_digest(file: Path) -> str | None:
    """Return the digest of a file that cannot have changed since it was noted."""
    digest = _read_notes(home_directory() / "digests.json").get(_state(file), "")
    return digest if _SHA256.fullmatch(digest) and _is_noted(file) else None


def _named_digests(files: Sequence[Path], digests: Sequence[str]) -> list[str]:
    return [f"{file.name}:{digest}" for file, digest in zip(files, digests, strict=True)]


def _configuration(file: Path, left_out: set[str]) -> str:
    record = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    kept = {key: value for key, value in record.items() if key not in left_out}
    return json.dumps(kept, sort_keys=True, ensure_ascii=False)


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase, frame: ChatFrame | None = None) -> str:
    """Hash the tokenizer as loaded, whatever its files: all that turns a prompt into tokens and back."""
    backend = tokenizer.backend_tokenizer
    parts = (backend.normalizer, backend.pre_tokenizer, backend.model, backend.decoder)
    added = backend.get_added_tokens_decoder()
    settings = {
        # The parts' own serialisation: vocabularies by id and merges by rank, in whatever order the file has them.
        "backend": [part and hashlib.sha256(part.__getstate__()).hexdigest() for part in parts],
        "added": [[number, repr(added[number])] for number in sorted(added)],
        "special": sorted(map(str, tokenizer.all_special_tokens)),
        "ends": [tokenizer.bos_token, tokenizer.eos_token],
        "affixes": [_affixes(tokenizer, text) for text in ("x", "Read.")],
        "clean_up": getattr(tokenizer, "clean_up_tokenization_spaces", None),
        "chat_template": tokenizer.chat_template,  # a mark that it searches for is a control token
        # Where thoughts stand follows from the template, and stands in no prompt of a judge that does not think.
        "frame": frame and {name: text for name, text in asdict(frame).items() if name != "thought"},
    }
    record = json.dumps(settings, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(record.encode("utf-8", "surrogatepass")).hexdigest()[:_HEX_DIGITS]


def _affixes(tokenizer: PreTrainedTokenizerBase, text: str) -> list[list[int]]:
    """Encode a text; of the post-processor, which encodes no sample, its ids count, and which of them it added.

    Which it added is the prefix of every prompt, and may differ under the same ids.
    """
    encoded = tokenizer(text, return_special_tokens_mask=True)
    return [list(encoded["input_ids"]), list(encoded["special_tokens_mask"])]


def _digests(files: Sequence[Path], read: Mapping[str, str] | None = None) -> list[str]:
    """Return the SHA-256 of each file's content: as read, or from the notes if the file cannot have changed."""
    notes_file = home_directory() / "digests.json"
    notes = _read_notes(notes_file)
    fresh: dict[str, str] = {}
    digests = []
    for file in files:
        key, noted = _state(file), _is_noted(file)
        digest = notes.get(key, "") if noted else ""
        if not _SHA256.fullmatch(digest):
            digest = (read or {}).get(key) or file_sha256(file)
            if noted and _state(file) == key:  # else the file changed meanwhile
                fresh[key] = digest
        digests.append(digest)
    if fresh:
        _write_notes(notes_file, fresh)
    return digests


def _state(file: Path) -> str:
    """Identify the state of a file, following links: any write changes the ctime; empty if there is none."""
    try:
        status = file.stat()
    except OSError:
        return ""
    return f"{status.st_dev}|{status.st_ino}|{status.st_size}|{status.st_mtime_ns}|{status.st_ctime_ns}"


def _size_and_time(state: str) -> list[str]:
    return state.split("|")[2:4]


def _digest_of(file: Path) -> str | None:
    try:
        return file_sha256(file)
    except OSError:
        return None


def _is_noted(file: Path) -> bool:
    """Whether a file of the same state has the same content: a real ctime, and not from just now."""
    return file_system(file) in _REAL_CTIME and time.time_ns() - file.stat().st_ctime_ns > TICKS_NS


def _read_notes(path: Path) -> dict[str, str]:
    return {key: value for key, value in (read_json(path) or {}).items() if isinstance(value, str)}


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None if there is none that can be read."""
    try:
        record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None  # a pipe would wait
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _write_notes(path: Path, fresh: dict[str, str]) -> None:
    """Add digests to the notes. They only save time: if they cannot be saved, the next run reads the file again."""
    try:
        private_home()
        write_atomically(path, json.dumps({**_read_notes(path), **fresh}), private=True)
    except OSError:
        return
