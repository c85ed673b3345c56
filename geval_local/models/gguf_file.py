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
import shutil
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from geval_local.errors import JudgeError, WeightsError
from geval_local.files import private_home

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
#: Bounds beyond which a header is damaged: the largest models have some thousand tensors and some dozen keys.
_MOST_ENTRIES = 1 << 20
_MOST_DIMENSIONS = 8
#: Plain numbers, by the code of their type.
_PLAIN_DTYPES = {0: "float32", 1: "float16", 30: "bfloat16"}
_SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_SHOWN = 5


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
    #: Version of the format.
    version: int
    #: Keys with a single value.
    metadata: Mapping[str, Any]
    #: Keys with an array of values -> its length.
    lengths: Mapping[str, int]
    #: Key -> raw bytes of its name, type and value.
    records: Mapping[str, bytes]
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
        return next((dtype for kind, dtype in _PLAIN_DTYPES.items() if kinds <= {kind, 0}), None)

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

    def value(self, kind: int) -> tuple[Any, int | None]:
        """Read a value, or skip an array and return its length."""
        if kind == _STRING:
            return self.text(), None
        if kind in _SCALARS:
            return self.take(_SCALARS[kind])[0], None
        if kind != _ARRAY:
            raise ValueError(f"a value of the unknown type {kind}")
        inner, count = self.take("IQ")
        if inner == _STRING:
            for _ in range(count):
                self.skip(self.take("Q")[0])
        elif inner in _SCALARS:
            self.skip(count * struct.calcsize(f"<{_SCALARS[inner]}"))
        else:
            raise ValueError(f"an array of the unknown type {inner}")
        return None, count


def array_size(data: Any, place: int) -> int:
    """Return the size in bytes of the array at an offset of a file's content, including the array's header."""
    cursor = _Cursor(data, place)
    cursor.value(_ARRAY)
    return cursor.place - place


def is_gguf(path: Path) -> bool:
    """Whether a path is a GGUF file, by content: Ollama names them ``sha256-...``."""
    try:
        with path.open("rb") as stream:
            return stream.read(len(_MAGIC)) == _MAGIC
    except (OSError, ValueError):
        return False


def read_header(path: Path) -> GGUFHeader:
    """Read the header of a GGUF file."""
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(path, data)
    except WeightsError:
        raise
    except (OSError, ValueError, struct.error, OverflowError) as error:
        raise WeightsError(
            f"{path} is not a complete GGUF file: {error}", hint="Copy or download the file again, completely."
        ) from error


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
    lengths: dict[str, int] = {}
    records: dict[str, bytes] = {}
    for _ in range(key_count):
        start = cursor.place
        key = cursor.text()
        value, length = cursor.value(cursor.take("I")[0])
        if length is None:
            metadata[key] = value
        else:
            lengths[key] = length
        records[key] = data[start : cursor.place]
    tensors = []
    for _ in range(tensor_count):
        name = cursor.text()
        (dimensions,) = cursor.take("I")
        if dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"the tensor {name!r} claims to have {dimensions} dimensions")
        shape = cursor.take(f"{dimensions}Q")
        kind, offset = cursor.take("IQ")
        tensors.append(GGUFTensor(name, shape, kind, offset))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"its alignment is {alignment!r}")
    data_start = -(-cursor.place // alignment) * alignment
    return GGUFHeader(path, version, metadata, lengths, records, tuple(tensors), data_start, len(data))


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
        names = ", ".join(file.name for file in models[:_SHOWN]) + (", ..." if len(models) > _SHOWN else "")
        raise JudgeError(f"{directory} holds {len(models)} GGUF models ({names})", hint="Name one of the files.")
    return models[0] if models else None


@contextmanager
def joined(files: Sequence[Path]) -> Iterator[Path]:
    """Yield one file with all parts of a split model: transformers cannot read split models."""
    if len(files) == 1:
        yield files[0]
        return
    headers = [read_header(file) for file in files]
    tensors = sum(len(header.tensors) for header in headers)
    first = headers[0].metadata
    numbers = [header.metadata.get("split.no") for header in headers]
    if numbers != list(range(len(files))) or first.get("split.tensors.count", tensors) != tensors:
        raise WeightsError(
            f"{files[0].name} and the {len(files) - 1} files after it are not the parts of one model",
            hint="Copy or download all parts again.",
        )
    home = private_home()
    size = sum(header.size for header in headers)
    if size > shutil.disk_usage(home).free:
        raise JudgeError(
            f"{files[0].name} has {len(files)} parts, which are joined in {home} while they are loaded; that takes "
            f"{size / 1e9:.1f} GB, more than is free there",
            hint="Join them where there is room: llama-gguf-split --merge FIRST_PART JOINED.gguf. Or set "
            "GEVAL_LOCAL_HOME to a larger disk.",
        )
    with tempfile.TemporaryDirectory(prefix="joined-", dir=home) as folder:
        target = Path(folder) / "joined.gguf"
        _join(headers, target)
        yield target


def _join(headers: Sequence[GGUFHeader], target: Path) -> None:
    """Write one file with the first part's keys and all parts' tensors."""
    first = headers[0]
    alignment = int(first.metadata.get("general.alignment", 32))
    records = [record for key, record in first.records.items() if not key.startswith("split.")]
    starts, place = [], 0
    for header in headers:
        starts.append(place)
        place += -(-(header.size - header.data_start) // alignment) * alignment
    entries = [
        struct.pack("<Q", len(tensor.name.encode()))
        + tensor.name.encode()
        + struct.pack(f"<I{len(tensor.shape)}QIQ", len(tensor.shape), *tensor.shape, tensor.kind, start + tensor.offset)
        for header, start in zip(headers, starts, strict=True)
        for tensor in header.tensors
    ]
    with target.open("wb") as out:
        out.write(struct.pack("<4sIQQ", _MAGIC, first.version, len(entries), len(records)))
        for piece in (*records, *entries):
            out.write(piece)
        for header in headers:
            out.write(b"\0" * (-out.tell() % alignment))
            with header.path.open("rb") as part:
                part.seek(header.data_start)
                shutil.copyfileobj(part, out, 1 << 22)
