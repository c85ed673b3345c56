"""What is kept of a batch for the next ones, and what is not worth it. Pure."""

from __future__ import annotations

import numpy as np

from geval_local.engine.interface import MOST_POSITIONS
from geval_local.judge.kept_prefixes import REMEMBERED, KeptPrefixes, Newcomer


def call(document, tail, *, length=300, group=None, **more):
    """A prompt of an introduction, a document, and a tail of its own."""
    body = [1] * 20 + [100 + document] * length
    ids = np.array([*body, 5000 + tail, 7], dtype=np.int32)
    evidence = np.array(body + ([] if group is None else [5000 + tail]), dtype=np.int32)
    name = group if group is not None else f"{document}/{tail}".encode()
    return Newcomer(ids, 20, name, evidence=lambda: evidence, **more)


def lengths(found):
    return [0 if prefix is None else len(prefix) for prefix in found]


def test_the_document_of_the_newest_call_is_kept_and_found_again():
    kept = KeptPrefixes()
    first = kept.choose([*(call(1, tail) for tail in range(3)), *(call(2, tail) for tail in range(3))])
    assert lengths(first) == [0, 0, 0, 320, 320, 320]
    assert first[3] is first[4] is first[5]
    second = kept.choose([call(2, 9), call(3, 0), call(3, 1)])
    assert lengths(second) == [320, 320, 320]
    assert second[0] is first[3]


def test_a_document_that_stands_alone_or_is_short_is_not_kept():
    kept = KeptPrefixes()
    assert lengths(kept.choose([call(1, 0), call(2, 0)])) == [0, 0]
    assert lengths(kept.choose([call(3, tail, length=60) for tail in range(4)])) == [0] * 4
    assert kept.choose([]) == []


def test_equal_prompts_do_not_become_a_prefix_without_an_end():
    kept = KeptPrefixes()
    assert lengths(kept.choose([call(1, 0), call(1, 0)])) == [0, 0]
    assert lengths(kept.choose([call(1, 0), call(1, 1), call(1, 1)])) == [320] * 3


def test_repeated_evidence_is_kept_unless_it_has_company():
    kept = KeptPrefixes()
    kept.choose([call(1, 0, group=b"one"), call(2, 0, group=b"two")])
    assert lengths(kept.choose([call(1, 0, group=b"one"), call(3, 0)])) == [0, 0]
    assert lengths(kept.choose([call(1, 0, group=b"one")])) == [321]
    assert lengths(kept.choose([call(2, 0, group=b"two", length=60)])) == [0]


def test_candidates_with_long_texts_of_their_own_stay_with_their_document_the_second_time():
    kept = KeptPrefixes()
    body = [1] * 20 + [101] * 600
    calls = [
        Newcomer(
            np.array([*body, *[200 + number] * 150, 7], dtype=np.int32),
            20,
            str(number).encode(),
            evidence=lambda number=number: np.array([*body, *[200 + number] * 150], dtype=np.int32),
        )
        for number in range(4)
    ]
    for _ in range(2):
        assert lengths(kept.choose(calls)) == [620] * 4


def test_evidence_of_a_call_that_goes_on_is_kept_at_once():
    kept = KeptPrefixes()
    assert lengths(kept.choose([call(1, 0, group=b"one", goes_on=True), call(2, 0)])) == [321, 0]


def test_no_more_is_kept_than_the_engine_has_room_for():
    kept = KeptPrefixes()
    for document in range(3 * REMEMBERED):
        kept.choose([call(document, tail) for tail in range(2)])
    held = [document for document in range(3 * REMEMBERED) if kept.choose([call(document, 9)])[0] is not None]
    assert held == list(range(3 * REMEMBERED - MOST_POSITIONS // 320, 3 * REMEMBERED))
