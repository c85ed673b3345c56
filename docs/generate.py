"""Write the reference pages from what the package declares: verbs, evaluation file, metric file, public names.

`python docs/generate.py` rewrites docs/reference/ and the tables between marks; a test compares both with
the package. Pages of single public names exist on the site only: site_hooks.py adds one for each.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import typer

import geval_local
from geval_local.backends import promises_table
from geval_local.cli.app import PANELS, VERBS, app
from geval_local.evaluation.model import schema
from geval_local.figures import ANSWERS, FIGURES, Figure
from geval_local.metric import Metric
from geval_local.metric_file import FRAME

REFERENCE = Path(__file__).parent / "reference"
WRITTEN = "<!-- written by docs/generate.py; do not edit -->\n"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
    )


def prose(text: str) -> str:
    """Write a docstring's or help's words as Markdown: code in single backquotes, placeholders and HTML as text."""
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if place % 2 else re.sub(r"([<*_])", r"\\\1", part) for place, part in enumerate(parts))


# --- verbs ------------------------------------------------------------------------------------------------------------


def parameter_row(parameter: Any, context: Any) -> list[str]:
    """Give an argument or option as it is written, and its meaning."""
    written, words = parameter.get_help_record(context)
    written = re.sub(r" <list\[str\]>$", " ...", re.sub(r" <str>$", " TEXT", written))
    words, _, facts = re.sub(r"\s+\[required\]$", " Required.", words).partition("  [")
    facts = facts.rstrip("]").replace("default: ", "default ").replace("0<=x<=", "0 to ")
    return [f"`{written}`", prose(words) + (f" ({facts})" if facts else "")]


def broken(command: str) -> str:
    """Break a command where the site would cut it."""
    return " \\\n".join(
        textwrap.wrap(command, 74, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False)
    )


#: Heading -> table of options, of a verb.
Groups = dict[str, str]
#: Verbs that share a table of options, from which on it is written once.
SEVERAL = 3


def command_of(name: str) -> Any:
    """Return the command of a verb."""
    command: Any = typer.main.get_command(app)
    for word in name.split():
        command = command.commands[word]
    return command


@cache
def option_groups(name: str) -> Groups:
    """Write the tables of a verb's arguments and options."""
    command = command_of(name)
    context = command.context_class(command, info_name=f"geval-local {name}")
    groups: dict[str, list[list[str]]] = {}
    for parameter in command.params:
        if getattr(parameter, "hidden", False) or parameter.name == "help":
            continue
        panel = getattr(parameter, "rich_help_panel", None)
        heading = panel if isinstance(panel, str) else ("Options" if parameter.opts[0].startswith("-") else "Arguments")
        groups.setdefault(heading, []).append(parameter_row(parameter, context))
    return {
        heading: table(("option" if heading != "Arguments" else "argument", "meaning"), rows)
        for heading, rows in groups.items()
    }


@cache
def shared_tables() -> dict[str, str]:
    """Give the tables that several verbs have, with their headings."""
    written = Counter((heading, text) for name in VERBS for heading, text in option_groups(name).items())
    return {
        text: heading for (heading, text), verbs in written.items() if verbs >= SEVERAL and text.count("\n") > SEVERAL
    }


def verb_page(name: str) -> str:
    """Write the page of a verb; tables that are shared are on the page of all verbs."""
    _, *examples = VERBS[name]
    parts = [f"{WRITTEN}# geval-local {name}", help_of(name)]
    parts.append("```text\n" + "\n".join(map(broken, examples)) + "\n```")
    own, further = [], []
    for heading, text in option_groups(name).items():
        if text in shared_tables():
            further.append(f"[{plain(heading)}](../command-line.md#{plain(heading).lower().replace(' ', '-')})")
        else:
            own.append(f"## {heading}\n\n{text}")
    if further:
        own.append(f"Also the options of several verbs: {', '.join(further)}.")
    return "\n\n".join([*parts, *own]) + "\n"


