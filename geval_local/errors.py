"""Every error of the package, one tree.

::

    GevalError
    |-- ConfigurationError          invalid or unsupported settings (exit code 2)
    |   |-- ScaleError              a malformed scale
    |   |-- MetricError             an inconsistent metric file or prompt file
    |   |-- QuestionError           inconsistent questions
    |   |-- JudgeError              a judge that cannot be found or loaded
    |   |   |-- WeightsError        weights missing, or in a format that may run code
    |   |   |-- UnsupportedModelError   an architecture that has no next-token softmax
    |   |   `-- TokenizerError      no usable tokenizer, template, or token path for a label
    |   |-- OutputError             an output that cannot be written
    |   `-- NotComparableError      results under different signatures
    |-- BusyError                   too many calls at present, or shutting down
    |-- DataError                   an input file that cannot be read at all (exit code 2)
    `-- UnscorableError             one sample that cannot be scored; kept as a reason, never raised to the user
        `-- FieldError              a metric's field without a column, or whose column has no text

    KeyboardInterrupt
    `-- Interrupted                 a run was stopped; everything finished is kept (exit code 3)

Library code raises; only the command line exits.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

from geval_local.wording import in_python, without_secrets

_NUMBER = re.compile(r"\d+")


class GevalError(Exception):
    """Base class of all errors that users of the package should catch.

    `message` and `hint` name parameters as ``name=value`` in backticks. `str` shows them as Python arguments;
    `geval_local.wording` rewrites them for other readers, such as users of the command line. Keys and passwords of
    addresses are hidden.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        message, hint = without_secrets(message), hint and without_secrets(hint)
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def text(self) -> str:
        """Message and hint, for any reader."""
        return self.message if self.hint is None else f"{self.message}\n{self.hint}"

    def __str__(self) -> str:
        return in_python(self.text)


class ConfigurationError(GevalError):
    """Settings that are invalid or not supported."""


class ScaleError(ConfigurationError):
    """A scale specification that does not describe an ordered set of labels with values."""


class MetricError(ConfigurationError):
    """An inconsistent metric file or prompt file."""


class QuestionError(ConfigurationError):
    """Inconsistent questions, or an inconsistent file of questions."""


class JudgeError(ConfigurationError):
    """A judge that cannot be found or loaded."""


class WeightsError(JudgeError):
    """Weights that are missing, or stored in a format that may run code when read."""


class UnsupportedModelError(JudgeError):
    """An architecture without a causal next-token distribution (encoder-decoder, encoder only)."""


class TokenizerError(JudgeError):
    """No usable tokenizer, no chat template where one is needed, or a label without a token path."""


class OutputError(ConfigurationError):
    """An output path that cannot be written."""


class NotComparableError(ConfigurationError):
    """Results under signatures that differ in `keys`, which nobody allowed."""

    def __init__(self, message: str, keys: Sequence[str]) -> None:
        allowed = " ".join(f"`across={key}`" for key in keys)
        super().__init__(message, hint=f"If that is the comparison you want, say so: {allowed}")
        self.keys = tuple(keys)


class BusyError(GevalError):
    """No capacity for another call: retry later, or the server is shutting down."""


class DataError(GevalError):
    """An input file that cannot be read at all; single bad rows are `UnscorableError` reasons instead."""


class ReadError(DataError):
    """A disk or a store that failed while a file was read, of which the next try may know nothing."""


