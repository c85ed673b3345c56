"""Registry of judges: models.yaml, the user's own file, plain directories and the local Hugging Face cache.

Covers names, paths and prompt styles, not weights; imports neither torch nor transformers.
"""

from __future__ import annotations

import difflib
import importlib.util
import itertools
import os
import re
import sysconfig
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from geval_local.backends import BACKENDS
from geval_local.errors import ConfigurationError, GevalError, JudgeError
from geval_local.files import expanded, home_directory, home_folder, no_such_file, safe_file_name, write_atomically
from geval_local.models.fingerprint import ADAPTER_CONFIG, check_pointers, read_json, resume_hint
from geval_local.models.gguf.file import find_gguf, gguf_files, is_gguf, read_header
from geval_local.options import Dtype, JudgeOptions, Style
from geval_local.yaml_model import parse_file, read_file, validate
from geval_local.yaml_text import line_of

_PACKAGE = Path(__file__).resolve().parents[1]
# A command looks for its judge at several steps, and parsing the packaged file takes a tenth of a second each time.
_parsed = lru_cache(maxsize=4)(parse_file)
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")

#: Size of one weight in each dtype of a judge; ``auto`` counts as half precision.
BYTES_PER_PARAMETER: Mapping[str, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "auto": 2}

#: Size of one weight in each quantized checkpoint format; mxfp4: 4 bits, and an 8-bit scale for every 32 weights.
BITS_PER_QUANTIZED_PARAMETER: Mapping[str, float] = {"mxfp4": 4.25, "fp8": 8.0}

#: Pattern of hub ids: ``organisation/model``.
HUB_ID = r"\w[\w.-]*/\w[\w.-]*"


