"""Shards: every row once, documents whole, and the same cut every time."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from geval_local.io.samples import Sample
from geval_local.runs.ray.shards import cut_shards

FORM = ["source", "output"]


def samples(*sources: str, output: str = "It ends at {}.") -> list[Sample]:
    return [Sample({"source": source, "output": output.format(row)}) for row, source in enumerate(sources)]


def rows(found) -> list[tuple[int, ...]]:
    return [shard.rows for shard in found]


def test_scattered_candidates_of_a_document_come_together():
    found = cut_shards(samples("a", "b", "a", "b", "a", "c"), [FORM], window=3, first=30, shard_rows=3)
    assert rows(found) == [(30, 32, 34), (31, 33, 35)]
    assert [(shard.window, shard.number) for shard in found] == [(3, 0), (3, 1)]


def test_a_document_is_only_cut_beyond_its_bound():
    found = cut_shards(samples(*"aaaaaaab"), [FORM], window=0, first=0, shard_rows=2, group_rows=3)
    assert rows(found) == [(0, 1, 2), (3, 4, 5), (6, 7)]
    whole = cut_shards(samples(*"aaaaaaab"), [FORM], window=0, first=0, shard_rows=2, group_rows=7)
    assert rows(whole) == [(0, 1, 2, 3, 4, 5, 6), (7,)]


def test_the_text_that_saves_most_has_its_way():
    """Two metrics begin with different fields; both are kept together where there is room, the long text first."""
    long, other = "A long tale. " * 20, "Another tale. " * 20
    texts = [(long, "yes"), (other, "yes"), (long, "no"), (other, "no")]
    given = [Sample({"source": source, "output": output}) for source, output in texts]
    forms = [["output"], FORM]
    assert rows(cut_shards(given, forms, window=0, first=0, shard_rows=1)) == [(0, 1, 2, 3)]
    bound = cut_shards(given, forms, window=0, first=0, shard_rows=1, group_rows=3)
    assert rows(bound) == [(0, 2), (1, 3)]


def test_rows_that_cannot_be_scored_keep_their_place():
    given = [Sample({"source": "a", "output": "x"}), Sample({}), Sample({"source": "a"}), Sample({}, error="broken")]
    found = cut_shards(given, [FORM], window=0, first=0, shard_rows=1)
    assert sorted(row for shard in found for row in shard.rows) == [0, 1, 2, 3]


def test_an_empty_window_has_no_shards():
    assert cut_shards([], [FORM], window=0, first=0) == []


# A busy machine is slow to draw inputs, which says nothing about shards.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from("xyz ")), max_size=40),
    st.integers(1, 9),
    st.integers(1, 12),
)
def test_every_row_is_in_one_shard_and_no_shared_source_is_in_two(texts, shard_rows, group_rows):
    given_samples = [Sample({"source": source * 9, "output": output}) for source, output in texts]

    def cut():
        return cut_shards(
            given_samples, [FORM, ["output"]], window=0, first=5, shard_rows=shard_rows, group_rows=group_rows
        )

    found = cut()
    assert found == cut()
    assert sorted(row for shard in found for row in shard.rows) == list(range(5, 5 + len(texts)))
    assert all(list(shard.rows) == sorted(shard.rows) for shard in found)
    assert all(len(shard.rows) <= max(shard_rows, group_rows) for shard in found)
    assert [shard.number for shard in found] == list(range(len(found)))
    scorable = [(row, source) for row, (source, output) in enumerate(texts, start=5) if output != " "]
    for source in "abcde":
        members = {row for row, text in scorable if text == source}
        holders = [shard for shard in found if members & set(shard.rows)]
        assert len(holders) <= 1 or len(members) > group_rows
