"""Shared parts of rows are computed once, with no effect on the results."""

from __future__ import annotations

import json

from example_counts import example_count
from hypothesis import example, given, settings
from hypothesis import strategies as st

from geval_local.io.input_files import read_samples
from geval_local.tokens.encoder import cut_pieces

VALUES = st.sampled_from(["a", "b", '"\n\u2028é', "\ud800", "1", 1, 1.0, True, None, ["a"], {"a": "b"}, float("nan")])
TEXTS = st.lists(st.sampled_from(["\n", "\n\n", "A", "b", " ", "1", "é", "\nA", "\nb c"]), max_size=8).map("".join)


def test_a_text_is_kept_once_and_a_bad_one_is_bad_in_every_row(tmp_path):
    source, bad = "é" * 100, "\ud800" * 100
    rows = [{"source": text} for text in (source, source, bad, bad, source)]
    rows += [{"source": [source]}, {"source": 1}, {"source": True}, {"source": source, "other": bad}, {"other": bad}]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    samples = list(read_samples(file))
    assert [dict(sample.fields) for sample in samples] == rows
    assert type(samples[7].fields["source"]) is bool
    assert [sample.error is not None for sample in samples] == [*[False] * 2, *[True] * 2, *[False] * 4, *[True] * 2]
    assert samples[0].fields["source"] is samples[1].fields["source"]


@settings(max_examples=example_count(300))
@given(TEXTS)
@example("x\nAb\nA")
def test_the_pieces_of_a_text_are_the_text(text):
    parts = [piece[0 if first else 1 : None if last else -1] for piece, first, last in cut_pieces(text)]
    assert "".join(parts) == text
