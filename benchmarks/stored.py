"""Memory and time of judges whose weights stay as they are stored, against the same weights widened beforehand.

``make DIR`` writes models of random weights in known shapes; ``run FILE ...`` loads and scores each in processes
of their own, arms interleaved, and prints one JSON line with the figures and the machine's load; ``share FILE`` says
what part of the machine's rate of matrix products a pass over prompts reaches.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import struct
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import AutoTokenizer

from geval_local import Judge, Metric, read_samples
from geval_local.engine.interface import read_all
from geval_local.engine.prefix_sharing.prompt_trie import lay_out
from geval_local.files import home_directory
from geval_local.models.gguf.blocks import BLOCK_TYPES
from geval_local.models.head import trunk_of
from geval_local.models.stored import Stored, bytes_of, release_buffers
from geval_local.tokens.requests import RequestMaker

SHARED = Path(__file__).resolve().parents[2] / "shared"
SUMMEVAL = SHARED / "data" / "summeval_dev.json"
STEPS = ("Read the source text.", "Compare the summary with it.", "Rate coherence on the scale given above.")
#: Width, feed-forward width, layers, heads, keys, vocabulary: those of Qwen2.5-0.5B and 1.5B, and of Llama 3.1 8B.
SHAPES = {
    "0.5b": (896, 4864, 24, 14, 2, 151_936),
    "1.5b": (1536, 8960, 28, 12, 2, 151_936),
    "8b": (4096, 14336, 32, 32, 8, 128_256),
}
_Q4_K, _F32 = 12, 0


def tensors_of(shape: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a Llama's tensors, under llama.cpp's names."""
    width, inner, layers, heads, keys, vocabulary = SHAPES[shape]
    small = width // heads * keys
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocabulary, width), "output.weight": (vocabulary, width)}
    for layer in range(layers):
        sizes = {"attn_q": (width, width), "attn_k": (small, width), "attn_v": (small, width)}
        sizes |= {"attn_output": (width, width), "ffn_gate": (inner, width), "ffn_up": (inner, width)}
        sizes |= {"ffn_down": (width, inner), "attn_norm": (width,), "ffn_norm": (width,)}
        found |= {f"blk.{layer}.{name}.weight": size for name, size in sizes.items()}
    return found | {"output_norm.weight": (width,)}


