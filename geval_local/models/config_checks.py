"""Check a judge before and after its weights are loaded.

Before: it is a causal decoder, and its weights are complete safetensors. After: exactly its weights are in memory; they
are finite and give finite logits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from geval_local.errors import (
    JudgeError,
    TokenizerError,
    UnsupportedModelError,
    WeightsError,
    first_line,
)
from geval_local.fields import listed
from geval_local.models.fingerprint import weight_files
from geval_local.models.reading import stored_in
from geval_local.models.registry import JudgeEntry
from geval_local.models.stored import are_finite

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from geval_local.models.chat_template import ChatFrame

_SENSES = (
    r"(^|\.)(\w*(vision|visual|image|audio|speech|video)\w*|(multi_modal|multimodal|mm)_projector|aligner|"
    r"talker|code2wav|token2wav)(?=\.)"
)
#: Weights allowed in addition to the language model: image and audio towers with their projectors,
#: heads that predict several tokens at once, and tables that older versions of transformers stored.
_SENSE = re.compile(_SENSES)
_BESIDE_THE_TEXT = re.compile(
    rf"{_SENSES}|(^|\.)(mtp\w*|\w*nextn\w*)\.|(^|[._])((original_)?inv_freq|position_ids|(cos|sin)_cached|masked_bias)$"
)


def senses_of(names: Iterable[str]) -> list[str]:
    """List the non-text parts of a model, from the names of its weights."""
    found = (_SENSE.search(name) for name in names)
    return sorted({match.string[: match.end()] for match in found if match is not None})


def reads_text(config: dict[str, Any]) -> bool:
    """Whether a configuration describes a wrapper around a causal text model, or is listed as one."""
    text, name = config.get("text_config"), MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(config["model_type"])
    if text is None and isinstance(name, str) and name.endswith("ForCausalLM"):
        return True  # Mistral 4: its causal class is in no other list
    if name is None or not isinstance(text, dict):
        return False
    kind = str(text.get("model_type"))
    return not (kind in CONFIG_MAPPING and CONFIG_MAPPING[kind].is_encoder_decoder)


def loader_for(kind: str | None) -> Any:
    """Return the transformers class that loads a model type as a text model."""
    if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or kind not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        return AutoModelForCausalLM
    return AutoModelForImageTextToText


def drop_other_senses(model: Any) -> None:
    """Remove the non-text parts from a loaded model, and free their memory."""
    inner = getattr(model, model.base_model_prefix or "model", model)
    for holder in {id(part): part for part in (model, inner)}.values():
        for name in [name for name, _ in holder.named_children() if _SENSE.search(f"{name}.")]:
            delattr(holder, name)


_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_OTHER_FORMATS = ("*.h5", "*.msgpack", "*.onnx", "consolidated*.safetensors")
#: The causal mask that GPT-2, GPT-J and GPT-NeoX stored as a buffer, under the name of a bias.
_STORED_MASK = re.compile(r"\.(attn|attention|self_attn)(\.attention)?\.bias$")
_LAYER = re.compile(r"(^|\.)(?:layers|blk)\.(\d+)\.")
#: Keys of config.json that make transformers read files outside of the fingerprint.
_OTHER_FILES = ("configuration_files", "transformers_weights")
#: Keys of config.json that count or measure parts of a model, except lengths of texts and the like.
_COUNTS = re.compile(r"^(num|n|d)_|_(size|dim|rank|layers|heads|experts)$")
_NOT_STORED = re.compile(r"position|ctx|context|chunk|window|image|patch")
#: Largest count that no tensor has as a dimension (layers, labels, groups), and largest token id if no embedding is
#: known.
MOST_COUNTED, _MOST_TOKENS = 1 << 14, 1 << 24
#: Files that name a tokenizer's tokens; files that add a few come first.
_TOKENIZER_FILES = ("added_tokens.json", "special_tokens_map.json", "tokenizer_config.json", "tokenizer.json")
_SHOWN = 3
_PROBE_TOKENS = 16


def check_architecture(entry: JudgeEntry, directory: Path, *, trust_remote_code: bool) -> None:
    """Reject a model that has no causal next-token distribution."""
    config = _config(directory)
    kind = config.get("model_type")
    _check_sources(entry, directory, config)
    if "AutoModelForCausalLM" in config.get("auto_map", {}) and (trust_remote_code or kind not in CONFIG_MAPPING):
        if trust_remote_code:
            return  # a model built by its own code is probed on first use
        raise UnsupportedModelError(
            f"judge {entry.name!r}: the model type {kind!r} is built by Python code in its own directory, which is not "
            "run unless asked for",
            hint="Read that code, then allow it with `trust_remote_code=True`.",
        )
    if kind not in CONFIG_MAPPING:
        raise UnsupportedModelError(
            f"judge {entry.name!r}: the installed transformers does not know the model type {kind!r}",
            hint="A newer transformers may know it: pip install --upgrade transformers.",
        )
    _check_quantization(entry, config)
    reason = _why_not_causal(config)
    if reason is not None:
        raise UnsupportedModelError(
            f"judge {entry.name!r}: {reason}",
            hint="A judge is a causal (decoder-only) language model: Llama, Qwen, Mistral, Gemma, Phi, GPT-2, ...",
        )


def _check_sources(entry: JudgeEntry, directory: Path, config: dict[str, Any]) -> None:
    """Reject a configuration that names weights, settings or code outside of the fingerprint."""
    named = [f"{key}: {config[key]!r}" for key in _OTHER_FILES if config.get(key) is not None]
    code = [
        name
        for names in config.get("auto_map", {}).values()
        for name in (names if isinstance(names, list) else [names])
    ]
    named += [f"auto_map: {name!r}" for name in code if "--" in str(name)]
    if named:
        raise UnsupportedModelError(
            f"judge {entry.name!r}: {directory / 'config.json'} names files that are not read ({named[0]})",
            hint="Copy what it names into the directory under the usual name, and remove the key.",
        )


def _check_quantization(entry: JudgeEntry, config: dict[str, Any]) -> None:
    """Check that the format of a quantized checkpoint is known; transformers names the package that it needs."""
    stored = stored_quantization(config)
    if stored is None or stored.get("load_in_8bit") or stored.get("load_in_4bit"):
        return
    method = stored.get("quant_method")
    # Transformers leaves out a format that it does not know, and reads the weights as if they were plain.
    if str(method).replace("_", "-") not in {known.replace("_", "-") for known in AUTO_QUANTIZATION_CONFIG_MAPPING}:
        raise UnsupportedModelError(
            f"judge {entry.name!r}: the installed transformers does not know the quantization {method!r}, which "
            "config.json says its weights have (quantization_config)",
            hint="A newer transformers may know it: pip install --upgrade transformers. Or take a judge whose weights "
            "are not quantized.",
        )


def stored_quantization(config: dict[str, Any]) -> dict[str, Any] | None:
    """Find what a configuration says about weights that are quantized; None if they are not."""
    text = config.get("text_config")
    stored = config.get("quantization_config") or (text.get("quantization_config") if isinstance(text, dict) else None)
    return stored if stored is None or isinstance(stored, dict) else {}


def check_weight_files(entry: JudgeEntry, directory: Path, *, hint: str) -> None:
    """Check that all weight files exist as safetensors."""
    files = weight_files(directory)
    missing = [file.name for file in files if not file.exists()]  # a dangling link of the hub cache does not exist
    if missing:
        raise WeightsError(
            f"judge {entry.name!r}: {len(missing)} of {len(files)} weight files are missing in {directory}: "
            f"{listed(missing, _SHOWN)}",
            hint=hint,
        )
    if files:
        return
    pickles = sorted(file.name for pattern in _PICKLES for file in directory.glob(pattern))
    if pickles:
        raise WeightsError(
            f"judge {entry.name!r}: {directory} holds its weights only as pickle ({pickles[0]}), which can run any "
            "code when it is read; only safetensors are loaded",
            hint='Where you trust the file, convert it once: python -c "from transformers import AutoModelForCausalLM; '
            "AutoModelForCausalLM.from_pretrained('DIR', dtype='auto').save_pretrained('NEW_DIR')\", then copy the "
            "tokenizer files beside it.",
        )
    other = sorted(file.name for pattern in _OTHER_FORMATS for file in directory.glob(pattern))
    found = f" (found {other[0]}, a format that is not read)" if other else ""
    raise WeightsError(
        f"judge {entry.name!r}: there are no weights (model.safetensors) in {directory}{found}", hint=hint
    )


def check_sizes(entry: JudgeEntry, directory: Path) -> None:
    """Reject sizes in config.json that the stored tensors contradict, before a model of such sizes is built.

    Other contradictions (fewer layers, another width below the largest) show when the weights are loaded.
    """
    files = [file for file in weight_files(directory) if file.exists()]
    tensors = stored_in(files)
    if not tensors:
        return
    # A few layers more than there are show as missing weights.
    most = max(MOST_COUNTED, *(size for tensor in tensors.values() for size in tensor.shape))
    for key, value in numbers_in(_config(directory)):
        if value > most and _COUNTS.search(key) and not _NOT_STORED.search(key):
            raise WeightsError(
                f"judge {entry.name!r}: {directory / 'config.json'} does not fit the weights: it says {key}: {value}, "
                f"but no dimension of a stored tensor is larger than {most}",
                hint="Check that config.json and weights belong together; copy the model's config.json again.",
            )


def numbers_in(record: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the whole numbers of a configuration, at any depth, with their keys."""
    for key, value in record.items():
        if isinstance(value, dict):
            yield from numbers_in(value)
        elif isinstance(value, int):
            yield key, value


