"""Options of judges and of runs: the only place where an option has its name, type, default, choices and help.

The command line, the file of an evaluation, manifests, workers of a cluster, other tools and Python all take these
classes. A field without its own `Flag` is called on the command line as here, with hyphens: ``--batch-tokens``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from typing_extensions import Self

from geval_local.backends import BACKENDS, BackendKind, backend_of
from geval_local.direction import Better
from geval_local.errors import ConfigurationError, GevalError
from geval_local.fields import nearest, read_mapping
from geval_local.scale import Scale
from geval_local.score import Estimator
from geval_local.wording import PARAMETER
from geval_local.yaml_model import KEEP_PROBLEMS, problems_in_words

Style = Literal["completion", "chat", "chat-no-prefill"]
EngineName = Literal["auto", "trie", "cache", "padded", "vllm"]
Dtype = Literal["auto", "float64", "float32", "bfloat16", "float16"]
Format = Literal["jsonl", "csv", "parquet"]
CsvStyle = Literal["safe", "excel", "excel-semicolons"]
Quoting = Literal["standard", "none"]

#: Headings under which the help of a verb shows options; those under any other are in ``--help-all``.
INPUT, JUDGE, OUT, ON = SHOWN = ("Input", "Judge", "What comes out", "Going on")
READING = "How the input is read"
MORE = "How results are written"
ASKED = "What the judge is asked"
GATES = "Gates"
FIGURES = "Which figures"
LOADING = "Loading"
VLLM = "With --engine vllm"
SERVED = "With the address of a server as the judge"
SPREADING = "Several workers"
THINKING = "Thinking"
Positive = Annotated[int, Field(ge=1, le=2**63 - 1)]


@dataclass(frozen=True)
class Flag:
    """How an option is written on the command line, where that does not follow from its field."""

    #: Its names; the field's own with hyphens when empty.
    names: tuple[str, ...] = ()
    #: Placeholder of its value in the help.
    metavar: str | None = None
    #: Heading that it stands under in the help.
    panel: str | None = None
    #: Whether it takes all values up to the next option or file.
    is_open: bool = False
    #: Whether the flag sets the field to False: ``--no-cache`` for `use_cache`.
    is_negative: bool = False


#: Former names of verbs, and of options with what takes their place.
FORMER_VERBS = {"preferences": "rank"}
FORMER = {
    "new": "Write `target`.",
    "from_responses": "Write `responses`.",
    "cache": "Write `use_cache`.",
    "accept_version": "Install the versions that the run began with; or score anew, with what the cache has.",
    "distributed": "Write `workers=ray`.",
    "gather_by": "Sort the rows by that column: a share keeps rows of a document that follow each other together.",
}


class Options(BaseModel):
    """A group of options; unknown names and values that do not fit are refused in words."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="wrap")
    @classmethod
    def _refuse_in_words(cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        try:
            return handler(cls._of_now(data))._checked()
        except ValidationError as error:
            # A file with several parts collects the problems of all of them, with their lines.
            if info.context == KEEP_PROBLEMS:
                raise
            problems, hint = problems_in_words(error, cls)
            raise ConfigurationError("; ".join(problems), hint=hint) from None

    @classmethod
    def _of_now(cls, data: Any) -> Any:
        """Refuse options of earlier versions, with what takes their place."""
        for name, now in FORMER.items():
            if isinstance(data, Mapping) and name in data:
                raise ConfigurationError(f"`{name}` is an option no more", hint=now)
        return data

    @classmethod
    def flag(cls, name: str) -> Flag:
        """Return how an option is written on the command line, with its names."""
        flag = next((one for one in cls.model_fields[name].metadata if isinstance(one, Flag)), Flag())
        return replace(flag, names=flag.names or (f"--{name.replace('_', '-')}",))

    def _checked(self) -> Self:
        """Check what concerns several options together."""
        return self

    def __hash__(self) -> int:
        """Hash the values, mappings too: who loads judges keeps them by their options."""
        return hash(self.model_dump_json())


@cache
def _declared() -> dict[str, tuple[str, bool]]:
    """Parameter of any group -> its option, and whether that takes no value."""
    named = ((group, *pair) for group in Options.__subclasses__() for pair in group.model_fields.items())
    return {name: (group.flag(name).names[0], field.annotation is bool) for group, name, field in named}


def in_options(text: str, verb: Mapping[str, tuple[str, bool]] = {}, *, others: bool = True) -> str:
    """Write parameters, which the library puts in backticks, as options: `human=FIELD` becomes ``--human FIELD``.

    Those of a `verb` go before `others`, which are all that are declared here. `steps=False` becomes ``--no-steps``.
    """

    def written(found: re.Match[str]) -> str:
        name, value = found.groups()
        name = f"no_{name}" if value == "False" and f"no_{name}" in verb else name
        option, is_flag = verb.get(name) or (_declared() if others and value else {}).get(name) or (found[0], True)
        told = f"'{value}'" if value is not None and value.startswith("{") else value  # a structure has no quotes yet
        return option if is_flag or value is None else f"{option} {told}"

    return PARAMETER.sub(written, text)


def _engine_arguments(value: object) -> object:
    """Read a mapping whose values may be written as texts, ``max_num_seqs=64``."""
    if not isinstance(value, list | tuple):
        return value
    return {key: _plain(text) for key, text in read_mapping(value).items()}


def _plain(text: str) -> Any:
    """Read a number, a truth value or a JSON object from a text; any other text stays one."""
    try:
        return json.loads(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text, text)


class JudgeOptions(Options):
    """Which judge, and how it is loaded; None means the default of the judge's entry or of the machine."""

    name: Annotated[
        str | None,
        Flag(("--judge", "-j"), metavar="NAME", panel=JUDGE),
        Field(
            min_length=1,
            description="A name of `judges list`, a model directory, a GGUF file, a hub id in the local cache, or the "
            "address of a vLLM server or a llama-server, http://127.0.0.1:8000; options of its own may follow: "
            "NAME,style=chat,dtype=float16. Absent: the default judge.",
        ),
        BeforeValidator(lambda value: os.fspath(value) if isinstance(value, os.PathLike) else value),
    ] = None
    models_file: Annotated[
        Path | None,
        Flag(("--models",), metavar="FILE", panel=LOADING),
        Field(description="Your own models file, merged over the packaged one."),
    ] = None
    adapter: Annotated[
        Path | None,
        Flag(metavar="DIR", panel=LOADING),
        Field(description="A LoRA adapter for the judge, merged into its weights (needs peft)."),
    ] = None
    style: Annotated[Style | None, Flag(panel=LOADING), Field(description="Prompt style. Absent: the judge's own.")] = (
        None
    )
    device: Annotated[
        str | None, Flag(panel=JUDGE), Field(description="cpu, cuda, cuda:1, ... Absent: a GPU if there is one.")
    ] = None
    device_map: Annotated[
        str | None,
        Flag(metavar="MAP", panel=LOADING),
        Field(description="Split over devices by accelerate: auto, balanced, ..."),
    ] = None
    dtype: Annotated[
        Dtype | None,
        Flag(metavar="DTYPE", panel=JUDGE),
        Field(description="Dtype of the computation: float32, bfloat16, float16, float64, or auto."),
    ] = None
    attention: Annotated[
        str | None,
        Flag(metavar="NAME", panel=LOADING),
        Field(min_length=1, description="eager, sdpa, flash_attention_2, ..."),
    ] = None
    quantization: Annotated[
        Literal["8bit", "4bit", "dequantize"] | None,
        Flag(panel=LOADING),
        Field(
            description="Quantize while loading, by bitsandbytes; dequantize: widen the weights of an FP8 or MXFP4 "
            "judge to the dtype."
        ),
    ] = None
    batch_tokens: Annotated[
        Positive | None,
        Flag(metavar="N", panel=LOADING),
        Field(description="Most tokens per forward pass. Absent: by device."),
    ] = None
    engine: Annotated[
        EngineName,
        Flag(panel=LOADING),
        Field(
            description="trie: compute every distinct prompt token once; cache: share prefixes by the model's own "
            "cache; padded: plain batches; auto: the first of these that a probe finds exact; vllm: vLLM "
            "in this process."
        ),
    ] = "auto"
    tensor_parallel: Annotated[
        Positive | None, Flag(metavar="N", panel=VLLM), Field(description="GPUs that share the judge. Absent: 1.")
    ] = None
    gpu_memory_share: Annotated[
        float | None,
        Flag(metavar="SHARE", panel=VLLM),
        Field(gt=0, le=1, description="Share of a GPU's memory that vLLM takes. Absent: vLLM's own."),
    ] = None
    vllm: Annotated[
        dict[str, Any],
        BeforeValidator(_engine_arguments, json_schema_input_type=dict[str, Any] | list[str]),
        Flag(metavar="KEY=VALUE", panel=VLLM),
        Field(description="Another engine argument of vLLM's, such as kv_cache_dtype=fp8; may be repeated."),
    ] = Field(default_factory=dict)
    served_model: Annotated[
        str | None,
        Flag(metavar="NAME", panel=SERVED),
        Field(min_length=1, description="Which of the server's models. Absent: the only one."),
    ] = None
    tokenizer: Annotated[
        Path | None,
        Flag(metavar="DIR", panel=SERVED),
        Field(description="The model's directory with its tokenizer. Absent: what the server names, if it is here."),
    ] = None
    requests_at_once: Annotated[
        Positive | None,
        Flag(metavar="N", panel=SERVED),
        Field(description="Requests that wait for the server at the same time. Absent: 8."),
    ] = None
    allow_remote: Annotated[
        bool,
        Flag(panel=SERVED),
        Field(description="Send texts to an address that is neither this machine's nor private."),
    ] = False
    think: Annotated[
        Positive | None,
        BeforeValidator(lambda value: None if value in (0, "0") else value),
        Flag(metavar="K", panel=JUDGE),
        Field(
            description="Draw K thoughts a row and average the label probabilities after each. 0 or absent: the judge "
            "does not think."
        ),
    ] = None
    think_tokens: Annotated[
        Positive | None,
        Flag(metavar="N", panel=THINKING),
        Field(description="Most tokens of a thought; a longer one is closed there and counted. Absent: 512."),
    ] = None
    think_temperature: Annotated[
        float | None,
        Flag(metavar="T", panel=THINKING),
        Field(gt=0, le=100, description="Temperature of the draws. Absent: the model's own, or 1."),
    ] = None
    think_top_p: Annotated[
        float | None,
        Flag(metavar="P", panel=THINKING),
        Field(gt=0, le=1, description="Draw from the likeliest tokens with this total. Absent: the model's own, or 1."),
    ] = None
    think_seed: Annotated[
        int | None,
        Flag(metavar="SEED", panel=THINKING),
        Field(ge=0, le=2**63 - 1, description="Seed of the thoughts. Absent: 0."),
    ] = None
    trust_remote_code: Annotated[
        bool, Flag(panel=LOADING), Field(description="Let Python files of the model's directory run.")
    ] = False

    def _checked(self) -> Self:
        if self.device is not None and self.device_map is not None:
            raise ConfigurationError("`device` and `device_map` exclude each other: the map places the weights")
        drawn = [
            name for name in type(self).model_fields if name.startswith("think_") and getattr(self, name) is not None
        ]
        if drawn and self.think is None:
            raise ConfigurationError(f"`{drawn[0]}` is for a judge that thinks", hint="Add `think=4`.")
        if self.name is not None:  # a command line checks what judges share before it knows their names
            self.check_backend()
        return self

    def check_backend(self) -> None:
        """Refuse options of a backend that does not serve this judge.

        Raises
        ------
        ConfigurationError
            If an option is for another backend than the judge's.
        """
        for kind in BACKENDS.values():
            given = [name for name in kind.own if getattr(self, name)]
            if given and kind is not self.backend:
                raise ConfigurationError(f"`{given[0]}` is for {kind.own_for}", hint=kind.chosen_by)
        if not self.backend.has_files:
            _check_address(str(self.name))

    @property
    def backend(self) -> BackendKind:
        """What there is to know of the judge's backend before it is open."""
        return backend_of(self.name, self.engine)

    def thinking(self) -> dict[str, Any]:
        """Return the options of thinking that are given."""
        return {name: value for name, value in self.record().items() if name.startswith("think")}

    def record(self) -> dict[str, Any]:
        """Return the options that are not defaults as plain values, paths made absolute; for manifests."""
        return {
            key: str(value.resolve()) if isinstance(value, Path) else value
            for key, value in self.model_dump().items()
            if value is not None and value is not False and value != {}
        }


def _check_address(text: str) -> None:
    """Refuse what is no address of a server, and one with secrets: results and manifests hold addresses."""
    try:
        parts = urlsplit(text)
        # Reading the port checks it.
        is_address = bool(parts.hostname) and parts.port != 0 and text.isprintable() and " " not in text
    except ValueError:
        is_address = False
    if not is_address:
        raise ConfigurationError(f"{text!r} is no address", hint="Such as http://127.0.0.1:8000/v1.")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigurationError(
            f"the address {text!r} has a user, a password or options, which a server's address cannot have here",
            hint="Set the environment variable VLLM_API_KEY to the server's key, and leave them out.",
        )


def _estimator(value: object) -> object:
    """Read an estimator from its short form, ``mode``; of a manifest, from its parts."""
    try:
        if isinstance(value, Mapping):
            return Estimator(**value)
        return Estimator.parse(value) if isinstance(value, str) else value
    except (TypeError, GevalError) as error:
        raise ValueError(error.text if isinstance(error, GevalError) else str(error)) from error


#: Offered for a misspelt encoding.
_ENCODINGS = ("utf-8", "utf-16", "cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "latin-1", "mac-roman", "shift-jis")


def _encoding(name: str | None) -> str | None:
    try:
        "".encode(name or "utf-8")
    except LookupError:
        raise ValueError(f"there is no encoding {name!r}{nearest(str(name), _ENCODINGS)}") from None
    return name


def _mapping(value: object) -> object:
    """Read a mapping from pairs, ``output=answer``; None is an empty one."""
    try:
        return read_mapping(value or ()) if value is None or isinstance(value, list | tuple) else value
    except GevalError as error:
        raise ValueError(error.text) from error


def jsonl() -> list[Format]:
    """List the format that is written where none is named."""
    return ["jsonl"]


def _names(value: object) -> object:
    """Read names from texts with commas."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple):
        return value
    names = [name.strip() for one in value for name in str(one).split(",")]
    if not names or not all(names):
        raise ValueError("has an empty name")
    return list(dict.fromkeys(names))


def _listed(value: object) -> object:
    """Read one name as a list of one, and each name once."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return list(dict.fromkeys(value))
    return value


_MOST_SHARDS = 9999


def _shard(text: str | None) -> str | None:
    if text is None:
        return None
    number, slash, count = (part.strip() for part in text.partition("/"))
    if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count) <= _MOST_SHARDS):
        raise ValueError(
            f"{text!r} is no share: write I/N with I from 1 to N, such as 3/8; add 1 where a scheduler counts from 0: "
            "$((JOB_COMPLETION_INDEX + 1))/8"
        )
    return f"{int(number)}/{int(count)}"


