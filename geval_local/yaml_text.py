"""YAML without surprises: ``Yes`` and ``No`` are words, dates are text, and every value has its line number.

ruamel.yaml reads and writes it; an edited document keeps all other lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import Any
from warnings import catch_warnings, simplefilter

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

MAX_CHARACTERS = 1_000_000
#: Most values in a document, counting an alias at each use.
MAX_VALUES = 100_000
#: Most levels of nesting; parsing time grows with the square of the depth.
MAX_DEPTH = 64
#: Wide enough that no line is folded; users may wrap lines when they edit the file.
_WIDTH = 1_000_000
#: Dates and a lone ``=`` are read as text.
_READ_AS_TEXT = {"tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value"}


class _Resolver(VersionedResolver):
    """Always YAML 1.2, even if a document declares another version: YAML 1.1 reads Yes, No, On and Off as booleans."""

    @property
    def processing_version(self) -> tuple[int, int]:
        return (1, 2)

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        tag = super().resolve(kind, value, implicit)
        return self.DEFAULT_SCALAR_TAG if str(tag) in _READ_AS_TEXT else tag


def load_yaml(text: str) -> tuple[Any, Node | None]:
    """Parse a YAML document."""
    if len(text) > MAX_CHARACTERS:
        raise YAMLError(f"{len(text):,} characters, more than the {MAX_CHARACTERS:,} that are read")
    yaml = YAML(typ="safe", pure=True)
    yaml.Resolver = _Resolver
    yaml.max_depth = MAX_DEPTH
    try:
        with catch_warnings():
            simplefilter("ignore")  # a repeated anchor refers to its last definition, as usual
            node = yaml.compose(StringIO(text))
        if node is None:
            return None, None
        _check_nodes(node)
        return yaml.constructor.construct_document(node), node
    except YAMLError as error:
        if "max_depth" in str(error):  # the library's message refers to its own option
            raise YAMLError("nested too deeply") from error
        raise
    except RecursionError as error:
        raise YAMLError("nested too deeply") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # The resolver takes "0x_" for a number, but it is not one; `!!bool foo` and the like raise other errors.
        raise YAMLError(f"a value cannot be read as its tag or its form says: {error}") from error


def _check_nodes(root: Node) -> None:
    """Reject documents that are ambiguous, or that grow without bound when they are read."""
    sizes: dict[int, int] = {}

    def size(node: Node) -> int:
        if id(node) in sizes:
            if sizes[id(node)] == 0:
                raise YAMLError(f"line {_line(node)}: a value contains itself")
            return sizes[id(node)]
        sizes[id(node)] = 0
        inner: Iterable[Node] = ()
        if isinstance(node, SequenceNode):
            inner = node.value
        elif isinstance(node, MappingNode):
            _check_keys(node)
            inner = (part for pair in node.value for part in pair)
        found = sizes[id(node)] = 1 + sum(map(size, inner))
        if found > MAX_VALUES:
            raise YAMLError(f"more than {MAX_VALUES:,} values, each alias counted as what it stands for")
        return found

    size(root)


def _check_keys(node: MappingNode) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, ScalarNode):
            raise YAMLError(f"line {_line(key)}: a key must be a single value, not a list or a mapping")
        if key.value in seen:
            raise YAMLError(f"line {_line(key)}: the key {key.value!r} occurs twice")
        seen.add(key.value)


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def line_of(node: Node | None, path: Sequence[int | str]) -> int:
    """Find the line (from 1) of the value at `path`, or of its nearest parent that exists."""
    line = 1 if node is None else _line(node)
    for part in path:
        if isinstance(node, MappingNode):
            found = [(key, value) for key, value in node.value if key.value == str(part)]
            if not found:
                return line
            line, node = _line(found[0][0]), found[0][1]
        elif isinstance(node, SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = _line(node)
        else:
            return line
    return line


def edit_yaml(text: str, changes: Mapping[str, Any]) -> str:
    """Set top-level keys in a YAML document, replacing their old lines or at its end; other lines stay unchanged."""
    ending = "\r" if "\r\n" in text else ""
    lines = text.removesuffix("\n").split("\n")
    _, root = load_yaml(text)
    if not isinstance(root, MappingNode) or root.flow_style:
        raise YAMLError("the document is not a mapping with a key on each line")
    place = len(lines)
    for key, value in reversed(root.value):
        if key.value in changes:
            place = key.start_mark.line
            del lines[place : _end(value)]
    lines[place:place] = [f"{line}{ending}" for line in dump_yaml(changes).removesuffix("\n").split("\n")]
    return "\n".join(lines) + "\n"


def _end(node: Node) -> int:
    """Find the line after a value; a block's end mark is after the comments that follow it, a text's is before them."""
    if isinstance(node, MappingNode | SequenceNode) and node.value and not node.flow_style:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.line + (node.end_mark.column > 0))


def dump_yaml(data: object) -> str:
    """Write plain values as YAML: keys in order, long texts as blocks, no line folding."""
    yaml, stream = YAML(), StringIO()
    yaml.Resolver = _Resolver
    yaml.width = _WIDTH
    yaml.dump(_with_styles(data), stream)
    return stream.getvalue()


def _with_styles(value: Any) -> Any:
    """Mark texts of several lines as blocks, so that a written file is easy to edit."""
    if isinstance(value, Mapping):
        return {_with_styles(key): _with_styles(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_styles(item) for item in value]
    if not isinstance(value, str):
        return value
    # Control characters, and separators that YAML treats as line breaks, are safe only as escapes.
    if not value.replace("\n", "").replace("\t", "").isprintable():
        return DoubleQuotedScalarString(value)
    return LiteralScalarString(value) if "\n" in value else value
