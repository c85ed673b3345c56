"""YAML as people mean it.

``Yes`` and ``No`` are words, dates are text, duplicate keys are errors, and every value knows its line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

__all__ = ["dump_yaml", "line_of", "load_yaml"]


_RARE_BREAKS = frozenset("\x85\u2028\u2029")


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads Yes, No, On and Off as booleans, which would turn a Yes/No scale into {True: 1, False: 0}.

    It also reads 2025-01-31 as a date, where only text is meant here.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} is there twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


class _Dumper(yaml.SafeDumper):
    """Block style for long texts, so that a written file can be edited."""


def _plain_resolvers(resolvers: dict[str, list[tuple[str, Any]]]) -> dict[str, list[tuple[str, Any]]]:
    def is_meant(first: str, tag: str) -> bool:
        return tag != "tag:yaml.org,2002:timestamp" and (tag != "tag:yaml.org,2002:bool" or first in "tTfF")

    return {
        first: [(tag, pattern) for tag, pattern in entries if is_meant(first, tag)]
        for first, entries in resolvers.items()
    }


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # YAML reads next line, line and paragraph separators as line breaks unless they are escaped.
    style = '"' if _RARE_BREAKS.intersection(text) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Loader.yaml_implicit_resolvers = _plain_resolvers(yaml.SafeLoader.yaml_implicit_resolvers)
_Dumper.add_representer(str, _represent_text)


def load_yaml(text: str) -> tuple[Any, yaml.Node | None]:
    """Parse a YAML document.

    Parameters
    ----------
    text : str
        The document.

    Returns
    -------
    data : object
        Plain Python values.
    node : yaml.Node or None
        The syntax tree, for `line_of`; None for an empty document.

    Raises
    ------
    yaml.YAMLError
        If the text is not YAML, or a mapping holds a key twice.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        return (None if node is None else loader.construct_document(node)), node
    except yaml.YAMLError:
        raise
    except RecursionError as error:
        raise yaml.YAMLError("nested too deeply") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # "0x_" looks like a number to the resolver and is none; `!!bool foo` and the like fail in their own ways.
        raise yaml.YAMLError(f"a value is not what it is marked as or looks like: {error}") from error
    finally:
        loader.dispose()


def line_of(node: yaml.Node | None, path: Sequence[int | str]) -> int:
    """Find the line (from 1) of the value at `path`, or of its nearest parent that exists."""
    line = 1 if node is None else node.start_mark.line + 1
    for part in path:
        if isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if key.value == str(part)]
            if not found:
                return line
            line, node = found[0][0].start_mark.line + 1, found[0][1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            return line
    return line


def dump_yaml(data: object) -> str:
    """Write plain values as YAML: keys in their order, long texts in blocks, no line folding."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
