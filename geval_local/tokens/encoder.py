"""Prompts become tokens: special tokens stay out of sample text, templates come from the tokenizer, BOS is added once.

Sample text is data. A control token written inside it ("<|im_end|>") must not become that token, while the chat
template around it must use the real one. So templates are rendered with *secret names* in place of control tokens, and
the text is encoded by a copy of the tokenizer in which the control tokens have only their secret names: no text that a
sample may contain can match them.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import re
import secrets
import string
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from geval_local.errors import ErrorCode, TokenizerError, UnscorableError, first_line, is_panic, without_panics
from geval_local.models.chat_template import chat_frame
from geval_local.options import Style
from geval_local.prompt import ANALYSIS_CUE, ANALYSIS_END, ANALYSIS_FORM, Prompt
from geval_local.thinking import Ending

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TokenIds = NDArray[np.int32]

# Shared texts are tokenized once: prompts are cut where the tokenizer cuts anyway, and equal pieces are cached.
#
# A prompt is cut between a line end and a letter ("...\n|Summary"). For most tokenizers no token spans that place, and
# the text on one side does not change the tokens on the other. `can_cut` decides this from the tokenizer's description;
# texts of unknown tokenizers are encoded whole. Every piece is encoded between the line end before it and the letter
# after it, so that rules which look one character ahead, or treat the start of a text specially, work as in the whole
# prompt. This reduces tokenization from 1.1-1.6 to 0.25 ms per row on SummEval (one core).

#: A stretch of a prompt between two cuts, with the neighbouring character on either side; whether it
#: is the first; whether it is the last.
_Piece = tuple[str, bool, bool]

#: Texts encoded per call.
AT_ONCE = 512
_CUT_BEFORE = frozenset(string.ascii_letters)
#: Pre-tokenizers that scan a text from left to right and look only at the text they cut.
_LOCAL_SPLITTERS = {"Sequence", "Split", "ByteLevel", "Digits", "Punctuation", "Metaspace"}
_LOCAL_NORMALIZERS = {"Sequence", "NFC", "Replace", "Prepend"}
_SPANS = re.compile("[\nĊ][A-Za-z]")
#: Test characters before and after a cut: one of each class that tokenizers' patterns distinguish.
_BEFORE = ("", *"aZ7'.:- \t\r\né中🙂\u0301\u00a0", "'s", "  ", "\n\n")
_LETTERS = "aS"
_AFTER = ("", "'s", " c")

#: Groups, and the one-character lookahead that tokenizers use. Other lookarounds are rejected.
_HARMLESS = re.compile(r"\(\?:|\(\?i:|\(\?!\\S\)|\[\^|\\[\^$]")
_LOOKS_AROUND = re.compile(r"\(\?|\^|\$|\\[bBAGKzZ]")


class SharedTextEncoder:
    """Encoder for texts with much text in common."""

    def __init__(self, backend: Tokenizer, *, ids: TokenIds | None = None, least: int = 200_000) -> None:
        self.backend = backend
        self._ids = ids
        self.least = least

    @cached_property
    def is_shared(self) -> bool:
        """Whether pieces are cached; otherwise every text is encoded whole."""
        return can_cut(self.backend)

    @cached_property
    def _lead(self) -> int:
        """Number of tokens of the line end before a piece."""
        return len(self.encode_whole(["\nx"])[0]) - 1

    def encode(self, texts: Sequence[str], prefix: TokenIds | None = None) -> list[TokenIds]:
        """Encode texts; each gets the tokens that it would have alone."""
        first = [] if prefix is None else [prefix]
        if len(texts) < 2 or sum(map(len, texts)) < self.least or not self.is_shared:
            return [np.concatenate([*first, ids]) for ids in self.encode_whole(texts)]
        numbers: dict[_Piece, int] = {}
        rows = [[numbers.setdefault(piece, len(numbers)) for piece in cut_pieces(text)] for text in texts]
        whole = self.encode_whole([text for text, _, _ in numbers])
        trimmed = [
            ids[0 if is_first else self._lead : None if is_last else -1]
            for (_, is_first, is_last), ids in zip(numbers, whole, strict=True)
        ]
        return [np.concatenate([*first, *[trimmed[number] for number in row]]) for row in rows]

    def encode_whole(self, texts: Sequence[str]) -> list[TokenIds]:
        """Encode texts one by one, without the cache of pieces."""
        found: list[TokenIds] = []
        # An encoding also contains every token's text, tens of times the size of its ids.
        for start in range(0, len(texts), AT_ONCE):
            with encodable():
                batch = self.backend.encode_batch_fast(texts[start : start + AT_ONCE], add_special_tokens=False)
            found += [np.fromiter(ids, np.int32, len(ids)) for ids in (encoding.ids for encoding in batch)]
        if self._ids is None:
            return found
        try:
            return [self._ids[ids] for ids in found]
        except IndexError as error:
            raise TokenizerError(
                "the tokenizer gives token ids that its vocabulary does not have",
                hint="Its tokenizer.json is damaged; fetch it again with the weights.",
            ) from error


@contextmanager
def encodable() -> Iterator[None]:
    """Turn a tokenizer's failure into an error of the row, such as a text that its pattern never finishes."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        told = f"the judge's tokenizer cannot encode this text: {first_line(error)}"
        raise UnscorableError(told, ErrorCode.NOT_ENCODABLE) from error