def check_vocabulary(
    entry: JudgeEntry, place: Path, tokenizer: PreTrainedTokenizerBase, rows: int | None, frame: ChatFrame | None = None
) -> None:
    """Reject a vocabulary whose ids are not those of the embedding."""
    vocabulary = tokenizer.get_vocab()
    most = _MOST_TOKENS if rows is None else rows
    added = max(tokenizer("x").input_ids, default=0)  # a post-processor may add ids that no piece has
    if len(set(vocabulary.values())) == len(vocabulary) and max(vocabulary.values(), default=0) < most > added:
        return
    owner: dict[int, str] = {}
    for piece, number in vocabulary.items():
        if owner.setdefault(number, piece) != piece:
            raise TokenizerError(
                f"judge {entry.name!r}: the tokenizer in {place} has two pieces with the id {number}: "
                f"{owner[number]!r} and {piece!r}",
                hint="Copy its tokenizer.json, tokenizer_config.json and added_tokens.json again.",
            )
    unused = _never_encoded(tokenizer, frame)
    beyond = {number: piece for number, piece in owner.items() if number >= most and piece not in unused}
    if added >= most:
        beyond.setdefault(added, "a token that it adds to each text")
    if beyond:
        number, piece = next(iter(beyond.items()))
        raise TokenizerError(
            f"judge {entry.name!r}: the tokenizer in {_source(place, piece)} has {len(beyond)} pieces that the model "
            f"has no embedding for ({piece!r} has the id {number}; there are "
            f"{'no models of so many tokens' if rows is None else f'{rows} rows'})",
            hint="Tokenizer and weights belong to different models, or a token was added after training: copy "
            "tokenizer.json, tokenizer_config.json, special_tokens_map.json and added_tokens.json again.",
        )