class JudgeEntry(BaseModel):
    """One judge: the location of its weights and its prompt style."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Name of the judge.
    name: str
    #: Directory of the model, or its GGUF file; relative to the file that names it. Either this or `hub` is given.
    path: Path | None = None
    #: Python package that carries the weights, ``NAME==VERSION``; `path` is then relative to its module's folder.
    package: str | None = Field(default=None, pattern=r"^[\w.-]+==[\w.]+$")
    #: Hub id ``organisation/model``.
    hub: str | None = Field(default=None, pattern=rf"^{HUB_ID}$")
    #: Branch, tag or commit of the hub repository.
    revision: str | None = None
    #: Directory of a LoRA adapter that is merged into the weights; relative to the file that names it.
    adapter: Path | None = None
    #: The model's dtype. ``auto`` is float32 on a CPU and, on an accelerator, the half precision that a probe finds
    #: nearer to float32; an entry that names one keeps it. ``float64`` is for proofs on small models.
    dtype: Dtype = "auto"
    #: ``completion``: one text, ending in the form's cue. ``chat``: text up to the cue in the user turn, the cue as the
    #: beginning of the assistant's turn. ``chat-no-prefill``: the cue in the user turn too.
    style: Style = "chat"
    #: The same for the request to write evaluation steps. None: `style`.
    steps_style: Style | None = None
    #: Longest input, tokens. None: the model states no limit.
    context: int | None = Field(default=None, gt=0)
    #: SPDX identifier or the name of the licence.
    license: str | None = None
    #: Number of weights of the language model, tied ones counted once.
    parameters: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    #: Of a mixture of experts: number of weights that one token uses.
    active_parameters: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    #: Number of weights that are loaded with the language model but never used: a vision or audio tower.
    idle_parameters: float = Field(default=0, ge=0, allow_inf_nan=False)
    #: Quantization format of the checkpoint itself.
    quantization: Literal["mxfp4", "fp8"] | None = None
    #: Number of weights that are kept in `quantization`, the rest in `dtype`. None: all of them.
    quantized_parameters: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    #: Memory of the weights alone, GB (1e9 bytes). If absent, it is computed from the numbers of weights and the sizes
    #: of `dtype` and `quantization`; it is not measured.
    memory_gb: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    #: Whether some layers are recurrent or convolutional instead of attention.
    hybrid: bool = False
    #: Whether it is asked for evaluation steps; a metric without any is then scored without.
    writes_steps: bool = True
    #: Whether its reasons are of use, by `judges check`; runs offer them only then.
    writes_reasons: bool = True
    #: Whether it is for trying the tool only, which a run says at its end.
    for_trying: bool = False
    #: ``judging``: the model was trained to judge texts.
    made_for: Literal["judging"] | None = None
    #: Source for licence, context and parameters.
    source: str = ""
    #: Keys of this entry whose value no source confirms.
    unconfirmed: tuple[str, ...] = ()
    #: Notes for users who consider this judge.
    note: str = ""

    @property
    def label(self) -> str:
        """Name in results: the judge's name and that of its adapter, unless they are one.

        A judge that was given by its path is called by the path's last part: results go to people who have other paths.
        """
        name = self.name
        if self.path is not None and _expanded(name) in (self.path, self.path.parent):
            name = Path(os.path.abspath(Path(name).expanduser())).name or name
        if self.adapter is None:
            return name
        if self.adapter == self.path:
            return f"{name}+adapter"
        return name if self.adapter.name == name else f"{name}+{self.adapter.name}"

    @property
    def is_asked_in_chat(self) -> bool:
        """Whether it is asked for evaluation steps through a chat template."""
        return (self.steps_style or self.style) != "completion"

    @model_validator(mode="after")
    def _check(self) -> JudgeEntry:
        if (self.path is None) == (self.hub is None):
            raise ValueError("a judge needs either path or hub, and not both")
        if self.package is not None and (self.path is None or self.path.is_absolute()):
            raise ValueError("package needs a path relative to its module's folder")
        if self.revision is not None and self.hub is None:
            raise ValueError("revision belongs to a hub id; a path has none")
        if self.quantized_parameters is not None and self.quantization is None:
            raise ValueError("quantized_parameters needs quantization, the format of those weights")
        for key in ("active_parameters", "quantized_parameters"):
            if (part := getattr(self, key)) is not None and (self.parameters is None or part > self.parameters):
                raise ValueError(f"{key} is a part of parameters, and cannot be more or stand without it")
        unknown = [key for key in self.unconfirmed if key not in type(self).model_fields]
        if unknown:
            raise ValueError(f"unconfirmed names keys of the entry; {unknown[0]!r} is none")
        if self.memory_gb is None and self.parameters is not None:
            object.__setattr__(self, "memory_gb", self._weights_gb(self.parameters))  # the model is frozen
        return self

    def _weights_gb(self, parameters: float) -> float:
        quantized = 0.0 if self.quantization is None else self.quantized_parameters or parameters
        bits = BITS_PER_QUANTIZED_PARAMETER.get(self.quantization or "", 0.0)
        plain = parameters + self.idle_parameters - quantized
        return (plain * BYTES_PER_PARAMETER[self.dtype] + quantized * bits / 8) / 1e9


class _ModelsFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    default: str | None = None
    judges: dict[str, JudgeEntry]


@dataclass(frozen=True)
class Registry:
    """Judges by name, and the default judge."""

    default: str
    judges: Mapping[str, JudgeEntry]


def load_registry(models_file: str | Path | None = None) -> Registry:
    """Read the packaged models.yaml, overridden by the user's own file."""
    packaged = _PACKAGE / "models.yaml"
    if not packaged.is_file():
        packaged = _PACKAGE.parent / "models.yaml"  # source checkout; the wheel contains the file inside the package
    default, judges = read_models(packaged, base=_PACKAGE)
    user_file = models_file or os.environ.get("GEVAL_LOCAL_MODELS")
    if user_file:
        path = expanded(user_file)
        user_default, user_judges = read_models(path, base=path.resolve().parent)
        default, judges = user_default or default, {**judges, **user_judges}
    if default is None or default not in judges:
        raise JudgeError(f"{user_file or packaged}: the default judge {default!r} is not among the judges")
    return Registry(default, judges)


