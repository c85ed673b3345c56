"""Check that a judge computes correctly on its device, with the loaded engine and without data.

Loading probes an engine with a few short prompts. These checks ask more, of the same engine that will score: attention
against its definition, packs of several sizes against one prompt at a time, asynchronous batches against synchronous
ones, and memory that runs out. ``benchmarks/engine.py`` measures speed and peaks. Nothing here prints.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers import PreTrainedModel

from geval_local.engine.backend import EngineReport, Finding, SelfCheck
from geval_local.engine.batched import PaddedEngine
from geval_local.engine.choose import expected_spans, longest_span
from geval_local.engine.interface import Engine
from geval_local.engine.prefix_sharing.attention import PackAttention
from geval_local.engine.prefix_sharing.engine import FLOOR, Launcher, PrefixSharingEngine
from geval_local.engine.prefix_sharing.flex import why_no_kernel
from geval_local.engine.prefix_sharing.key_value_store import PathStore
from geval_local.engine.prefix_sharing.packs import lay_requests_out
from geval_local.engine.prefix_sharing.prompt_trie import Layout, Stream
from geval_local.engine.probe import (
    HALF,
    SHORT_PROBE,
    TOLERANCE,
    distance,
    label_logprobs,
    synthetic_requests,
)
from geval_local.engine.shared_cache import SharedCacheEngine
from geval_local.errors import first_line
from geval_local.models.guard import guarded
from geval_local.models.head import Head, gpus_of, input_device, trunk_of
from geval_local.models.memory import free_memory
from geval_local.models.precision import dtype_name
from geval_local.models.verdicts import version_of
from geval_local.tokens.requests import Request

#: Number of queries of a stretch that are compared, spread from its first to its last.
_QUERIES = 48


class _Watched(PackAttention):
    """Attention that compares its results with the definition."""

    def __init__(self, compare: Callable[..., None], layout: Layout, store: PathStore, **options: Any) -> None:
        super().__init__(layout, store, **options)
        self._compare = compare

    def __call__(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
        layer = len(self.spans)
        out = super().__call__(query, key, value, **options)
        self._compare(self.layout, layer, self._store, query, key, value, out, **options)
        return out


def attention_errors(
    model: PreTrainedModel, engine: PrefixSharingEngine, requests: Sequence[Request]
) -> dict[int | None, float]:
    """Send the requests' trie through a model in at least two stretches, and compare its layers' attention."""
    work = lay_requests_out(range(len(requests)), requests)
    stream = work.stream
    spans = expected_spans(model.config.get_text_config())
    # Not every layer: each one costs products in float64 on the host.
    chosen = {spans.index(span) for span in spans} | {len(spans) - 1 - spans[::-1].index(span) for span in spans}
    errors: dict[int | None, float] = {}

    def compare(layout: Layout, layer: int, store: PathStore, *tensors: torch.Tensor, **options: Any) -> None:
        if layer in chosen:
            found = _error(stream, layout, layer, store, *tensors, **options)
            errors[options["span"]] = float(np.max([found, errors.get(options["span"], 0.0)]))  # a NaN stays one

    watched = partial(_Watched, compare)
    launcher = Launcher(model, Head(model), kernel=engine.kernel, attention=watched)
    store = PathStore()
    size = max(1, min(engine.batch_tokens, -(-len(stream) // 2)))
    for start in range(0, len(stream), size):
        stop = min(len(stream), start + size)
        launched = launcher.launch(work, start, stop, stream.root_path(stop), (), store)
        if launched is None:
            raise MemoryError(f"no memory for a pass of {stop - start} tokens")
        with torch.inference_mode():
            store.commit(launched.keep_from, launched.path, launched.added)
    return errors


def _error(
    stream: Stream, layout: Layout, layer: int, store: PathStore, *tensors: torch.Tensor, **options: Any
) -> float:
    """Compare some tokens of a stretch: the input and the output of `PackAttention`."""
    query, key, value, out = tensors
    span, softcap, sinks = options["span"], options["softcap"], options["sinks"]
    path = store.read(layer, layout.path) if layout.path else (key[:, :0].transpose(0, 1), value[:, :0].transpose(0, 1))
    keys, values = (
        torch.cat([held.transpose(0, 1), own], dim=1).cpu().double()
        for held, own in zip(path, (key, value), strict=True)
    )
    tokens = layout.stop - layout.start
    worst = 0.0
    for row in np.unique(np.linspace(0, tokens - 1, _QUERIES).round().astype(int)).tolist():
        token = layout.start + row
        seen = np.append(stream.root_path(token), token)[-(span or len(stream)) :]
        places = np.where(seen < layout.start, stream.positions[seen], layout.path + seen - layout.start)
        # Heads that share keys lie one after the other.
        asked = query[:, row].cpu().double().view(len(keys), -1, query.shape[-1])
        scores = asked @ keys[:, places].mT * options["scale"]
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if sinks is not None:
            scores = torch.cat([scores, sinks.cpu().double().view(len(keys), -1, 1)], dim=-1)
        weights = torch.softmax(scores, dim=-1)[..., : len(seen)]
        expected = (weights @ values[:, places]).flatten(0, 1)
        largest = float(values[:, places].abs().max())
        worst = float(np.max([worst, float((out[row].cpu().double() - expected).abs().max()) / max(largest, 1e-30)]))
    return worst


#: The checks may cost this many floating-point operations: about a minute on a CPU.
OPERATIONS = {"cpu": 4e12}
OPERATIONS_ELSEWHERE = 2e16
#: Tokens of a prompt if no window needs more: a few tiles of a kernel.
_LENGTH = 192
#: Tokens that the checks compute per token of a prompt's length: nine prompts once and three prompts on a scale of
#: digits nine times, then their trie, five times as long as a prompt, six times.
_COST = 9 + 3 * 9 + 6 * 5
#: Least numbers of packs that the synthetic prompts are cut into.
_CUTS = (3, 5, 8)
#: Largest error of a layer's attention that counts as rounding, as a share of the largest averaged value.
_ATTENTION = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 6e-3}


def check_engine(
    model: PreTrainedModel,
    engine: Engine,
    report: EngineReport,
    found: Callable[[Finding], object] = lambda finding: None,
) -> SelfCheck:
    """Check the engine that serves a model, on the model's device; call `found` with each finding immediately."""
    # Describe the device first: after a fault it may not answer.
    device = _describe_device(model, engine, report)
    with guarded:
        findings = list(_findings(model, engine, found))
    return SelfCheck(device, tuple(findings))


