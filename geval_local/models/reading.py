"""Files of weights, read once: into memory that the judge owns, with the SHA-256 of their content on the way."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from safetensors import SafetensorError, safe_open

from geval_local.errors import WeightsError
from geval_local.models.progress import meter

#: Dtypes as safetensors files write them.
DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "C64": torch.complex64,
}
#: Bytes of one read, which another thread then hashes.
_PIECE = 1 << 25
_READERS = 4


#: Places of tensors in a file, by name: offset of the first byte, and number of bytes.
Places: TypeAlias = Mapping[str, tuple[int, int]]


class StoredTensor(NamedTuple):
    """A tensor in a safetensors file."""

    #: As the format writes it (``BF16``).
    dtype: str
    shape: tuple[int, ...]
    #: Offset of its first byte, and the number of its bytes.
    start: int
    size: int


def read_files(
    places: Mapping[Path, Places], *, hashed: Callable[[Path], bool] = lambda file: True
) -> tuple[dict[Path, dict[str, torch.Tensor]], dict[Path, str]]:
    """Read several files, some at a time: the bytes of their tensors, and the digests of files to hash."""
    for file, own in places.items():
        _check_places(file, own)
    told = meter(sum(size for own in places.values() for _, size in own.values()))
    with ThreadPoolExecutor(_READERS, thread_name_prefix="geval-local reading") as readers:
        found = list(readers.map(lambda file: read_tensors(file, places[file], told, with_digest=hashed(file)), places))
    digests = {file: digest for file, (_, digest) in zip(places, found, strict=True) if digest is not None}
    return {file: tensors for file, (tensors, _) in zip(places, found, strict=True)}, digests


def _check_places(file: Path, places: Places) -> None:
    """Refuse tensors that share bytes: no writer makes them, and the digest would include these bytes twice."""
    end, before = 0, ""
    for name, (start, size) in sorted(places.items(), key=lambda place: place[1]):
        if start < end:
            raise WeightsError(
                f"{file} is damaged: its tensors {before!r} and {name!r} overlap",
                hint="Copy or download the file again, completely.",
            )
        end, before = start + size, name


def read_tensors(
    file: Path, places: Places, told: Callable[[float], None], *, with_digest: bool
) -> tuple[dict[str, torch.Tensor], str | None]:
    """Read tensors in the order of the file, while another thread hashes the bytes."""
    digest, tensors = hashlib.sha256(), {}
    with file.open("rb", buffering=0) as stream, ThreadPoolExecutor(1) as hasher:

        def read(size: int) -> torch.Tensor:
            found = torch.empty(size, dtype=torch.uint8, device="cpu")
            array: Any = found.numpy()
            view, done = memoryview(array), 0
            while done < size:
                count = stream.readinto(view[done : min(size, done + _PIECE)])
                if not count:
                    raise WeightsError(
                        f"{file} is damaged or cut short: it ends at byte {stream.tell():,}",
                        hint="Copy or download the file again, completely.",
                    )
                if with_digest:
                    hasher.submit(digest.update, view[done : done + count])
                done += count
            return found

        end = 0
        for name, (start, size) in sorted(places.items(), key=lambda place: place[1]):
            if start > end and with_digest:
                read(start - end)
            if start != end:
                stream.seek(start)
            tensors[name] = read(size)
            told(size)
            end = start + size
        rest = file.stat().st_size - end
        if with_digest and rest > 0:
            read(rest)
    return tensors, digest.hexdigest() if with_digest else None


def read_safetensors(
    files: Sequence[Path], *, hashed: Callable[[Path], bool] = lambda file: True
) -> tuple[dict[str, torch.Tensor], dict[Path, str]]:
    """Read safetensors files: the tensors by name, and the digests of files that `hashed` accepts."""
    stored_in(files)
    headers = {file: stored_tensors(file) for file in files}
    contents, digests = read_files(
        {file: {name: (one.start, one.size) for name, one in header.items()} for file, header in headers.items()},
        hashed=hashed,
    )
    tensors = {
        name: contents[file][name].view(DTYPES[one.dtype]).reshape(one.shape)
        for file, header in headers.items()
        for name, one in header.items()
    }
    return tensors, digests


def stored_in(files: Sequence[Path]) -> dict[str, StoredTensor]:
    """Read the headers of a model's safetensors files: its tensors by name, each in one file only."""
    found: dict[str, StoredTensor] = {}
    places: dict[str, Path] = {}
    for file in files:
        own = stored_tensors(file)
        for name in own:
            if (other := places.setdefault(name, file)) != file:
                raise WeightsError(
                    f"the tensor {name!r} is in both {other} and {file.name}; only one of them can be the model's",
                    hint="Copy or download all shards of the model again, into an empty directory.",
                )
        found |= own
    return found


def stored_tensors(file: Path) -> dict[str, StoredTensor]:
    """Read the header of a safetensors file: its tensors by name, which fill the file without overlaps or holes."""
    try:
        with safe_open(file, framework="numpy"), file.open("rb") as stream:  # it refuses any other file
            size = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(size), object_pairs_hook=_each_once)
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise WeightsError(
            f"{file} is damaged or cut short: {error}", hint="Copy or download the file again, completely."
        ) from error
    header.pop("__metadata__", None)
    found = {}
    for name, record in header.items():
        start, end = record["data_offsets"]
        found[name] = StoredTensor(record["dtype"], tuple(record["shape"]), 8 + size + start, end - start)
    return found


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object and refuse repeated names, of which every reader would silently keep the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"its header has {next(name for name in names if names.count(name) > 1)!r} twice")
    return found