RAY = "ray"
_AUTO = "auto"
#: More processes than this are no machine's, nor a cluster's.
MOST_WORKERS = 100_000


def _workers(value: object) -> object:
    """Read a number of workers, ``auto``, ``ray``, or ``ray:N``; a number becomes its text."""
    if value is None or isinstance(value, bool) or not isinstance(value, int | str):
        return value
    text = str(value).strip()
    kind, colon, count = text.partition(":")
    number = count if colon else kind
    if text in (_AUTO, RAY) or ((not colon or kind == RAY) and number.isdecimal() and 1 <= int(number) <= MOST_WORKERS):
        return text
    raise ValueError(f"{text!r} is no number of workers: write 1 to {MOST_WORKERS:,}, auto, ray or ray:N")


class RunOptions(Options):
    """How a file is scored, and what is written."""

    limit: Annotated[
        Positive | None, Flag(metavar="N", panel=INPUT), Field(description="Read the first N rows only.")
    ] = None
    fields: Annotated[
        dict[str, str],
        BeforeValidator(_mapping, json_schema_input_type=dict[str, str] | list[str]),
        Flag(("--field",), metavar="FIELD=COLUMN", panel=INPUT),
        Field(
            description="Read a metric's field from this column, or from a dotted path into one, such as "
            "output=turns.0.content; may be repeated. Absent: columns are found by their names."
        ),
    ] = Field(default_factory=dict)
    encoding: Annotated[
        str | None,
        AfterValidator(_encoding),
        Flag(metavar="NAME", panel=READING),
        Field(
            description="Encoding of the file: utf-8, cp1252, latin-1, cp1251, ... Absent: UTF-8 or UTF-16; for "
            "tables also Windows-1252, with a notice."
        ),
    ] = None
    quoting: Annotated[
        Quoting | None,
        Flag(panel=READING),
        Field(
            description="Whether quotes in a table enclose cells: standard, or none if they are ordinary characters. "
            "Absent: by the lines of the table."
        ),
    ] = None
    rows: Annotated[
        str | None,
        Flag(metavar="PATH", panel=READING),
        Field(
            min_length=1,
            description="Where the rows are, if a JSON file holds more than a list: a dotted path such as "
            "results.results; of a spreadsheet with several sheets, the sheet. Absent: the whole file.",
        ),
    ] = None
    id: Annotated[
        str | None,
        Flag(metavar="COLUMN", panel=READING),
        Field(
            min_length=1,
            description="The column that is the rows' id, or a dotted path into one; a column `id` that is none "
            "becomes `original_id`. Absent: the column `id`, if there is one.",
        ),
    ] = None
    system_columns: Annotated[
        list[str] | None,
        BeforeValidator(_names, json_schema_input_type=list[str] | str | None),
        Flag(metavar="A B ...", is_open=True, panel=READING),
        Field(
            description="Columns that hold the answers of one system each: every row is scored once for each, with the "
            "column's name as `system` and its text as `output`; a list of texts is several candidates. With results "
            "of that: compare these systems. May be repeated. Absent: a row holds one output."
        ),
    ] = None
    turns: Annotated[
        str | None,
        Flag(metavar="SPEAKER", panel=INPUT),
        Field(
            min_length=1,
            description="assistant: score every turn of the assistant in a conversation, each with its own history; "
            "any other name: the turns of this speaker. Absent: the last one.",
        ),
    ] = None
    turns_at: Annotated[
        list[str] | None,
        BeforeValidator(_names, json_schema_input_type=list[str] | str | None),
        Flag(metavar="PATH", panel=READING),
        Field(
            description="Where the messages of a conversation are: a column, or a dotted path such as chat.messages; "
            "several are joined. Absent: messages, conversations, conversation, dialogue or chat."
        ),
    ] = None
    roles: Annotated[
        dict[str, str],
        BeforeValidator(_mapping, json_schema_input_type=dict[str, str] | list[str]),
        Flag(("--role",), metavar="ROLE=NAME", panel=READING),
        Field(
            description="Other names that speakers have in the messages, such as assistant=agent; several of one role "
            "with commas; may be repeated. Absent: the names of OpenAI, ShareGPT, LangChain and Gemini."
        ),
    ] = Field(default_factory=dict)
    group_by: Annotated[
        str | None,
        Flag(metavar="FIELD", panel=INPUT),
        Field(
            description="Column that names the document; `row` says that every row is independent. Absent: rows with "
            "the same question, source or conversation, as the metric reads it."
        ),
    ] = None
    by: Annotated[
        list[Annotated[str, Field(min_length=1)]],
        BeforeValidator(_listed, json_schema_input_type=list[str] | str),
        Flag(metavar="COLUMN", panel=OUT),
        Field(
            description="Also give the figures for every value of this column, such as language or product; may be "
            "repeated. Numbers are cut into quartiles; `length` is the words of the output where no column has that "
            "name."
        ),
    ] = Field(default_factory=list)
    estimator: Annotated[
        Estimator,
        BeforeValidator(_estimator, json_schema_input_type=str | Estimator),
        Flag(metavar="NAME", panel=MORE),
        Field(description="exact: the expectation; mode: the likeliest label's value; median."),
    ] = Estimator()
    threshold: Annotated[
        float | None,
        Flag(metavar="X", panel=OUT),
        Field(allow_inf_nan=False, description="The score that passes, on the metric's scale."),
    ] = None
    calibrations: Annotated[
        list[Path],
        Flag(("--calibration",), metavar="FILE", panel=MORE),
        Field(description="Add calibrated scores, by a file of `calibrate`; may be repeated."),
    ] = Field(default_factory=list)
    formats: Annotated[
        list[Format],
        Flag(("--format",), metavar="NAME", panel=MORE),
        Field(description="What a run directory exports: jsonl, csv, parquet; may be repeated. Absent: jsonl."),
    ] = Field(default_factory=list)
    columns: Annotated[
        list[str] | None,
        BeforeValidator(_names, json_schema_input_type=list[str] | str | None),
        Flag(metavar="NAMES", panel=MORE),
        Field(
            description="Columns of CSV results, separated by commas: input columns, row, figures such as score or "
            "probabilities, METRIC.FIGURE, input for all input columns, all for everything. Absent: "
            "input,score,label_mass,error,error_code."
        ),
    ] = None
    csv_style: Annotated[
        CsvStyle | None,
        Flag(panel=MORE),
        Field(
            description="safe: put an apostrophe before CSV cells that a spreadsheet would execute (=, +, -, @, tab); "
            "excel: also begin with a byte order mark, so that Excel reads the file as UTF-8; excel-semicolons: also "
            "with semicolons, for systems whose decimal sign is a comma. Absent: plain CSV."
        ),
    ] = None
    window: Annotated[
        Annotated[int, Field(ge=1, le=2**31)] | None,
        Flag(metavar="N", panel=MORE),
        Field(description="Rows planned together to share their texts. Absent: as many as make 4096 prompts."),
    ] = None
    keep_thoughts: Annotated[
        bool, Flag(panel=THINKING), Field(description="Write the thoughts of every row into the results.")
    ] = False
    use_cache: Annotated[
        bool,
        Flag(("--no-cache",), is_negative=True, panel=MORE),
        Field(description="Do not reuse figures of earlier runs."),
    ] = True
    retry_errors: Annotated[
        bool, Flag(panel=ON), Field(description="Score the rows again that have no score so far.")
    ] = False
    overwrite: Annotated[
        bool,
        Flag(panel=ON),
        Field(
            description="Overwrite OUT even if you created or edited it, or it holds a different run. Only files that "
            "the run's manifest names are removed. Unmodified output of this tool is always replaced."
        ),
    ] = False
    shard: Annotated[
        str | None,
        AfterValidator(_shard),
        Flag(metavar="I/N", panel=SPREADING),
        Field(
            description="Score the I-th of N shares of the rows, I from 1, into OUT/shard-I-of-N; `merge OUT` joins "
            "them. Shares begin at documents, and with --window at windows."
        ),
    ] = None
    workers: Annotated[
        str | None,
        BeforeValidator(_workers, json_schema_input_type=int | str | None),
        Flag(metavar="N", panel=ON),
        Field(
            description="Spread the rows over N processes of this machine, one per GPU, each with the judge; auto: one "
            "per GPU, or per 8 processors where there are none; ray, or ray:N: over the workers of a Ray cluster."
        ),
    ] = None
    cluster: Annotated[
        str | None,
        Flag(("--address",), metavar="ADDRESS", panel=SPREADING),
        Field(description="The Ray cluster, HOST:PORT. Absent: the one that RAY_ADDRESS names, or this machine is in."),
    ] = None

    def _checked(self) -> Self:
        if self.cluster is not None and not self.on_ray:
            raise ConfigurationError("`cluster` is for the workers of Ray", hint="Add `workers=ray`.")
        if self.workers is not None and self.shard is not None:
            raise ConfigurationError(
                "`workers` and `shard` exclude each other: workers score all shares", hint="Leave one of them out."
            )
        return self

    @property
    def on_ray(self) -> bool:
        """Whether the workers are those of a Ray cluster."""
        return self.workers is not None and self.workers.startswith(RAY)

    @property
    def reading(self) -> dict[str, Any]:
        """How a file is read, for all that read its rows."""
        return {"encoding": self.encoding, "rows": self.rows, "quoting": self.quoting}