class ErrorCode(str, Enum):
    """Why a row has no score, as a code that programs can count; `Cause` has the sentence.

    A member equals its text: ``score.error_code == "too_long"``.
    """

    #: Meaning of the code, as part of a sentence.
    meaning: str

    INVALID_ROW = "invalid_row", "the row cannot be read, or is not of the shape that was asked for"
    UNREADABLE_FILE = "unreadable_file", "one of several files cannot be read, or not to its end"
    NOT_UNICODE = "not_unicode", "a text is not Unicode: bytes of another encoding, or half a surrogate pair"
    DUPLICATE_ID = "duplicate_id", "an earlier row has the same id"
    MISSING_ID = "missing_id", "the column of the id is missing or null"
    MISSING_FIELD = "missing_field", "a field of the metric has no column in this row"
    EMPTY_FIELD = "empty_field", "a field is empty, null or only white space"
    NOT_TEXT = "not_text", "a field holds something else than text or a conversation"
    TOO_LONG = "too_long", "the prompt is longer than the judge reads"
    NOT_ENCODABLE = "not_encodable", "the judge's tokenizer fails on the text"
    MEMORY = "memory", "the prompt does not fit into memory"
    NOT_FINITE = "not_finite", "the judge's logits are not numbers"
    NO_LABEL = "no_label", "the judge gives no label any probability"
    BACKEND = "backend", "the server or engine that computes returned no usable answer"
    NOT_WRITTEN = "not_written", "the judge wrote no reason"
    JURY = "jury", "a judge of the jury has no score for the row"
    UNKNOWN = "unknown", "no code is known, as in results of earlier versions"

    def __new__(cls, value: str, meaning: str) -> ErrorCode:
        """Make a member from its text and its meaning."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    def __str__(self) -> str:
        return str(self.value)

    @classmethod
    def read(cls, value: object) -> ErrorCode:
        """Read a stored code; `UNKNOWN` for anything else."""
        try:
            return cls(value)  # type: ignore[call-arg, arg-type]  # a lookup, not `__new__`
        except ValueError:
            return cls.UNKNOWN


class Cause(str):
    """Why a row has no score: a sentence, which is the text itself, and its `code`."""

    code: ErrorCode

    def __new__(cls, text: str, code: ErrorCode) -> Cause:
        """Make a text with a code."""
        made = super().__new__(cls, text)
        made.code = code
        return made

    def __getnewargs__(self) -> tuple[str, ErrorCode]:  # type: ignore[override]  # for pickle, of both arguments
        return str(self), self.code


def code_of(error: str) -> ErrorCode:
    """Return the code of a reason; `ErrorCode.UNKNOWN` for a text that is not a `Cause`."""
    return error.code if isinstance(error, Cause) else ErrorCode.UNKNOWN


def kind_of(error: str) -> tuple[str, str]:
    """Return the key by which reasons are counted: the code; without one, the text without its numbers."""
    code = code_of(error)
    return code.value, _NUMBER.sub("#", error) if code is ErrorCode.UNKNOWN else ""


class UnscorableError(GevalError):
    """One sample that cannot be scored; the run stores its reason and continues."""

    def __init__(self, message: str, code: ErrorCode, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code

    @property
    def cause(self) -> Cause:
        """The whole message with its code, for any reader."""
        return Cause(self.text, self.code)


class FieldError(UnscorableError):
    """A metric's field without a column, or whose column has no text; usually this affects the whole file."""


def is_panic(error: BaseException) -> bool:
    """Whether an error is the panic of a Rust library: it is not an `Exception`, so nothing else would catch it."""
    return type(error).__name__ == "PanicException"


@contextmanager
def without_panics() -> Iterator[None]:
    """Turn the panic of a Rust library into an ordinary exception."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise RuntimeError(first_line(error)) from error


class Interrupted(KeyboardInterrupt):
    """A run was stopped; everything finished is kept."""

    def __init__(self, directory: Path | str | None = None) -> None:
        super().__init__(*([] if directory is None else [str(directory)]))
        self.directory = directory


@contextmanager
def telling(kind: type[GevalError], what: str, hint: str | None = None) -> Iterator[None]:
    """Turn an error of the operating system into one of this package, which says what failed: ``cannot write FILE``."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or first_line(error)}", hint=hint) from error


def first_line(error: BaseException) -> str:
    """Return the first non-blank line of an error's text, or else the error's type."""
    text = error.text if isinstance(error, GevalError) else str(error)
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the known name closest to `name`, as the end of a message: ``; did you mean 'answer'?``, or nothing."""
    by_fold = {str(one).casefold(): str(one) for one in known}
    near = difflib.get_close_matches(name.casefold(), list(by_fold), n=1, cutoff=0.5)
    return f"; did you mean {by_fold[near[0]]!r}?" if near and by_fold[near[0]] != name else ""
