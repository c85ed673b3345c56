"""Record what the commands print and write, so that a change of the house can be held against the state before it.

    python benchmarks/outputs.py record DIR          # every command below, in a folder of its own under DIR
    python benchmarks/outputs.py compare DIR OTHER   # the differences of two recordings; 1 if there are any

Each command runs in a fork of one process that has imported torch, with the embedded judge. Times, rates and temporary
paths are replaced by marks. Files that a command writes are recorded with what it prints.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import re
import shlex
import shutil
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
RATED = ROOT.parent / "shared" / "data"
SHOWN_BYTES = 200_000

#: Name -> commands of one folder, in order; ``$`` starts a statement of Python.
COMMANDS: dict[str, list[str]] = {
    "help": [
        "--help",
        "score --help",
        "meta-eval --help",
        "judges check --help",
        "nosuchverb",
        "score --no-such-option x",
    ],
    "score-jsonl": [
        "score summaries.jsonl -m summarization/coherence -o scores.jsonl",
        "score summaries.jsonl -m summarization/coherence -o scores.jsonl",
        "score summaries.jsonl -m summarization/coherence --json",
        "report scores.jsonl -o page.html",
        "report scores.jsonl --human rating -o rated.html",
        "report scores.jsonl --group-by source -o page.html",
    ],
    "score-formats": [
        "score rows.csv -m clarity.yaml -o out.csv --columns all",
        "score rows.csv -m clarity.yaml -m summarization/fluency -o run/ --format csv --format jsonl --format parquet",
        "resume run/ --json",
        "score rows.csv -m clarity.yaml -o out2.csv --csv-safe --threshold 3 --fail-under 4.9",
        "score rows.csv -m clarity.yaml --columns id,nosuch -o out3.csv",
        "report out.csv -o csv.html",
    ],
    "score-settings": [
        "score summaries.jsonl -m summarization/coherence --no-steps --limit 3 --json --no-cache",
        "score summaries.jsonl -m summarization/coherence --estimator mode --limit 3 --json",
        "score summaries.jsonl -m summarization/coherence --estimator median --limit 3 --json",
        "score summaries.jsonl -m summarization/consistency --field source=title --limit 3 --json",
        "score summaries.jsonl -m summarization/fluency --dry-run --limit 2",
        "score summaries.jsonl --prompt-file prompt.txt --scale 1-5 --limit 3 --json",
        "score summaries.jsonl -m summarization/fluency --max-unscored 0 -o f.jsonl --group-by row",
        "score summaries.jsonl -m summarization/fluency -j nano -j nano,dtype=float64 --limit 2 --json",
    ],
    "score-bad": [
        "score nofile.jsonl -m summarization/coherence",
        "score summaries.jsonl -m summarization/coherenc",
        "score summaries.jsonl",
        "score summaries.jsonl -m summarization/coherence -j nanoo",
        "score summaries.jsonl -m summarization/coherence --dtype fp16",
        "score broken.jsonl -m summarization/fluency -o b.jsonl",
        "score broken.jsonl -m summarization/fluency --max-unscored 0 --json",
        "score summaries.jsonl -m bad.yaml",
        "score summaries.jsonl -m rag/faithfulness",
        "score summaries.jsonl -m summarization/coherence -o summaries.jsonl",
        "score summaries.jsonl -m summarization/coherence --threshold 9",
        "score rows.csv -m summarization/coherence -o x.txt",
        "resume nowhere",
    ],
    "questions": [
        "decide summaries.jsonl -q questions.yaml --state output -o answers.jsonl",
        "decide summaries.jsonl -q questions.yaml --state output --rotations 2 --limit 3 --json",
        "decide summaries.jsonl -q badquestions.yaml --state output",
        "decide summaries.jsonl -q questions.yaml --state nosuch",
    ],
    "metrics": [
        "metrics list",
        "metrics list --json",
        "metrics show summarization/coherence",
        "metrics validate clarity.yaml",
        "metrics validate bad.yaml",
        "metrics show nosuch",
        "steps summarization/coherence -o steps.yaml",
        "steps summarization/coherence -o steps.yaml",
        "steps clarity.yaml --json",
    ],
    "judges": ["judges list", "judges list --json", "judges check nosuch", "judges fetch nosuch"],
    "evaluation": [
        "init summaries.jsonl -m summarization/coherence -o evaluation.yaml",
        "run evaluation.yaml --check",
        "run evaluation.yaml",
        "run evaluation.yaml --json",
        "run badevaluation.yaml",
        "init --schema",
    ],
    "systems": [
        "score a.jsonl -m summarization/coherence -o sa.jsonl",
        "score b.jsonl -m summarization/coherence -o sb.jsonl",
        "compare sa.jsonl sb.jsonl",
        "compare sa.jsonl sb.jsonl --json",
        "compare sa.jsonl sb.jsonl --page c.html",
        "report sa.jsonl sb.jsonl -o site/",
        "compare sa.jsonl nosuch.jsonl",
        "reasons sa.jsonl -m summarization/coherence --lowest 2 -o reasons.jsonl --tokens 12",
        "export sa.jsonl",
        "jury sa.jsonl sb.jsonl",
    ],
    "rated": [
        "score summeval.jsonl -m summarization/coherence -m summarization/fluency -o scored.jsonl",
        "score summeval.jsonl -m summarization/coherence -m summarization/fluency --no-steps -o plain.jsonl",
        "meta-eval summeval.jsonl --results scored.jsonl -m summarization/coherence --human coherence --group-by source --system system_id",
        "meta-eval summeval.jsonl --results scored.jsonl -m summarization/coherence --human coherence --group-by source --system system_id --json",
        "meta-eval summeval.jsonl --results scored.jsonl --results plain.jsonl -m summarization/coherence --human coherence --group-by source",
        "meta-eval summeval.json --benchmark summeval --limit-groups 3 -m summarization/coherence --json",
        "meta-eval summeval.json --benchmark summeval --limit-groups 3 -m summarization/coherence --ablations -o kept/",
        "compare scored.jsonl --system system_id --group-by source -m summarization/coherence",
        "compare scored.jsonl --system system_id --group-by source -m summarization/coherence --json",
        "compare scored.jsonl plain.jsonl -m summarization/coherence --human coherence --across steps --json",
        "bias scored.jsonl -m summarization/coherence --group-by system_id --document source",
        "bias scored.jsonl -m summarization/coherence --group-by system_id --document source --human coherence --json",
        "calibrate scored.jsonl -m summarization/coherence --human coherence --group-by source -o cal.json",
        "calibrate scored.jsonl -m summarization/coherence --human coherence --group-by source -o cal2.json --method temperature --json",
        "score summeval.jsonl -m summarization/coherence --calibration cal.json -o calibrated.jsonl",
        "jury scored.jsonl plain.jsonl -m summarization/coherence --human coherence --group-by source --largest 3",
        "jury scored.jsonl plain.jsonl -m summarization/coherence --human coherence --group-by source -o jury.jsonl",
        "report scored.jsonl --system system_id --group-by source --human summarization/coherence=coherence -o rated.html",
        "meta-eval topical.json --benchmark topical-chat --responses coherence=responses.json",
        "meta-eval topical.json --benchmark topical-chat --responses topical.json --json",
    ],
    "pairs": [
        "pairs few.jsonl -m summarization/coherence --system system_id --group-by source --budget 6 -o pairs.jsonl",
        "rank pairs.jsonl",
        "rank pairs.jsonl --json",
        "rank pairs.jsonl --human coherence",
        "report pairs.jsonl -o pairs.html",
    ],
    "other": ["cache", "cache --json", "cache --clear", "--version"],
    "python": [
        "$from geval_local.testing import MockJudge; from geval_local import score_file;"
        " r = score_file('summeval.jsonl', ['summarization/coherence', 'summarization/relevance'], MockJudge(), 'mock/');"
        " print(r.summaries, r.signatures)",
        "$from geval_local.testing import MockJudge; from geval_local import decide_file;"
        " r = decide_file('summaries.jsonl', 'questions.yaml', MockJudge(), 'answers.csv', state='output'); print(r.answers)",
        "$from geval_local.testing import MockJudge; from geval_local import Metric, read_samples; j = MockJudge();"
        " m = Metric.load('summarization/coherence'); s = list(read_samples('summaries.jsonl'));"
        " print([(x.value, x.probabilities, x.label_mass, x.std, x.entropy) for x in j.score_many(m, s)])",
        "$import pandas; from geval_local.testing import MockJudge; from geval_local import score_frame;"
        " print(score_frame(pandas.read_json('summaries.jsonl', lines=True), 'summarization/fluency', MockJudge()).to_csv())",
    ],
}

METRIC = """\
name: support/clarity
criteria: How clear the text is.
fields: {output: Text}
scale: 1-5
steps: [Read the text., Choose a score.]
threshold: 3
"""


def prepare(folder: Path) -> None:
    """Put the inputs of all commands into a folder."""
    shutil.copy(EXAMPLES / "summaries.jsonl", folder)
    shutil.copy(EXAMPLES / "questions.yaml", folder)
    for name in ("a", "b"):
        shutil.copy(EXAMPLES / "systems" / f"{name}.jsonl", folder)
    (folder / "clarity.yaml").write_text(METRIC)
    (folder / "bad.yaml").write_text(METRIC.replace("scale: 1-5", "scal: 1-5\ncriterion: x"))
    (folder / "badquestions.yaml").write_text("- type: predicat\n  text: Is it good?\n- instruction: x\n")
    (folder / "badevaluation.yaml").write_text(
        "dat: x.jsonl\nmetrics: [summarization/coherenc]\njudges: [{nam: nano}]\n"
    )
    (folder / "prompt.txt").write_text("Rate the summary.\n\n{{Document}}\n\n{{Summary}}\n\n- Coherence:")
    (folder / "rows.csv").write_text('id,output,note\n1,A clear text.,=1+1\n2,"Two, with comma",\n3,,empty\n')
    lines = (EXAMPLES / "summaries.jsonl").read_text().splitlines()
    (folder / "broken.jsonl").write_text("\n".join([lines[0], "{broken", '{"id": "no output"}', lines[1]]) + "\n")
    rated = json.loads((RATED / "summeval_dev.json").read_text())
    chosen = [row for row in rated if row["doc_id"] in list(dict.fromkeys(row["doc_id"] for row in rated))[:4]]
    rows = [
        {"source": row["source"][:600], "output": row["system_output"], "system_id": row["system_id"], **row["scores"]}
        for row in chosen
    ]
    (folder / "summeval.json").write_text(json.dumps(chosen))
    (folder / "summeval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    few = [row for row in rows if row["system_id"] in ("M0", "M1", "M5")][:9]
    (folder / "few.jsonl").write_text("".join(json.dumps(row) + "\n" for row in few))
    shutil.copy(RATED / "topical_chat.json", folder / "topical.json")
    shutil.copy(RATED / "geval_results" / "gpt3.5_topical_chat_coh.json", folder / "responses.json")


def run(command: str, folder: Path, home: Path, out: Path) -> int:
    """Run one command in a fork; what it prints goes to `out`."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.chdir(folder)
            os.environ.update(GEVAL_LOCAL_HOME=str(home), COLUMNS="160", NO_COLOR="1", TERM="dumb")
            with open(out.with_suffix(".out"), "wb", 0) as stdout, open(out.with_suffix(".err"), "wb", 0) as stderr:
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(stdout.fileno(), 1)
                os.dup2(stderr.fileno(), 2)
            if command.startswith("$"):
                exec(command[1:], {})
                code = 0
            else:
                from geval_local.cli import main

                sys.argv = ["geval-local", *shlex.split(command)]
                main()
        except SystemExit as end:
            code = int(end.code or 0) if not isinstance(end.code, str) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


