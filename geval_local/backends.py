"""The backends as data: how each is chosen, which module opens it, which options are its own, and what it promises.

Whoever must know something of a backend before it is open reads it here. A new one needs its module in
`geval_local.engine`, with functions ``check`` and ``read``, and an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

#: What users may rely on -> heads of the table's rows.
PROMISES: Mapping[str, str] = {
    "weights": "weights verified by hash",
    "head": "head in float32",
    "resume": "a resumed run has the same bytes",
    "proof": "engine proved exact when it loads",
    "computed": "tokens computed are shown",
    "gguf": "GGUF, 4-bit and 8-bit while loading",
    "quantized": "FP8, AWQ, GPTQ, NVFP4 checkpoints",
}


@dataclass(frozen=True)
class BackendKind:
    """A backend, apart from its code."""

    #: Module of `geval_local.engine` with ``check(options)``, which reads no weights, and ``read(checked)``.
    module: str
    #: Whether it serves a judge, by its name and the option `engine`; that of a package has the backend's key there.
    applies: Callable[[str | None, str], bool]
    #: Columns of the table of promises, by their heads: more than one where programs differ behind it. Keys of each are
    #: those of `PROMISES`.
    promises: Mapping[str, Mapping[str, str]]
    #: Package that it needs besides those of this one.
    package: str = ""
    #: Options that mean something for this backend alone, what they are for, and how it is chosen.
    own: tuple[str, ...] = ()
    own_for: str = ""
    chosen_by: str = ""
    #: Whether a judge is files on this machine, which its name, or that of an entry, names.
    has_files: bool = True
    #: Whether it computes on this machine's devices; the option that asks for a GPU, and whether it takes `device`.
    uses_devices: bool = True
    gpu_option: str = "device=cuda"
    takes_device: bool = True
    #: Whether a recorded identity stands for the weights until a first figure is needed.
    may_wait: bool = False
    #: Beginning of its judges' names in results, if they are named otherwise than the user did; and how to name one.
    prefix: str = ""
    named_by: str = ""
    #: Keys that it adds to a signature.
    keys: tuple[str, ...] = ()


#: In the order in which they are asked whether they serve a judge; the last one serves all others.
BACKENDS: Mapping[str, BackendKind] = {
    "served": BackendKind(
        module="served_backend",
        applies=lambda name, engine: name is not None and name.startswith(("http://", "https://")),
        own=("served_model", "tokenizer", "requests_at_once", "allow_remote"),
        own_for="a judge that a server computes",
        chosen_by="Name its address: `judge=http://HOST:PORT/v1`.",
        has_files=False,
        uses_devices=False,
        prefix="served:",
        named_by="is on a server, and results do not name its address",
        keys=("weights", "cache", "adapters", "canary"),
        promises={
            "a vLLM server": {
                "weights": "no; `weights:not verified`, and a canary in the signature knows them again",
                "head": "as the server was started",
                "resume": "equal to rounding",
                "proof": "no; use `judges check`",
                "computed": "no: a server does not tell them",
                "gguf": "no",
                "quantized": "yes",
            },
            "llama-server": {
                "weights": "the file that the server names, if it is on this machine; and a canary",
                "head": "as the server was started",
                "resume": "equal to rounding; a probe finds out whether figures depend on its cache",
                "proof": "lists and bias are probed; its arithmetic is its own",
                "computed": "yes",
                "gguf": "GGUF",
                "quantized": "no",
            },
        },
    ),
    "vllm": BackendKind(
        module="vllm_backend",
        applies=lambda name, engine: engine == "vllm",
        package="vllm",
        own=("tensor_parallel", "gpu_memory_share", "vllm"),
        own_for="vLLM",
        chosen_by="Add `engine=vllm`.",
        gpu_option="tensor_parallel=1",
        takes_device=False,
        keys=("head", "quantization", "tensor_parallel", "batch_invariant", "vllm"),
        promises={
            "vLLM in this process": {
                "weights": "yes",
                "head": "yes",
                "resume": "with `VLLM_BATCH_INVARIANT=1` on a GPU that supports it; else equal to rounding",
                "proof": "no; use `judges check`",
                "computed": "yes",
                "gguf": "no",
                "quantized": "yes",
            }
        },
    ),
    "transformers": BackendKind(
        module="transformers_backend",
        applies=lambda name, engine: True,
        may_wait=True,
        promises={
            "default": {
                "weights": "yes",
                "head": "yes",
                "resume": "yes",
                "proof": "yes, by a probe",
                "computed": "yes",
                "gguf": "yes",
                "quantized": "some, with extra packages",
            }
        },
    ),
}


def backend_of(name: str | None, engine: str) -> BackendKind:
    """Find the backend of a judge, by its name and the option `engine`."""
    return next(kind for kind in BACKENDS.values() if kind.applies(name, engine))


def promises_table() -> list[list[str]]:
    """Return the table of what each backend promises: its head, then one row for each promise; the default first."""
    columns = {head: made for kind in reversed([*BACKENDS.values()]) for head, made in kind.promises.items()}
    rows = [[words, *(made[name] for made in columns.values())] for name, words in PROMISES.items()]
    return [["", *columns], *rows]
