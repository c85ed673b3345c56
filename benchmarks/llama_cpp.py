"""One GGUF file asked by llama.cpp and by this package, the same prompts, in turns.

    pip install --no-deps xllamacpp      # llama.cpp in a wheel; its server runs inside this process
    python benchmarks/llama_cpp.py FILE.gguf [--rows 32] [--rounds 3]

llama.cpp gets token ids, keeps the prefix of the prompt before (``cache_prompt``), writes one token and returns the 20
likeliest; this package reads all labels. Rows are SummEval's, so sixteen prompts in a row share their source.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import torch
import xllamacpp

from geval_local import Judge, Metric, read_samples
from geval_local.tokens.requests import RequestMaker

SUMMEVAL = Path(__file__).resolve().parents[2] / "shared" / "data" / "summeval_dev.json"
STEPS = ("Read the source text.", "Compare the summary with it.", "Rate coherence on the scale given above.")


def start_server(file: str, threads: int, context: int) -> xllamacpp.Server:
    """Load a file into llama.cpp, for one prompt at a time."""
    wanted = xllamacpp.CommonParams()
    wanted.model.path, wanted.n_ctx, wanted.n_parallel, wanted.n_gpu_layers = file, context, 1, 0
    wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = threads
    wanted.verbosity = -1
    return xllamacpp.Server(wanted)


def main() -> None:
    """Ask both in turns and print seconds, tokens that llama.cpp computed, and the ratio of the pairs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    metric = Metric.load("summarization/coherence").with_steps(STEPS)
    samples = list(read_samples(SUMMEVAL, limit=given.rows))
    judge = Judge.load(given.file)
    requests = [prepared.request for prepared in RequestMaker(judge.encoder, metric, judge.context).prepare(samples)]
    prompts = [request.ids.tolist() for request in requests if request is not None]
    server = start_server(given.file, torch.get_num_threads(), 512 + max(map(len, prompts)))

    def llama_cpp() -> int:
        answers = [server.handle_completions(_request(prompt)) for prompt in prompts]
        return sum(answer["timings"]["prompt_n"] for answer in answers)

    def geval_local() -> int:
        return len(judge.score_many(metric, samples))

    arms = {"llama.cpp": llama_cpp, "geval_local": geval_local}
    computed = {name: arm() for name, arm in arms.items()}["llama.cpp"]  # the first calls warm both
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(given.rounds):
        for name in list(arms)[:: -1 if number % 2 else 1]:
            started = time.perf_counter()
            arms[name]()
            seconds[name].append(round(time.perf_counter() - started, 2))
    ratio = statistics.median(a / b for a, b in zip(seconds["llama.cpp"], seconds["geval_local"], strict=True))
    record = {"prompts": len(prompts), "tokens": sum(map(len, prompts)), "computed by llama.cpp": computed}
    record |= {"seconds": seconds, "llama.cpp / geval_local": round(ratio, 2), "threads": torch.get_num_threads()}
    record |= {"llama.cpp": xllamacpp.__version__, "built for": xllamacpp.get_system_info(), "load": os.getloadavg()[0]}
    print(json.dumps(record))


def _request(prompt: list[int]) -> dict[str, object]:
    return {"prompt": prompt, "n_predict": 1, "n_probs": 20, "cache_prompt": True, "temperature": 0.0}


if __name__ == "__main__":
    main()