def _scale(value: Any) -> Scale | None:
    """Read the written form of a scale."""
    try:
        return None if value is None else Scale.parse(value)
    except GevalError as error:
        raise ValueError(str(error)) from error


#: Most rows that may have no partner with a score, where a run is compared with its baseline.
MAX_UNPAIRED = "10%"


def _unpaired(value: object) -> object:
    text = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if re.fullmatch(r"\d+|\d{1,2}(\.\d+)?%|100%", text) is None:
        raise ValueError(f"{value!r} is neither a count such as 5 nor a share such as 10%")
    return text


class BaselineOptions(Options):
    """How a run is compared with its baseline."""

    across: Annotated[
        list[Annotated[str, Field(min_length=1)]],
        Flag(metavar="KEY"),
        Field(
            description="Allowed differences of the signature: judge, metric, steps, estimator, style, ..., versions, "
            "or any; may be repeated."
        ),
    ] = Field(default_factory=list)
    max_unpaired: Annotated[
        str,
        BeforeValidator(_unpaired, json_schema_input_type=str | int),
        Flag(metavar="N|SHARE"),
        Field(
            description="Most rows of either run, and of each slice, that may have no partner with a score: a count, "
            "or a share. Absent: 10%."
        ),
    ] = MAX_UNPAIRED
    undecided: Annotated[
        Literal["fail", "pass"],
        Flag(metavar="fail|pass"),
        Field(
            description="A gate that cannot decide, such as one of two documents: whether it fails, or is skipped and "
            "says so. Absent: fail."
        ),
    ] = "fail"


