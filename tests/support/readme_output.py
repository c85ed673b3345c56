"""The output that README.md shows for its first command; `python tests/support/readme_output.py` rewrites it.

Only what a reader's machine prints too is shown: the tables and the signature, without times and places.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from cli_run import run

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
OPEN, CLOSE = "<!-- first-output -->", "<!-- /first-output -->"


def first_command() -> list[str]:
    """Arguments of the scoring command in README's first block, paths made absolute."""
    block = re.search(r"<!-- first-command -->\s*```bash\n(.*?)\n```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None, "README.md has no first command"
    words = block[1].replace("\\\n", " ").rpartition("geval-local ")[2].split()
    return [str(ROOT / word) if word.startswith("examples/") else word for word in words]


def first_output() -> str:
    """Run the command and return its tables and signature, white space at line ends dropped."""
    with TemporaryDirectory() as folder:
        arguments = first_command()
        arguments[-1] = str(Path(folder) / arguments[-1])
        done = run(*arguments, home=Path(folder) / "home")
        assert done.exit_code == 0, done.stderr
        shown = done.stdout.replace(f"{folder}/", "").replace(str(ROOT), "")
    return "\n".join(line.rstrip() for line in shown.splitlines() if line.strip())


def shown_output() -> str:
    """The block as README.md has it."""
    inner = README.read_text(encoding="utf-8").split(OPEN)[1].split(CLOSE)[0]
    return inner.strip().removeprefix("```text").removesuffix("```").strip("\n")


def main() -> None:
    text = README.read_text(encoding="utf-8")
    head, rest = text.split(OPEN)
    tail = rest.split(CLOSE)[1]
    README.write_text(f"{head}{OPEN}\n```text\n{first_output()}\n```\n{CLOSE}{tail}", encoding="utf-8")
    sys.stdout.write(f"wrote {README.name}\n")


if __name__ == "__main__":
    main()
