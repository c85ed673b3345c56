"""GGUF files: recognition by content, headers, joining of split models. Imports no model library.

::

    "GGUF", version, number of tensors, number of keys
    keys         name, type, value           in the first file of a split model
    tensors      name, dimensions, type, offset of the data
    data         from the next multiple of the alignment on
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from geval_local.errors import JudgeError, WeightsError
from geval_local.fields import listed

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
#: Bounds beyond which a header is damaged: the largest models have some thousand tensors and some dozen keys.
_MOST_ENTRIES = 1 << 20
_MOST_DIMENSIONS = 8
#: Plain numbers, by the code of their type.
PLAIN_DTYPES: Mapping[int, str] = {0: "float32", 1: "float16", 30: "bfloat16"}
_SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_SHOWN = 5
#: Arrays with one value per layer are shorter than this; longer ones are skipped.
_LONG = 4096


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor's entry in the header."""

    #: Name used by llama.cpp.
    name: str
    #: Dimensions, the fastest-moving first.
    shape: tuple[int, ...]
    #: Code of its number or block type.
    kind: int
    #: Offset of its data in bytes from the start of all data.
    offset: int

    @property
    def elements(self) -> int:
        """Number of weights."""
        return prod(self.shape)


@dataclass(frozen=True)
class GGUFHeader:
    """The header of a GGUF file."""

    #: The file.
    path: Path
    #: Keys with a single value.
    metadata: Mapping[str, Any]
    #: Keys with an array -> its length, and its numbers if it is short.
    arrays: Mapping[str, tuple[int, Sequence[Any]]]
    #: Key -> code of its value's type; of an array, also that of its elements.
    types: Mapping[str, Sequence[int]]
    #: In the order of the file.
    tensors: tuple[GGUFTensor, ...]
    #: Offset of the data in bytes.
    data_start: int
    #: Size of the file in bytes.
    size: int

    @property
    def architecture(self) -> str:
        """Name of the model's architecture in llama.cpp."""
        return str(self.metadata.get("general.architecture", ""))

    @property
    def is_model(self) -> bool:
        """Whether it is a language model and not an image projector, an adapter or an importance matrix."""
        kind = self.metadata.get("general.type", "model")
        return kind == "model" and self.architecture not in ("", "clip")

    @property
    def plain_dtype(self) -> str | None:
        """Dtype of the file's plain numbers: float16, bfloat16 or float32; None if weights are packed into blocks."""
        kinds = {tensor.kind for tensor in self.tensors}
        return next((dtype for kind, dtype in PLAIN_DTYPES.items() if kinds <= {kind, 0}), None)

    def own(self, key: str) -> Any:
        """Return the value of an architecture's key, such as ``context_length``; None if it is missing."""
        return self.metadata.get(f"{self.architecture}.{key}")


