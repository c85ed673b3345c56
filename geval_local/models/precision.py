"""Precision: the dtype chosen by ``auto``, based on a probe, and the dtype's effect on a score.

On a CPU ``auto`` is float32 for every stored dtype: weights are widened product by product. On an accelerator the two
half precisions cost the same. bfloat16 has the range of float32 and 8 bits of precision; float16 has 11 bits and ends
at 65,504. So ``auto`` chooses float16 if a model's weights and activations leave room in that range and its scores are
closer to float32, else bfloat16.

The probe scores the forms of the packaged metrics, short and long, in float32 and in half
precision. Float32 needs no memory for a second model: each module's weights are widened for its call and then restored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from geval_local.errors import first_line
from geval_local.metric import Metric
from geval_local.metric_file import preset_names
from geval_local.models.chat_template import chat_frame
from geval_local.models.config_checks import numbers_in
from geval_local.models.gguf.file import read_header
from geval_local.models.head import Head, Trunk, input_device
from geval_local.models.memory import default_device, release_memory
from geval_local.models.products import about_processor
from geval_local.models.verdicts import Verdict, verdict_of
from geval_local.prompt import render_form

if TYPE_CHECKING:
    from geval_local.models.registry import JudgeEntry

AUTO = "auto"
#: Activations may grow by this factor beyond the probe's largest before float16 overflows. A small factor suffices: the
#: largest ones occur at the same few tokens of any text (Sun et al., 2024, "Massive activations in LLMs").
HEADROOM = 2.0
HALF: Mapping[str, torch.dtype] = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_LABELS = "12345"
#: Names of the number of experts in configurations, some in a nested configuration.
_EXPERTS = {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"}
#: Numbers of packaged metrics whose criteria fill the probe's forms; the last numbers give long forms.
SIZES = (1, 1, 2, 2, 3, 4, 6, 8, 12, 18)


@dataclass(frozen=True)
class Noise:
    """Deviation of a dtype's probe scores from those in float32, in points on a 1-5 scale."""

    #: Mean and maximum of the absolute differences, at least 0.
    mean: float
    largest: float
    #: Number of compared scores.
    prompts: int

    @property
    def text(self) -> str:
        """The deviation as a phrase."""
        return f"{self.mean:.2g} on average, {self.largest:.2g} at most"


@dataclass(frozen=True)
class ProbeResults:
    """Results of a probe."""

    #: Largest absolute values of the weights, and of all module inputs and outputs, computed in float32.
    largest_weight: float
    largest_activation: float
    #: ``float16``, ``bfloat16`` -> deviation of its scores; None if they are not finite.
    noise: Mapping[str, Noise | None]


