"""Break lines of the package at random, one at a time, and count how many of them the tests notice.

    python benchmarks/mutations.py                                  # 40 lines, all rooms, tests that are not slow
    python benchmarks/mutations.py --lines 3 --rooms io statistics --seed 7 --list
    python benchmarks/mutations.py --wide                           # what its room's tests miss goes to all others

The tree is copied; nothing here is touched. Each line gets one mutation: a comparison flipped, a number one more or
less, `and` for `or`, a `not` dropped, `min` for `max`, or a returned value dropped. One that leaves the syntax tree as
it was is not counted. The tests that mirror the room run until the first failure, those of the module's own name first;
one that takes several times as long as on the whole tree has noticed too. The last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
#: Room -> what is broken, and the tests that mirror it.
ROOMS: dict[str, tuple[list[str], list[str]]] = {
    "exactness": (
        ["geval_local/tokens", "geval_local/engine", "geval_local/models/head.py"],
        ["tests/tokens", "tests/engine", "tests/models/test_head.py", "tests/core/test_exactness.py"],
    ),
    "runs": (["geval_local/runs"], ["tests/runs"]),
    "io": (["geval_local/io"], ["tests/io"]),
    "statistics": (["geval_local/statistics", "geval_local/summary.py"], ["tests/analysis"]),
}
WORDS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.GtE: ">=",
    ast.Gt: ">",
    ast.LtE: "<=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
}
OPPOSITE = {"==": "!=", "<": ">=", ">": "<=", "is": "is not", "in": "not in"}
OPPOSITE |= {new: old for old, new in OPPOSITE.items()}
EXTREMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}
#: A mutation after which the tests take so many times as long as without it, and a minute, is noticed.
PATIENCE = 4.0
#: Exit codes of pytest: all passed, some failed.
PASSED, FAILED = 0, 1


class Mutation(NamedTuple):
    """One edit of a file: the bytes from `start` to `stop` become `new`."""

    room: str
    path: str
    line: int
    start: int
    stop: int
    new: str

    def applied(self, source: bytes) -> bytes:
        """Edit the file's content."""
        return source[: self.start] + self.new.encode() + source[self.stop :]

    def told(self, source: bytes) -> str:
        """Say what becomes of the line."""
        old = " ".join(source[self.start : self.stop].decode().split())
        return f"{self.path}:{self.line}: {old} -> {self.new}"