def help_of(name: str) -> str:
    """Write what the help of a verb says before its options."""
    return prose(re.sub(r"\n{3,}", "\n\n", inspect.cleandoc(command_of(name).help or "")))


def plain(heading: str) -> str:
    """Write a heading without marks, so that its anchor is the same on every site."""
    return heading.replace("--", "")


def page_of(name: str) -> str:
    """Give the page of a verb, from that of all verbs."""
    return f"commands/{name.replace(' ', '-')}.md"


def command_line() -> str:
    """Write the page that lists all verbs, and the options that several of them have."""
    opening = (
        "# Command line\n\nEach verb has a page with all of its options, as `geval-local VERB --help-all` shows them; "
        "options of several verbs are below. `geval-local --install-completion` teaches your shell the verbs, options, "
        "metrics and judges. [Exit codes](exit-codes.md) are the same for all verbs."
    )
    parts = [WRITTEN + opening]
    for heading, verbs in PANELS.items():
        rows = [
            [f"[{name}]({page_of(name)})", help_of(name).partition("\n")[0]]
            for verb in verbs
            for name in VERBS
            if name.split()[0] == verb
        ]
        parts.append(f"## {heading}\n\n{table(('verb', 'what it does'), rows)}")
    once = [f"### {plain(heading)}\n\n{text}" for text, heading in shared_tables().items()]
    return "\n\n".join([*parts, "## Options of several verbs", *once]) + "\n"


# --- files ------------------------------------------------------------------------------------------------------------