@dataclass(frozen=True)
class Precision:
    """The dtype that a judge runs in."""

    #: Reason for the choice.
    reason: str
    #: Deviation of its scores from float32; None if not measured.
    noise: Noise | None = None
    #: Whether it can be measured: another program that computes has no second dtype at hand.
    is_measurable: bool = True

    def text(self, dtype: str) -> str:
        """Describe the precision in one line."""
        if dtype in ("float32", "float64"):
            return f"{dtype} ({self.reason})"
        if self.noise is None:
            told = "`judges check` measures how far it moves a score" if self.is_measurable else "its effect is unknown"
            return f"{dtype} ({self.reason}; {told})"
        moved = f"moves a score on 1-5 by {self.noise.text}, from float32 on {self.noise.prompts} prompts"
        return f"{dtype} ({self.reason}; {moved})"


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name as in options and signatures."""
    return str(dtype).removeprefix("torch.")


def decide(figures: ProbeResults) -> tuple[str, str]:
    """Choose between the half precisions by the results of a probe."""
    limit = torch.finfo(torch.float16).max
    float16, bfloat16 = figures.noise.get("float16"), figures.noise.get("bfloat16")
    if not figures.largest_weight <= limit:
        return "bfloat16", f"weights up to {figures.largest_weight:.3g} are beyond float16"
    if not figures.largest_activation * HEADROOM <= limit:
        return "bfloat16", f"activations up to {figures.largest_activation:.3g} leave too little of float16's range"
    if float16 is None:
        return "bfloat16", "float16 gives scores that are not finite"
    if bfloat16 is not None and not float16.mean < bfloat16.mean:
        return "bfloat16", f"float16 is no nearer to float32: {float16.mean:.2g} against {bfloat16.mean:.2g}"
    other = "" if bfloat16 is None else f"bfloat16 would move a score by {bfloat16.mean:.2g}, and "
    return "float16", f"{other}activations up to {figures.largest_activation:.3g} leave room"


#: Words in Linux's description of a processor that computes products in a half precision.
_HALF_UNITS = {"bfloat16": ("amx_bf16", "avx512_bf16", " bf16"), "float16": ("amx_fp16", "avx512_fp16", " asimdhp")}


def native_dtypes(device: str | None) -> list[str]:
    """List the dtypes in which a device computes products itself; float32 is the first, a GPU has them all."""
    if torch.device(device or default_device()).type != "cpu":
        return ["float32", *_HALF_UNITS]
    about = about_processor()
    return ["float32", *(name for name, words in _HALF_UNITS.items() if any(word in about for word in words))]


def place_of(placement: Mapping[str, Any]) -> torch.device:
    """Return the device of a whole model; if a map spreads it, the default device."""
    devices = placement.get("device_map")
    device = devices.get("") if isinstance(devices, Mapping) else None
    return default_device() if device is None else torch.device(device)


def automatic_dtype(directory: Path | None, placement: Mapping[str, Any]) -> torch.dtype | str:
    """Return the dtype in which ``auto`` loads weights."""
    if place_of(placement).type == "cpu":
        return torch.float32
    if directory is not None and directory.is_file():
        found: torch.dtype = getattr(torch, read_header(directory).plain_dtype or "bfloat16")
        return found
    return AUTO


def settle(
    entry: JudgeEntry,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    asked_for: str | None,
    who: str = "asked for",
    fingerprint: str = "",
) -> Precision:
    """Convert a loaded model to the dtype that it will run in; `who` names the origin of a requested dtype."""
    asked = None if asked_for is None else who
    on_cpu = is_on_cpu(model)
    if model.dtype in (torch.float32, torch.float64) and (on_cpu or asked):
        return Precision(asked or "exact to 1e-5")
    if on_cpu:
        return Precision(asked or "as stored")
    if obstacle := _obstacle(model):
        if asked is None and model.dtype == torch.float32 and not _is_quantized(model):
            cast_weights(model, torch.bfloat16)
        return Precision(asked or f"not probed: {obstacle}")
    # On a GPU the grouped product of a mixture's experts is one kernel only in bfloat16. In float16 it waits for the
    # host at every layer and computes expert after expert.
    only = "bfloat16" if asked is None and has_experts(model) else asked_for
    verdict, key = verdict_of(model, fingerprint) if fingerprint else Verdict(), f"precision, {entry.style}, {only}"
    figures = verdict.read(key, ProbeResults)
    try:
        if figures is None:
            figures = measure(model, tokenizer, list(HALF) if only is None else [only], style=entry.style)
            verdict.keep(key, figures)
    except Exception as error:  # foreign code in an unusual use, or out of memory
        release_memory()
        if asked is None:
            cast_weights(model, torch.bfloat16)
        return Precision(asked or f"the probe failed: {type(error).__name__}: {first_line(error)}")
    if only is None:
        name, reason = decide(figures)
    else:
        name, reason = only, asked or "the fused product of its experts exists in bfloat16 only"
    cast_weights(model, HALF[name])
    release_memory()
    return Precision(reason, figures.noise[name])


def has_experts(model: PreTrainedModel) -> bool:
    """Whether a model is a mixture of experts."""
    return any(name in _EXPERTS and count > 1 for name, count in numbers_in(model.config.get_text_config().to_dict()))


def measure(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    dtypes: Sequence[str],
    *,
    style: str = "completion",
    most: int = len(SIZES),
) -> ProbeResults:
    """Measure the effect of half precision on a model's scores, on any device and for any dtype of its weights."""
    head, prompts = Head(model), _prompts(model, tokenizer, style)[:most]
    if not prompts:
        raise ValueError("the model reads none of the probe's prompts")
    labels = _label_tokens(tokenizer)
    with computing_in(model, torch.float32), _largest_activation(model) as largest:
        hidden = [_last_hidden(model, ids) for ids in prompts]
    exact = label_scores(head, hidden, labels)
    noise: dict[str, Noise | None] = {}
    for name in dtypes:
        with computing_in(model, HALF[name]):
            hidden = [_last_hidden(model, ids) for ids in prompts]
        moved = np.abs(label_scores(head, hidden, labels) - exact)  # the read-out is in float32, as in scoring
        noise[name] = Noise(float(moved.mean()), float(moved.max()), len(prompts)) if np.isfinite(moved).all() else None
    weight = max(float(parameter.detach().abs().max()) for parameter in model.parameters() if parameter.numel())
    return ProbeResults(weight, largest(), noise)


def measured(
    precision: Precision, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, style: str
) -> Precision:
    """Return a loaded model's precision with its noise, measured now unless it was measured while loading."""
    name = dtype_name(model.dtype)
    if name not in HALF or precision.noise is not None or _obstacle(model):
        return precision
    return replace(precision, noise=measure(model, tokenizer, [name], style=style).noise[name])


