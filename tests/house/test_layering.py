"""The architecture, read from the imports: arrows point one way, and the light modules stay light."""

from __future__ import annotations

import ast
import functools
import importlib
import os
import re
import subprocess
import sys
import textwrap
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest
from markdown_text import marked_table

import geval_local

PACKAGE = Path(geval_local.__file__).parent

CORE = {
    "canary",
    "backends",
    "conversation",
    "direction",
    "examples",
    "fields",
    "figures",
    "grouping",
    "metric",
    "options",
    "metric_file",
    "notebook",
    "prompt",
    "questions",
    "scale",
    "scale_words",
    "score",
    "signature",
    "slices",
    "statistics",
    "summary",
    "thinking",
    "yaml_model",
    "yaml_text",
}

#: From the bottom to the top. A unit is a module of the package, or a folder with all that is in it; a row is imported
#: by itself and by the rows after it.
ROWS: list[set[str]] = [
    {"errors", "wording"},
    {"files"},
    CORE,
    {"io"},
    {"models"},
    {"tokens"},
    {"engine"},
    {"judge"},
    {"runs"},
    {"analysis"},
    {"report"},
    {"testing"},
    {"evaluation", "frames", "hosts", "serve"},
    {"ray"},
    {"cli"},
    {"__init__", "__main__"},
]
RANK = {unit: rank for rank, row in enumerate(ROWS) for unit in row}

#: Modules that import neither torch nor transformers, even through another library.
PURE = {"errors", "wording", "files", *CORE}

#: Libraries that only the units which run models may import, at any depth.
HEAVY = {"accelerate", "safetensors", "tokenizers", "torch", "transformers"}
MAY_BE_HEAVY = {
    "cli",
    "engine",
    "hosts",
    "models",
    "testing",
    "tokens",
}


class Import(NamedTuple):
    """One import statement of the package, with its line."""

    place: str
    module: str
    unit: str
    target: str
    names: tuple[str, ...]


def module_name(path: Path) -> str:
    parts = ("geval_local", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def unit_of(module: str) -> str:
    """``geval_local.tokens.label_trie`` -> ``tokens``; the package itself is ``__init__``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports_in(source: str, module: str, *, is_package: bool) -> list[Import]:
    """Every import of a module, anywhere in it, with relative ones resolved."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            targets = [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")[: None if is_package and node.level == 1 else int(is_package) - node.level]
                base = ".".join([*parents, *([node.module] if node.module else [])])
            names = tuple(alias.name for alias in node.names)
            if base == "geval_local":
                # `from geval_local import scale` imports the module, `from geval_local import Scale` the package.
                modules = [name for name in names if name in RANK]
                targets = [(f"geval_local.{name}", ()) for name in modules]
                rest = tuple(name for name in names if name not in modules)
                targets += [(base, rest)] if rest else []
            else:
                targets = [(base, names)]
        else:
            continue
        place = f"{module}, line {node.lineno}"
        found += [Import(place, module, unit_of(module), target, names) for target, names in targets]
    return found


SOURCES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def imports() -> list[Import]:
    """Every import of the package; read when a test asks, since every test process imports this file."""
    return [
        found
        for module, path in SOURCES.items()
        for found in imports_in(path.read_text(encoding="utf-8"), module, is_package=path.name == "__init__.py")
    ]


def own_imports() -> list[Import]:
    """The imports of the package from itself."""
    return [found for found in imports() if found.target.split(".")[0] == "geval_local"]


def test_the_reader_of_imports_sees_all_kinds():
    source = textwrap.dedent(
        """
        from __future__ import annotations
        import torch.nn as nn
        from geval_local import scale, Judge
        def later():
            if True:
                from ..judge import Judge
                from . import labels
                from .trie import Trie
                import transformers
        """
    )
    found = imports_in(source, "geval_local.engine.model", is_package=False)
    assert {(item.unit, item.target) for item in found} == {
        ("engine", "__future__"),
        ("engine", "torch.nn"),
        ("engine", "geval_local.scale"),
        ("engine", "geval_local"),
        ("engine", "geval_local.judge"),
        ("engine", "geval_local.engine"),
        ("engine", "geval_local.engine.trie"),
        ("engine", "transformers"),
    }
    (inner,) = imports_in("from . import labels", "geval_local.engine", is_package=True)
    assert (inner.target, inner.names) == ("geval_local.engine", ("labels",))
    (outer,) = imports_in("from ..judge import Judge", "geval_local.engine", is_package=True)
    assert outer.target == "geval_local.judge"


def test_every_module_has_its_place():
    units = {unit_of(module) for module in SOURCES}
    assert units <= set(RANK), f"give these a row in ROWS: {sorted(units - set(RANK))}"
    assert {"__init__", "judge", "engine", "io"} <= units


def test_contributing_shows_these_rows():
    shown = marked_table(PACKAGE.parent / "CONTRIBUTING.md", "rows")
    assert [set(re.findall(r"`(\w+)`", units)) for _, units, _ in shown] == ROWS


def named_in_map(docstring: str) -> set[str]:
    """Modules that the map of a folder names: in lists with bullets, or as the first word of a line, two spaces on."""
    lists = [re.split(r"\n(?!  )", text)[0] for text in re.split(r"^- (?=`)", docstring, flags=re.MULTILINE)[1:]]
    heads = [name for text in lists for part in re.split(r"; ", text) for name in _heads(part)]
    return {*heads, *re.findall(r"^ {0,4}(\w+)  +\S", docstring, flags=re.MULTILINE)}