def _never_encoded(tokenizer: PreTrainedTokenizerBase, frame: ChatFrame | None) -> set[str]:
    """Return the control tokens that neither a text nor a prompt ever has, such as one for padding.

    Tokens of white space, the unknown token and the tokens for the beginning and the end of a text are not among them:
    texts contain them, and a judge that writes steps ends with the last.
    """
    backend: Any = tokenizer.backend_tokenizer
    needed = {tokenizer.bos_token, tokenizer.eos_token, getattr(backend.model, "unk_token", None)}
    written = "" if frame is None else f"{frame.before}{frame.after}"
    control = (str(one) for one in tokenizer.added_tokens_decoder.values() if one.special)
    return {piece for piece in control if piece.strip() and piece not in needed and piece not in written}


def _source(place: Path, piece: str) -> Path:
    """Return the file of a tokenizer that names a piece; its directory if none is known."""
    spellings = {json.dumps(piece, ensure_ascii=is_ascii) for is_ascii in (True, False)}
    for name in _TOKENIZER_FILES:
        with suppress(OSError, ValueError):
            text = (place / name).read_text(encoding="utf-8")
            if any(one in text for one in spellings):
                return place / name
    return place


def _why_not_causal(config: dict[str, Any]) -> str | None:
    kind = str(config["model_type"])
    if config.get("is_encoder_decoder", CONFIG_MAPPING[kind].is_encoder_decoder):
        return f"{kind!r} is an encoder-decoder model; its prompt and its answer are not one text"
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not reads_text(config):
        return f"{kind!r} has no causal language model head in transformers"
    # Encoders such as BERT have a causal class too, which attends to both sides unless configured as a decoder.
    if kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not (config.get("is_decoder") or config.get("causal")):
        return f"{kind!r} is an encoder; it has no next-token distribution"
    # Hashes of all tokens decide which ones share a chunk, and only in texts that are too long for a probe.
    if "lsh" in (config.get("attn_layers", ["lsh"]) if kind == "reformer" else ()):
        return "'reformer' attends to tokens by hashes of all that the text holds, also of later ones"
    declared = config.get("architectures") or []
    usable = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values(), *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values()}
    if declared and not usable.intersection(declared):
        return f"its weights belong to {declared[0]}, which has another head than a language model's"
    return None