class _Cursor:
    """Reader of consecutive little-endian values."""

    def __init__(self, data: Any, place: int = 0) -> None:
        self.data = data
        self.place = place

    def take(self, kinds: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{kinds}", self.data, self.place)
        self.place += struct.calcsize(f"<{kinds}")
        return values

    def skip(self, count: int) -> None:
        if count > len(self.data) - self.place:
            raise ValueError("it ends inside its header")
        self.place += count

    def text(self) -> str:
        (length,) = self.take("Q")
        start = self.place
        self.skip(length)
        return bytes(self.data[start : self.place]).decode("utf-8")

    def value(self, kind: int) -> Any:
        """Read a single value."""
        if kind == _STRING:
            return self.text()
        if kind not in _SCALARS:
            raise ValueError(f"a value of the unknown type {kind}")
        return self.take(_SCALARS[kind])[0]

    def array(self) -> tuple[int, tuple[int, Sequence[Any]]]:
        """Read the type of an array's elements, its length, and its numbers if they are few; skip texts."""
        inner, count = self.take("IQ")
        if inner == _STRING:
            place, end = self.place, len(self.data)
            for _ in range(count):  # some 100,000 texts: as few calls as possible
                place += 8 + int.from_bytes(self.data[place : place + 8], "little")
                if place > end:
                    raise ValueError("it ends inside its header")
            self.place = place
        elif inner in _SCALARS:
            start, form = self.place, f"<{count if count <= _LONG else 0}{_SCALARS[inner]}"
            self.skip(count * struct.calcsize(f"<{_SCALARS[inner]}"))
            return inner, (count, struct.unpack_from(form, self.data, start))
        else:
            raise ValueError(f"an array of the unknown type {inner}")
        return inner, (count, ())


def is_gguf(path: Path) -> bool:
    """Whether a path is a GGUF file, by content: Ollama names them ``sha256-...``."""
    try:
        with path.open("rb") as stream:
            return stream.read(len(_MAGIC)) == _MAGIC
    except (OSError, ValueError):
        return False


def read_header(path: Path) -> GGUFHeader:
    """Read the header of a GGUF file, once for each state of the file."""
    try:
        status = path.stat()
        return _read_header(path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    except (OSError, ValueError, struct.error, OverflowError) as error:
        raise WeightsError(
            f"{path} is not a complete GGUF file: {error}", hint="Copy or download the file again, completely."
        ) from error


@lru_cache(maxsize=64)
def _read_header(path: Path, *_state: int) -> GGUFHeader:
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _parse(path, data)


def _parse(path: Path, data: mmap.mmap) -> GGUFHeader:
    cursor = _Cursor(data)
    magic, version, tensor_count, key_count = cursor.take("4sIQQ")
    if magic != _MAGIC:
        raise ValueError("it does not begin with GGUF")
    if version not in _VERSIONS:
        raise WeightsError(
            f"{path} is in version {version} of GGUF; versions 2 and 3 are read",
            hint="Convert it with a current llama.cpp. A file for big-endian machines is converted there too.",
        )
    if max(tensor_count, key_count) > _MOST_ENTRIES:
        raise ValueError(f"it claims to have {tensor_count} tensors and {key_count} keys")
    metadata: dict[str, Any] = {}
    arrays: dict[str, tuple[int, Sequence[Any]]] = {}
    types: dict[str, Sequence[int]] = {}
    for _ in range(key_count):
        key, (kind,) = cursor.text(), cursor.take("I")
        if key in types:
            raise ValueError(f"its header has the key {key!r} twice")
        if kind == _ARRAY:
            inner, arrays[key] = cursor.array()
            types[key] = (kind, inner)
        else:
            metadata[key], types[key] = cursor.value(kind), (kind,)
    tensors: dict[str, GGUFTensor] = {}
    for _ in range(tensor_count):
        name = cursor.text()
        if name in tensors:
            raise ValueError(f"its header has the tensor {name!r} twice")
        (dimensions,) = cursor.take("I")
        if dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"the tensor {name!r} claims to have {dimensions} dimensions")
        shape = cursor.take(f"{dimensions}Q")
        kind, offset = cursor.take("IQ")
        tensors[name] = GGUFTensor(name, shape, kind, offset)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"its alignment is {alignment!r}")
    data_start = -(-cursor.place // alignment) * alignment
    return GGUFHeader(path, metadata, arrays, types, tuple(tensors.values()), data_start, len(data))


def gguf_files(path: Path) -> list[Path]:
    """List the files of a GGUF model, existing or not: one, or all parts of a split model in order."""
    part = _SPLIT.fullmatch(path.name)
    if part is None:
        return [path]
    return [path.with_name(f"{part[1]}-{number:05d}-of-{part[3]}.gguf") for number in range(1, int(part[3]) + 1)]


def find_gguf(directory: Path) -> Path | None:
    """Find the GGUF model in a directory, or the first part of a split model; None if there is none."""
    files = sorted(file for file in directory.glob("*.gguf") if file == gguf_files(file)[0] and is_gguf(file))
    models = [file for file in files if read_header(file).is_model]
    if len(models) > 1:
        names = listed([file.name for file in models], _SHOWN)
        raise JudgeError(f"{directory} holds {len(models)} GGUF models ({names})", hint="Name one of the files.")
    return models[0] if models else None
