"""Every causal class of the installed transformers, tiny and random, as a judge: its engine, and how exact it is.

    python benchmarks/architectures.py                     the whole table, some 20 minutes on one core
    python benchmarks/architectures.py afmoe bamba         these model types only
    python benchmarks/architectures.py --rows FILE         what FILE holds is not tried again, unless it is named
    python benchmarks/architectures.py --rows FILE --write     the table becomes docs/architectures.md

A model is built from its configuration with a few small sizes, saved with a tokenizer of bytes, and loaded by
`Judge.load`, as a user's model is; wrappers around a text model that also read images too. The probe at loading is held
to its short prompts, as for a model of more than 1e9 weights on a CPU. Then prompts of up to 200 tokens, beyond windows
and chunks of 64, go through the judge's engine, and through the whole model by one forward pass per label path; the
largest difference of a label's log-probability (float32, nats) is in the table. Each model has a process of its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from prompts import by_plain_passes, label_trie, largest_difference, logprobs, request
from tiny import byte_tokenizer

from geval_local import Judge
from geval_local.engine import probe
from geval_local.errors import GevalError
from geval_local.models.config_checks import loader_for

DOCUMENT = Path(__file__).parents[1] / "docs" / "architectures.md"
#: Beyond this a figure is not rounding.
EXACT = 2e-3
SECONDS = 120
#: Parts of what a library raised -> what that means, in words; a reason of geval-local itself is a sentence already.
_WORDS = (
    (r"requires the timm library", "needs the package timm, which reads images"),
    (r"more than (\d+) s", r"took more than \1 s"),
    (r"its process ended", "its process ended"),
    (r"does not read a text alone: Input language", "asks for a language beside the text"),
    (r"does not read a text alone", "asks for an image or sound beside the text"),
    (r"no base model apart from its head", "its layers cannot be called without its head"),
    (r"(has no next-token distribution): \w+Error", r"\1: it cannot read a text from left to right"),
    (r"cannot be loaded from", "no small configuration of it was found whose layers fit together"),
)
_NOT_BUILT = "no small configuration of it was found"
VOCABULARY = 320
SPAN = 64


def _by_name(*groups: tuple[Any, str]) -> dict[str, Any]:
    return {name: value for value, names in groups for name in names.split()}


#: Small sizes, by the names that configurations give them. With fewer index heads, scores of sparse attention tie at
#: zero, as they do in no real size.
TEXT = _by_name(
    (VOCABULARY, "vocab_size n_vocab vocab_size_per_layer_input unpadded_vocab_size"),
    (
        SPAN,
        """
        sliding_window attention_window_size sliding_window_size attention_chunk_size window_size
        mamba_chunk_size chunk_size linear_chunk_size keep_window_size block_size local_attention
    """,
    ),
    (
        64,
        """
        hidden_size n_embd d_model dim word_embed_proj_dim embedding_size attention_hidden_size lru_width
        emb_dim embed_dim
    """,
    ),
    (
        96,
        """
        intermediate_size ffn_dim ffn_hidden_size d_inner n_inner intermediate_size_mlp
        shared_intermediate_size dim_ff mlp_hidden_size decoder_ffn_dim encoder_ffn_dim
    """,
    ),
    (
        4,
        """
        num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_attention_heads n_head
        n_heads num_heads attention_heads decoder_attention_heads encoder_attention_heads num_experts
        n_routed_experts num_local_experts moe_num_experts n_experts linear_num_value_heads linear_num_heads
        lin_num_heads
    """,
    ),
    (
        2,
        """
        num_key_value_heads num_kv_heads n_kv_heads swa_num_key_value_heads num_experts_per_tok
        num_experts_per_token moe_topk moe_k top_k_experts linear_num_key_heads
    """,
    ),
    (
        16,
        """
        head_dim dim_head attention_head_dim v_head_dim global_head_dim swa_head_dim qk_rope_head_dim
        qk_nope_head_dim swa_v_head_dim linear_head_dim q_lora_rank kv_lora_rank o_lora_rank mamba_dt_rank
        dt_rank mamba_d_head mamba_head_dim mamba_d_state ssm_state_size state_size mamba_headdim
        linear_key_head_dim linear_value_head_dim rotary_dim query_pre_attn_scalar index_head_dim
        hidden_size_per_layer_input
    """,
    ),
    (
        1024,
        """
        max_position_embeddings n_positions max_seq_len seq_length n_ctx context_length model_max_length
        max_sequence_length max_seq_length
    """,
    ),
    (
        32,
        """
        moe_intermediate_size expert_ffn_hidden_size shared_expert_intermediate_size
        moe_shared_expert_intermediate_size moe_ffn_hidden_size expert_hidden_size index_n_heads index_topk
    """,
    ),
    (
        1,
        """
        n_group topk_group num_expert_group n_shared_experts num_shared_experts first_k_dense_replace
        num_dense_layers moe_layer_start_index mamba_n_groups n_groups mamba_ngroups eos_token_id eod_token_id
    """,
    ),
    (8, "mamba_n_heads mamba_num_heads n_mamba_heads"),
    (0, "pad_token_id bos_token_id num_nextn_predict_layers"),
    (0.15, "initializer_range init_std"),
    (False, "use_mamba_kernels"),
    (True, "is_decoder use_cache"),
)
#: The same for towers that read images or sound, which no prompt here reaches.
SENSE = _by_name(
    (32, "hidden_size embed_dim d_model width hidden_dim projection_dim output_dim"),
    (48, "intermediate_size ffn_dim mlp_dim encoder_ffn_dim"),
    (1, "num_hidden_layers depth num_layers encoder_layers layers n_layers"),
    (2, "num_attention_heads num_heads heads encoder_attention_heads num_key_value_heads"),
    (28, "image_size"),
    (14, "patch_size"),
    (64, "out_hidden_size lm_hidden_size text_hidden_size"),
    (16, "head_dim num_position_embeddings"),
)
#: What the sizes above do not say. Some parts of rotary embeddings have sizes in the code alone.
_SECTIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}}
FURTHER: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("glm4v_text", "glm_ocr_text", "glmga_text", "paddleocr_vl_text"), _SECTIONS),
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text"), _SECTIONS),
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "bamba": {"attn_layer_indices": [1, 3]},
    "big_bird": {"block_size": 8, "num_random_blocks": 1},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "glm4v_moe_text": {"rope_parameters": _SECTIONS["rope_parameters"] | {"mrope_section": [2, 1, 1]}},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 8},
    "mistral4": {"head_dim": 32},
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention", "minimax_m3_sparse"] * 2,
        "index_block_size": 16,
        "index_topk_blocks": 2,
    },
    "reformer": {"axial_pos_embds_dim": [32, 32], "axial_pos_shape": [32, 32]},
    "apertus1p5": {"image_token_offset": VOCABULARY - 32, "audio_token_offset": VOCABULARY - 16},
    "wavtokenizer_encoder": {
        "codebook_size": 16,
        "codebook_dim": 32,
        "num_filters": 8,
        "decoder_hidden_size": 64,
        "decoder_num_layers": 1,
    },
    "apertus1p5_vision_tokenizer": {
        "codebook_size": 16,
        "embed_dim": 32,
        "latent_channels": 32,
        "base_channels": 32,
        "num_res_blocks": 1,
    },
    "zamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "mamba_headdim": 16,
    },
    "zaya": {"num_experts_per_tok": 1},
}
_IDS = re.compile(r"(image|video|audio|vision|boi|eoi|boa|eoa)\w*_(token_id|token_index|id)$")


def tiny(config_class: Any, name: str = "text", default: Any = None) -> Any:
    """Build a small configuration, nested ones included."""
    default = config_class() if default is None else default
    known = default.to_dict()
    sizes = SENSE if re.search("vision|audio|image|video|speech|vit|sam|encoder|projector", name) else TEXT
    given = {
        key: [value] * min(len(known[key]), 4) if isinstance(known[key], list | tuple) else value
        for key, value in sizes.items()
        if key in known
    }
    if sizes is TEXT and "kv_lora_rank" in known:
        given["num_key_value_heads"] = given.get("num_attention_heads", 4)  # latent attention has one key per head
    given |= {key: VOCABULARY - 1 for key in known if _IDS.search(key) and isinstance(known[key], int)}
    for inner in config_class.sub_configs:
        sub = getattr(default, inner, None)
        if sub is not None and not isinstance(sub, dict):
            given[inner] = tiny(type(sub), inner, sub).to_dict()
    rope = known.get("rope_parameters")
    if isinstance(rope, dict) and len(rope.get("mrope_section") or ()) == 3:
        quarter = int(TEXT["head_dim"] * rope.get("partial_rotary_factor", 1.0)) // 8
        given["rope_parameters"] = rope | {"mrope_section": [2 * quarter, quarter, quarter]}
    kinds = list(dict.fromkeys(known.get("layer_types") or ()))
    if len(kinds) > 1:  # four layers may be too few for the usual pattern
        given["layer_types"] = (kinds * 4)[:4]
    given |= FURTHER.get(default.model_type, {})
    try:
        return config_class(**given)
    except Exception:
        if len(kinds) < 2 or "layer_types" in FURTHER.get(default.model_type, {}):
            raise
    del given["layer_types"]
    return config_class(**given)


def build(kind: str) -> Any:
    """Build a model, random and far from uniform in its predictions."""
    config = tiny(CONFIG_MAPPING[kind])
    torch.manual_seed(0)
    model = loader_for(kind).from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if not torch.isfinite(parameter).all():  # left as allocated
                parameter.normal_(0, 0.1)
    return model.eval()


def prompts() -> list[Any]:
    """Documents with candidates, beyond the window; a label of two tokens behind every second one."""
    random = np.random.default_rng(0)
    flat, deep = label_trie((40,), (41,), (42,)), label_trie((40,), (40, 43), (41, 44), (42,))
    prefix = random.integers(10, 250, 20)
    made = []
    for size in (15, 80, 130):
        document = np.concatenate([prefix, random.integers(10, 250, size)])
        for number in range(3):
            tail = random.integers(10, 250, 10 + 20 * number)
            made.append(request([*document, *tail], deep if number % 2 else flat))
    return made


def difference(judge: Judge) -> float:
    """Say how far a judge's engine is from plain passes of its model."""
    requests = prompts()
    expected = [by_plain_passes(judge.backend.loaded.model, one) for one in requests]
    return float(largest_difference(logprobs(judge.engine, requests), expected))