MARKS = [
    (r"\d+(\.\d+)?(e-?\d+)? (s|ms|seconds|minutes|min)\b", "TIME"),
    (r"\d[\d,.]* (rows|scores|pairs|tokens)/s", "RATE"),
    (r"\(\d[\d,.]*/s\)", "(RATE)"),
    (r"scoring [^\n]* (so far|left)\n", ""),  # what shows where a command takes seconds
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:?\d\d)?", "DATE"),
    (r"\"(seconds|load_seconds|steps_seconds|rows_per_second|scores_per_second)\": ?[\d.e-]+", "SECONDS"),
    (r"\b[0-9a-f]{64}\b", "SHA256"),
    (r"\"(changed|run)\": ?\"?\w+\"?", "IDENTITY"),
    (r"transformers:[\w.]+\|torch:[\w.+]+\|version:[\w.]+", "VERSIONS"),
]


def normalized(text: str, folder: Path) -> str:
    """Replace what changes from one recording to the next."""
    for place, mark in ((str(folder.parent), "HERE"), (str(ROOT), "ROOT")):
        text = text.replace(place, mark)
    for pattern, mark in MARKS:
        text = re.sub(pattern, mark, text)
    return text


def record(place: Path, only: str | None) -> None:
    """Run all commands and write what they did."""
    place.mkdir(parents=True, exist_ok=True)
    place = place.resolve()
    import torch  # noqa: F401 - the forks share it
    import transformers  # noqa: F401

    import geval_local.judge.judge  # noqa: F401

    work = place / "work"
    shutil.rmtree(work, ignore_errors=True)
    for name, commands in COMMANDS.items():
        if only and only != name:
            continue
        folder, home = work / name, work / f"{name}-home"
        folder.mkdir(parents=True)
        prepare(folder)
        given = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        lines = []
        for number, command in enumerate(commands):
            before = {path: _digest(path) for path in folder.rglob("*") if path.is_file()}
            start = time.perf_counter()
            code = run(command, folder, home, work / f"{name}-{number}")
            print(f"{name} {number} exit {code} {time.perf_counter() - start:.1f} s: {command[:100]}", flush=True)
            lines += [f"$ geval-local {command}", f"exit {code}"]
            for kind in ("out", "err"):
                text = (work / f"{name}-{number}.{kind}").read_text(errors="replace")
                lines += [f"--- {kind}", *normalized(text, folder).splitlines()]
            for path in sorted(folder.rglob("*")):
                if path.name != ".geval-local.lock" and path.is_file() and before.get(path) != _digest(path):
                    text = path.read_bytes()[:SHOWN_BYTES].decode(errors="backslashreplace")
                    if path.name == "manifest.json":
                        text = json.dumps(json.loads(text), indent=1, sort_keys=True)
                    shown = normalized(text, folder) if path.suffix not in (".parquet", ".sqlite") else "binary"
                    lines += [f"--- file {path.relative_to(folder)}", *shown.splitlines()]
            for path in sorted(set(before) - set(folder.rglob("*"))):
                lines.append(f"--- gone {path.relative_to(folder)}")
        changed = [path.name for path, content in given.items() if not path.exists() or path.read_bytes() != content]
        lines.append(f"--- inputs changed: {changed}")
        (place / f"{name}.txt").write_text("\n".join(lines) + "\n")
    shutil.rmtree(work, ignore_errors=True)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def compare(one: Path, other: Path) -> int:
    """Print the differences of two recordings; return how many files differ."""
    differing = 0
    for file in sorted(one.glob("*.txt")):
        new = other / file.name
        if not new.exists():
            continue
        before, after = file.read_text().splitlines(), new.read_text().splitlines()
        if before != after:
            differing += 1
            for line in difflib.unified_diff(before, after, file.name, f"{file.name} now", lineterm="", n=1):
                print(line[:400])
    return differing


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("places", nargs="+", type=Path)
    parser.add_argument("--only", help="one group of commands")
    arguments = parser.parse_args()
    if arguments.what == "record":
        record(arguments.places[0], arguments.only)
    else:
        raise SystemExit(min(1, compare(*arguments.places)))
