"""Prompts become tokens: special tokens stay out of sample text, templates come from the tokenizer, BOS is added once.

Sample text is data. A control token written inside it ("<|im_end|>") must not become that token, while the chat
template around it must use the real one. So templates are rendered with *secret names* in place of control tokens, and
the text is encoded by a copy of the tokenizer in which the control tokens have only their secret names: no text that a
sample may contain can match them.
"""

from __future__ import annotations

import itertools
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from geval_local.errors import TokenizerError, first_line
from geval_local.models.chat_template import chat_frame
from geval_local.options import Style
from geval_local.prompt import Prompt
from geval_local.tokens.shared_text import SharedTextEncoder, encodable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TokenIds = NDArray[np.int32]

_CONTROL_LOOK = re.compile(r"<[|｜].*[|｜]>|</?(think|tool_call|tool_response|s|bos|eos|pad|unk)>|\[/?[A-Z_]+\]")


class PromptEncoder:
    """Turns prompts into token ids for one tokenizer and prompt style."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, style: Style = "completion") -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise TokenizerError(
                "the tokenizer has no fast backend",
                hint="Convert it once with transformers so that it has a tokenizer.json.",
            )
        self.tokenizer = tokenizer
        self.style = style
        self._salt = f"\ue000{secrets.token_hex(8)}\ue001"
        if style != "completion" and not tokenizer.chat_template:
            raise TokenizerError(
                f"prompt style {style!r} needs a chat template, and the tokenizer has none",
                hint="Use style: completion in the judge's entry.",
            )
        frame = None if style == "completion" else chat_frame(tokenizer)
        written = str(tokenizer.chat_template or "") + (frame.after if frame else "")
        backend: Any = getattr(tokenizer, "backend_tokenizer")  # noqa: B009 - not on the base class's type
        try:
            self.backend, self.original_ids, self.secret_names = _with_secret_names(
                backend, self._salt, written, set(tokenizer.all_special_tokens)
            )
            self.backend.encode("x\ue002", add_special_tokens=False)  # an unknown token that is not there shows in use
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
            return f"{self._frame.before}{prompt.question}{self._frame.after}{prompt.cue}"
        # Labels are tried with their own leading space, so a template's space before the answer is removed.
        asked = f"{prompt.question}\n\n{prompt.cue}" if prompt.request else prompt.text
        return f"{self._frame.before}{asked}{self._frame.after.rstrip(' ')}"

    def readable_text(self, prompt: Prompt) -> str:
        """Render a prompt for people, with the control tokens' original names."""
        text = self.full_text(prompt)
        for token, secret in self.secret_names.items():
            text = text.replace(secret, token)
        return "".join(self.tokenizer.convert_ids_to_tokens(list(self.prefix_ids))) + text

    def encode_texts(self, texts: Sequence[str]) -> list[TokenIds]:
        """Encode rendered texts (see `full_text`), behind `prefix_ids`."""
        return self.shared_texts.encode(texts, np.asarray(self.prefix_ids, dtype=np.int32))

    def encode(self, prompts: Sequence[Prompt]) -> list[TokenIds]:
        """Encode prompts: ``encode_texts`` of their ``full_text``."""
        return self.encode_texts([self.full_text(prompt) for prompt in prompts])

    def drop_tokens(self, text: str, count: int) -> str:
        """Remove `count` tokens from the end of a sample's text; return an empty text if it has no more."""
        if count == 0:
            return text
        with encodable():
            offsets = self.backend.encode(text, add_special_tokens=False).offsets
        return text[: offsets[len(offsets) - count][0]] if count < len(offsets) else ""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, for display."""
        return str(self.tokenizer.decode(list(token_ids)))


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
