"""Gathering: rows of one document are brought into one block, by workers, before they are scored.

Every worker reads blocks of the input and gives each row to a bucket, by a hash of its document; Ray Data exchanges the
rows, and each bucket is written as a Parquet file that is scored as one block. A row keeps its file and number, and its
error if it could not be read. Buckets depend on the input and on their number only, so gathering twice gives the same
buckets.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from geval_local.errors import DataError, OutputError
from geval_local.fields import lookup
from geval_local.io.parts import PART_KEY, about_part, part_name
from geval_local.io.places import Place
from geval_local.io.samples import Sample
from geval_local.ray.blocks import Block, SourceFile, Survey
from geval_local.ray.cluster import handed_out, plain_failures, quietly
from geval_local.ray.messages import Job, Task, error_of, pack, told, unpack
from geval_local.ray.worker import samples_of_block

if TYPE_CHECKING:
    import pyarrow as pa


def gather_blocks(tasks: Sequence[Task], job: Job, field: str, buckets: int) -> Generator[Survey, None, None]:
    """Gather the rows of blocks on the connected cluster."""
    with quietly(), plain_failures("gathering the rows"):
        blocks = [task.to_record() | {"number": number} for number, task in enumerate(tasks)]
        rows = handed_out(blocks).map_batches(
            partial(rows_of_block, job=job, field=field, buckets=buckets), batch_size=1, batch_format="pyarrow"
        )
        found = rows.groupby("bucket").map_groups(partial(write_bucket, job=job), batch_format="pyarrow")
        for table in found.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            for record in unpack(table):
                error = error_of(record)
                if error is not None:
                    raise error
                yield Survey.from_record(record)


def rows_of_block(table: pa.Table, job: Job, field: str, buckets: int) -> pa.Table:
    """Read a block; return its rows with their documents and buckets. An error is a row of the first bucket."""
    import pyarrow as pa

    (record,) = unpack(table)
    documents: list[int] = []
    texts: list[str] = []
    try:
        for sample in samples_of_block(Task.from_record(record), job):
            documents.append(_document(sample, field))
            texts.append(json.dumps([sample.origin, sample.row, sample.error, dict(sample.fields)]))
    except Exception as error:
        documents, texts = [0], [json.dumps(told(error))]
    codes = np.asarray(documents, dtype=np.uint64)
    return pa.table(
        {
            "bucket": pa.array((codes % buckets).astype(np.int64)),
            "document": pa.array(codes),
            "block": pa.array(np.full(len(codes), record["number"], dtype=np.int64)),
            "place": pa.array(np.arange(len(codes))),
            "row": pa.array(texts, pa.large_string()),
        }
    )


def _document(sample: Sample, field: str) -> int:
    """Hash the document of a row to 64 bits; a row that has none is its own."""
    value = None if sample.error is not None else lookup(sample.fields, field)
    text = f"\0{sample.origin}\0{sample.row}" if value is None else str(value)
    return int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big")


def write_bucket(table: pa.Table, job: Job) -> pa.Table:
    """Write the rows of one bucket, document by document; return its survey, or the first error of a block."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = table.sort_by([("block", "ascending"), ("place", "ascending")])
    _, first, document = np.unique(table.column("document").to_numpy(), return_index=True, return_inverse=True)
    # Documents in the order of their first rows, and the rows of each in the order of the input.
    rows = table.column("row").take(pa.array(np.argsort(first[document.reshape(-1)], kind="stable")))
    failed = next((text for text in _texts(rows) if text.startswith("{")), None)
    if failed is not None:
        return pack([json.loads(failed)])
    digest = hashlib.sha256()
    for text in _texts(rows):
        digest.update(text.encode())
    number = int(table.column("bucket")[0].as_py())
    place, content = Place(job.output).child(part_name(0, number)), io.BytesIO()
    about = {PART_KEY: json.dumps({"run": job.run})}
    pq.write_table(pa.table({"row": rows}).replace_schema_metadata(about), content)
    try:
        if place.entry() is not None and (about_part(place) or {}).get("run") != job.run:
            raise OutputError(f"{place} is not a file of this run", hint="Move it to another place, then try again.")
        place.write(content.getbuffer(), mark=job.run)
        entry = place.entry()
    except OutputError as error:
        return pack([told(error)])
    except OSError as error:
        return pack([told(DataError(f"cannot write {place}: {error.strerror or error}", hint="Is the disk full?"))])
    assert entry is not None  # just written
    file = SourceFile(place.address, entry.bytes, entry.changed, digest.hexdigest())
    return pack([Survey(file, [Block(0, len(rows), 1)]).to_record()])


def _texts(column: Any) -> Iterator[str]:
    return (value.as_py() for value in column)