def read_models(path: Path, *, base: Path) -> tuple[str | None, dict[str, JudgeEntry]]:
    """Read a models file."""
    text = read_file(path, "the models file", JudgeError)
    what = "a models file is a mapping with the key judges (name -> entry)"
    data, node = _parsed(text, str(path), what, JudgeError)
    if not isinstance(data.get("judges"), dict):
        raise JudgeError(f"{path}: {what}")
    known = f"Known keys of a judge: {', '.join(field for field in JudgeEntry.model_fields if field != 'name')}."
    for name, record in data["judges"].items():
        if isinstance(record, dict) and "name" in record:
            where = f"{path}, line {line_of(node, ('judges', name))}"
            raise JudgeError(f"{where}: the entry's own key is its name", hint=known)
    named = {
        name: record | {"name": name} if isinstance(record, dict) else record for name, record in data["judges"].items()
    }
    file: _ModelsFile = validate(
        _ModelsFile,
        data | {"judges": named},
        lambda place: f"{path}, line {line_of(node, place)}",
        JudgeError,
        known,
    )
    entries: dict[str, JudgeEntry] = {}
    for name, entry in file.judges.items():
        try:
            entries[name] = entry.model_copy(update=_absolute_paths(entry, base))
        except (OSError, RuntimeError, ValueError) as error:  # unknown user, symlink loop, null character
            where = f"{path}, line {line_of(node, ('judges', name))}: {name}"
            raise JudgeError(f"{where}: its path cannot be followed: {error}") from error
    return file.default, entries


def _absolute_paths(entry: JudgeEntry, base: Path) -> dict[str, Path]:
    """Resolve the paths of an entry relative to the file that contains it."""
    bases = {"path": _module_folder(entry.package) if entry.package else base, "adapter": base}
    paths = {"path": entry.path, "adapter": entry.adapter}
    found = {key: (bases[key] / path.expanduser()).resolve() for key, path in paths.items() if path is not None}
    for path in found.values():
        path.exists()  # raises if no file can have such a name
    return found


def _module_folder(package: str) -> Path:
    """Find the folder of a package's module, without importing it; where pip would put it if it is absent."""
    module = package.partition("==")[0].replace("-", "_")
    found = importlib.util.find_spec(module)
    return Path(found.origin).parent if found and found.origin else Path(sysconfig.get_path("purelib")) / module


def find_judge(
    name: str | Path | None = None, models_file: str | Path | None = None, *, adapter: str | Path | None = None
) -> JudgeEntry:
    """Find a judge by name, directory or hub id."""
    entry = _find_entry(name, models_file)
    own = local_directory(entry)
    if entry.adapter is None and own is not None and (own / ADAPTER_CONFIG).is_file():
        entry = entry.model_copy(update={"adapter": own})
    if adapter is None:
        return entry
    directory = _expanded(adapter)
    if directory is None or not (directory / ADAPTER_CONFIG).is_file():
        raise JudgeError(
            f"{adapter} holds no {ADAPTER_CONFIG}, so there is no adapter there",
            hint="Give the directory that peft's `save_pretrained` wrote.",
        )
    if entry.adapter is not None:
        raise JudgeError(
            f"judge {entry.name!r} already has an adapter ({entry.adapter}); a second one cannot be applied",
            hint="Leave `adapter` out, or name the judge without its adapter.",
        )
    return entry.model_copy(update={"adapter": directory})


def entry_of(options: JudgeOptions) -> JudgeEntry:
    """Find the entry of a judge, in the prompt style that is asked for, for steps too; errors as by `find_judge`."""
    options.check_backend()
    if not options.backend.has_files:
        # Its model is known when the backend is open: until then its files are nowhere.
        entry = JudgeEntry(name=str(options.name), path=options.tokenizer or Path(os.devnull, "served"))
    else:
        entry = find_judge(options.name, options.models_file, adapter=options.adapter)
    style = options.style
    return entry if style is None else entry.model_copy(update={"style": style, "steps_style": style})


def writes_reasons(judge: JudgeOptions, fingerprint: str | None) -> bool:
    """Whether a judge's reasons are of use: neither its entry nor `judges check` on this machine says otherwise.

    One that is found no more is named by the user.
    """
    with suppress(OSError, ValueError, GevalError):
        if (home_directory() / "writing" / safe_file_name(str(fingerprint))).read_text(encoding="utf-8") == "no":
            return False
    with suppress(GevalError):
        return entry_of(judge).writes_reasons
    return True


def keep_writing(fingerprint: str, *, is_of_use: bool) -> None:
    """Keep whether a judge's reasons are of use, for the next runs on this machine."""
    if (folder := home_folder("writing")) is not None:
        with suppress(OSError):
            write_atomically(folder / safe_file_name(fingerprint), "yes" if is_of_use else "no", private=True)