class RatingOptions(Options):
    """Where people's ratings are, and on which scale."""

    human_scale: Annotated[
        Scale | None,
        BeforeValidator(_scale),
        Flag(metavar="SCALE", panel=READING),
        Field(
            description="The scale that people rated on, such as 0-100; of words what they mean: "
            "'{agree: 1, disagree: 0}'. Absent: the metric's."
        ),
    ] = None
    human_better: Annotated[
        Better | None,
        Flag(metavar="high|low", panel=READING),
        Field(
            description="Which ratings are good: low for ranks, of which 1 is the best. Absent: those that are good "
            "scores of the metric."
        ),
    ] = None
    skip_outside: Annotated[
        bool,
        Flag(panel=READING),
        Field(
            description='Leave out ratings outside of this scale, such as -1 for "not rated". Absent: they are refused.'
        ),
    ] = False
    rater_column: Annotated[
        str | None,
        Flag(metavar="COLUMN", panel=READING),
        Field(
            description="The column with the person who rated a row, in files with one row for each rating: rows with "
            "the same texts are merged. Absent: every row is a text of its own."
        ),
    ] = None
    ratings: Annotated[
        str | None,
        BeforeValidator(lambda given: None if given is None else os.fspath(given)),
        Flag(metavar="FILE", panel=READING),
        Field(description="A second file, which holds the ratings. Absent: the rows hold them themselves."),
    ] = None
    on: Annotated[
        str | None,
        Flag(metavar="COLUMN", panel=READING),
        Field(
            description="The key that both files share, such as id, or id=trace if it is called trace in the second. "
            "`rank` joins ratings by document and system without it."
        ),
    ] = None