def one_line(error: BaseException) -> str:
    text = " ".join(line.strip() for line in str(error).strip().split("\n")[:2])
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def examine(kind: str) -> dict[str, Any]:
    """Judge with one model type; the row of the table."""
    row: dict[str, Any] = {"kind": kind, "transformers": transformers.__version__}
    try:
        model = build(kind)
        row["class"] = type(model).__name__
        row["layers"] = model.config.get_text_config().num_hidden_layers
    except Exception as error:
        return row | {"state": "not built", "text": one_line(error)}
    with tempfile.TemporaryDirectory() as directory:
        try:
            model.save_pretrained(directory)
            byte_tokenizer().save_pretrained(directory)
        except Exception as error:
            return row | {"state": "not saved", "text": one_line(error)}
        try:
            judge = Judge.load(directory, dtype="float32")
        except GevalError as error:
            return row | {"state": "refused", "text": str(error).split("\n")[0].replace(directory, "its directory")}
        report = judge.engine_report
        row |= {"engine": report.engine, "text": report.text}
        try:
            row["difference"] = difference(judge)
        except Exception as error:
            return row | {"state": "failed", "text": one_line(error)}
        return row | {"state": "exact" if row["difference"] < EXACT else "not exact"}


def in_own_process(kind: str, seconds: float) -> dict[str, Any]:
    """Examine a model type in a child that shares what is imported here, and ends with it."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
        signal.alarm(int(seconds))
        try:
            row = examine(kind)
        except BaseException as error:
            row = {"kind": kind, "transformers": transformers.__version__, "state": "failed", "text": one_line(error)}
        with os.fdopen(writing, "w") as pipe:
            json.dump(row, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if text:
        return dict(json.loads(text))
    ended = os.waitstatus_to_exitcode(status)
    reason = f"more than {seconds:.0f} s" if ended == -signal.SIGALRM else f"its process ended with {ended}"
    return {"kind": kind, "transformers": transformers.__version__, "state": "failed", "text": reason}


PAGE = """# Architectures

