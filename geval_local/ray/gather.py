"""Gathering: rows of one document are brought into one block, by workers, before they are scored.

Every worker reads blocks of the input and gives each row to a bucket, by a hash of its document; Ray Data exchanges the
rows, and each bucket is written under the name of its part, which is scored as one block and then replaces it. A row
keeps its file and number, and its error if it could not be read. Buckets depend on the input and on their number only,
so gathering twice gives the same buckets; those whose rows are scored already stay scored.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Generator, Sequence
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from geval_local.errors import DataError, GevalError
from geval_local.fields import lookup
from geval_local.io.parts import PART_KEY, part_name
from geval_local.io.samples import Sample
from geval_local.ray.blocks import Block
from geval_local.ray.cluster import handed_out, results_of, working
from geval_local.ray.worker import Job, is_whole, pack, samples_of_block, unpack

if TYPE_CHECKING:
    import pyarrow as pa


def gather_blocks(blocks: Sequence[Block], job: Job) -> Generator[Block, None, None]:
    """Gather the rows of blocks on the connected cluster, in at most as many buckets; give these."""
    with working("gathering the rows"):
        rows = handed_out(list(enumerate(blocks))).map_batches(
            partial(rows_of_block, job=job, buckets=len(blocks)), batch_size=1, batch_format="pyarrow"
        )
        yield from results_of(rows.groupby("bucket").map_groups(partial(write_bucket, job=job), batch_format="pyarrow"))


def rows_of_block(table: pa.Table, job: Job, buckets: int) -> pa.Table:
    """Read a block; return its rows with their documents and buckets. An error is a row of the first bucket."""
    import pyarrow as pa

    ((number, block),) = unpack(table)
    settings = job.manifest.settings
    documents, texts = list[int](), list[str]()
    try:
        for sample in samples_of_block(block, settings):
            documents.append(_document(sample, str(settings.gather_by)))
            texts.append(json.dumps([sample.origin, sample.row, sample.error, dict(sample.fields)]))
    except GevalError as error:
        documents, texts = [0], [json.dumps({"message": error.message, "hint": error.hint})]
    codes = np.asarray(documents, dtype=np.uint64)
    return pa.table(
        {
            "bucket": pa.array((codes % buckets).astype(np.int64)),
            "document": pa.array(codes),
            "block": pa.array(np.full(len(codes), number, dtype=np.int64)),
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
    """Write the rows of one bucket, document by document; return its block, or the first error of one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = table.sort_by([("block", "ascending"), ("place", "ascending")])
    _, first, document = np.unique(table.column("document").to_numpy(), return_index=True, return_inverse=True)
    # Documents in the order of their first rows, and the rows of each in the order of the input.
    rows = table.column("row").take(pa.array(np.argsort(first[document.reshape(-1)], kind="stable")))
    digest, name, content = hashlib.sha256(), part_name(0, int(table.column("bucket")[0].as_py())), io.BytesIO()
    place, manifest = job.output.child(name), job.manifest
    try:
        for text in rows:
            if text.as_py().startswith("{"):
                raise DataError(**json.loads(text.as_py()))
            digest.update(text.as_py().encode())
        block = Block(place.address, 0, 0, digest.hexdigest(), rows=len(rows), part=name)
        if is_whole(job, block) is None:
            about = {"run": manifest.run, "input": manifest.input.sha256, "block": block.identity}
            pq.write_table(pa.table({"row": rows}).replace_schema_metadata({PART_KEY: json.dumps(about)}), content)
            place.write(content.getbuffer(), mark=manifest.run)
    except OSError as error:
        return pack(DataError(f"cannot write {place}: {error.strerror or error}", hint="Is the disk full?"))
    except GevalError as error:
        return pack(error)
    return pack(block)
