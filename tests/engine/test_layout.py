"""The plan against brute force: every distinct prefix once, and every token sees its own prefix exactly once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from example_counts import example_count
from hypothesis import given, settings
from hypothesis import strategies as st

from geval_local.engine.prefix_sharing import attention
from geval_local.engine.prefix_sharing.prompt_trie import build_stream, lay_out
from geval_local.tokens.requests import common_prefix

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=9)


def stream_of(sequences, places=None):
    arrays = [np.array(sequence, dtype=np.int32) for sequence in sequences]
    return build_stream(arrays, places or [[] for _ in arrays])


def prefixes_in(stream):
    """The token sequence that each token of the stream ends, found without the planner: last token at each depth."""
    path, found = [], []
    for token, position in zip(stream.tokens.tolist(), stream.positions.tolist(), strict=True):
        path[position:] = [token]
        assert len(path) == position + 1
        found.append(tuple(path))
    return found


def all_prefixes(sequences):
    return {tuple(sequence[: size + 1]) for sequence in sequences for size in range(len(sequence))}


@given(SEQUENCES)
def test_every_distinct_prefix_is_in_the_stream_exactly_once(sequences):
    stream, _ = stream_of(sequences)
    found = prefixes_in(stream)
    assert len(set(found)) == len(found)
    assert set(found) == all_prefixes(sequences)


@given(SEQUENCES)
def test_places_are_found_again_whatever_the_order(sequences):
    places = [range(len(sequence)) for sequence in sequences]
    stream, indices = stream_of(sequences, places)
    found = prefixes_in(stream)
    for sequence, where in zip(sequences, indices, strict=True):
        assert [found[index] for index in where] == [tuple(sequence[: size + 1]) for size in range(len(sequence))]


@given(SEQUENCES)
def test_a_token_is_visible_to_its_subtree_and_to_nobody_else(sequences):
    stream, _ = stream_of(sequences)
    found = prefixes_in(stream)
    for key, prefix in enumerate(found):
        sees = [query for query in range(key, len(found)) if found[query][: len(prefix)] == prefix]
        assert sees == list(range(key, stream.visible_until(key)))


@given(SEQUENCES)
def test_root_paths_are_what_lies_before_a_token(sequences):
    stream, _ = stream_of(sequences)
    found = prefixes_in(stream)
    for token, prefix in enumerate(found):
        assert stream.tokens[stream.root_path(token)].tolist() == list(prefix[:-1])
    assert stream.tokens[stream.root_path(len(stream))].tolist() == max(sequences)


def seen_in(layout, found):
    """For each token of a pack the prefixes that its layout shows it, with repetitions if there are any."""
    size = layout.stop - layout.start
    seen = [[] for _ in range(size)]
    own = found[layout.start : layout.stop]
    path = [own[0][: depth + 1] for depth in range(layout.path)]
    for strand in layout.strands:
        for query in range(strand.start, strand.stop):
            seen[query] += own[strand.start : query + 1]
    for block in layout.blocks:
        for query in range(block.start, block.stop):
            seen[query] += (path if block.on_path else own)[block.key_start : block.key_stop]
    return seen


@pytest.mark.parametrize(("few", "many"), [(0, 1), (1, 3), (2, 2), (64, 256)])
def test_attention_takes_every_visible_key_once(monkeypatch, few, many):
    """Keys beside a strand's own and in parts for stretches of queries, together, are those of strands and blocks."""
    monkeypatch.setattr(attention, "FEW_KEYS", few)
    monkeypatch.setattr(attention, "MANY_QUERIES", many)

    @settings(max_examples=example_count(60))
    @given(SEQUENCES, st.data())
    def check(sequences, data):
        stream, _ = stream_of(sequences)
        found = prefixes_in(stream)
        for start, stop in itertools.pairwise(cuts_of(data.draw, len(stream))):
            layout = lay_out(stream, start, stop)
            own = found[start:stop]
            path = [own[0][: depth + 1] for depth in range(layout.path)]
            beside, parts = attention.shared_keys(layout)
            seen = [[] for _ in own]
            for strand in layout.strands:
                keys = beside.get(strand.start, range(strand.start, strand.stop))
                for query in range(strand.start, strand.stop):
                    seen[query] += [own[key] for key in keys[: len(keys) - (strand.stop - query) + 1]]
            for begin, end, blocks in parts:
                for query in range(begin, end):
                    for block in blocks:
                        seen[query] += (path if block.on_path else own)[block.key_start : block.key_stop]
            assert [sorted(keys) for keys in seen] == [sorted(keys) for keys in seen_in(layout, found)]
            assert all(len(beside[strand.start]) > 1 for strand in layout.strands if strand.start in beside)

    check()
    family, _ = stream_of([[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 7], [1, 2, 3, 8, 9], [1, 2, 3, 8, 10], [1, 11, 12]])
    _, parts = attention.shared_keys(lay_out(family, 0, len(family)))
    assert max(len(blocks) for _, _, blocks in parts) > 1  # not whatever is drawn has such