def _findings(model: PreTrainedModel, engine: Engine, found: Callable[[Finding], object]) -> Iterator[Finding]:
    subject = _Subject(model, engine)
    for name, check in CHECKS.items():
        try:
            for finding in check(name, subject):
                found(finding)
                yield finding
        except Exception as error:  # the check exists for all errors of a broken device or driver
            failed = Finding(name, False, f"{type(error).__name__}: {first_line(error)}")
            found(failed)
            yield failed


class _Subject:
    """A model, its engine, and synthetic prompts for them, as long as the device can afford."""

    def __init__(self, model: PreTrainedModel, engine: Engine) -> None:
        self.model, self.engine, self.dtype = model, engine, model.dtype
        #: Largest value of `apart` that passes.
        self.tolerance = TOLERANCE[self.dtype]
        config: Any = model.config.get_text_config()
        self.vocabulary = int(config.vocab_size)
        self.limit = int(getattr(config, "max_position_embeddings", None) or 1 << 20) - 4
        spans = [span for span in expected_spans(config) if span is not None]
        self.span = min(spans, default=None) if isinstance(engine, PrefixSharingEngine) else longest_span(config)
        self.one_row = engine.name == "padded" and engine.batch_tokens == 1
        wanted = max(_LENGTH, 0 if self.span is None else self.span + self.span // 2 + SHORT_PROBE)
        operations = OPERATIONS.get(input_device(model).type, OPERATIONS_ELSEWHERE)
        affordable = int(operations / (2 * max(model.num_parameters(), 1)))
        if _COST * wanted > affordable:
            wanted = max(SHORT_PROBE, min(_LENGTH, affordable // _COST))
        self.length = max(8, min(wanted, self.limit))

    @cached_property
    def requests(self) -> list[Request]:
        """Twelve prompts of three documents."""
        prefix, document = self.length // 4, self.length // 2
        return synthetic_requests(
            self.vocabulary, prefix=prefix, document=document, candidate=self.length - prefix - document
        )

    @cached_property
    def alone(self) -> list[NDArray[np.float64]]:
        """Label log-probabilities of the prompts, one at a time."""
        return label_logprobs(PaddedEngine(self.model, Head(self.model), batch_tokens=1), self.requests)

    @cached_property
    def budgets(self) -> list[int]:
        """Token budgets that cut the prompts into at least the numbers of packs in `_CUTS`."""
        with self.set_to(1 << 40):
            total = sum(pack.tokens for pack in self.engine.plan(self.requests))
        return [max(1, total // cuts) for cuts in _CUTS]

    @contextmanager
    def set_to(self, batch_tokens: int, look_ahead: int | None = None) -> Iterator[None]:
        """Set another token budget of the engine while this is open."""
        engine: Any = self.engine
        before = vars(engine).copy()
        changed = {"batch_tokens": batch_tokens, "limit": batch_tokens}
        changed |= {} if look_ahead is None else {"look_ahead": look_ahead}
        vars(engine).update(changed)
        try:
            yield
        finally:
            vars(engine).update({name: before[name] for name in changed})

    def apart(self, found: Sequence[NDArray[np.float64]], *, digits: bool | None = None) -> float:
        """Return the distance of label log-probabilities from those of one prompt at a time, for one scale or both."""
        chosen = [
            number
            for number, request in enumerate(self.requests)
            if digits is None or (request.trie.labels > 5) == digits
        ]
        return distance([found[number] for number in chosen], [self.alone[number] for number in chosen], self.dtype)

    def run(self, budget: int, look_ahead: int | None = None) -> list[NDArray[np.float64]]:
        """Return the prompts' label log-probabilities by the engine."""
        with self.set_to(budget, look_ahead):
            return label_logprobs(self.engine, self.requests)

    def compared(self, difference: float) -> str:
        """Write a difference next to its tolerance."""
        of = "a typical prompt's, " if self.dtype in HALF else ""
        return f"{difference:.1e} nats ({of}{self.tolerance:g} allowed)"


def _attention(name: str, subject: _Subject) -> Iterator[Finding]:
    """Compare the layers' attention in a real pack with its definition, in float64 on the CPU."""
    engine = subject.engine
    if not isinstance(engine, PrefixSharingEngine):
        yield Finding(name, None, "the model's own: this engine leaves it alone")
        return
    errors = attention_errors(subject.model, engine, subject.requests)
    allowed = _ATTENTION[subject.dtype]
    kinds = ", ".join(
        f"{'full' if span is None else f'window of {span}'}: {error:.1e}" for span, error in errors.items()
    )
    passed = bool(errors) and all(error <= allowed for error in errors.values())
    figures = {"allowed": allowed, "errors": {str(span): error for span, error in errors.items()}}
    yield Finding(
        name, passed, f"against its definition, relative error of layers with {kinds} ({allowed:g} allowed)", figures
    )


def _packed(name: str, subject: _Subject) -> Iterator[Finding]:
    """Compare packs of three sizes with one prompt at a time, on both scales."""
    if subject.one_row:
        yield Finding(name, None, "prompts go one at a time")
        return
    worst = 0.0
    for budget in subject.budgets:
        with subject.set_to(budget):
            packs = len(subject.engine.plan(subject.requests))
        found = subject.run(budget)
        flat, spelled = (subject.apart(found, digits=digits) for digits in (False, True))
        worst = float(np.max([worst, flat, spelled]))  # a NaN stays one
        yield Finding(
            name,
            packs >= _CUTS[0] and flat <= subject.tolerance and spelled <= subject.tolerance,
            f"{packs} packs of at most {budget} tokens: 1-5 differs by {flat:.1e}, 0-100 in digits by "
            + subject.compared(spelled),
            {
                "packs": packs,
                "batch_tokens": budget,
                "difference": flat,
                "difference_digits": spelled,
                "tolerance": subject.tolerance,
            },
        )
    if subject.span is None:
        return
    figures = {"span": subject.span, "prompt_tokens": subject.length}
    if subject.length <= subject.span:
        why = "by the model's positions" if subject.length >= subject.limit else "in the time that a check may take"
        text = f"{subject.span} tokens not reached: prompts of {subject.length} are the longest {why}"
        yield Finding("beyond the window", None, text, figures)
    else:
        text = f"prompts of {subject.length} tokens, window or chunk of {subject.span}: " + subject.compared(worst)
        yield Finding("beyond the window", worst <= subject.tolerance, text, figures | {"difference": worst})


def _ahead(name: str, subject: _Subject) -> Iterator[Finding]:
    """Asynchronous batches match synchronous ones bit for bit."""
    engine = subject.engine
    if not isinstance(engine, PrefixSharingEngine | SharedCacheEngine):
        yield Finding(name, None, "this engine waits for every pack")
        return
    depth, budget = max(2, engine.look_ahead), subject.budgets[-1]
    found = [subject.run(budget, look_ahead) for look_ahead in (0, depth)]
    different = sum(not np.array_equal(one, other) for one, other in zip(*found, strict=True))
    text = f"{depth} packs launched ahead against none: " + (
        "the same bits" if not different else f"{different} of {len(subject.requests)} prompts differ"
    )
    yield Finding(name, not different, text, {"look_ahead": depth, "different": different})


def _out_of_memory(name: str, subject: _Subject) -> Iterator[Finding]:
    """Let memory run out once: the engine must halve the pack and score every prompt."""
    engine, budget = subject.engine, subject.budgets[0]
    if subject.one_row:
        yield Finding(name, None, "prompts go one at a time: there is nothing to halve")
        return
    device = input_device(subject.model)
    forced: list[int] = []

    def run_out(_: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        ids: Any = named.get("input_ids", given[0] if given else None)
        large = ids is not None and ids.numel() > FLOOR and (isinstance(engine, PrefixSharingEngine) or len(ids) > 1)
        if large and not forced:
            forced.append(int(ids.numel()))
            _ask_for_too_much(device)

    hook = trunk_of(subject.model).register_forward_pre_hook(run_out, with_kwargs=True)
    try:
        with subject.set_to(budget):
            found = label_logprobs(engine, subject.requests)
            limit = engine.limit
    finally:
        hook.remove()
    if not forced:
        yield Finding(name, None, f"not tried: no pass has more than {FLOOR} tokens")
        return
    difference = subject.apart(found)
    yield Finding(
        name,
        limit < budget and difference <= subject.tolerance,
        f"forced at a pass of {forced[0]} tokens: budget {budget} to {limit}, every prompt scored, differs by "
        + subject.compared(difference),
        {"pass_tokens": forced[0], "batch_tokens": budget, "limit": limit, "difference": difference},
    )


def _ask_for_too_much(device: torch.device) -> None:
    """Make a GPU's allocator really fail; on a CPU that would end the process."""
    if device.type == "cuda":
        torch.empty(4 * torch.cuda.mem_get_info(device)[1], dtype=torch.uint8, device=device)
    raise torch.OutOfMemoryError("forced by the check")


#: The checks, in order.
CHECKS: Mapping[str, Callable[[str, _Subject], Iterator[Finding]]] = {
    "attention": _attention,
    "packed against one at a time": _packed,
    "computed ahead": _ahead,
    "out of memory": _out_of_memory,
}


def _describe_device(model: PreTrainedModel, engine: Engine, report: EngineReport) -> dict[str, Any]:
    """Describe the computation as plain JSON values: devices, attention, budget, dtype, probe, versions."""
    device = input_device(model)
    devices = [_device_record(one) for one in gpus_of(model)] or [_device_record(device)]
    if isinstance(engine, PrefixSharingEngine) and engine.kernel is not None:
        attention = "FlexAttention, one kernel"
    elif isinstance(engine, PrefixSharingEngine):
        missing = why_no_kernel(device) or (report.note if device.type == "cuda" else None)
        attention = "in pieces" + (f": {missing}" if missing else "")
    else:
        attention = "the model's own"
    return {
        "devices": devices,
        "attention": attention,
        "engine": report.text,
        "batch_tokens": engine.batch_tokens,
        "look_ahead": engine.look_ahead if isinstance(engine, PrefixSharingEngine | SharedCacheEngine) else 0,
        "dtype": dtype_name(model.dtype),
        "probe": None if report.difference is None else asdict(report),
        "float32_products": torch.get_float32_matmul_precision(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "triton": version_of("triton") or version_of("triton-windows") or version_of("pytorch-triton-rocm"),
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
    }


def _device_record(device: torch.device) -> dict[str, Any]:
    """Describe one device."""
    if device.type != "cuda":
        return {"device": str(device), "name": platform.processor() or platform.machine()}
    properties = torch.cuda.get_device_properties(device)
    return {
        "device": str(device),
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "free_bytes": free_memory(device),
    }