def cut_pieces(text: str) -> list[_Piece]:
    """Cut a text; each piece includes the line end before it (not the first) and the letter after it (not the last)."""
    pieces: list[_Piece] = []
    start = 0
    end = text.find("\n") + 1  # quicker than a regular expression
    while end:
        if text[end : end + 1] in _CUT_BEFORE:
            pieces.append((text[start - 1 if start else 0 : end + 1], not start, False))
            start = end
        end = text.find("\n", end) + 1
    pieces.append((text[start - 1 if start else 0 :], not start, True))
    return pieces


def can_cut(backend: Tokenizer) -> bool:
    """Whether a text's tokens are those of its pieces, for a tokenizer."""
    record: dict[str, Any] = json.loads(backend.to_str())
    return (
        record["model"]["type"] == "BPE"
        and not record["model"].get("dropout")
        and all(map(_is_harmless, record["added_tokens"]))
        and _kinds(record["normalizer"], "normalizers") <= _LOCAL_NORMALIZERS
        and _kinds(record["pre_tokenizer"], "pretokenizers") <= _LOCAL_SPLITTERS
        and not any(map(_looks_around, _patterns(record["pre_tokenizer"])))
        and (_cuts_by_itself(backend) or _never_spans(record))
        and _agrees(backend)
    )


def _is_harmless(token: dict[str, Any]) -> bool:
    """Whether an added token can neither span a cut nor match the letter after it."""
    content = str(token["content"])
    letters = content[:1].isalpha() and (token["lstrip"] or len(content) == 1)
    return not (_SPANS.search(content) or letters or token["single_word"])


def _cuts_by_itself(backend: Tokenizer) -> bool:
    """Whether the pre-tokenizer always cuts there, so that no token can span the cut."""
    splitter: Any = backend.pre_tokenizer
    if splitter is None:
        return False
    for first, second, letter, after in itertools.product(_BEFORE, _BEFORE, _LETTERS, ("", "b")):
        left = f"{first}{second}\n"
        if len(left) not in (start for _, (start, _) in splitter.pre_tokenize_str(f"{left}{letter}{after}")):
            return False
    return True


def _never_spans(record: dict[str, Any]) -> bool:
    """Whether no vocabulary piece contains a line end followed by a letter, so that no merge spans the cut.

    Both sides of the cut are then merged independently, although they are one word to the model.
    """
    model = record["model"]
    return not (
        model.get("ignore_merges")
        or model.get("end_of_word_suffix")
        or model.get("continuing_subword_prefix")
        or any(map(_SPANS.search, model["vocab"]))
    )


