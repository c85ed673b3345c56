"""Take the documents' pictures of pages: `python docs/screenshots.py` (needs Chromium, selenium and the judge smol).

`pictures/screenshots.json` holds a digest of what the pages are made of; a test fails if that has changed since.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURES = Path(__file__).parent / "pictures"
DIGEST = PICTURES / "screenshots.json"
DATA = ROOT / "examples" / "data" / "helpdesk.jsonl"
#: Picture -> the command that writes its page, the place on the page, and the size of the window.
PAGES = {
    "report.png": (["report", "scored.jsonl", "--group-by", "ticket", "-o", "page.html"], "", 1180, 900),
    "systems.png": (
        ["compare", "scored.jsonl", "--system", "system", "--group-by", "ticket", "--page", "page.html"],
        "#systems",
        1180,
        620,
    ),
}


def digest() -> str:
    """Hash what the pages show and what writes them."""
    sources = [
        DATA,
        *(
            path
            for path in (ROOT / "geval_local" / "report").rglob("*")
            if path.suffix in (".py", ".js", ".css", ".j2")
        ),
    ]
    found = hashlib.sha256()
    for path in sorted(sources):
        found.update(path.read_bytes())
    return found.hexdigest()


def main() -> None:
    """Score the data, write the pages, and take their pictures."""
    command = [sys.executable, "-m", "geval_local"]
    with tempfile.TemporaryDirectory() as place:
        score = ["score", str(DATA), "-m", "assistant/helpfulness", "-j", "smol", "--group-by", "ticket"]
        subprocess.run([*command, *score, "--by", "language", "-o", "scored.jsonl"], cwd=place, check=True)
        for picture, (arguments, section, width, height) in PAGES.items():
            subprocess.run([*command, *arguments], cwd=place, check=True)
            script = ROOT / "tests" / "support" / "screenshot.py"
            size = [str(width), str(height)]
            subprocess.run(
                [sys.executable, script, f"page.html{section}", PICTURES / picture, *size], cwd=place, check=True
            )
    DIGEST.write_text(json.dumps({"sources": digest()}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
