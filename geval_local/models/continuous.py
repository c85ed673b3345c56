"""A continuous batch: texts that are drawn side by side; the place of one that is over goes to the next.

A batch that ends together waits for its longest text: with ends between 8 and 128 tokens that is half of its work. Why
not transformers' own continuous batching (5.17 to 5.23): all its texts are drawn by one stream of random numbers, so
that a text depends on its company, and it sets the model's attention to another one.

Every layer keeps its keys and values in one tensor of rows and columns. All texts end at the same column, whatever
their lengths; what is before a text is masked. So a new text replaces one row, and the columns before the longest text
are left out by a view. A recurrent state is a row without columns. A prompt is computed alone, without padding, and
what all prompts begin with is computed once.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import Cache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionLayer

from geval_local.models.generate import drawn_token, end_tokens, random_numbers, takes_positions
from geval_local.models.head import Head, Trunk
from geval_local.thinking import Drawing

#: Columns that a tensor has beyond its texts when it is made anew.
SPARE = 128


@torch.inference_mode()
def can_replace(model: PreTrainedModel) -> bool:
    """Whether texts of a model may be replaced in a batch: found out by its cache, and then by trying.

    What it keeps of each layer has to be keys and values, or recurrent states: models with both in one layer, with
    compressed or shared layers, or with positions of their own are left to batches that end together. So are those
    whose layers see what is masked (GIT).
    """
    trunk, head = Trunk(model), Head(model)
    if not takes_positions(trunk):
        return False
    # Prompts of several lengths, which all begin alike.
    prompts = [4 + np.arange(size, dtype=np.int32) % 4 for size in (9, 3)]
    cache, _ = _Prompts(trunk, head, prompts[:1]).read(prompts[0])
    layers = getattr(cache, "layers", ())
    return bool(layers) and all(map(_is_plain, layers)) and _is_exact(trunk, head, prompts)


def _is_exact(trunk: Trunk, head: Head, prompts: Sequence[NDArray[np.int32]]) -> bool:
    """Whether texts that are read side by side have the logits that each has alone, up to half precision."""
    texts = [_Text(ids, random_numbers(0)) for ids in prompts]
    batch = TextBatch(
        trunk, head, _Prompts(trunk, head, prompts), deque(texts), lambda _: False, lambda *_: 5, len(texts)
    )
    batch.fill()
    batch.read()
    for text in texts:
        text.new.append(6)
    found = batch.read()
    plain = [trunk(torch.from_numpy(np.append(text.ids, text.new))[None]).last_hidden_state for text in texts]
    expected = np.concatenate([_logits(head, hidden) for hidden in plain])
    return bool(np.abs(found - expected).max() <= 0.05 * np.abs(expected).max())


def _is_plain(layer: Any) -> bool:
    return type(layer) in _KINDS and (_KINDS[type(layer)] is _States or (layer.is_initialized and layer.keys.ndim == 4))


@dataclass
class _Room:
    """Which part of the layers' tensors holds texts."""

    #: Rows and columns of the tensors.
    slots: int
    size: int
    #: Texts, in the first rows; the columns from the beginning of the longest to their common end.
    rows: int = 0
    start: int = 0
    stop: int = 0