def _config(directory: Path) -> dict[str, Any]:
    file = directory / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise JudgeError(f"cannot read {file}: {error}") from error
    if not isinstance(config, dict):
        raise JudgeError(f"{file} is not a model configuration")
    architectures = config.get("architectures")
    problems = {
        "model_type is the name of an architecture": isinstance(config.get("model_type"), str),
        "auto_map maps classes to their code": isinstance(config.get("auto_map", {}), dict),
        "architectures is a list of class names": architectures is None
        or (isinstance(architectures, list) and all(isinstance(name, str) for name in architectures)),
    }
    wrong = [rule for rule, holds in problems.items() if not holds]
    if wrong:
        raise JudgeError(
            f"{file} is not a model configuration: {'; '.join(wrong)}",
            hint="Copy the model's config.json again.",
        )
    return config


def check_gaps(entry: JudgeEntry, directory: Path, report: dict[str, Any]) -> None:
    """Reject missing parameters, which transformers only warns about and fills with random numbers."""
    missing = sorted(str(key) for key in report["missing_keys"])
    mismatched = sorted(str(item[0]) for item in report["mismatched_keys"])
    if missing or mismatched:
        raise WeightsError(
            f"judge {entry.name!r}: the weights in {directory} do not fit its config.json: {len(missing)} parameters "
            f"are missing and {len(mismatched)} have another shape ({listed(missing + mismatched, _SHOWN)})",
            hint="They would be initialised at random. Check that config.json and weights belong together and that "
            "this is a causal language model with its head.",
        )