def _heads(part: str) -> list[str]:
    head = re.match(r"(?:``?\w+``?(?:, )?)+(?=:)", part)
    return re.findall(r"\w+", head[0]) if head else []


def test_maps_of_folders_name_modules_that_exist():
    assert named_in_map("- `a`, `b`: x; ``c``: y `z`\n- `d`: x\n\nlast   of all\n") == {"a", "b", "c", "d", "last"}
    wrong, seen = [], 0
    for init in PACKAGE.glob("*/**/__init__.py"):
        named = named_in_map(ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or "")
        there = {path.stem for path in init.parent.glob("*.py")} | {
            path.parent.name for path in init.parent.glob("*/*.py")
        }
        wrong += [f"{module_name(init)}: {name}" for name in sorted(named - there)]
        seen += len(named)
    assert not wrong, "\n".join(wrong)
    assert seen > 50


def test_the_map_of_the_package_is_whole():
    shown = set(re.findall(r"``(\w+)``", ast.get_docstring(ast.parse((PACKAGE / "__init__.py").read_text("utf-8")))))
    units = {unit for row in ROWS for unit in row} - {"__init__", "__main__"}
    assert shown == units


def test_arrows_point_one_way():
    wrong = [
        f"{found.place}: {found.unit} imports {found.target}"
        for found in own_imports()
        if found.unit != "__init__" and found.target != "geval_local" and RANK[unit_of(found.target)] > RANK[found.unit]
    ]
    assert not wrong, "\n".join(wrong)


def test_the_package_itself_gives_only_its_version_to_its_modules():
    """Anything else would be an arrow from any row to any other, hidden behind the lazy names."""
    wrong = [
        f"{found.place}: from geval_local import {', '.join(found.names)}"
        for found in own_imports()
        if found.target == "geval_local" and RANK[found.unit] < RANK["cli"] and found.names != ("__version__",)
    ]
    assert not wrong, "\n".join(wrong)


def test_there_are_no_cycles():
    graph: dict[str, set[str]] = {module: set() for module in SOURCES if module != "geval_local"}
    for found in own_imports():
        if found.module != "geval_local":
            inner = {f"{found.target}.{name}" for name in found.names} & set(SOURCES)
            graph[found.module] |= (inner or {found.target}) - {"geval_local", found.module}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


def test_only_what_runs_models_imports_model_libraries():
    wrong = [
        f"{found.place}: {found.target}"
        for found in imports()
        if found.target.split(".")[0] in HEAVY and found.unit not in MAY_BE_HEAVY
    ]
    assert not wrong, "\n".join(wrong)


def test_analysis_and_report_read_records_never_models():
    wrong = [
        f"{found.place}: {found.target}"
        for found in own_imports()
        if found.unit in {"analysis", "report"} and unit_of(found.target) in {"models", "tokens", "engine"}
    ]
    assert not wrong, "\n".join(wrong)


def test_no_module_reaches_into_anothers_private_names():
    wrong = [
        f"{found.place}: from {found.target} import {name}"
        for found in own_imports()
        for name in found.names
        if name.startswith("_") and not name.startswith("__")
    ]
    assert not wrong, "\n".join(wrong)


def test_one_word_is_one_class():
    homes: dict[str, list[str]] = {}
    for module, path in SOURCES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module)
    assert len(homes) > 100
    assert not {name: found for name, found in homes.items() if len(found) > 1}


def loaded_by(code: str) -> set[str]:
    """Top-level modules that are loaded after running `code` in a fresh interpreter."""
    report = f"{code}\nimport sys\nprint('\\n'.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run(
        [sys.executable, "-c", report],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)},
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "code",
    [
        "import geval_local; geval_local.__version__",
        "import geval_local; dir(geval_local)",
        "from geval_local import Metric; Metric.load('summarization/coherence')",
        "\n".join(f"import geval_local.{unit}" for unit in sorted(PURE)),
    ],
    ids=["package", "dir", "metric", "pure modules"],
)
def test_no_model_library_is_loaded(code):
    """The imports above may be clean and still reach torch through another library."""
    loaded = loaded_by(code)
    assert "geval_local" in loaded
    assert not loaded & HEAVY


# --- exports ----------------------------------------------------------------------------------------------------------


def test_all_is_what_the_package_exports():
    assert geval_local.__all__ == sorted(geval_local.__all__)
    assert dir(geval_local) == geval_local.__all__
    typed = {name: found.target for found in own_imports() if found.module == "geval_local" for name in found.names}
    assert set(typed) | {"__version__"} == set(geval_local.__all__)
    for name, home in typed.items():
        value = getattr(geval_local, name)
        assert value is getattr(importlib.import_module(home), name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = geval_local.nothing


def test_only_faces_list_what_they_export():
    listed = {
        name for name, path in SOURCES.items() if re.search(r"^__all__\b", path.read_text(encoding="utf-8"), re.M)
    }
    assert not sorted(name for name in listed if SOURCES[name].name != "__init__.py")


@pytest.mark.parametrize("folder", ["benchmarks", "examples", "training"])
def test_scripts_import_what_is_there(folder):
    """Names move, and nobody runs a benchmark every day: five of them no longer ran."""
    wrong = []
    for path in sorted((PACKAGE.parent / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE.name):
                try:
                    exec(ast.unparse(node), {})
                except ImportError as error:  # a library that an extra brings may be missing
                    if str(error.name).startswith(PACKAGE.name):
                        wrong.append(f"{path.name}, line {node.lineno}: {error}")
    assert not wrong