def _sides(value: object) -> object:
    """Read what values mean from pairs, ``left=a,right=b``."""
    if isinstance(value, str | list | tuple):  # a value may have an equals sign: A=B=tie
        value = {name: side for name, _, side in (one.rpartition("=") for one in _names(value))}  # type: ignore[attr-defined]
    if isinstance(value, dict) and (odd := {*map(str, value.values())} - {"a", "b", "tie", "both_bad"}):
        raise ValueError(f"{min(odd)!r} is no side: write VALUE=a, VALUE=b, VALUE=tie or VALUE=both_bad")
    return value


class PreferenceOptions(Options):
    """How people say which of two outputs is better."""

    prefers: Annotated[
        dict[str, str] | None,
        BeforeValidator(_sides, json_schema_input_type=dict[str, str] | list[str] | str | None),
        Flag(metavar="VALUE=SIDE"),
        Field(
            description="What values of the human preference mean, such as left=a,right=b,none=both_bad; - and + are "
            "numbers below and above 0; also columns of which one is 1. Absent: 1 to 0, A>B, model_a, first, tie, ..."
        ),
    ] = None


# What an option means is said once, where it is declared: for the command line, and for `help` in Python.
for _group in (JudgeOptions, RunOptions, BaselineOptions, RatingOptions, PreferenceOptions):
    _meanings = "\n".join(f"{name}\n    {field.description}" for name, field in _group.model_fields.items())
    _group.__doc__ = f"{_group.__doc__}\n\nParameters\n----------\n{_meanings}\n\nRaises\n------\nConfigurationError\n"
    _group.__doc__ += "    If an option is unknown, or a value does not fit; the message suggests the nearest one."
