"""The first ten minutes with a card: what works on it, what it costs, cheapest first, nothing lost.

    python benchmarks/first_contact.py --out DIR                        # on a GPU
    python benchmarks/first_contact.py --out DIR --device cpu --tiny    # the same steps, small, anywhere

Every step is a process of its own with a time limit, so that a fault of the device ends one step and no other. Each
finished step appends one JSON line to DIR/first_contact.jsonl, written through to the disk; what the steps printed is
in DIR/output.txt. These two files are all that a machine on loan has to send back: verdicts and compiled kernels lie in
a folder of their own (GEVAL_LOCAL_HOME if it is set), which the steps share. After `--deadline` seconds nothing new
begins. It needs no tokenizer, no data and no network; where the package is not installed, it is run with PYTHONPATH set
to the project's folder.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, Any

PROJECT = Path(__file__).resolve().parents[1]
RESULTS, OUTPUT = "first_contact.jsonl", "output.txt"
#: What a step found, as it finds it, and that it came to its end: a code of 0 is also what `sys.exit()` gives.
_PART, _END = "PART ", "END"
#: Sizes of a head -> what has them.
HEADS = (64, 96, 128, 192, 256, 512)
#: Options of attention that are tried with each of them.
MASKS: dict[str, dict[str, Any]] = {
    "full": {},
    "window": {"span": 100},
    "cap": {"softcap": 30.0},
    "sinks and window": {"span": 100, "sinks": True},
}


def tell(**figures: Any) -> None:
    """Hand a finished part of a step to the process that waits for it."""
    print(_PART + json.dumps(figures, default=str), flush=True)


# --- steps; torch and the package are imported in their own processes


def versions(options: argparse.Namespace) -> None:
    """List versions, devices, memory, and the shared memory of a block."""
    import platform

    import torch
    import transformers

    from geval_local.models.verdicts import KERNEL_PACKAGES, version_of

    tell(
        python=platform.python_version(),
        torch=torch.__version__,
        transformers=transformers.__version__,
        cuda=torch.version.cuda,
        packages={name: version_of(name) for name in (*KERNEL_PACKAGES, "bitsandbytes", "gguf", "accelerate")},
        allocator=os.environ.get("PYTORCH_ALLOC_CONF"),
    )
    for number in range(torch.cuda.device_count() if options.device.startswith("cuda") else 0):
        found = torch.cuda.get_device_properties(number)
        free, total = torch.cuda.mem_get_info(number)
        tell(
            device=found.name,
            capability=f"{found.major}.{found.minor}",
            free_bytes=free,
            total_bytes=total,
            shared_memory_bytes=getattr(found, "shared_memory_per_block_optin", None),
        )


def kernel(options: argparse.Namespace) -> None:
    """Compare the kernel with attention in float64, for every size of heads, mask and dtype, and count its graphs."""
    import torch
    from attention_check import kernel_error
    from torch._dynamo.utils import counters

    from geval_local.engine.prefix_sharing.flex import FlexKernel

    on_gpu = options.device.startswith("cuda")
    dtypes = (torch.bfloat16, torch.float16, torch.float32) if on_gpu else (torch.float32,)
    # The cheap and the common first: a time limit cuts off the rest.
    for dtype in dtypes:
        for size in HEADS[:2] if options.tiny else HEADS:
            served = FlexKernel(backend="inductor" if on_gpu else None)
            for mask, given in MASKS.items():
                counters.clear()
                begun = time.perf_counter()
                error = kernel_error(served, size, dtype, torch.device(options.device), **given)
                tell(
                    size=size,
                    dtype=str(dtype),
                    mask=mask,
                    error=error,
                    seconds=time.perf_counter() - begun,
                    graphs=int(counters["stats"]["unique_graphs"]),
                    blocks={kind.text: settings for kind, settings in served.settings.items()},
                    refused=dict(served.refused),
                )


def nano(options: argparse.Namespace) -> None:
    """Score with the embedded judge, and check it."""
    from geval_local import Judge, Metric

    judge = Judge.load("nano", device=options.device)
    metric = Metric(name="x/quality", introduction="Rate it.", criteria="Is it good?", scale="1-5", steps=("Read it.",))
    score = judge.score(metric, output="A summary.")
    tell(engine=judge.engine_report.text, dtype=judge.precision, score=score.value)
    _check(judge.backend.loaded.model, judge.engine, judge.engine_report)


def _check(model: Any, engine: Any, report: Any) -> None:
    from geval_local.engine.self_check import check_engine

    found = check_engine(model, engine, report, lambda finding: tell(check=finding.name, **_plain(finding)))
    tell(failed=list(found.failed), device=dict(found.device))


def _plain(finding: Any) -> dict[str, Any]:
    return {"passed": finding.passed, "text": finding.text, "figures": dict(finding.figures)}


def _loaded(options: argparse.Namespace, shape: str) -> tuple[Any, Any, Any]:
    """Build a random model, and choose its engine; tell how long that takes, and the budget."""
    import torch
    from workloads import random_model

    from geval_local.engine.choose import bytes_per_token, choose_engine
    from geval_local.engine.prefix_sharing.engine import PrefixSharingEngine
    from geval_local.models.head import Head

    dtype = torch.bfloat16 if options.device.startswith("cuda") else torch.float32
    begun = time.perf_counter()
    model = random_model(shape, options.device, dtype)
    tell(shape=shape, parameters=model.num_parameters(), build_seconds=time.perf_counter() - begun)
    begun = time.perf_counter()
    engine, report = choose_engine(model, Head(model))
    tell(report=asdict(report), batch_tokens=engine.batch_tokens, choose_seconds=time.perf_counter() - begun)
    if isinstance(engine, PrefixSharingEngine):
        tell(bytes_per_token={str(device): cost for device, cost in bytes_per_token(model, engine).items()})
    return model, engine, report


def load(options: argparse.Namespace) -> None:
    """Time a model of 8 B until it is ready, and find its budget."""
    _loaded(options, _large(options))


def self_check(options: argparse.Namespace) -> None:
    """Check a model of 8 B."""
    _check(*_loaded(options, _large(options)))


def _large(options: argparse.Namespace) -> str:
    return "llama-tiny" if options.tiny else "llama-8b"


def whole(options: argparse.Namespace) -> None:
    """Do work of SummEval's size: tokens and prompts per second, GPU busy, share of its matrices' rate."""
    import torch
    from engine_arms import run_engine
    from machine import busy_share
    from throughput import linear_share, matmul_rate, operations, synchronize
    from workloads import prompt_tokens, synthetic, trie_tokens, whole_summeval

    model, engine, _ = _loaded(options, _large(options))
    vocabulary = model.config.get_text_config().vocab_size
    small = synthetic(documents=2, vocabulary=vocabulary, candidates=4)
    device = torch.device(options.device)
    run_engine(engine, small)  # compiles
    requests = small if options.tiny else whole_summeval(vocabulary)
    synchronize(device)
    begun = time.perf_counter()
    run_engine(engine, requests)
    synchronize(device)
    seconds = time.perf_counter() - begun
    tell(
        engine=engine.name,
        prompts=len(requests),
        prompt_tokens=prompt_tokens(requests),
        trie_tokens=trie_tokens(requests),
        seconds=seconds,
        prompts_per_second=len(requests) / seconds,
        limit=engine.limit,
    )
    if linear_share(model) > 0.9:
        rate = matmul_rate(model, engine.batch_tokens, 0.1 if options.tiny else 2.0)
        tell(matmul_flops=rate, utilization=operations(model, requests) / seconds / rate)
    tell(gpu_busy=busy_share(partial(run_engine, engine, small), device))


def profile(options: argparse.Namespace) -> None:
    """List the operations of a few packs that take longest."""
    import torch
    from engine_arms import run_engine
    from workloads import synthetic

    model, engine, _ = _loaded(options, _large(options))
    requests = synthetic(documents=2, vocabulary=model.config.get_text_config().vocab_size)
    run_engine(engine, requests)
    on_gpu = options.device.startswith("cuda")
    kinds = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if on_gpu else [])]
    with torch.profiler.profile(activities=kinds) as found:
        run_engine(engine, requests)
    table = found.key_averages()
    order = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    for entry in sorted(table, key=lambda entry: -float(getattr(entry, order)))[:20]:
        tell(operation=entry.key, calls=entry.count, microseconds=float(getattr(entry, order)))


def shape(name: str, options: argparse.Namespace) -> None:
    """Try one more shape: its engine, its kernel, its speed on a small piece of work."""
    from engine_arms import run_engine
    from workloads import synthetic

    model, engine, report = _loaded(options, f"{name}-tiny" if options.tiny else name)
    requests = synthetic(documents=2 if options.tiny else 8, vocabulary=model.config.get_text_config().vocab_size)
    run_engine(engine, requests)
    begun = time.perf_counter()
    run_engine(engine, requests)
    tell(engine=engine.name, report=report.text, prompts=len(requests), seconds=time.perf_counter() - begun)


def quantized(options: argparse.Namespace) -> None:
    """Quantize weights to 4 and 8 bits by bitsandbytes, here and now; without the package it says so."""
    from workloads import random_model

    from geval_local.engine.choose import choose_engine
    from geval_local.models.head import Head
    from geval_local.models.verdicts import version_of

    if version_of("bitsandbytes") is None or not options.device.startswith("cuda"):
        tell(skipped="bitsandbytes is not installed, or there is no GPU")
        return
    import torch
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        random_model("llama-26m", "cpu", torch.bfloat16).save_pretrained(folder)
        for bits in ("load_in_4bit", "load_in_8bit"):
            config: Any = transformers.BitsAndBytesConfig
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, quantization_config=config(**{bits: True}), device_map={"": options.device}
            )
            engine, report = choose_engine(model.eval(), Head(model))
            tell(bits=bits, report=report.text, batch_tokens=engine.batch_tokens)


def gguf(options: argparse.Namespace) -> None:
    """Load a GGUF file as a judge; without the packages it says so."""
    from workloads import smollm2_file

    from geval_local import Judge
    from geval_local.models.verdicts import version_of

    try:
        file = smollm2_file()
    except FileNotFoundError as error:
        tell(skipped=str(error))
        return
    if version_of("gguf") is None or options.tiny:
        tell(skipped="gguf is not installed, or the steps are tiny")
        return
    judge = Judge.load(file, device=options.device)
    tell(engine=judge.engine_report.text, dtype=judge.precision)


def out_of_memory(options: argparse.Namespace) -> None:
    """Let memory run out in earnest: all but a little of it is taken, and packs must get smaller."""
    import torch
    from workloads import synthetic

    from geval_local.engine.window import execute

    model, engine, _ = _loaded(options, "llama-tiny" if options.tiny else "qwen2.5-0.5b")
    requests = synthetic(documents=4, vocabulary=model.config.get_text_config().vocab_size)
    hog = None
    if options.device.startswith("cuda"):
        torch.cuda.empty_cache()
        hog = torch.empty(max(0, torch.cuda.mem_get_info()[0] - (1 << 30)), dtype=torch.uint8, device=options.device)
    scored = sum(readout.label_logprobs is not None for _, found in execute(engine, requests) for readout in found)
    tell(
        scored=scored,
        prompts=len(requests),
        batch_tokens=engine.batch_tokens,
        limit=engine.limit,
        taken=hog is not None,
    )


def die(_: argparse.Namespace) -> None:
    """End as a fault of a driver ends a process: at once; planted by `--plant`, to see what it costs."""
    tell(planted=True)
    os.abort()


#: Steps and the seconds that each may take: the cheapest and what all else rests on first, memory that runs out last.
STEPS: dict[str, tuple[int, Callable[[argparse.Namespace], None]]] = {
    "versions": (40, versions),
    "kernel": (150, kernel),
    "nano": (60, nano),
    "load": (90, load),
    "self-check": (120, self_check),
    "whole": (120, whole),
    "profile": (60, profile),
    "mixture": (60, partial(shape, "mixture")),
    "qwen3.5": (60, partial(shape, "qwen3.5-30m")),
    "gemma4": (60, partial(shape, "gemma4")),
    "quantized": (60, quantized),
    "gguf": (60, gguf),
    "out-of-memory": (60, out_of_memory),
}


# --- the process that waits for them


def run(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Run the steps, each in its own process; one record for each, as soon as it is finished."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="first-contact-", ignore_cleanup_errors=True) as home:
        for name, (limit, _) in STEPS.items():
            if options.steps and name not in options.steps:
                continue
            left = options.deadline - (time.monotonic() - begun)
            if left < 1:
                yield {"step": name, "outcome": "not begun: the deadline was reached"}
                continue
            yield _one(name, min(limit * options.patience, left), options, home)


def _one(name: str, limit: float, options: argparse.Namespace, home: str) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).resolve()), "--out", str(options.out), "--device", options.device]
    command += ["--step", "die" if name == options.plant else name, *(["--tiny"] if options.tiny else [])]
    path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    own = {"GEVAL_LOCAL_HOME": home} | os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    begun = time.monotonic()
    with (options.out / OUTPUT).open("ab+") as output:
        output.write(f"--- {name}\n".encode())
        output.flush()
        start = output.tell()
        outcome = _outcome(command, own, output, limit)
        output.seek(start)
        parts, lines, is_whole = [], deque[str](maxlen=8), False
        for line in output:
            text = line.decode(errors="replace").rstrip()
            lines.append(text[:500])
            is_whole |= text == _END
            with suppress(ValueError, RecursionError):  # whatever else a step prints is no reason to lose the others
                part = json.loads(text.partition(_PART)[2], parse_constant=str)
                parts += [part] if isinstance(part, dict) else []
        if outcome == "done" and not is_whole:
            outcome = "ended with code 0 before its end"
    record = {"step": name, "outcome": outcome, "seconds": round(time.monotonic() - begun, 2), "found": parts}
    return record if outcome == "done" else record | {"last_lines": list(lines)}


def _outcome(command: Sequence[str], environment: dict[str, str], output: IO[bytes], limit: float) -> str:
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        return f"not begun: {error}"
    try:
        code = process.wait(timeout=limit)
        return "done" if code == 0 else f"ended with code {code}"
    except subprocess.TimeoutExpired:
        return f"ended after its {limit:.0f} s"
    finally:  # with the processes that it started; one that waits for a driver does not die, and is left behind
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models and little work, for a run without a card")
    parser.add_argument("--steps", nargs="*", choices=list(STEPS), help="only these")
    parser.add_argument("--deadline", type=float, default=560.0, help="seconds after which nothing new begins (560)")
    parser.add_argument("--patience", type=float, default=1.0, help="times the steps' own limits (1)")
    parser.add_argument("--plant", choices=list(STEPS), help="let this step die as a fault of a driver would end it")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    return parser.parse_args(given)


def main() -> None:
    options = arguments()
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.step is not None:
        die(options) if options.step == "die" else STEPS[options.step][1](options)
        print(f"\n{_END}", flush=True)
        return
    outcomes = {}
    with (options.out / RESULTS).open("a", encoding="utf-8") as results:
        for record in run(options):
            results.write(json.dumps(record) + "\n")
            results.flush()
            os.fsync(results.fileno())
            outcomes[record["step"]] = record["outcome"]
            print(f"{record['step']}: {record['outcome']}", file=sys.stderr, flush=True)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
