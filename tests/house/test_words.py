"""Messages of the library name parameters, as Python and YAML do; the command line makes its options of them."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

from pydantic import BaseModel

import geval_local
from geval_local import options
from geval_local.wording import PARAMETER

PACKAGE = Path(geval_local.__file__).parent
#: They declare options, or speak of pytest's.
OF_COMMAND_LINES = ("cli/", "figures.py", "options.py", "hosts/pytest_plugin.py")
#: Whole commands, up to the end of the clause, which anybody can type into a shell; and a folder of the hub's cache.
COMMANDS = re.compile(
    r"\b(?:geval-local|pip install|hf download|ray start|inspect score|vllm serve|llama-server|ollama show) [^`;,]*"
    "|--kernels-community--"
)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
#: Options of servers, which a message may name: they are no parameters here.
OF_SERVERS = {"--logprobs-mode", "--max-logprobs", "--sleep-idle-seconds"}


def texts(tree: ast.AST) -> list[tuple[int, str]]:
    """Every string with its line, a formatted one as a whole; docstrings left out."""
    found = []
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        if isinstance(child, ast.Constant) and isinstance(child.value, str):
            found.append((child.lineno, child.value))
        if isinstance(child, ast.JoinedStr):
            whole = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in child.values)
            found.append((child.lineno, whole))
            child = ast.Module([part.value for part in child.values if isinstance(part, ast.FormattedValue)], [])
        found += texts(child)
    return found


def options_in(source: str) -> list[tuple[int, str]]:
    """Options of the command line that strings name, commands apart, with their lines."""
    told = [(line, OPTION.findall(COMMANDS.sub("", text))) for line, text in texts(ast.parse(source))]
    return [(line, one) for line, names in told for one in names if one not in OF_SERVERS]


def test_the_reader_sees_options_and_no_commands():
    seen = ["f'{x}: --dtype {y}'", "'--set'", "'`geval-local score` with --format.'", "f'{[f\"--across {z}\"]}'"]
    found = [one for source in seen for _, one in options_in(f"x = {source}")]
    assert found == ["--dtype", "--set", "--format", "--across"]
    unseen = ["f'geval-local score {path} --metric NAME'", "'a--b'", "'`dtype=float32`'"]
    assert not [one for source in unseen for one in options_in(f"x = {source}")]
    assert not options_in('def f():\n    """With --limit."""')


def test_no_message_of_the_library_names_an_option():
    wrong = [
        f"{path.relative_to(PACKAGE)}, line {line}: {option}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if not path.relative_to(PACKAGE).as_posix().startswith(OF_COMMAND_LINES)
        for line, option in options_in(path.read_text(encoding="utf-8"))
    ]
    assert not wrong, "name the parameter instead, in backticks:\n" + "\n".join(wrong)


def parameters() -> set[str]:
    """Names that an option, a public function or a public class declares, and those of `reasons` and of gates."""
    models = [one for one in vars(options).values() if isinstance(one, type) and issubclass(one, BaseModel)]
    known = {name for model in models for name in model.model_fields} | {"everything", "max_unscored"}
    for one in (getattr(geval_local, name) for name in geval_local.__all__):
        known |= set(inspect.signature(one).parameters) if callable(one) else set()
    return known


def test_a_parameter_in_a_message_is_one_that_is_declared():
    known, wrong = parameters(), []
    for path in sorted(PACKAGE.rglob("*.py")):
        for line, text in texts(ast.parse(path.read_text(encoding="utf-8"))):
            # A name that is computed is no word; an environment variable is in capitals.
            named = [name for name, value in PARAMETER.findall(text) if value and not name.isupper()]
            where = f"{path.relative_to(PACKAGE)}, line {line}"
            wrong += [f"{where}: {name}" for name in named if name not in known]
    assert not wrong, "no option is called so:\n" + "\n".join(wrong)