def type_in_words(found: dict[str, Any], whole: dict[str, Any]) -> str:
    """Say what a value of a JSON schema is."""
    if "$ref" in found:
        name = found["$ref"].rpartition("/")[2]
        inner = whole["$defs"][name]
        return type_in_words(inner, whole) if inner.get("type") != "object" else name.strip("_")
    if "enum" in found:
        return " or ".join(f"`{value}`" for value in found["enum"])
    if "const" in found:
        return f"`{found['const']}`"
    if "anyOf" in found:
        kinds = [type_in_words(one, whole) for one in found["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kind for kind in kinds if kind))
    kind = found.get("type", "")
    if kind == "array":
        return f"list of {type_in_words(found.get('items', {}), whole) or 'values'}"
    if kind == "object":
        values = found.get("additionalProperties")
        return f"name: {type_in_words(values, whole)}" if isinstance(values, dict) else "object"
    return {"string": "text", "boolean": "true or false", "integer": "integer", "number": "number"}.get(kind, kind)


def keys_table(found: dict[str, Any], whole: dict[str, Any]) -> str:
    """Write the keys of an object of a JSON schema."""
    rows = []
    for key, value in found["properties"].items():
        default = value.get("default")
        words = value.get("description", "").partition("\n\n")[0].replace("\n", " ")
        shown = "" if default in (None, [], {}) or isinstance(default, dict) else f"`{str(default).lower()}`"
        rows.append([f"`{key}`", type_in_words(value, whole), shown, prose(words)])
    return table(("key", "value", "default", "meaning"), rows)


def evaluation_file() -> str:
    """Write the page of the evaluation file's keys."""
    whole = schema()
    parts = [
        WRITTEN + "# Evaluation file\n\nAll keys of the file that `geval-local run` reads "
        "([how to use it](../evaluations.md)). An unknown key is an error.",
        "## The file\n\n" + keys_table(whole, whole),
    ]
    for name, inner in whole["$defs"].items():
        if inner.get("type") == "object" and inner.get("properties"):
            words = inner.get("description", "").partition("\n\n")[0].replace("\n", " ")
            parts.append(f"## {name.strip('_')}\n\n{prose(words)}\n\n{keys_table(inner, whole)}")
    return "\n\n".join(parts) + "\n"


def docstring_parameters(text: str) -> dict[str, tuple[str, str]]:
    """Read the parameters of a numpydoc docstring: name -> type and meaning."""
    section = re.search(r"Parameters\n-+\n(.*?)(?=\n\n?[A-Z]\w+\n-+\n|\Z)", inspect.cleandoc(text), re.DOTALL)
    found: dict[str, tuple[str, str]] = {}
    for name, kind, words in re.findall(
        r"^(\w+) : ([^\n]+)\n((?:    [^\n]*\n?|\n)+)", section[1] if section else "", re.MULTILINE
    ):
        found[name] = (kind, " ".join(words.split()))
    return found


def metric_file() -> str:
    """Write the page of a metric file's keys."""
    rows = [
        [f"`{name}`", prose(kind), prose(words)]
        for name, (kind, words) in docstring_parameters(Metric.__doc__ or "").items()
        if name in Metric.model_fields
    ]
    opening = (
        "# Metric file\n\nAll keys of a metric's YAML file; `Metric(...)` in Python takes the same. "
        "[Metrics](../metrics.md) explains how to write one, and `geval-local metrics new NAME` starts a file. "
        "An unknown key is an error."
    )
    words = table(("key", "words without it"), [[f"`{key}`", text] for key, text in FRAME.items()])
    return f"{WRITTEN}{opening}\n\n{table(('key', 'value', 'meaning'), rows)}\n\n## frame\n\n{words}\n"


# --- Python -----------------------------------------------------------------------------------------------------------


def public_names() -> list[str]:
    """Give the names that the package exports, without its version."""
    return [name for name in geval_local.__all__ if not name.startswith("_")]


def python_names() -> str:
    """Write the page that lists all public names with the first sentence of each."""
    rows = []
    for name in public_names():
        thing = getattr(geval_local, name)
        kind = "class" if inspect.isclass(thing) else "function"
        words = inspect.cleandoc(thing.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
        rows.append([f"`{name}`", kind, prose(words)])
    opening = (
        "# Python names\n\nAll public names of `geval_local`; everything else may change without notice. "
        "On the site each name has a page with its parameters, results and errors; "
        "`help(geval_local.NAME)` shows the same."
    )
    return f"{WRITTEN}{opening}\n\n{table(('name', 'kind', 'what it does'), rows)}\n"


PAGES: dict[str, Callable[[], str]] = {
    "command-line.md": command_line,
    **{page_of(name): partial(verb_page, name) for name in VERBS},
    "evaluation-file.md": evaluation_file,
    "metric-file.md": metric_file,
    "python.md": python_names,
}


def figures_table(figures: Mapping[str, Figure]) -> list[tuple[str, ...]]:
    """Return the table of figures: a headline, and a row for each."""
    return [("figure", "what it is"), *((f"`{name}`", one.told) for name, one in figures.items())]


#: Page -> name of its marks, and the table between them.
TABLES = {
    "engines.md": ("promises", promises_table),
    "data.md": ("figures", lambda: figures_table(FIGURES)),
    "questions.md": ("answers", lambda: figures_table(ANSWERS)),
}


def with_table(name: str) -> str:
    """Return a page with its table as the package declares it."""
    page = (Path(__file__).parent / name).read_text(encoding="utf-8")
    mark, rows = TABLES[name]
    head, *body = rows()
    start, _, rest = page.partition(f"<!-- {mark} -->\n")
    return f"{start}<!-- {mark} -->\n{table(head, body)}\n<!-- /{mark} -->{rest.partition(f'<!-- /{mark} -->')[2]}"


def main() -> None:
    """Rewrite the pages."""
    (REFERENCE / "commands").mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")
        sys.stdout.write(f"wrote docs/reference/{name}\n")
    for name in TABLES:
        (REFERENCE.parent / name).write_text(with_table(name), encoding="utf-8")
        sys.stdout.write(f"wrote the table in docs/{name}\n")


if __name__ == "__main__":
    main()
