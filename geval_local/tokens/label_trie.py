r"""The label trie: the next tokens that spell labels, and how label probabilities follow from theirs.

Pure numpy. A label may be written in several surface forms ("4", " 4"), each a token sequence. All sequences are merged
into one trie::

    root -- " " -- "1" (label 1) -- "0" (label 10)
         \      \- "2" (label 2)
          \- "1" ...

The probability of a label is the sum over its surface forms ``t`` of the path's probability, times the probability
that the text does not continue to a longer label::

    P(l | form) = sum over t of l:  prod_i p(t_i | form, t_<i)  x  (1 - sum over trie children c of t: p(c | form, t))

so that "1" does not include "10" in a tokenizer with one token per digit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class SurfaceForm:
    """One way of writing a label after the form."""

    #: Index of the label in its scale.
    label: int
    #: The text after the form's last character.
    text: str
    #: The tokens that the text adds to the form.
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class InnerNode:
    """A trie node with children: a position at which the model's next-token distribution is read."""

    #: Tokens from the root to this node; empty for the root itself, whose position is the form's last token.
    path: tuple[int, ...]
    #: The children's tokens, whose log-probabilities are needed here.
    tokens: tuple[int, ...]
    #: Whether a label may end here, as 1 does where 10 is a label too.
    is_label: bool


@dataclass
class _Node:
    label: int = -1
    children: dict[int, _Node] = field(default_factory=dict)

    def labels(self) -> set[int]:
        below = {label for child in self.children.values() for label in child.labels()}
        return below | {self.label} if self.label >= 0 else below


class LabelTrie:
    """All token sequences of all labels of a scale, merged; at least one surface form per label.

    Raises `ValueError` if a surface form is empty, two labels share a token sequence, or a label has no surface form.
    """

    def __init__(self, forms: Iterable[SurfaceForm], labels: int) -> None:
        self.forms = tuple(forms)
        self.labels = labels
        missing = sorted(set(range(labels)) - {form.label for form in self.forms})
        if missing:
            raise ValueError(f"labels without a surface form: {missing}")
        root = _Node()
        for form in self.forms:
            if not form.token_ids:
                raise ValueError(f"the surface form {form.text!r} adds no token")
            node = root
            for token in form.token_ids:
                node = node.children.setdefault(token, _Node())
            if node.label not in (-1, form.label):
                raise ValueError(f"labels {node.label} and {form.label} share the tokens {list(form.token_ids)}")
            node.label = form.label
        _prune(root)
        self._edges: list[tuple[int, int, int]] = []  # per edge: parent's inner index, child's inner index, label
        inner: list[InnerNode] = []
        self._collect(root, (), inner)
        self.inner_nodes: tuple[InnerNode, ...] = tuple(inner)

    def _collect(self, node: _Node, path: tuple[int, ...], inner: list[InnerNode]) -> int:
        index = len(inner)
        inner.append(InnerNode(path, tuple(node.children), node.label >= 0))
        # Edges are numbered node by node, so that an inner node's read-out fills one contiguous slice.
        first = len(self._edges)
        self._edges += [(index, -1, child.label) for child in node.children.values()]
        for offset, (token, child) in enumerate(node.children.items()):
            if child.children:
                child_index = self._collect(child, (*path, token), inner)
                self._edges[first + offset] = (index, child_index, child.label)
        return index

    @property
    def edges(self) -> int:
        """Number of edges: the length of one prompt's read-out."""
        return len(self._edges)

    @cached_property
    def edge_slices(self) -> tuple[slice, ...]:
        """For every inner node, in order, the slice of the edges to its children."""
        slices: list[slice] = []
        for index in range(len(self.inner_nodes)):
            numbers = [number for number, (parent, _, _) in enumerate(self._edges) if parent == index]
            slices.append(slice(numbers[0], numbers[-1] + 1))
        return tuple(slices)

    @cached_property
    def reading_paths(self) -> tuple[tuple[int, ...], ...]:
        """Shortest set of token paths that together pass through every inner node; ``((),)`` if the root suffices."""
        paths = [node.path for node in self.inner_nodes]
        return tuple(path for path in paths if not any(_is_proper_prefix(path, other) for other in paths))

    @cached_property
    def reads(self) -> tuple[tuple[tuple[int, ...], list[tuple[int, int]]], ...]:
        """The `reading_paths`, each with depth and number of the inner nodes that are read on it: every node once."""
        nodes = {node.path: number for number, node in enumerate(self.inner_nodes)}
        found = [(path, [(at, nodes.pop(path[:at], -1)) for at in range(len(path) + 1)]) for path in self.reading_paths]
        return tuple((path, [(at, node) for at, node in reads if node >= 0]) for path, reads in found)

    @property
    def depth(self) -> int:
        """Length of the longest path to an inner node."""
        return max(len(node.path) for node in self.inner_nodes)

    def collisions(self) -> list[tuple[int, int]]:
        """List pairs of labels where the first's path is a proper prefix of the second's."""
        pairs = {
            (short.label, long.label)
            for short in self.forms
            for long in self.forms
            if short.label != long.label and _is_proper_prefix(short.token_ids, long.token_ids)
        }
        return sorted(pairs)

    def label_logprobs(self, edge_logprobs: NDArray[np.floating]) -> NDArray[np.float64]:
        """Combine next-token log-probabilities into label log-probabilities."""
        edges = np.asarray(edge_logprobs, dtype=np.float64)
        batch = edges.shape[:-1]
        reach = self._reach(edges)
        going_on = [np.exp(edges[..., part]).sum(axis=-1) for part in self.edge_slices]
        total = np.full((*batch, self.labels), -np.inf)
        for number, (parent, child, label) in enumerate(self._edges):
            if label >= 0:
                path = reach[parent] + edges[..., number]
                if child >= 0:
                    # Rounding may push the children's sum past 1 by an ulp; the label then has probability 0.
                    with np.errstate(divide="ignore"):
                        path = path + np.log(np.maximum(1.0 - going_on[child], 0.0))
                total[..., label] = np.logaddexp(total[..., label], path)
        return total

    def _reach(self, edges: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """Return the log-probability of the path to every inner node, each of shape (...)."""
        found = [np.zeros(edges.shape[:-1]) for _ in self.inner_nodes]
        # Preorder numbering: a parent's path is complete before it is needed for any child.
        for number, (parent, child, _) in enumerate(self._edges):
            if child >= 0:
                found[child] = found[parent] + edges[..., number]
        return found

    def reach(self, edge_logprobs: NDArray[np.floating]) -> list[float]:
        """Return the probability of the path to every inner node, of one prompt's edges; 1 for the root."""
        return [float(np.exp(path)) for path in self._reach(np.asarray(edge_logprobs, dtype=np.float64))]


def _prune(node: _Node) -> None:
    """Remove continuations of a complete label to the same label: the shorter form includes their probability."""
    for child in node.children.values():
        _prune(child)
    if node.label >= 0:
        node.children = {token: child for token, child in node.children.items() if child.labels() != {node.label}}


def _is_proper_prefix(short: Sequence[int], long: Sequence[int]) -> bool:
    return len(short) < len(long) and tuple(long[: len(short)]) == tuple(short)
