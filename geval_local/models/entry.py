"""One judge as models.yaml describes it, and the reading of such files."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from geval_local.errors import JudgeError
from geval_local.yaml_text import line_of, load_yaml

__all__ = ["BITS_PER_QUANTIZED_PARAMETER", "BYTES_PER_PARAMETER", "HUB_ID", "JudgeEntry", "read_models"]

#: Size of one weight in each dtype that a judge may be kept in.
BYTES_PER_PARAMETER: Mapping[str, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}

#: Size of one weight in each format that a checkpoint may be quantized in; mxfp4: 4 bits and a scale of 8 for every 32.
BITS_PER_QUANTIZED_PARAMETER: Mapping[str, float] = {"mxfp4": 4.25, "fp8": 8.0}

#: What a hub id looks like: ``organisation/model``.
HUB_ID = r"\w[\w.-]*/\w[\w.-]*"


class JudgeEntry(BaseModel):
    """One judge: where its weights are and how it is to be prompted.

    Attributes
    ----------
    name : str
        The name it is asked for by.
    path : Path, optional
        Directory of the model; relative to the file that names it. Either this or `hub` is given.
    hub : str, optional
        Hub id ``organisation/model``.
    revision : str, optional
        Branch, tag or commit of the hub repository.
    adapter : Path, optional
        Directory of a LoRA adapter that is merged into the weights; relative to the file that names it.
    dtype : {"float64", "float32", "bfloat16", "float16"}
        What the weights are loaded in; ``float64`` is for proofs on small models.
    style : {"completion", "chat", "chat-no-prefill"}
        ``completion``: one text that ends in the form's cue. ``chat``: all up to the cue in the user turn, the cue as
        the beginning of the assistant's turn. ``chat-no-prefill``: the cue too in the user turn.
    context : int, optional
        Longest input, tokens. None: the model names no limit.
    license : str, optional
        SPDX identifier or the name of the licence.
    parameters : float, optional
        Number of weights of the language model, tied ones counted once.
    active_parameters : float, optional
        Of a mixture of experts: number of weights that one token uses.
    idle_parameters : float
        Number of weights that are loaded beside the language model and never used: a vision or audio tower.
    quantization : {"mxfp4", "fp8"}, optional
        What the checkpoint itself is quantized in.
    quantized_parameters : float, optional
        Number of weights that are kept in `quantization`, the rest in `dtype`. None: all of them.
    memory_gb : float, optional
        Memory of the weights alone, GB (1e9 bytes). Where absent it is computed from the numbers of weights and the
        sizes of `dtype` and `quantization`; it is not measured.
    hybrid : bool
        Whether some layers are recurrent or convolutions instead of attention.
    made_for : {"judging"}, optional
        ``judging``: the model was trained to judge texts.
    source : str
        Where licence, context and parameters were looked up.
    unconfirmed : tuple of str
        Keys of this entry whose value no source confirms.
    note : str
        What a user should know before choosing it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    path: Path | None = None
    hub: str | None = Field(default=None, pattern=rf"^{HUB_ID}$")
    revision: str | None = None
    adapter: Path | None = None
    dtype: Literal["float64", "float32", "bfloat16", "float16"] = "bfloat16"
    style: Literal["completion", "chat", "chat-no-prefill"] = "chat"
    context: int | None = Field(default=None, gt=0)
    license: str | None = None
    parameters: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    active_parameters: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    idle_parameters: float = Field(default=0, ge=0, allow_inf_nan=False)
    quantization: Literal["mxfp4", "fp8"] | None = None
    quantized_parameters: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    memory_gb: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    hybrid: bool = False
    made_for: Literal["judging"] | None = None
    source: str = ""
    unconfirmed: tuple[str, ...] = ()
    note: str = ""

    @property
    def label(self) -> str:
        """What results call it: its name, and that of its adapter."""
        if self.adapter is None:
            return self.name
        return f"{self.name}+{'adapter' if self.adapter == self.path else self.adapter.name}"

    @model_validator(mode="after")
    def _check(self) -> JudgeEntry:
        if (self.path is None) == (self.hub is None):
            raise ValueError("a judge needs either path or hub, and not both")
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


def read_models(path: Path, *, base: Path) -> tuple[str | None, dict[str, JudgeEntry]]:
    """Read a models file.

    Parameters
    ----------
    path : Path
        The YAML file: ``judges`` (name -> entry) and, optionally, ``default``.
    base : Path
        The directory that relative paths in it start from.

    Returns
    -------
    default : str or None
        Name of the file's default judge.
    judges : dict of str to JudgeEntry
        The entries, paths made absolute.

    Raises
    ------
    JudgeError
        If the file cannot be read, is not valid YAML, or holds an unknown key or a value that does not fit; with lines.
    """
    try:
        data, node = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise JudgeError(f"cannot read the models file {path}: {error}") from error
    except yaml.YAMLError as error:
        raise JudgeError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(data, dict) or not isinstance(data.get("judges"), dict):
        raise JudgeError(f"{path}: a models file is a mapping with the key judges (name -> entry)")
    known = [field for field in JudgeEntry.model_fields if field != "name"]
    problems = [
        f"{path}, line {line_of(node, [key])}: unknown key {key!r}" for key in data if key not in ("default", "judges")
    ]
    default = data.get("default")
    if default is not None and not isinstance(default, str):
        problems.append(f"{path}, line {line_of(node, ['default'])}: default is the name of a judge, not {default!r}")
    entries: dict[str, JudgeEntry] = {}
    for name, record in data["judges"].items():
        where = f"{path}, line {line_of(node, ['judges', name])}: {name}"
        if not isinstance(record, dict):
            problems.append(f"{where}: an entry is a mapping of keys such as hub and style")
            continue
        if "name" in record:
            problems.append(f"{where}: unknown key 'name'; the entry's own key is its name")
            continue
        try:
            entry = JudgeEntry.model_validate(record | {"name": name})
        except ValidationError as error:
            problems += [
                f"{path}, line {line_of(node, ['judges', name, *problem['loc']])}: {name}: {_explain(problem, known)}"
                for problem in error.errors()
            ]
            continue
        try:
            entries[name] = entry.model_copy(update=_absolute_paths(entry, base))
        except (OSError, RuntimeError, ValueError) as error:  # no such user, a loop of links, a null character
            problems.append(f"{where}: its path cannot be followed: {error}")
    if problems:
        raise JudgeError("\n".join(problems), hint=f"Known keys of a judge: {', '.join(known)}.")
    return default, entries


def _absolute_paths(entry: JudgeEntry, base: Path) -> dict[str, Path]:
    """Give the paths of an entry as they are from the file that names them."""
    paths = {"path": entry.path, "adapter": entry.adapter}
    found = {key: (base / path.expanduser()).resolve() for key, path in paths.items() if path is not None}
    for path in found.values():
        path.exists()  # raises where no file can have such a name
    return found


def _explain(problem: Any, known: list[str]) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(where, known, n=1)
        return f"unknown key {where!r}" + (f", did you mean {near[0]!r}?" if near else "")
    message = str(problem["msg"]).removeprefix("Value error, ")
    return f"{where}: {message}" if where else message
