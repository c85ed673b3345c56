"""The label trie against a plain enumeration of every continuation, which uses no trie."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from example_counts import example_count
from hypothesis import given, settings
from hypothesis import strategies as st

from geval_local.tokens.label_trie import LabelTrie, SurfaceForm

VOCABULARY = 3
DEPTH = 4


def enumerate_labels(forms, labels, table):
    """Add up the probabilities of all texts of `DEPTH` tokens by the label that each of them spells.

    Reading a text from the left, a label that is complete is given up for a longer text only if the next token may
    still lead to another label.
    """
    sequences = {tuple(ids): label for label, ids in forms}
    total = np.zeros(labels)
    for text in itertools.product(range(VOCABULARY), repeat=DEPTH):
        probability = np.prod([table[text[:depth]][token] for depth, token in enumerate(text)])
        for depth in range(1, DEPTH + 1):
            opened = [ids for ids in sequences if ids[:depth] == text[:depth]]
            if not opened:
                break
            label = sequences.get(text[:depth])
            if label is None:
                continue
            longer = [ids for ids in opened if len(ids) > depth]
            next_token = text[depth] if depth < DEPTH else None
            if not any(ids[depth] == next_token and sequences[ids] != label for ids in longer):
                total[label] += probability
                break
    return total


@st.composite
def label_problems(draw):
    """Random label spellings, no spelling shared by two labels, and a next-token table for every possible prefix."""
    texts = [ids for size in range(1, DEPTH) for ids in itertools.product(range(VOCABULARY), repeat=size)]
    chosen = draw(st.lists(st.sampled_from(texts), min_size=1, max_size=8, unique=True))
    labels = draw(st.integers(1, min(4, len(chosen))))
    forms = [
        (index if index < labels else draw(st.integers(0, labels - 1)), tuple(ids)) for index, ids in enumerate(chosen)
    ]
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sharpness = draw(st.sampled_from([0.05, 1.0, 20.0]))
    prefixes = [ids for size in range(DEPTH) for ids in itertools.product(range(VOCABULARY), repeat=size)]
    table = {prefix: generator.dirichlet(np.full(VOCABULARY, sharpness)) for prefix in prefixes}
    return forms, labels, table


def make_trie(forms, labels=None):
    count = labels if labels is not None else 1 + max(label for label, _ in forms)
    return LabelTrie([SurfaceForm(label, str(ids), tuple(ids)) for label, ids in forms], count)


def read_edges(trie, table):
    edges = np.empty(trie.edges)
    for node, part in zip(trie.inner_nodes, trie.edge_slices, strict=True):
        edges[part] = np.log(np.maximum(table[node.path][list(node.tokens)], 1e-300))
    return edges


@settings(max_examples=example_count(300))
@given(label_problems())
def test_label_probabilities_equal_the_enumeration(problem):
    forms, labels, table = problem
    trie = make_trie(forms, labels)
    found = np.exp(trie.label_logprobs(read_edges(trie, table)))
    np.testing.assert_allclose(found, enumerate_labels(forms, labels, table), rtol=1e-9, atol=1e-12)
    assert found.sum() <= 1 + 1e-12


@settings(max_examples=example_count(100))
@given(label_problems(), st.randoms())
def test_the_order_of_the_forms_does_not_matter(problem, shuffler):
    forms, labels, table = problem
    first = make_trie(forms, labels)
    shuffled = list(forms)
    shuffler.shuffle(shuffled)
    second = make_trie(shuffled, labels)
    found = (np.exp(trie.label_logprobs(read_edges(trie, table))) for trie in (first, second))
    # What is left of a label whose longer ones take nearly all is a difference of numbers near 1.
    np.testing.assert_allclose(*found, rtol=1e-9, atol=1e-12)


@settings(max_examples=example_count(100))
@given(label_problems())
def test_reading_paths_cover_every_inner_node_and_are_minimal(problem):
    forms, labels, _ = problem
    trie = make_trie(forms, labels)
    paths, nodes = trie.reading_paths, [node.path for node in trie.inner_nodes]
    assert nodes[0] == ()
    assert all(any(path[: len(node)] == node for path in paths) for node in nodes)
    for left_out in paths:
        rest = [path for path in paths if path != left_out]
        assert not all(any(path[: len(node)] == node for path in rest) for node in nodes)
    assert trie.depth == max(map(len, paths))
    for node in trie.inner_nodes[1:]:
        assert node.path[-1] in trie.inner_nodes[nodes.index(node.path[:-1])].tokens


@settings(max_examples=example_count(50))
@given(label_problems())
def test_the_slices_cut_the_edges_without_gap_or_overlap(problem):
    forms, labels, _ = problem
    trie = make_trie(forms, labels)
    numbers = [number for part in trie.edge_slices for number in range(part.start, part.stop)]
    assert sorted(numbers) == list(range(trie.edges))
    assert [part.stop - part.start for part in trie.edge_slices] == [len(node.tokens) for node in trie.inner_nodes]


def test_one_does_not_swallow_ten():
    one, zero = 4, 5
    trie = make_trie([(0, (one,)), (1, (one, zero)), (2, (zero,))])
    assert trie.collisions() == [(0, 1)]
    assert [node.path for node in trie.inner_nodes] == [(), (one,)]
    root = {one: 0.6, zero: 0.1}
    edges = np.log([*(root[token] for token in trie.inner_nodes[0].tokens), 0.75])
    np.testing.assert_allclose(np.exp(trie.label_logprobs(edges)), [0.6 * 0.25, 0.6 * 0.75, 0.1])


def test_a_longer_form_of_the_same_label_is_not_counted_twice():
    """ "Yes" and "Yes," are one label: whatever follows "Yes", the label is complete."""
    trie = make_trie([(0, (1,)), (0, (1, 2)), (1, (3,))])
    assert len(trie.inner_nodes) == 1
    np.testing.assert_allclose(np.exp(trie.label_logprobs(np.log([0.5, 0.25]))), [0.5, 0.25])
    assert trie.collisions() == []


def test_surface_forms_of_one_label_add_up():
    trie = make_trie([(0, (1,)), (0, (9, 1)), (1, (2,)), (1, (9, 2))])
    assert trie.inner_nodes[0].tokens == (1, 9, 2)
    edges = np.log([0.1, 0.4, 0.2, 0.3, 0.6])
    np.testing.assert_allclose(np.exp(trie.label_logprobs(edges)), [0.1 + 0.4 * 0.3, 0.2 + 0.4 * 0.6])


@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 3)])
def test_batches_are_row_by_row(shape):
    trie = make_trie([(0, (1,)), (1, (1, 0)), (2, (2, 2)), (2, (0,))])
    edges = np.log(np.random.default_rng(0).uniform(0.01, 0.2, (*shape, trie.edges)))
    found = trie.label_logprobs(edges)
    assert found.shape == (*shape, 3)
    assert found.dtype == np.float64
    for place in np.ndindex(*shape):
        np.testing.assert_array_equal(found[place], trie.label_logprobs(edges[place]))


def test_float32_edges_are_summed_in_float64():
    trie = make_trie([(0, (1,)), (1, (2,))])
    edges = np.log(np.array([0.3, 0.2])).astype(np.float32)
    np.testing.assert_array_equal(trie.label_logprobs(edges), edges.astype(np.float64))


def test_no_probability_is_minus_infinity_and_no_warning():
    trie = make_trie([(0, (1,)), (1, (1, 0)), (2, (2,))])
    with np.errstate(all="raise", under="ignore"):
        found = trie.label_logprobs(np.array([0.0, -np.inf, 1e-17]))
    np.testing.assert_allclose(found, [-np.inf, 0.0, -np.inf], atol=1e-15)


@pytest.mark.parametrize(
    ("forms", "labels", "message"),
    [
        ([(0, (1,)), (1, (1,))], 2, r"labels 0 and 1 share the tokens \[1\]"),
        ([(0, ())], 1, "adds no token"),
        ([(0, (1,))], 3, r"labels without a surface form: \[1, 2\]"),
    ],
)
def test_what_is_no_trie_is_refused(forms, labels, message):
    with pytest.raises(ValueError, match=message):
        make_trie(forms, labels)