def labels_of(judges: Sequence[JudgeOptions]) -> list[str]:
    """Name judges in results, so that each has a name of its own.

    Different judges whose directories have one name are told apart by their place, ``judge`` and ``judge-2``; one judge
    that is asked in several ways by the options in which these differ.
    """
    names = _numbered([label_of(one) for one in judges], [(one.name, one.models_file, one.adapter) for one in judges])
    labels = [
        name if names.count(name) == 1 else ",".join([name, *_differing(one, judges)])
        for name, one in zip(names, judges, strict=True)
    ]
    if len(set(labels)) < len(labels):
        raise ConfigurationError(
            f"a judge is named twice: {', '.join(labels)}",
            hint="The same judge can be asked in two ways: `judge=NAME` `judge=NAME,dtype=float64`.",
        )
    return labels


def _numbered(labels: Sequence[str], origins: Sequence[object]) -> list[str]:
    """Append ``-2``, ``-3``, ... to a label that judges of other origins have before."""
    given: dict[object, str] = {}
    for label, origin in zip(labels, origins, strict=True):
        if origin not in given:
            others = (f"{label}-{number}" for number in itertools.count(2))
            taken = {*given.values()}
            free = (one for one in others if one not in taken and one not in labels)
            given[origin] = next(free) if label in taken else label
    return [given[origin] for origin in origins]


def label_of(options: JudgeOptions) -> str:
    """Name a judge in results; a missing one is called as it was given."""
    try:
        return entry_of(options).label
    except JudgeError:
        return options.name or load_registry(options.models_file).default


def _differing(judge: JudgeOptions, others: Sequence[JudgeOptions]) -> list[str]:
    """List the options in which a judge differs from others."""
    names = [name for name in JudgeOptions.model_fields if name not in ("name", "models_file")]
    return [
        f"{name.replace('_', '-')}={getattr(judge, name)}"
        for name in names
        if any(getattr(other, name) != getattr(judge, name) for other in others) and getattr(judge, name) is not None
    ]


def _find_entry(name: str | Path | None, models_file: str | Path | None) -> JudgeEntry:
    if variable := re.fullmatch(r"\$\{(\w+)\}", str(name)):
        return _find_entry(_in_environment(variable[1]), models_file).model_copy(update={"name": variable[1]})
    if name is not None and str(name).startswith("~"):
        expanded(name)  # raises if the home directory is unknown
    directory = None if name is None else _expanded(name)
    if directory is not None and not (directory.is_dir() or is_gguf(directory)):
        check_pointers(str(name), directory)
        directory = None
    # No judge is called like this, so the files of judges, half a second of reading, do not matter.
    is_path = Path(str(name)).is_absolute() or str(name).startswith((".", "~"))
    if directory is not None and is_path and models_file is None:
        return directory_entry(directory, name=str(name))
    registry = load_registry(models_file)
    wanted = registry.default if name is None else str(name)
    if directory is not None and wanted not in registry.judges:
        return directory_entry(directory, name=wanted)
    # A hub id selects the known judge with that id, and its style.
    by_hub = (entry for entry in registry.judges.values() if entry.hub == wanted)
    entry = registry.judges.get(wanted) or next(by_hub, None)
    if entry is None and re.fullmatch(HUB_ID, wanted):
        directory = local_directory(JudgeEntry(name=wanted, hub=wanted))
        if directory is not None:
            entry = directory_entry(directory, name=wanted).model_copy(update={"path": None, "hub": wanted})
    if entry is None:
        raise _unknown(registry, wanted)
    return entry


def _in_environment(variable: str) -> str:
    """Read the name of a judge that is a secret: results, manifests and pages hold the variable's name."""
    value = os.environ.get(variable)
    if not value or any(one.applies(value, "auto") and not one.has_files for one in BACKENDS.values()):
        why = "holds the address of a server, not a directory or a name" if value else "is not set"
        raise JudgeError(
            f"the judge is ${{{variable}}}, and the environment variable {variable} {why}",
            hint=f"Set it to a judge's directory or name: export {variable}=...",
        )
    return value


def _expanded(path: str | Path) -> Path | None:
    """Expand a path; None if that fails (unknown user, symlink loop, invalid file name)."""
    try:
        return Path(path).expanduser().resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        return None