@contextmanager
def computing_in(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Let a model compute in another dtype without a second copy of its weights.

    A module's tensors in the model's dtype are cast for its call and restored afterwards; tensors that
    are kept in another dtype stay as they are. If the model is in float32, its buffers stay too: half precision is not
    suitable for the frequencies of position embeddings.
    """
    own = next(tensor.dtype for tensor in model.parameters() if tensor.is_floating_point())
    kept: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def cast(module: nn.Module, *_: Any) -> None:
        tensors = [*module.parameters(recurse=False), *(() if own == torch.float32 else module.buffers(recurse=False))]
        kept[id(module)] = [(tensor, tensor.data) for tensor in tensors if tensor.dtype == own]
        for tensor, _data in kept[id(module)]:
            tensor.data = tensor.data.to(dtype)

    def put_back(module: nn.Module, *_: Any) -> None:
        for tensor, data in reversed(kept.pop(id(module), [])):
            tensor.data = data

    hooks = []
    if own != dtype:
        for module in model.modules():
            if any(True for _ in module.parameters(recurse=False)) or any(True for _ in module.buffers(recurse=False)):
                hooks += [module.register_forward_pre_hook(cast), module.register_forward_hook(put_back)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for tensors in list(kept.values()):  # modules interrupted by an exception
            for tensor, data in reversed(tensors):
                tensor.data = data


def cast_weights(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Cast a model permanently, as `computing_in` does temporarily."""
    own = model.dtype
    if own == dtype:
        return
    kept = tuple(getattr(model, "_keep_in_fp32_modules", None) or ()) + tuple(
        getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    )
    for name, parameter in model.named_parameters():
        stays = own == torch.float32 and any(part in name.split(".") for part in kept)
        if parameter.dtype == own and not stays:
            parameter.data = parameter.data.to(dtype)
    for buffer in () if own == torch.float32 else model.buffers():
        if buffer.dtype == own:
            buffer.data = buffer.data.to(dtype)
    model.config.dtype = dtype


@contextmanager
def _largest_activation(model: nn.Module) -> Iterator[Callable[[], float]]:
    """Track the largest absolute value of all module inputs and outputs."""
    seen: dict[torch.device, torch.Tensor] = {}

    def watch(value: Any) -> None:
        for tensor in value if isinstance(value, tuple | list) else (value,):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.numel():
                # The maximum stays on the device: reading it each time would synchronise each time.
                largest = tensor.detach().abs().amax().float()
                before = seen.get(tensor.device)
                seen[tensor.device] = largest if before is None else torch.maximum(before, largest)

    def look(module: nn.Module, given: Any, result: Any) -> None:
        watch(given)
        watch(result)

    hooks = [module.register_forward_hook(look) for module in model.modules()]
    try:
        yield lambda: max((float(value) for value in seen.values()), default=0.0)
    finally:
        for hook in hooks:
            hook.remove()


@torch.inference_mode()
def _last_hidden(model: PreTrainedModel, ids: NDArray[np.int64]) -> torch.Tensor:
    return Trunk(model)(torch.from_numpy(ids)[None], use_cache=False).last_hidden_state[0, -1:]  # type: ignore[no-any-return]


def label_scores(head: Head, hidden: Sequence[torch.Tensor], labels: Sequence[int] | None) -> NDArray[np.float64]:
    """Compute expected values on 1-5, shape (prompts,); NaN where the logits are not finite."""
    scores = []
    for one in hidden:
        logits = head.logits(one)[0].cpu().double()  # some devices have no float64
        chosen = logits[list(labels)] if labels is not None else logits[:: max(1, len(logits) // 5)][:5]
        shares = torch.softmax(chosen, dim=-1)
        is_number = bool(torch.isfinite(logits).all())
        values = torch.arange(1, len(shares) + 1, dtype=torch.float64, device=shares.device)
        scores.append(float(shares @ values) if is_number else float("nan"))
    return np.asarray(scores)


def _label_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int] | None:
    """Find the tokens that end the labels; None if the tokenizer does not distinguish digits."""
    tokens = [list(tokenizer(f"- Coherence: {label}", add_special_tokens=False).input_ids)[-1:] for label in _LABELS]
    return [int(one[0]) for one in tokens] if len({tuple(one) for one in tokens if one}) == len(_LABELS) else None


def _prompts(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, style: str) -> list[NDArray[np.int64]]:
    """Build forms of packaged metrics, filled with the criteria of others: plain English of growing length."""
    metrics = [Metric.load(name) for name in preset_names()]
    config: Any = model.config.get_text_config()
    context = int(getattr(config, "max_position_embeddings", None) or 1 << 20)
    is_chat = style != "completion"
    frame = chat_frame(tokenizer) if is_chat else None
    found = []
    for number, size in enumerate(SIZES):
        metric = metrics[number % len(metrics)]
        texts = [metrics[(number + step) % len(metrics)].criteria for step in range(1, size + 1)]
        form = render_form(metric.with_steps(()), dict.fromkeys(metric.fields, "\n\n".join(texts)))
        text = form.text if frame is None else f"{frame.before}{form.question}{frame.after}{form.cue}"
        ids = np.asarray(tokenizer(text, add_special_tokens=not is_chat).input_ids, dtype=np.int64)
        if len(ids) <= context:
            found.append(ids)
    return found


def _obstacle(model: PreTrainedModel) -> str | None:
    """Return the reason why a model cannot be probed; None if it can."""
    if _is_quantized(model):
        return "its weights are quantized"
    if any(parameter.is_meta for parameter in model.parameters()):
        return "some of its weights are not on a device"
    return None


def is_on_cpu(model: PreTrainedModel) -> bool:
    """Whether a model reads its input on the CPU."""
    return input_device(model).type == "cpu"


def _is_quantized(model: Any) -> bool:
    return getattr(model, "hf_quantizer", None) is not None or bool(getattr(model, "is_quantized", False))