def check_surplus(entry: JudgeEntry, directory: Path, model: Any, report: dict[str, Any]) -> None:
    """Reject surplus weights: without them the model would differ from the one that was trained.

    The report omits weights that transformers knows to be unused in an architecture.
    """
    config = model.config.get_text_config()
    # In some checkpoints, heads for several tokens continue the numbering of the layers.
    later = getattr(config, "num_nextn_predict_layers", None)
    extra = range(config.num_hidden_layers, config.num_hidden_layers + (later if isinstance(later, int) else 0))
    surplus = []
    for key in sorted(str(key) for key in report["unexpected_keys"]):
        layer = _LAYER.search(key)
        is_known = _BESIDE_THE_TEXT.search(key) or (layer and int(layer[2]) in extra)
        if not is_known and not (_STORED_MASK.search(key) and _is_mask(directory, key)):
            surplus.append(key)
    if surplus:
        raise WeightsError(
            f"judge {entry.name!r}: {directory} holds {len(surplus)} weights that its configuration has no place for "
            f"({listed(surplus, _SHOWN)})",
            hint="Without them it is not the model that was trained. Check that configuration and weights belong "
            f"together: it has {config.num_hidden_layers} layers.",
        )


def check_finite(entry: JudgeEntry, model: Any) -> None:
    """Reject a model with weights or logits that are not finite.

    All weights in memory are checked, also those that the probe does not reach (the embedding of a rare token, an
    expert); weights that a device map left on disk are not.
    """
    broken = [name for name, weight in model.named_parameters() if not are_finite(weight)]
    if broken:
        raise WeightsError(
            f"judge {entry.name!r}: {len(broken)} of its weights are not finite numbers ({listed(broken, _SHOWN)})",
            hint="Get the weights again: these are damaged, or come from a training that failed. A dtype with too "
            "little range does this too: try `dtype=bfloat16`.",
        )
    if not torch.isfinite(probe_logits(entry, model)).all():
        raise JudgeError(
            f"judge {entry.name!r}: its logits are not finite in {str(model.dtype).removeprefix('torch.')}, although "
            "its weights are",
            hint="Load it with more range: `dtype=bfloat16` or `dtype=float32`.",
        )


def probe_logits(entry: JudgeEntry, model: Any) -> torch.Tensor:
    """Read a few tokens; the logits of each."""
    vocabulary = int(model.config.get_text_config().vocab_size)
    ids = torch.arange(_PROBE_TOKENS, device=model.device).unsqueeze(0) * 7 % max(1, vocabulary // 2)
    try:
        with torch.inference_mode():
            logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits
    except (AttributeError, TypeError, ValueError) as error:  # it asks for an image, a language, ...
        raise UnsupportedModelError(
            f"judge {entry.name!r}: {type(model).__name__} does not read a text alone: {first_line(error)}",
            hint="A judge is a causal (decoder-only) language model: Llama, Qwen, Mistral, Gemma, Phi, GPT-2, ...",
        ) from error
    return logits


def _is_mask(directory: Path, key: str) -> bool:
    """Whether a stored tensor has the shape of a causal mask, ``(1, 1, length, length)``."""
    tensor = stored_in(weight_files(directory)).get(key)
    shape = () if tensor is None else tensor.shape
    return len(shape) == 4 and shape[:2] == (1, 1) and shape[2] == shape[3]


def check_placement(entry: JudgeEntry, model: Any) -> None:
    """Reject a placement that leaves all weights on disk: accelerate then fails on tensors without data."""
    places = set((getattr(model, "hf_device_map", None) or {}).values())
    if places == {"disk"}:
        size = model.get_memory_footprint() / 1e6
        tied = ", which it shares with its head," if model.config.get_text_config().tie_word_embeddings else ""
        raise JudgeError(
            f"judge {entry.name!r} ({size:,.0f} MB of weights): the device map found no memory for any part of it, not "
            f"even for its embedding{tied} and a model cannot run from the disk alone",
            hint="Make memory free, halve the weights with `dtype=bfloat16`, take a smaller judge, or have all of it "
            "loaded into main memory, whatever is free there, with `device=cpu` instead of `device_map`.",
        )
