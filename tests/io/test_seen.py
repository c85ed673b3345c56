"""The compact register of keys against a dict."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from geval_local.io.seen import FirstSeen

# Keys that fall into few slots, and wrap around at the end of the table.
KEYS = st.integers(1, 40) | st.integers(1, 5).map(lambda k: k << 40) | st.integers(2**64 - 9, 2**64 - 1)


@given(st.lists(KEYS, max_size=200))
def test_it_is_a_dict(keys):
    seen, expected = FirstSeen(), {}
    for number, key in enumerate(keys):
        assert seen.add(key, number) == expected.setdefault(key, number)


def test_it_grows():
    seen = FirstSeen()
    keys = [(number * 0x9E3779B97F4A7C15) % (1 << 64) or 1 for number in range(1, 20_000)]
    assert [seen.add(key, number) for number, key in enumerate(keys)] == list(range(len(keys)))
    assert [seen.add(key, 0) for key in keys] == list(range(len(keys)))


def test_rows_beyond_four_billion():
    seen = FirstSeen()
    assert seen.add(1, 2**32 - 1) == 2**32 - 1
    assert seen.add(2, 2**32 + 5) == 2**32 + 5
    keys = range(3, 3000)
    assert [seen.add(key, 2**40 + key) for key in keys] == [2**40 + key for key in keys]
    assert [seen.add(key, 0) for key in (1, 2, 2999)] == [2**32 - 1, 2**32 + 5, 2**40 + 2999]