def _agrees(backend: Tokenizer) -> bool:
    """Test the cuts on short texts of every kind."""
    texts = [
        f"{first}{second}\n{letter}{after}\n{letter}"
        for first, second, letter, after in itertools.product(_BEFORE, _BEFORE, _LETTERS, _AFTER)
    ]
    encoder = SharedTextEncoder(backend, least=0)
    encoder.is_shared = True
    lone = encoder.encode_whole([f"\n{letter}" for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"])
    if any(len(ids) != len(lone[0]) or (ids[:-1] != lone[0][:-1]).any() for ids in lone):
        return False
    pairs = zip(encoder.encode(texts), encoder.encode_whole(texts), strict=True)
    return all(np.array_equal(shared, whole) for shared, whole in pairs)


def _kinds(record: Any, parts: str) -> set[str]:
    """Return the types of a normalizer or pre-tokenizer and of all its parts; `parts` is their key."""
    if record is None:
        return set()
    return {record["type"]}.union(*(_kinds(part, parts) for part in record.get(parts, ())))


def _patterns(record: Any) -> Iterator[str]:
    """Yield the regular expressions of a pre-tokenizer and of all its parts."""
    if record is not None:
        pattern = record.get("pattern") or {}
        if "Regex" in pattern:
            yield pattern["Regex"]
        for part in record.get("pretokenizers", ()):
            yield from _patterns(part)


def _looks_around(pattern: str) -> bool:
    """Whether a pattern looks beyond its match and the one character after it."""
    return bool(_LOOKS_AROUND.search(_HARMLESS.sub("", pattern)))


_CONTROL_LOOK = re.compile(r"<[|｜].*[|｜]>|</?(think|tool_call|tool_response|s|bos|eos|pad|unk)>|\[/?[A-Z_]+\]")


#: Characters of a text behind which memory is given back: the library takes some 130 bytes for each of them, and the
#: allocator would keep these for the next text.
_LARGE = 1 << 18


@cache
def _trim() -> Callable[[int], object]:
    try:
        trim: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another allocator than that of glibc
        return int
    return trim


def _give_back(texts: Sequence[str]) -> None:
    """Give the memory back that texts have taken, if one of them is large."""
    if max(map(len, texts), default=0) > _LARGE:
        _trim()(0)


class PromptEncoder:
    """Turns prompts into token ids for one tokenizer and prompt style."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, style: Style = "completion") -> None:
        self.tokenizer = tokenizer
        self.style = style
        self._salt = f"\ue000{secrets.token_hex(8)}\ue001"
        frame = None if style == "completion" else chat_frame(tokenizer)
        written = str(tokenizer.chat_template or "") + (frame.after if frame else "")
        backend: Any = getattr(tokenizer, "backend_tokenizer")  # noqa: B009 - not on the base class's type
        try:
            with without_panics():
                self.backend, self.original_ids, self.secret_names = _with_secret_names(
                    backend, self._salt, written, set(tokenizer.all_special_tokens)
                )
                # An unknown token that is not there shows in use.
                self.backend.encode("x\ue002", add_special_tokens=False)
        except Exception as error:  # the backend checks a description that it wrote itself
            raise TokenizerError(
                f"the tokenizer in {tokenizer.name_or_path or 'memory'} is inconsistent: {first_line(error)}",
                hint="Restore its tokenizer.json and tokenizer_config.json; fetch them with the weights.",
            ) from error
        self.shared_texts = SharedTextEncoder(self.backend, ids=self.original_ids)
        self._frame = frame and replace(frame, before=self._hide(frame.before), after=self._hide(frame.after))

    @cached_property
    def prefix_ids(self) -> tuple[int, ...]:
        """The tokens that the tokenizer itself puts before a text: BOS, GLM's ``[gMASK]<sop>``; none in a chat style.

        There the template decides about them.
        """
        if self.style != "completion":
            return ()
        encoded = self.tokenizer("x", return_special_tokens_mask=True)
        marked = zip(encoded["input_ids"], encoded["special_tokens_mask"], strict=True)
        return tuple(int(token) for token, _ in itertools.takewhile(lambda pair: pair[1], marked))

    @property
    def closes_thinking(self) -> bool:
        """Whether the assistant's turn starts with an empty thinking block."""
        return self.style != "completion" and self._frame is not None and self._frame.closes_thinking

    def _hide(self, text: str) -> str:
        """Replace control tokens written by a template with their secret names."""
        if not self.secret_names:
            return text
        pattern = "|".join(re.escape(token) for token in sorted(self.secret_names, key=len, reverse=True))
        return re.sub(pattern, lambda match: self.secret_names[match[0]], text)

    def full_text(self, prompt: Prompt) -> str:
        """Render a prompt in this style, control tokens under their secret names, ready for the label to follow."""
        if self.style == "completion" or self._frame is None:
            return prompt.text
        if self.style == "chat":
            return f"{self._frame.before}{self._asked(prompt)}{self._frame.after}{prompt.cue}"
        # Labels are tried with their own leading space, so a template's space before the answer is removed.
        return f"{self._frame.before}{self._asked(prompt)}{self._frame.after.rstrip(' ')}"

    def _asked(self, prompt: Prompt) -> str:
        """Return the user's turn of a chat."""
        if self.style == "chat":
            return prompt.question
        return f"{prompt.question}\n\n{prompt.cue}" if prompt.request else prompt.text

    def readable_text(self, prompt: Prompt) -> str:
        """Render a prompt for people, with the control tokens' original names."""
        text = self.full_text(prompt)
        for token, secret in self.secret_names.items():
            text = text.replace(secret, token)
        return "".join(self.tokenizer.convert_ids_to_tokens(list(self.prefix_ids))) + text

    def encode_texts(self, texts: Sequence[str]) -> list[TokenIds]:
        """Encode rendered texts (see `full_text`), behind `prefix_ids`."""
        try:
            return self.shared_texts.encode(texts, np.asarray(self.prefix_ids, dtype=np.int32))
        finally:
            _give_back(texts)

    def encode(self, prompts: Sequence[Prompt]) -> list[TokenIds]:
        """Encode prompts: ``encode_texts`` of their ``full_text``."""
        return self.encode_texts([self.full_text(prompt) for prompt in prompts])

    def drop_tokens(self, text: str, count: int) -> str:
        """Remove `count` tokens from the end of a sample's text; return an empty text if it has no more."""
        if count == 0:
            return text
        with encodable():
            offsets = self.backend.encode(text, add_special_tokens=False).offsets
        _give_back([text])
        return text[: offsets[len(offsets) - count][0]] if count < len(offsets) else ""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, for display."""
        return str(self.tokenizer.decode(list(token_ids)))


class ThinkingEncoder(PromptEncoder):
    """Encodes prompts that end where a thought begins, and what follows it.

    In a chat style whose template knows thoughts they stand between its marks; elsewhere an analysis before the form
    takes their place, one paragraph that ends at an empty line.

    Parameters
    ----------
    plain : PromptEncoder
        The judge's own encoder, whose copy of the tokenizer is shared.
    """

    def __init__(self, plain: PromptEncoder) -> None:
        self.__dict__.update(vars(plain))
        thought = None if plain.style == "completion" or plain._frame is None else plain._frame.thought
        self._thought = thought
        self._shown = thought and replace(
            thought, **{name: self._hide(getattr(thought, name)) for name in ("before", "opening", "closing", "mark")}
        )

    @property
    def kind(self) -> str:
        """``template``, or ``reason-first`` with the edition of its request."""
        return "template" if self._thought is not None else f"reason-first/{ANALYSIS_FORM}"

    @property
    def mark(self) -> str:
        """The text, as tokens decode to it, by which a judge ends its thought."""
        return "\n\n" if self._thought is None else self._thought.mark

    @property
    def closes_thinking(self) -> bool:
        """No prompt of this encoder has an empty thinking block, unless the template gives no place to thoughts."""
        return self._thought is None and super().closes_thinking

    def full_text(self, prompt: Prompt) -> str:
        """Render a prompt up to the place of the thought."""
        if self._shown is not None:
            return f"{self._shown.before}{self._asked(prompt)}{self._shown.opening}"
        if self.style == "completion" or self._frame is None:
            body = prompt.body[: len(prompt.body) - len(prompt.heading)]
            return f"{body}{prompt.analysis_request}\n\n{ANALYSIS_CUE}"
        first = f"{prompt.analysis_request} {ANALYSIS_END}"
        asked = "\n\n".join(filter(None, [prompt.body.rstrip(), first, prompt.request]))
        return f"{self._frame.before}{asked}{self._frame.after}{ANALYSIS_CUE}"

    def endings(self, prompt: Prompt) -> dict[Ending, tuple[str, str]]:
        """Return what may stand at the end of a thought, and the text from there to the label, by how it ended."""
        if self._shown is None:
            form = prompt.cue if self.style != "completion" else prompt.heading + prompt.cue
            own, closed = ("x\n\n", form), ("x", f"\n\n{form}")
        else:
            is_free = self.style == "chat-no-prefill"
            text = self._shown.closing.rstrip(" ") if is_free else self._shown.closing + prompt.cue
            own, closed = (self._shown.mark, text.partition(self._shown.mark)[2]), ("x", text)
        return {"mark": own, "end": closed, "cut": closed}


def _is_control(token: dict[str, Any], template: str, special: set[str]) -> bool:
    """Whether an added token controls the model, unlike runs of spaces or words that some tokenizers add."""
    content = str(token["content"])
    if not content.strip():
        return False
    return bool(token["special"]) or content in special or content in template or bool(_CONTROL_LOOK.fullmatch(content))


def _with_secret_names(
    backend: Any, salt: str, template: str, special: set[str]
) -> tuple[Tokenizer, TokenIds, dict[str, str]]:
    """Copy a tokenizer with its control tokens renamed."""
    record = json.loads(backend.to_str())
    record.update(post_processor=None, padding=None, truncation=None)
    names: dict[str, str] = {}
    originals: list[tuple[str, int]] = []
    for number, token in enumerate(record["added_tokens"]):
        if _is_control(token, template, special):
            names[token["content"]] = f"{salt}{number}\ue001"
            token.update(content=names[token["content"]], special=True, normalized=False)
        originals.append((token["content"], token["id"]))
    _rename_in_model(record["model"], names)
    copy = Tokenizer.from_str(json.dumps(record))
    ids = [(copy.token_to_id(content), original) for content, original in originals]
    size = max([copy.get_vocab_size(with_added_tokens=True), *(new + 1 for new, _ in ids if new is not None)])
    # Renamed tokens that are not in the model's vocabulary get new ids; all others keep theirs.
    table = np.arange(max(size, backend.get_vocab_size(with_added_tokens=True)), dtype=np.int32)
    for new, original in ids:
        table[new] = original
    return copy, table, names


def _rename_in_model(model: dict[str, Any], names: dict[str, str]) -> None:
    """Rename the control tokens that are also in the model's own vocabulary.

    A Unigram model matches every piece of its vocabulary in a text, a BPE model every piece that its merges produce.
    """
    pieces = model["vocab"]
    if isinstance(pieces, dict):
        if not names.keys() & pieces.keys():
            return
        model["vocab"] = {names.get(piece, piece): number for piece, number in pieces.items()}
    else:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in pieces]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        pairs = (pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"])
        model["merges"] = [[left, right] for left, right in pairs if not {left, right, left + right} & names.keys()]
