"""Gathering: move all rows of a document into one block before scoring.

A worker assigns each row of a block to a bucket, by a hash of its document. Ray Data exchanges the rows. Each bucket is
written under the name of its part; a worker scores it as one block and replaces it by the part. A row keeps its file,
its number and its error if it could not be read. Buckets depend only on the input and on their number, so gathering
twice gives the same buckets, and buckets that are already scored stay scored.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from geval_local.errors import Cause, ErrorCode
from geval_local.grouping import DocumentRule
from geval_local.io.parts import PART_KEY, part_name
from geval_local.io.samples import Sample
from geval_local.ray.blocks import Block, block_samples
from geval_local.ray.job import Job, is_whole
from geval_local.ray.parts_directory import write_file
from geval_local.runs.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa


def rows_of_block(row: dict[str, Any], job: Job, buckets: int) -> Iterator[dict[str, Any]]:
    """Read a block, given with its number; yield its rows with their documents and buckets."""
    number, block = row["item"]
    settings = job.manifest.settings
    rule = DocumentRule.of(group_by=settings.gather_by)
    for place, sample in enumerate(block_samples(block, settings)):
        text = rule.document(sample.fields) or f"\0{number} {place}"
        document = int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big", signed=True)
        lost = None if sample.error is None else [str(sample.error), sample.error.code.value]
        content = json.dumps([sample.origin, sample.row, lost, dict(sample.fields)])
        yield {"bucket": document % buckets, "document": document, "block": number, "place": place, "row": content}


def write_bucket(table: pa.Table, job: Job) -> dict[str, list[Block]]:
    """Write the rows of one bucket, document by document; return its block."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = table.sort_by([("block", "ascending"), ("place", "ascending")])
    _, first, document = np.unique(table.column("document").to_numpy(), return_index=True, return_inverse=True)
    # Documents in the order of their first rows, and the rows of each in the order of the input.
    rows = table.column("row").take(pa.array(np.argsort(first[document.reshape(-1)], kind="stable")))
    digest, name, content = hashlib.sha256(), part_name(0, table.column("bucket")[0].as_py()), io.BytesIO()
    for text in rows:
        digest.update(text.as_py().encode())
    place, manifest = job.output.child(name), job.manifest
    block = Block(place.address, 0, 0, digest=digest.hexdigest(), rows=len(rows), part=name)
    if is_whole(job, block) is None:
        about = {"run": manifest.run, "input": manifest.input.sha256, "block": block.identity}
        pq.write_table(pa.table({"row": rows}).replace_schema_metadata({PART_KEY: json.dumps(about)}), content)
        write_file(place, content.getbuffer(), manifest)
    return {"item": [block]}


def gathered_samples(block: Block, settings: Settings) -> Iterator[Sample]:
    """Read the rows of a bucket as `write_bucket` wrote them."""
    import pyarrow.parquet as pq

    with block.place.open() as source, pq.ParquetFile(source) as table:
        for batch in table.iter_batches(columns=["row"]):
            for value in batch.column(0):
                origin, row, lost, fields = json.loads(value.as_py())
                error = None if lost is None else Cause(lost[0], ErrorCode.read(lost[1]))
                yield Sample(fields, row, origin, error, settings.fields)