The model types of transformers that geval-local has tried, one row each. Look here before you choose a judge of an
unusual architecture; `geval-local judges check NAME` says the same of one judge.

`python benchmarks/architectures.py` makes this page. It builds every causal class of the installed transformers,
wrappers around a text model included, tiny and at random, saves it, loads it as a judge and compares its engine with
plain forward passes of the whole model, one per label path, in float32. The probe at loading is held to 48 tokens, as
for a model of more than 1e9 weights on a CPU; the prompts have up to 200 tokens, windows and chunks 64. The weights are
random, so the page says nothing about how good a judge a model is.

"""


def in_words(row: dict[str, Any]) -> str:
    """Say why a model type is not scored, without the exception of a library."""
    text = re.sub(r"judge '[^']*': ", "", row["text"]).replace("its directory/config.json", "its config.json")
    for pattern, words in _WORDS:
        if found := re.search(pattern, text):
            return found.expand(words)
    return _NOT_BUILT if row["state"] in ("not built", "not saved") else text.replace("|", "\\|")


def table(rows: list[dict[str, Any]]) -> str:
    """Write the rows as Markdown: what is served, by engine, then the rest with its reason."""
    served = sorted((row for row in rows if "difference" in row), key=lambda row: row["kind"])
    others = sorted((row for row in rows if "difference" not in row), key=lambda row: row["kind"])
    unknown = [row for row in others if row["state"] != "refused" or "small configuration" in in_words(row)]
    refused = [row for row in others if row not in unknown]
    counts = {name: sum(row["engine"] == name for row in served) for name in ("trie", "cache", "padded")}
    exact = sum(row["state"] == "exact" for row in served)
    versions = sorted({row["transformers"] for row in rows})
    lines = [
        f"{len(rows)} model types of transformers {' and '.join(versions)}: {len(served)} are scored "
        f"({', '.join(f'{name} {count}' for name, count in counts.items())}), {exact} of them exactly (below "
        f"{EXACT:g} nats); {len(refused)} are refused, {len(unknown)} could not be tried.",
        "",
        "| model type | class | engine | largest difference, nats | transformers |",
        "|---|---|---|---|---|",
    ]
    for row in served:
        alone = ", one prompt at a time" if "one prompt at a time, because" in row["text"] else ""
        figure = f"{row['difference']:.0e}" + ("" if row["state"] == "exact" else ", **not exact**")
        lines.append(f"| {row['kind']} | {row['class']} | {row['engine']}{alone} | {figure} | {row['transformers']} |")
    for title, group in (("Refused", refused), ("Not tried", unknown)):
        lines += ["", f"## {title}", "", "| model type | class | reason | transformers |", "|---|---|---|---|"]
        lines += [
            f"| {row['kind']} | {row.get('class', '')} | {in_words(row)} | {row['transformers']} |" for row in group
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help="model types; all when absent")
    parser.add_argument("--write", action="store_true", help="make docs/architectures.md of the rows")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time limit for each model")
    parser.add_argument("--rows", type=Path, help="file of rows: what it holds is not tried again, the rest is added")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    probe.PROBE_OPERATIONS["cpu"] = 0.0
    every = sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES})
    kept = options.rows.read_text(encoding="utf-8").splitlines() if options.rows and options.rows.exists() else []
    rows = {row["kind"]: row for row in map(json.loads, kept)}
    # What loading imports is shared by all children from here on.
    examine("llama")
    gc.collect()
    gc.freeze()
    for kind in options.kinds or [kind for kind in every if kind not in rows]:
        start = time.perf_counter()
        row = rows[kind] = in_own_process(kind, options.seconds)
        if options.rows:
            lines = [json.dumps(rows[name]) for name in sorted(rows)]
            options.rows.write_text("\n".join(lines) + "\n", encoding="utf-8")
        figure = f"{row['difference']:.1e}" if "difference" in row else ""
        engine, taken = row.get("engine", ""), f"{time.perf_counter() - start:5.1f} s"
        print(f"{kind:26} {row['state']:10} {engine:7} {figure:8} {taken}  {row['text'][:200]}", flush=True)
    text = table(list(rows.values()))
    if options.write:
        DOCUMENT.write_text(f"{PAGE}{text}\n", encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