NAMES = {"token_embd": "model.embed_tokens", "output": "lm_head", "output_norm": "model.norm", "blk": "model.layers"}
NAMES |= {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj"}
NAMES |= {"attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj"}
NAMES |= {"ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}


def make(directory: Path, shape: str) -> None:
    """Write a shape as bfloat16 safetensors and, if rows are whole blocks, as GGUF of Q4_K; nano's tokenizer."""
    width, inner, layers, heads, keys, vocabulary = SHAPES[shape]
    tokenizer = AutoTokenizer.from_pretrained(str(Path(__file__).parents[1] / "geval_local" / "judges" / "nano"))
    tensors = tensors_of(shape)
    rng = np.random.default_rng(0)
    folder = directory / f"{shape}-bf16"
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(str(folder))
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
    config |= {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers, "vocab_size": vocabulary}
    config |= {"num_attention_heads": heads, "num_key_value_heads": keys, "max_position_embeddings": 32_768}
    config |= {"tie_word_embeddings": False, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0}
    (folder / "config.json").write_text(json.dumps(config))
    header, place = {}, 0
    for name, size in tensors.items():
        full = ".".join(NAMES.get(part, part) for part in name.split("."))
        end = place + 2 * int(np.prod(size))
        header[full] = {"dtype": "BF16", "shape": list(size), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for size in tensors.values():
            out.write(_random(rng, size).tobytes())
    if width % BLOCK_TYPES[_Q4_K].elements == 0:
        _write_gguf(directory / f"{shape}-q4_k.gguf", shape, tensors, tokenizer, rng)


def _random(rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    """Draw bfloat16 numbers: norms are one, others uniform up to 1.7 over the root of the width."""
    if len(size) == 1:
        return np.full(size, 0x3F80, dtype=np.uint16)
    numbers = rng.random(size, dtype=np.float32)
    numbers -= 0.5
    numbers *= 3.4 / size[-1] ** 0.5
    return (numbers.view(np.uint32) >> 16).astype(np.uint16)


def _write_gguf(file: Path, shape: str, tensors: dict[str, tuple[int, ...]], tokenizer: object, rng: object) -> None:
    from gguf import GGMLQuantizationType, GGUFWriter

    width, inner, layers, heads, keys, vocabulary = SHAPES[shape]
    writer = GGUFWriter(str(file), "llama")
    writer.add_type("model")
    writer.add_block_count(layers)
    writer.add_context_length(32_768)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(keys)
    writer.add_rope_freq_base(500_000.0)
    writer.add_rope_dimension_count(width // heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    backend = json.loads(tokenizer.backend_tokenizer.to_str())  # type: ignore[attr-defined]
    words = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))  # type: ignore
    writer.add_token_list([*words, *(f"<unused{number}>" for number in range(len(words), vocabulary))])
    writer.add_token_types([1] * len(words) + [5] * (vocabulary - len(words)))
    writer.add_token_merges([" ".join(pair) if isinstance(pair, list) else pair for pair in backend["model"]["merges"]])
    writer.add_bos_token_id(tokenizer.bos_token_id or 0)  # type: ignore[attr-defined]
    writer.add_eos_token_id(tokenizer.eos_token_id or 0)  # type: ignore[attr-defined]
    kind = BLOCK_TYPES[_Q4_K]
    for name, size in tensors.items():
        if len(size) == 1:
            writer.add_tensor_info(name, size, np.dtype(np.float32), 4 * size[0])
        else:
            packed = (size[0], size[1] // kind.elements * kind.size)
            count = packed[0] * packed[1]
            writer.add_tensor_info(name, packed, np.dtype(np.uint8), count, raw_dtype=GGMLQuantizationType.Q4_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for size in tensors.values():
        if len(size) == 1:
            writer.write_tensor_data(np.ones(size, dtype=np.float32))
            continue
        blocks = np.frombuffer(rng.bytes(size[0] * size[1] // kind.elements * kind.size), dtype=np.uint8)  # type: ignore
        blocks = blocks.reshape(-1, kind.size).copy()
        # d * scale * quant - m * offset, with scales up to 63 and quants up to 15, around zero.
        spread = 1.0 / size[1] ** 0.5 / 300
        blocks[:, 0:4] = np.frombuffer(struct.pack("<ee", spread, spread * 7.5), dtype=np.uint8)
        writer.write_tensor_data(blocks.reshape(size[0], -1))
    writer.close()


def measure(place: str, arm: str, rows: int) -> dict[str, float]:
    """Load a judge in this process and score rows of SummEval; `arm` is ``stored`` or ``float32``."""
    metric = Metric.load("summarization/coherence").with_steps(STEPS)
    samples = []
    for sample in read_samples(SUMMEVAL, limit=rows):
        samples.append(sample)
    started, spent = time.perf_counter(), time.process_time()
    judge = Judge.load(place)
    loading, loading_cpu = time.perf_counter() - started, time.process_time() - spent
    weights = bytes_of(judge.backend.loaded.model)
    if arm == "float32":
        _widen(judge.backend.loaded.model)
    judge.score_many(metric, samples[:1])
    first = time.perf_counter() - started
    before, before_cpu = time.perf_counter(), time.process_time()
    scores = judge.score_many(metric, samples)
    took, cpu = time.perf_counter() - before, time.process_time() - before_cpu
    return {
        "loading_s": loading,
        "loading_cpu_s": loading_cpu,
        "first_score_s": first,
        "scoring_s": took,
        "scoring_cpu_s": cpu,
        "prompts_a_minute": 60 * len(scores) / took,
        "weights_mb": weights / 1e6,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1.024e-3,  # KiB
        "sum": float(sum(score.value for score in scores)),
    }


def share(place: str, rows: int, repeat: int) -> dict[str, object]:
    """Compare passes over prompts with the model's products alone, in turns: processor time, so take one thread.

    Counted are the products of linear layers, of the visible pairs of queries and keys, and of the read-outs.
    """
    judge = Judge.load(place)
    metric = Metric.load("summarization/coherence").with_steps(STEPS)
    prepared = RequestMaker(judge.encoder, metric, judge.context).prepare(list(read_samples(SUMMEVAL, limit=rows)))
    requests = [one.request for one in prepared if one.request is not None]
    engine, config = judge.engine, judge.backend.loaded.model.config
    read_all(engine, requests)  # the metric's prefix is kept from now on
    packs = [pack for pack in engine.plan(requests) if pack.requests]
    shapes = [
        tuple(one.weight.shape) for one in trunk_of(judge.backend.loaded.model).modules() if isinstance(one, nn.Linear)
    ]
    pairs = 0
    for pack in packs:
        layout = lay_out(pack.work.stream, pack.start, pack.stop)
        lengths = [strand.stop - strand.start for strand in layout.strands]
        pairs += sum(length * (length + 1) // 2 for length in lengths)
        pairs += sum((one.key_stop - one.key_start) * (one.stop - one.start) for one in layout.blocks)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    work = {
        "linear": 2 * sum(pack.tokens for pack in packs) * sum(map(math.prod, shapes)),
        "attention": 4 * pairs * config.num_attention_heads * size * config.num_hidden_layers,
        "head": 2 * len(requests) * config.vocab_size * config.hidden_size,
    }
    weights = {shape: torch.randn(shape) for shape in set(shapes)}
    tokens = [pack.tokens for pack in packs]
    passes, rates = [], [_rate(weights, shapes, tokens)]
    for _ in range(repeat):
        before = time.process_time()
        read_all(engine, requests)
        passes.append(time.process_time() - before)
        rates.append(_rate(weights, shapes, tokens))
    total = sum(work.values()) / 1e9
    # The machine's speed changes within minutes, so each pass has the rate before and after it.
    shares = [2 * total / took / sum(around) for took, around in zip(passes, pairwise(rates), strict=True)]
    return {
        "place": Path(place).name,
        "gflop": {name: round(count / 1e9, 1) for name, count in work.items()},
        "packs": tokens,
        "seconds": [round(one, 2) for one in passes],
        "matmul_gflop_a_second": [round(one, 1) for one in rates],
        "shares": [round(one, 3) for one in shares],
        "share": round(statistics.median(shares), 3),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
    }


def _rate(weights: dict[tuple[int, ...], torch.Tensor], shapes: list[tuple[int, ...]], tokens: list[int]) -> float:
    """Measure GFLOP a second of a model's linear layers, each shape for as long as its share."""
    seconds = done = 0.0
    with torch.inference_mode():
        for count in tokens:
            for shape, weight in weights.items():
                given = torch.randn(count, shape[1])
                one = 2 * count * math.prod(shape) / 1e9
                times = max(1, round(20 / one))
                nn.functional.linear(given, weight)
                before = time.process_time()
                for _ in range(times):
                    nn.functional.linear(given, weight)
                seconds += (time.process_time() - before) / times * shapes.count(shape)
                done += one * shapes.count(shape)
    return done / seconds


def _widen(model: nn.Module) -> None:
    wide: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if isinstance(parameter, Stored):
                if id(parameter) not in wide:
                    wide[id(parameter)] = nn.Parameter(parameter.widened(), requires_grad=False)
                setattr(module, name, wide[id(parameter)])
    release_buffers()


def main() -> None:
    """Make models, or measure some."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    maker = commands.add_parser("make")
    maker.add_argument("directory", type=Path)
    maker.add_argument("shapes", nargs="+", choices=SHAPES)
    runner = commands.add_parser("run")
    runner.add_argument("places", nargs="+")
    runner.add_argument("--arms", default="stored,float32")
    runner.add_argument("--rows", type=int, default=32)
    runner.add_argument("--repeat", type=int, default=3)
    runner.add_argument("--cold", action="store_true", help="forget the digests of files before every load")
    shares = commands.add_parser("share")
    shares.add_argument("places", nargs="+")
    shares.add_argument("--rows", type=int, default=32)
    shares.add_argument("--repeat", type=int, default=5)
    one = commands.add_parser("one")
    one.add_argument("place")
    one.add_argument("arm")
    one.add_argument("rows", type=int)
    given = parser.parse_args()
    if given.command == "make":
        for shape in given.shapes:
            make(given.directory, shape)
        return
    if given.command == "share":
        for place in given.places:
            print(json.dumps(share(place, given.rows, given.repeat)), flush=True)
        return
    if given.command == "one":
        print(json.dumps(measure(given.place, given.arm, given.rows)))
        return
    figures: dict[str, list[dict[str, float]]] = {}
    loads = [os.getloadavg()[0]]
    for _ in range(given.repeat):
        for place in given.places:
            for arm in given.arms.split(","):
                if given.cold:
                    (home_directory() / "digests.json").unlink(missing_ok=True)
                command = [sys.executable, __file__, "one", place, arm, str(given.rows)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                figures.setdefault(f"{Path(place).name} {arm}", []).append(json.loads(done.stdout.splitlines()[-1]))
                loads.append(os.getloadavg()[0])
    record = {
        name: {key: round(statistics.median(run[key] for run in runs), 3) for key in runs[0]}
        for name, runs in figures.items()
    }
    for name, median in record.items():
        print(name, median)
    threads = torch.get_num_threads()
    print(json.dumps({"medians": record, "runs": given.repeat, "rows": given.rows, "threads": threads, "loads": loads}))


if __name__ == "__main__":
    main()