class _Layer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values of one layer; `like` is the layer of a prompt's own cache."""

    keys: Any
    values: Any

    def __init__(self, room: _Room, like: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._room = room
        self._window: int | None = getattr(like, "sliding_window", None)
        self.is_sliding = self._window is not None
        self.keys, self.values = (
            one.new_zeros((room.slots, one.shape[1], room.size, one.shape[3])) for one in (like.keys, like.values)
        )
        self.dtype, self.device, self.is_initialized = self.keys.dtype, self.keys.device, True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        room, seen = self._room, slice(self._room.stop - self._seen, self._room.stop + 1)
        self.keys[: room.rows, :, room.stop] = key_states[:, :, 0]
        self.values[: room.rows, :, room.stop] = value_states[:, :, 0]
        return self.keys[: room.rows, :, seen], self.values[: room.rows, :, seen]

    @property
    def _seen(self) -> int:
        """The columns before a new token that it sees."""
        width = self.get_seq_length()
        return width if self._window is None else min(width, self._window - 1)

    def get_seq_length(self) -> int:
        return self._room.stop - self._room.start

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._seen + query_length, self.get_seq_length() - self._seen

    def show(self) -> None:
        """Do nothing: the model gets its part by `update`."""

    def put(self, row: int, prompt: Any) -> None:
        """Write a prompt's keys and values into a row."""
        for own, new in ((self.keys, prompt.keys), (self.values, prompt.values)):
            own[row, :, self._room.stop - new.shape[2] : self._room.stop] = new[0]

    def move(self, source: int, target: int) -> None:
        """Copy a row."""
        span = slice(self._room.start, self._room.stop)
        for own in (self.keys, self.values):
            own[target, :, span] = own[source, :, span]

    def resize(self, size: int, shift: int) -> None:
        """Copy what is in use into tensors of `size` columns, `shift` columns further to the right."""
        self.keys, self.values = (_resized(one, self._room, size, shift, dim=2) for one in (self.keys, self.values))


class _States(LinearAttentionLayer):
    """Recurrent states of one layer; `like` is the layer of a prompt's own cache."""

    def __init__(self, room: _Room, like: Any) -> None:
        super().__init__(like.number_of_states)
        self._room = room
        vars(self).update({name: copy.copy(value) for name, value in vars(like).items() if name not in _STATES})
        self._rows = {
            name: {state: one.new_zeros((room.slots, *one.shape[1:])) for state, one in _known(like, name)}
            for name in _STATES
        }

    def show(self) -> None:
        """Let the model read and write the states of the texts that are there."""
        for name, rows in self._rows.items():
            getattr(self, name).update({state: one[: self._room.rows] for state, one in rows.items()})

    def put(self, row: int, prompt: Any) -> None:
        """Write a prompt's states into a row."""
        for name, rows in self._rows.items():
            for state, new in _known(prompt, name):
                rows[state][row] = new[0]

    def move(self, source: int, target: int) -> None:
        """Copy a row."""
        for rows in self._rows.values():
            for one in rows.values():
                one[target] = one[source]

    def resize(self, size: int, shift: int) -> None:
        """Do nothing: states have no columns."""


_STATES = ("conv_states", "recurrent_states")
#: Kind of a prompt's layer -> what stands in its place in a batch.
_KINDS: dict[type, type[_Layer | _States]] = {
    DynamicLayer: _Layer,
    DynamicSlidingWindowLayer: _Layer,
    LinearAttentionLayer: _States,
}


def _known(layer: Any, name: str) -> list[tuple[int, torch.Tensor]]:
    return [(state, one) for state, one in getattr(layer, name).items() if one is not None]


def _resized(tensor: torch.Tensor, room: _Room, size: int, shift: int, dim: int) -> torch.Tensor:
    shape = (*tensor.shape[:dim], size, *tensor.shape[dim + 1 :])
    found, width = tensor.new_zeros(shape), room.stop - room.start
    found.narrow(dim, room.start + shift, width).copy_(tensor.narrow(dim, room.start, width))
    return found


@dataclass
class _Text:
    """A text that is being drawn."""

    #: The tokens of its prompt.
    ids: NDArray[np.int32]
    #: Gives a random number for each of its tokens.
    numbers: np.random.Generator
    #: Its new tokens.
    new: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Its tokens in the caches: the newest one is still to be computed."""
        return len(self.ids) + len(self.new) - 1


class _Prompts:
    """Computes prompts, one after the other; what all begin with is computed once."""

    def __init__(self, trunk: Trunk, head: Head, prompts: Sequence[NDArray[np.int32]]) -> None:
        self._trunk, self._head = trunk, head
        self._shared, self._beginning = _shared(prompts), None
        self._last: tuple[bytes, Cache, NDArray[np.float64]] | None = None

    def read(self, ids: NDArray[np.int32]) -> tuple[Cache, NDArray[np.float64]]:
        """Return a prompt's cache, and the logits after it; one that comes again at once is not computed again."""
        key = ids.tobytes()
        if self._last is None or self._last[0] != key:
            self._last = None
            self._last = (key, *self._compute(ids))
        return self._last[1:]

    def _compute(self, ids: NDArray[np.int32]) -> tuple[Any, NDArray[np.float64]]:
        if self._shared and self._beginning is None:
            self._beginning = self._pass(ids[: self._shared], 0, None).past_key_values
        output = self._pass(ids[self._shared :], self._shared, copy.deepcopy(self._beginning))
        return getattr(output, "past_key_values", None), _logits(self._head, output.last_hidden_state)[0]

    def _pass(self, ids: NDArray[np.int32], before: int, cache: Cache | None) -> Any:
        positions = torch.arange(before, before + len(ids), device=self._trunk.device)[None]
        seen = torch.ones((1, before + len(ids)), dtype=torch.long, device=self._trunk.device)
        given = torch.from_numpy(ids.astype(np.int64))[None]
        return self._trunk(given, attention_mask=seen, position_ids=positions, past_key_values=cache, use_cache=True)


def _shared(prompts: Sequence[NDArray[np.int32]]) -> int:
    """Count the tokens that all prompts begin with, without the last one of any; 0 for a single prompt."""
    first, last = (choose(one.tolist() for one in prompts) for choose in (min, max))
    if first == last:
        return 0
    size = min(len(first), len(last)) - 1
    return next((place for place in range(size) if first[place] != last[place]), size)


def _logits(head: Head, hidden: torch.Tensor) -> NDArray[np.float64]:
    """Compute the logits after the last token of every text, on the host, shape (texts, vocabulary)."""
    return head.logits(hidden[:, -1]).cpu().double().numpy()


class TextBatch:
    """Texts that are drawn side by side, and those that wait for a place."""

    def __init__(
        self,
        trunk: Trunk,
        head: Head,
        prompts: _Prompts,
        waiting: deque[_Text],
        is_over: Callable[[_Text], bool],
        drawn: Callable[[NDArray[np.float64], float], int],
        slots: int,
    ) -> None:
        self._trunk, self._head, self._prompts, self._waiting = trunk, head, prompts, waiting
        self._is_over, self._drawn = is_over, drawn
        longest = max(len(text.ids) for text in waiting)
        # No prompt is longer than what is before this column, so that each has room whenever its turn comes.
        self._least = longest
        self._room = _Room(min(slots, len(waiting)), longest + SPARE, 0, longest, longest)
        self._seen = torch.zeros((self._room.slots, self._room.size), dtype=torch.long, device=trunk.device)
        self._layers: list[_Layer | _States] = []
        self.texts: list[_Text] = []

    def finish(self) -> None:
        """Draw all texts to their ends."""
        self.fill()
        while self.texts:
            for text, logits in zip(self.texts, self.read(), strict=True):
                text.new.append(self._drawn(logits, text.numbers.random()))
            # From the last row on: the one that takes an empty place has been looked at.
            for row in reversed(range(len(self.texts))):
                if self._is_over(self.texts[row]) and not self._begin(row):
                    self._drop(row)

    def fill(self) -> None:
        """Give all places to texts, as long as there are some."""
        while len(self.texts) < self._room.slots and self._begin(len(self.texts)):
            pass

    def _begin(self, row: int) -> bool:
        """Give a row to the next text that is not over with its first token; false if there is none."""
        while self._waiting:
            text = self._waiting.popleft()
            cache, logits = self._prompts.read(text.ids)
            text.new.append(self._drawn(logits, text.numbers.random()))
            if not self._is_over(text):
                self._put(row, text, cache)
                return True
        return False

    def _put(self, row: int, text: _Text, prompt: Cache) -> None:
        room, given = self._room, prompt.layers
        self._layers = self._layers or [_KINDS[type(layer)](room, layer) for layer in given]
        for own, layer in zip(self._layers, given, strict=True):
            own.put(row, layer)
        self._seen[row] = 0
        self._seen[row, room.stop - text.length : room.stop] = 1
        self.texts[row : row + 1] = [text]
        room.rows = len(self.texts)

    def _drop(self, row: int) -> None:
        """Give up a row: the last one takes its place."""
        last = self.texts.pop()
        self._room.rows = len(self.texts)
        if row < len(self.texts):
            for layer in self._layers:
                layer.move(len(self.texts), row)
            self._seen[row] = self._seen[len(self.texts)]
            self.texts[row] = last

    def read(self) -> NDArray[np.float64]:
        """Compute the newest token of every text, and return the logits after it."""
        room, texts = self._room, self.texts
        room.start = room.stop - max(text.length for text in texts)
        if room.stop == room.size:
            self._make_room()
        self._seen[: room.rows, room.stop] = 1
        for layer in self._layers:
            layer.show()
        output = self._trunk(
            torch.tensor([text.new[-1:] for text in texts], device=self._trunk.device),
            attention_mask=self._seen[: room.rows, room.start : room.stop + 1],
            position_ids=torch.tensor([[text.length] for text in texts], device=self._trunk.device),
            past_key_values=Cache(layers=list(self._layers)),
            use_cache=True,
        )
        room.stop += 1
        return _logits(self._head, output.last_hidden_state)

    def _make_room(self) -> None:
        """Leave out the columns before the longest text, and add others behind."""
        room = self._room
        stop = max(room.stop - room.start, self._least)
        size, shift = stop + SPARE, stop - room.stop
        for layer in self._layers:
            layer.resize(size, shift)
        self._seen = _resized(self._seen, room, size, shift, dim=1)
        room.size, room.start, room.stop = size, room.start + shift, stop


@torch.inference_mode()
def generate_continuously(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[NDArray[np.int32]],
    seeds: Sequence[int],
    is_over: Callable[[str, int], bool],
    *,
    slots: int,
    max_new_tokens: int,
    drawing: Drawing,
) -> list[list[int]]:
    """Draw one continuation of every prompt, `slots` at a time, in the order given; each ends with its last token.

    The schedule, and with it every bit, is a function of the arguments. The model has to pass `can_replace`.
    """
    ends = end_tokens(tokenizer)
    texts = [_Text(ids, random_numbers(seed)) for ids, seed in zip(prompts, seeds, strict=True)]

    def is_done(text: _Text) -> bool:
        size = len(text.new)
        return size >= max_new_tokens or text.new[-1] in ends or is_over(str(tokenizer.decode(text.new)), size)

    trunk, head = Trunk(model), Head(model)
    drawn = partial(drawn_token, drawing=drawing)
    TextBatch(trunk, head, _Prompts(trunk, head, prompts), deque(texts), is_done, drawn, slots).finish()
    return [text.new for text in texts]