def _unknown(registry: Registry, wanted: str) -> JudgeError:
    if wanted.lower().endswith(".gguf"):
        missing = no_such_file(Path(wanted))
        return JudgeError(missing.message, hint="A judge is a name of `judges list`, a model directory or a GGUF file.")
    elsewhere = next((one for one in BACKENDS.values() if one.prefix and wanted.startswith(one.prefix)), None)
    if elsewhere is not None:
        return JudgeError(f"the judge {wanted!r} {elsewhere.named_by}", hint=elsewhere.chosen_by)
    near = difflib.get_close_matches(wanted, registry.judges, n=3, cutoff=0.5)
    return JudgeError(
        f"there is no judge {wanted!r}" + (f"; did you mean {', '.join(near)}?" if near else ""),
        hint="List the judges with `geval-local judges list`, give a model's directory or GGUF file, or name it in a "
        "file of your own (`models_file=FILE`). A hub id works once `geval-local judges fetch ID` has brought it here.",
    )


def directory_entry(directory: Path, *, name: str | None = None) -> JudgeEntry:
    """Create the entry of a plain model directory or a GGUF file from the files themselves.

    The style is ``chat`` if they contain a chat template, ``completion`` otherwise.
    """
    check_pointers(name or str(directory), directory)
    place = _model_place(directory)
    if place is not None and place.is_file():
        return _gguf_entry(place, name or str(directory))
    config = read_json(directory / "config.json")
    if config is None and (directory / ADAPTER_CONFIG).is_file():
        raise JudgeError(
            f"{directory} is an adapter alone: it holds {ADAPTER_CONFIG}, but no model with a config.json",
            hint=f"Name the model that it was trained on: `judge=MODEL` `adapter={directory}`.",
        )
    if config is None:
        raise JudgeError(
            f"{directory} holds no readable config.json, so it is not a model directory",
            hint=resume_hint(directory)
            or "Give the directory that `save_pretrained` or `geval-local judges fetch` wrote, or a GGUF file.",
        )
    text_config = {**config, **config["text_config"]} if isinstance(config.get("text_config"), dict) else config
    stored = text_config.get("dtype") or text_config.get("torch_dtype")
    context = next((text_config[key] for key in _CONTEXT_KEYS if type(text_config.get(key)) is int), None)
    return JudgeEntry.model_validate(
        {
            "name": name or str(directory),
            "path": directory,
            # Nobody publishes float64 models: float64 is for proofs, which need exactly this dtype.
            "dtype": "float64" if stored == "float64" else "auto",
            "style": "chat" if has_chat_template(directory) else "completion",
            "context": context if context is not None and context > 0 else None,
            "note": "style and context as the directory's own files say",
        }
    )


def _gguf_entry(file: Path, name: str) -> JudgeEntry:
    header = read_header(file)
    context = header.own("context_length")
    return JudgeEntry(
        name=name,
        path=file,
        style="chat" if header.metadata.get("tokenizer.chat_template") else "completion",
        context=context if isinstance(context, int) and context > 0 else None,
        note="style and context as the GGUF file says",
    )


def fetch_directory(entry: JudgeEntry) -> Path:
    """Return the default directory of ``judges fetch``, where loading looks first."""
    folder = entry.name.replace("/", "--") + (f"@{entry.revision.replace('/', '--')}" if entry.revision else "")
    return home_directory() / "judges" / folder


def local_directory(entry: JudgeEntry) -> Path | None:
    """Find a judge's files on this machine, without network access."""
    if entry.path is not None:
        return _model_place(entry.path)
    fetched = fetch_directory(entry)
    if (fetched / "config.json").is_file():
        return fetched
    return _cached_snapshot(str(entry.hub), entry.revision)


def _model_place(path: Path) -> Path | None:
    """Find the model at a path: a GGUF file, or a directory with config.json; None if there is neither."""
    if path.is_file():
        return gguf_files(path)[0] if is_gguf(path) else None
    has_config = (path / "config.json").is_file()
    if has_config and any(path.glob("*.safetensors*")):
        return path
    return find_gguf(path) or (path if has_config else None)


def _cached_snapshot(hub: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(hub, "config.json", revision=revision)
    except ValueError:  # not a valid repository name
        return None
    return Path(found).parent if isinstance(found, str) else None


def has_chat_template(directory: Path) -> bool:
    """Whether a directory contains a chat template; `additional_chat_templates` may add named ones."""
    if (directory / "chat_template.jinja").is_file():
        return True
    files = ("tokenizer_config.json", "chat_template.json")
    return any((read_json(directory / file) or {}).get("chat_template") for file in files)