def cuts_of(draw, size):
    inner = draw(st.lists(st.integers(1, size - 1), unique=True)) if size > 1 else []
    return [0, *sorted(inner), size]


@pytest.mark.slow
@settings(max_examples=example_count(300))
@given(SEQUENCES, st.data())
def test_a_layout_shows_every_token_its_own_prefix_once(sequences, data):
    stream, _ = stream_of(sequences)
    found = prefixes_in(stream)
    cuts = cuts_of(data.draw, len(stream))
    for start, stop in itertools.pairwise(cuts):
        layout = lay_out(stream, start, stop)
        assert [index for strand in layout.strands for index in range(strand.start, strand.stop)] == list(
            range(stop - start)
        )
        for query, seen in enumerate(seen_in(layout, found)):
            prefix = found[start + query]
            assert sorted(seen, key=len) == [prefix[: size + 1] for size in range(len(prefix))]


@given(SEQUENCES, st.data())
def test_keys_by_strand_gather_the_same_prefix(sequences, data):
    stream, _ = stream_of(sequences)
    found = prefixes_in(stream)
    cuts = cuts_of(data.draw, len(stream))
    for start, stop in itertools.pairwise(cuts):
        layout = lay_out(stream, start, stop)
        source = [found[start][: depth + 1] for depth in range(layout.path)] + found[start:stop]
        for strand, keys in zip(layout.strands, layout.keys_by_strand, strict=True):
            last = found[start + strand.stop - 1]
            assert [source[key] for key in keys] == [last[: size + 1] for size in range(len(last))]


@given(SEQUENCES, st.data())
def test_what_is_kept_between_packs_is_the_next_root_path(sequences, data):
    stream, _ = stream_of(sequences)
    found = prefixes_in(stream)
    cuts = cuts_of(data.draw, len(stream))
    held = []
    for start, stop in itertools.pairwise(cuts):
        layout = lay_out(stream, start, stop)
        assert held[: layout.path] == [found[start][: depth + 1] for depth in range(layout.path)]
        held[layout.keep_from :] = [found[start + place] for place in layout.keep]
        following = found[stop][:-1] if stop < len(stream) else found[-1]
        assert held[: len(following)] == [following[: depth + 1] for depth in range(len(following))]
        assert len(held) == len(following)


@pytest.mark.parametrize(
    ("first", "second", "length"), [("", "", 0), ("ab", "ab", 2), ("ab", "abc", 2), ("ab", "ac", 1)]
)
def test_common_prefix(first, second, length):
    assert (
        common_prefix(*(np.array([ord(char) for char in text], dtype=np.int32) for text in (first, second))) == length
    )


def test_no_sequences_make_an_empty_stream():
    stream, indices = build_stream([], [])
    assert len(stream) == 0
    assert indices == []
    assert stream.root_path(0).tolist() == []