class _Sites(ast.NodeVisitor):
    """Collects the edits that a module offers."""

    def __init__(self, room: str, path: str, source: bytes) -> None:
        self.room, self.path, self.source = room, path, source
        lines = source.splitlines(keepends=True)
        self.offsets = [sum(map(len, lines[:number])) for number in range(len(lines) + 1)]
        self.found: list[Mutation] = []

    def _place(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return where a node begins and ends, in bytes."""
        start = self.offsets[node.lineno - 1] + node.col_offset
        return start, self.offsets[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)

    def _edit(self, line: int, start: int, stop: int, new: str) -> None:
        self.found.append(Mutation(self.room, self.path, line, start, stop, new))

    def _between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        """Put one operator for another, between two operands that may stand in parentheses or on lines of their own."""
        start, stop = self._place(left)[1], self._place(right)[0]
        words = self.source[start:stop].decode()
        place = words.find(old)
        if place >= 0 and "#" not in words:
            begin = start + len(words[:place].encode())
            self._edit(self.source[:begin].count(b"\n") + 1, begin, begin + len(old.encode()), new)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
            word = WORDS[type(operator)]
            self._between(left, right, word, OPPOSITE[word])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(left, right, old, new)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._edit(node.lineno, self._place(node)[0], self._place(node.operand)[0], "")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, int | float) and not isinstance(node.value, bool):
            for new in (node.value + 1, node.value - 1):
                self._edit(node.lineno, *self._place(node), f"({new!r})" if new < 0 else repr(new))

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in EXTREMES:
            self._edit(node.lineno, *self._place(node), EXTREMES[node.id])

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr in EXTREMES:
            stop = self._place(node)[1]
            self._edit(node.end_lineno or node.lineno, stop - len(node.attr), stop, EXTREMES[node.attr])
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            self._edit(node.lineno, *self._place(node.value), "None")
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Pass over: what stands in a formatted text has no place of its own before Python 3.12."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:  # types compute nothing
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.dump(node.test):
            self.generic_visit(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for part in [*node.args.defaults, *(one for one in node.args.kw_defaults if one is not None), *node.body]:
            self.visit(part)

    visit_FunctionDef = visit_AsyncFunctionDef = _function


def mutations_in(room: str, path: str, source: bytes) -> list[Mutation]:
    """List the mutations that a module offers."""
    sites = _Sites(room, path, source)
    sites.visit(ast.parse(source))
    return sites.found


def lines_of(room: str) -> list[list[Mutation]]:
    """List the lines of a room that can be broken, each with its mutations."""
    found: dict[tuple[str, int], list[Mutation]] = {}
    for place in ROOMS[room][0]:
        whole = ROOT / place
        for path in sorted(whole.rglob("*.py")) if whole.is_dir() else [whole]:
            for one in mutations_in(room, path.relative_to(ROOT).as_posix(), path.read_bytes()):
                found.setdefault((one.path, one.line), []).append(one)
    return [found[key] for key in sorted(found)]


def changes_the_tree(mutation: Mutation) -> bool:
    """Whether a mutation leaves another syntax tree, and one at all."""
    source = (ROOT / mutation.path).read_bytes()
    try:
        return ast.dump(ast.parse(mutation.applied(source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


def chosen(rooms: list[str], lines: int, seed: int) -> list[Mutation]:
    """Draw lines, as many in each room, and for each line one of its mutations."""
    draw = random.Random(seed)
    drawn: dict[str, list[Mutation]] = {}
    share = -(-lines // len(rooms))
    for room in rooms:
        possible = lines_of(room)
        draw.shuffle(possible)
        edits = (draw.choice(line) for line in possible)
        drawn[room] = list(itertools.islice((one for one in edits if changes_the_tree(one)), share))
    in_turns = itertools.chain.from_iterable(itertools.zip_longest(*drawn.values()))
    return [one for one in in_turns if one is not None][:lines]


def copied(place: Path) -> Path:
    """Copy what git tracks, with the data beside the project, where tests look for it."""
    tree = place / "tree"
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.split("\0"):
        if name and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    if (ROOT.parent / "shared").is_dir():
        (place / "shared").symlink_to(ROOT.parent / "shared")
    return tree


def mirrored(names: list[str], tree: Path, module: str | None = None) -> list[str]:
    """List the test files of folders, that of the module's own name first: it notices soonest."""
    files: list[Path] = []
    for name in names:
        files += sorted((tree / name).glob("test_*.py")) if (tree / name).is_dir() else [tree / name]
    stem = Path(module or "").stem
    files.sort(key=lambda path: not stem or stem not in path.stem)
    return [path.relative_to(tree).as_posix() for path in files]


class Outcome(NamedTuple):
    """How tests ended."""

    code: int | None
    seconds: float
    said: str

    @property
    def is_noticed(self) -> bool:
        """Whether a test failed, no test could begin, or they did not come to their end."""
        return self.code != PASSED

    @property
    def text(self) -> str:
        """Say by what."""
        return "took too long" if self.code is None else self.said


def outcome_of(tree: Path, tests: list[str], marks: str, processes: int, timeout: float | None = None) -> Outcome:
    """Run tests in the copy until the first failure."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "--no-header", "-m", marks, *tests]
    if processes > 1:
        command += ["-n", str(processes), "--dist", "loadgroup"]
    environment = os.environ | {
        "PYTHONPATH": str(tree),
        "GEVAL_LOCAL_HOME": str(tree.parent / "home"),
        "OMP_NUM_THREADS": "1",
    }
    begun = time.monotonic()
    with (tree.parent / "output").open("w+") as output:
        process = subprocess.Popen(
            command, cwd=tree, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)  # its own group: workers of xdist and processes of tests too
                process.wait()
        output.seek(0)
        lines = output.read().splitlines()
    said = next((line for line in lines if line.startswith(("FAILED", "ERROR"))), lines[-1] if lines else "")
    return Outcome(code, time.monotonic() - begun, said[:160])


def measured(options: argparse.Namespace, mutations: list[Mutation], place: Path) -> Iterator[tuple[Mutation, Outcome]]:
    """Run the tests of each mutation's room on a tree that has only this one."""
    tree = copied(place)
    whole: dict[str, float] = {}
    for room in dict.fromkeys(one.room for one in mutations):
        outcome = outcome_of(tree, mirrored(options.tests or ROOMS[room][1], tree), options.marks, options.processes)
        print(f"{room}: {outcome.said} ({outcome.seconds:.0f} s as it is)", flush=True)
        if outcome.is_noticed:
            raise SystemExit(f"the tests of {room} fail without a mutation: mend them first")
        whole[room] = outcome.seconds
    for number, one in enumerate(mutations):
        path = tree / one.path
        source = path.read_bytes()
        path.write_bytes(one.applied(source))
        # Compiled files are taken for those of a source by its time in seconds and its size, which may stay the same.
        os.utime(path, (number + 1, number + 1))
        limit = PATIENCE * whole[one.room] + 60
        tests = mirrored(options.tests or ROOMS[one.room][1], tree, one.path)
        outcome = outcome_of(tree, tests, options.marks, options.processes, limit)
        if options.wide and not outcome.is_noticed:
            others = [f"tests/{folder.name}" for folder in sorted((tree / "tests").iterdir()) if folder.is_dir()]
            rest = [name for name in others if name not in ROOMS[one.room][1]]
            outcome = outcome_of(tree, rest, options.marks, options.processes, 3600)
        path.write_bytes(source)
        os.utime(path)
        yield one, outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=40, help="lines to break, in equal shares of the rooms")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", nargs="+", choices=list(ROOMS), default=list(ROOMS))
    parser.add_argument("--marks", default="not slow", help="expression of marks of the tests that run")
    parser.add_argument("--tests", nargs="+", help="these in place of those that mirror the rooms")
    parser.add_argument("--processes", type=int, default=1, help="test processes at a time")
    parser.add_argument("--wide", action="store_true", help="run all other tests on what those of the room miss")
    parser.add_argument("--list", action="store_true", help="show the mutations and run nothing")
    options = parser.parse_args()
    mutations = chosen(options.rooms, options.lines, options.seed)
    if options.list:
        for one in mutations:
            print(f"{one.room:<11}{one.told((ROOT / one.path).read_bytes())}")
        return
    noticed = {room: [0, 0] for room in options.rooms}
    missed = []
    with tempfile.TemporaryDirectory(prefix="mutations-") as place:
        for one, outcome in measured(options, mutations, Path(place)):
            told = one.told((ROOT / one.path).read_bytes())
            noticed[one.room][0] += outcome.is_noticed
            noticed[one.room][1] += 1
            missed += [] if outcome.is_noticed else [told]
            mark = "caught" if outcome.is_noticed else "MISSED"
            print(f"{mark}  {told}  [{outcome.seconds:.0f} s: {outcome.text}]", flush=True)
    caught, all_of_them = (sum(counts[place] for counts in noticed.values()) for place in (0, 1))
    print(f"{caught} of {all_of_them} noticed, {caught / max(1, all_of_them):.0%}")
    rooms = {room: f"{counts[0]}/{counts[1]}" for room, counts in noticed.items()}
    print(json.dumps({"seed": options.seed, "caught": caught, "of": all_of_them, "rooms": rooms, "missed": missed}))


if __name__ == "__main__":
    main()
