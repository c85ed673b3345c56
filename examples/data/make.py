"""Write the other shapes of helpdesk.jsonl: a file for each system, both answers in a row, a spreadsheet, a release.

Run it in this directory after helpdesk.jsonl was changed: python make.py
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def table(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as CSV."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def make(source: Path, place: Path) -> None:
    """Write old.csv, new.csv, wide.csv, chats.csv and release.jsonl into `place`."""
    rows = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    shared = ("ticket", "language", "product", "article", "question")
    of = {system: {row["ticket"]: row for row in rows if row["system"] == system} for system in ("old", "new")}
    for system, tickets in of.items():
        table(
            place / f"{system}.csv",
            [{**{name: row[name] for name in shared}, "answer": row["answer"]} for row in tickets.values()],
        )
    both = [
        {**{name: row[name] for name in shared}, "answer_old": row["answer"], "answer_new": of["new"][ticket]["answer"]}
        for ticket, row in of["old"].items()
    ]
    table(place / "wide.csv", both)
    table(
        place / "chats.csv",
        [{"user message": row["question"], "bot reply": row["answer"]} for row in of["old"].values()],
    )

    # As data sets are published: one id for all systems, and a list of objects with the ratings of each person.
    with (place / "release.jsonl").open("w", encoding="utf-8") as file:
        for row in rows:
            if "anna" in row:
                people = [{"helpfulness": row["anna"]}, {"helpfulness": row["ben"]}]
                made = {"id": f"ticket-{row['ticket']}", "question": row["question"], "decoded": row["answer"]}
                made |= {"model_id": row["system"], "expert_annotations": people}
                file.write(json.dumps(made, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    make(HERE / "helpdesk.jsonl", HERE)
