"""YAML without surprises: ``Yes`` and ``No`` are words, dates are text, and every value has its line number.

Read and written by ruamel.yaml; edited documents keep their comments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import Any
from warnings import catch_warnings, simplefilter

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, FoldedScalarString, LiteralScalarString
from ruamel.yaml.util import load_yaml_guess_indent

MAX_CHARACTERS = 1_000_000
#: Most values in a document, counting an alias at each use.
MAX_VALUES = 100_000
#: Most levels of nesting; parsing time grows with the square of the depth.
MAX_DEPTH = 64
#: Wide enough that lines are never folded; users may wrap them when they edit the file.
_WIDTH = 1_000_000
#: Dates and a lone ``=`` are read as text.
_READ_AS_TEXT = {"tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value"}
_BYTE_ORDER_MARK = "\ufeff"


class _Resolver(VersionedResolver):
    """YAML 1.2 whatever a document declares: YAML 1.1 reads the labels Yes, No, On and Off as booleans."""

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
        # "0x_" looks like a number to the resolver but is not one; `!!bool foo` and the like fail in their own ways.
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


def dump_yaml(data: object) -> str:
    """Write plain values as YAML: keys in order, long texts as blocks, no line folding."""
    return _written(_writer(), _with_styles(data))


def edit_yaml(text: str, changes: Mapping[str, Any]) -> str:
    """Replace or append top-level keys of a YAML document and keep its comments, quotes and line ends."""
    newline = "\r\n" if "\r\n" in text else "\n"
    mark = _BYTE_ORDER_MARK if text.startswith(_BYTE_ORDER_MARK) else ""
    body = text.removeprefix(mark).replace("\r\n", "\n")
    document, sequence, offset = load_yaml_guess_indent(body)
    if not isinstance(document, CommentedMap):
        raise YAMLError("the document is not a mapping")
    inner = [value.lc.col for value in document.values() if isinstance(value, CommentedMap) and _is_block(value)]
    yaml = _writer()
    yaml.preserve_quotes = True
    yaml.explicit_start = body.startswith("---")
    yaml.indent(mapping=min(inner, default=2), sequence=sequence or 2, offset=offset or 0)
    document = yaml.load(body)
    for key, value in changes.items():
        old, new = document.get(key), _with_styles(value)
        if isinstance(old, CommentedSeq) and isinstance(new, list) and old and new and _is_block(old):
            _refill(old, new)
        elif isinstance(old, CommentedMap) and isinstance(new, Mapping) and old and list(old) == list(new):
            old.update(new)
        else:
            document[key] = new
    edited = _written(yaml, document)
    lost = _comments(body, without=changes) - _comments(edited)
    if lost:
        raise YAMLError(f"the comment {min(lost)!r} would be lost")
    return mark + edited.replace("\n", newline)


def _is_block(value: CommentedMap | CommentedSeq) -> bool:
    return not value.fa.flow_style()


def _comments(text: str, without: Iterable[str] = ()) -> set[str]:
    """Collect comment lines, except those inside the values of the keys in `without`."""
    _, root = load_yaml(text)
    inside: set[int] = set()
    for key, value in root.value if isinstance(root, MappingNode) else ():
        scalars = list(_scalars(value))
        if key.value in without and scalars:
            inside.update(range(value.start_mark.line, max(scalar.end_mark.line for scalar in scalars)))
        for scalar in scalars:  # a line of a block text may also start with "#"
            inside.update(range(scalar.start_mark.line + 1, scalar.end_mark.line))
    lines = [line.strip() for number, line in enumerate(text.split("\n")) if number not in inside]
    return {line for line in lines if line.startswith("#")}


def _scalars(node: Node) -> Iterable[ScalarNode]:
    if isinstance(node, ScalarNode):
        yield node
    else:
        for part in node.value:
            for one in part if isinstance(part, tuple) else (part,):
                yield from _scalars(one)


def _refill(old: CommentedSeq, new: list[Any]) -> None:
    """Change a list in place: a comment after a block belongs to the block's last item and would be lost with it."""
    comments = old.ca.items
    last = comments.pop(len(old) - 1, None)
    if last is not None and isinstance(old[-1], LiteralScalarString | FoldedScalarString):
        last[0].value = "\n" + last[0].value  # a block already ends its line, other texts do not
    for place in [place for place in comments if place >= len(new) - 1]:
        del comments[place]
    while len(old) > len(new):
        list.pop(old)
    for place, item in enumerate(new):
        if place < len(old):
            list.__setitem__(old, place, item)
        else:
            list.append(old, item)
    if last is not None:
        comments[len(new) - 1] = last


def _writer() -> YAML:
    yaml = YAML()
    yaml.Resolver = _Resolver
    yaml.width = _WIDTH
    return yaml


def _written(yaml: YAML, data: object) -> str:
    stream = StringIO()
    yaml.dump(data, stream)
    return stream.getvalue()


def _with_styles(value: Any) -> Any:
    """Mark texts of several lines as blocks, so that a written file can be edited."""
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
