"""Read-out: hidden states at the read-out positions become exact next-token log-probabilities.

The head of a causal LM is more than a matrix: Granite divides by ``logits_scaling``, Gemma 2 soft-caps, Cohere
multiplies by ``logit_scale``, OPT casts. So the model's own ``forward`` runs with two parts replaced: a trunk that
returns the chosen hidden states, and a head that computes in float32. All the architecture's transformations of
its logits are applied.

Index tensors and results are copied without waiting: a copy from pageable memory makes a GPU finish
all earlier work first, a copy from pinned memory is queued.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedModel

from geval_local.errors import UnsupportedModelError
from geval_local.models import stored
from geval_local.models.guard import guarded
from geval_local.models.stored import linear_in_slices
from geval_local.score import OTHER_TOKENS


def to_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy an array to a device; on a GPU the copy is queued after earlier work."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class Arriving:
    """A tensor on its way to the host."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._event: Any = None
        if tensor.device.type != "cuda":
            self._host = tensor.cpu()
            return
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        self._host.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(torch.cuda.current_stream(tensor.device))

    def wait(self) -> NDArray[Any]:
        """Wait for the copy and return the array."""
        if self._event is not None:
            self._event.synchronize()
        array: NDArray[Any] = self._host.numpy()
        return array


#: Attributes where causal LMs keep their base model, if not under their `base_model_prefix`.
_TRUNK_NAMES = ("model", "transformer", "backbone")
#: Largest difference between two orders of a sum in float32, as a share of its terms.
_ROUNDING = 1e-5
#: Most logits computed at once.
MAX_ELEMENTS = 1 << 26


@dataclass(frozen=True)
class EdgeLogprobs:
    """The result of one read-out, on the host."""

    #: Log-probabilities of the requested tokens.
    logprobs: NDArray[np.float64]
    #: The likeliest next tokens at each position, likeliest first.
    top_tokens: NDArray[np.int64]
    #: Their probabilities.
    top_probs: NDArray[np.float64]


class PendingLogprobs:
    """Log-probabilities on their way to the host."""

    def __init__(self, figures: Arriving, width: int) -> None:
        self._figures = figures
        self._width = width

    def wait(self) -> EdgeLogprobs:
        """Wait for the copy and return the log-probabilities."""
        logprobs, rest = np.split(self._figures.wait().astype(np.float64), [self._width], axis=1)
        tokens, probs = np.split(rest, 2, axis=1)
        return EdgeLogprobs(logprobs, tokens.astype(np.int64), probs)


class _TrunkOutput:
    """Output of a trunk: hidden states first, and None for anything else that an architecture accesses."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> torch.Tensor | None:
        return self.last_hidden_state if index == 0 else None

    def __getattr__(self, name: str) -> None:
        return None


class _GivenHiddenStates(nn.Module):
    """Replacement for a model's trunk that returns precomputed hidden states.

    Other attributes that a head reads from its trunk (Falcon-H1: a multiplier of the logits) come from the real trunk.
    """

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.hidden = torch.empty(0, device="cpu")
        self.__dict__["real_trunk"] = trunk  # not a submodule, so that it is not moved or converted with this module

    @property
    def decoder(self) -> _GivenHiddenStates:
        # OPT's causal LM calls model.decoder, not model.
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["real_trunk"], name)

    def forward(self, *_: Any, **__: Any) -> _TrunkOutput:
        return _TrunkOutput(self.hidden)


def trunk_name(model: PreTrainedModel) -> str:
    """Find the attribute of a causal LM that holds its base model.

    This is its ``base_model_prefix``, unless that is the model's name inside a larger one (Llama 4).
    """
    for name in (model.base_model_prefix, *_TRUNK_NAMES):
        trunk = getattr(model, name, None) if name else None
        if isinstance(trunk, nn.Module) and trunk is not model:
            return name
    raise UnsupportedModelError(f"{type(model).__name__} has no base model apart from its head")


def trunk_of(model: PreTrainedModel) -> nn.Module:
    """Return the part of a causal LM that computes final hidden states (its base model)."""
    trunk = getattr(model, trunk_name(model))
    decoder = getattr(trunk, "decoder", None)
    return decoder if isinstance(decoder, nn.Module) else trunk


def input_device(model: PreTrainedModel) -> torch.device:
    """Return the device for a model's token ids, also if its layers are spread over several devices or offloaded."""
    return _device_of(model.get_input_embeddings(), model)


def _device_of(module: nn.Module, model: PreTrainedModel) -> torch.device:
    """Return the device on which a module computes: that of its weight or, if offloaded by accelerate, of its hook."""
    weight = getattr(module, "weight", None)
    if isinstance(weight, torch.Tensor) and weight.device.type != "meta":
        return weight.device
    device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
    if device is None:
        return model.device
    return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)


class Head:
    """The model's computation from final hidden states to logits, in float32 (float64 for a float64 model).

    The model's parameters are shared; narrower head weights are widened slice by slice when used.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.dtype = torch.float64 if model.dtype == torch.float64 else torch.float32
        name = trunk_name(model)
        self._trunk = _GivenHiddenStates(getattr(model, name))
        self._model = _shallow_copy(model)
        self._model._modules[name] = self._trunk
        head: nn.Module | None = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        if head is None:
            raise UnsupportedModelError(f"{type(model).__name__} has no language-modelling head")
        for name, module in self._model._modules.items():
            if module is head:
                self._model._modules[name] = _widened(module, self.dtype)
        self.device = _device_of(head, model)

    @guarded
    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute logits."""
        self._trunk.hidden = hidden.to(self.device, self.dtype)[None]
        # The token is never used, but forward requires an input.
        token = torch.zeros((1, 1), dtype=torch.long, device=self.device)
        logits = self._model(input_ids=token, use_cache=False, return_dict=True).logits[0]
        self._trunk.hidden = torch.empty(0, device=self.device)
        return logits.to(self.dtype)  # type: ignore[no-any-return]

    @guarded
    @torch.inference_mode()
    def edge_logprobs(self, hidden: torch.Tensor, tokens: NDArray[np.int64]) -> PendingLogprobs:
        """Start to compute the log-probabilities of given tokens over the full vocabulary's softmax; do not wait."""
        wanted = to_device(tokens, self.device)
        step = max(1, MAX_ELEMENTS // int(self._model.config.get_text_config().vocab_size))
        parts: list[torch.Tensor] = []
        for start in range(0, hidden.shape[0], step):
            logits = self.logits(hidden[start : start + step])
            normalizer = torch.logsumexp(logits, dim=-1, keepdim=True)
            chosen = logits.gather(1, wanted[start : start + step].to(logits.device)) - normalizer
            top = logits.topk(min(OTHER_TOKENS, logits.shape[-1]), dim=-1)
            # Token numbers are exact in float32 too, so one copy to the host is enough. Some devices have no
            # float64.
            figures = (chosen, top.indices.to(chosen.dtype), (top.values - normalizer).exp())
            parts.append(torch.cat(figures, dim=1))
        return PendingLogprobs(Arriving(torch.cat(parts)), tokens.shape[1])


def _shallow_copy(model: PreTrainedModel) -> PreTrainedModel:
    clone = copy.copy(model)
    clone.__dict__["_modules"] = dict(model._modules)
    # accelerate's hooks replace `forward` on the instance and would call the original model.
    for name in ("forward", "_old_forward", "_hf_hook"):
        clone.__dict__.pop(name, None)
    return clone


class _WideHead(nn.Module):
    """A linear head in slices of its vocabulary, which are widened one by one.

    A widened copy would take another 2 to 5 GB. A large head in the dtype of the computation is cut in the same way,
    so that its products are the same to the bit, however its weights are stored.
    """

    def __init__(self, head: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.__dict__["head"] = head  # not a submodule, so that it is not moved or converted with this module
        # Code that casts its input to the head's dtype uses this one.
        self.weight = torch.empty(0, dtype=dtype, device="cpu")
        self._is_narrow_exact: bool | None = None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        head = self.__dict__["head"]
        # Weights offloaded by accelerate are available only between these two calls.
        hook = getattr(head, "_hf_hook", None)
        if hook is not None:
            (hidden,), _ = hook.pre_forward(head, hidden)
        weight, bias = head.weight, getattr(head, "bias", None)
        hidden = hidden.to(weight.device, self.weight.dtype)
        if self._is_narrow_exact is None:
            self._is_narrow_exact = bias is None and _is_narrow_exact(hidden, weight)
        if self._is_narrow_exact:
            logits = _narrow_product(hidden.flatten(0, -2), weight).view(*hidden.shape[:-1], -1)
        else:
            logits = linear_in_slices(hidden, weight, bias)
        return logits if hook is None else hook.post_forward(head, logits)


def _narrow_product(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply narrow numbers by narrow weights exactly and add up in float32, without widening weights."""
    return torch.mm(hidden.to(weight.dtype), weight.t(), out_dtype=hidden.dtype)


def _is_narrow_exact(hidden: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the device can do `_narrow_product`, and the (maybe scaled) hidden states fit the narrow dtype.

    Tried once, on the first read-out.
    """
    if isinstance(weight, stored.Stored) or weight.itemsize >= hidden.itemsize:
        return False
    rows = hidden.flatten(0, -2)
    try:
        found = _narrow_product(rows, weight)
    except (RuntimeError, TypeError):  # not on this device, or not in this release
        return False
    # The rounding of a sum grows with its terms, not with the sum.
    terms = rows.norm(dim=-1, keepdim=True) * weight.norm(dim=-1, dtype=hidden.dtype)
    is_near = (found - linear_in_slices(rows, weight)).abs() <= _ROUNDING * terms
    return torch.equal(rows.to(weight.dtype).to(rows.dtype), rows) and bool(is_near.all())


def _widened(module: nn.Module | None, dtype: torch.dtype) -> nn.Module | None:
    """Return a head that computes in a wider dtype; the head itself if it is already wide enough, and not large."""
    is_wide = module is None or all(parameter.dtype == dtype for parameter in module.parameters())
    if isinstance(module, nn.Linear) and module.weight.dim() == 2 and module.weight.is_floating_point():
        return module if is_wide and module.weight.numel() <= stored.SLICE else _WideHead(module, dtype)
    return module if module is None or is_wide else copy.deepcopy(module).to(dtype)


def gpus_of(model: PreTrainedModel) -> list[torch.device]:
    """List the CUDA devices (including AMD's) that hold a part of a model."""
    return sorted({parameter.device for parameter in model.parameters() if parameter.is_cuda}, key=str)


class Trunk:
    """The part of a causal LM that computes final hidden states; every pass of this package goes through one."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.module = trunk_of(model)
        self.device = input_device(model)
        self.group = length_groups(model.config)
        self.reset = rope_reset(self.module)

    @guarded
    def __call__(self, ids: torch.Tensor, **options: Any) -> Any:
        """Compute rows of token ids; `options` are those of the base model, and so is the output."""
        self.reset()
        return self.module(input_ids=ids.to(self.device), **options)


def length_groups(config: Any) -> Callable[[int], int]:
    """Return a function that groups prompt lengths which may share a forward pass.

    Long-RoPE models (Phi-3) use one set of factors up to a switch and another beyond it, chosen by the longest prompt
    of the batch; dynamic NTK scaling changes with every length beyond the switch. A score must not depend on what else
    is in the batch, so only prompts of one group may share a batch.
    """
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None)
    rope = rope if isinstance(rope, dict) else {}
    # Layer types may have embeddings of their own.
    parts = [part for part in rope.values() if isinstance(part, dict)] or [rope]
    longest = int(getattr(text, "max_position_embeddings", None) or 0)
    growing, switching = [], []
    for part in parts:
        kind = part.get("rope_type", part.get("type"))
        original = part.get("original_max_position_embeddings", getattr(text, "original_max_position_embeddings", None))
        switch = int(original or longest)
        if kind == "dynamic":
            growing.append(min(switch, longest or switch))
        elif kind == "longrope":
            switching.append(switch)
    if not growing and not switching:
        return lambda length: 0
    # Every term grows or stays with the length, so two sums are equal only if all terms are.
    return lambda length: sum(max(length - switch, 0) for switch in growing) + sum(length > one for one in switching)


def rope_reset(trunk: nn.Module) -> Callable[[], None]:
    """Return a function that resets embeddings which follow the length to their initial state.

    Transformers keeps the frequencies of the longest prompt so far; without a reset before every forward
    pass a prompt beyond the switch would change the scores of later prompts. If layer types have long factors of
    their own, some releases (5.17) fail in the second pass beyond the switch unless they compute the factors again.
    """
    growing: list[tuple[Any, str]] = []
    switching: list[tuple[Any, str]] = []
    for module in trunk.modules():
        kind = getattr(module, "rope_type", None)
        # If layer types have separate embeddings, one module contains them all.
        kinds = {f"{layer}_": part for layer, part in kind.items()} if isinstance(kind, dict) else {"": kind}
        growing += [(module, prefix) for prefix, part in kinds.items() if isinstance(part, str) and "dynamic" in part]
        switching += [(module, prefix) for prefix, part in kinds.items() if prefix and part == "longrope"]

    def reset() -> None:
        for module, prefix in growing:
            frequencies = getattr(module, f"{prefix}inv_freq")
            setattr(module, f"{prefix}inv_freq", getattr(module, f"{prefix}original_inv_freq").to(frequencies.device))
            setattr(module, f"{prefix}max_seq_len_cached", module.original_max_seq_len)
        for module, prefix in switching:
            module.__dict__.pop(f"{prefix}long_inv_freq", None)

    return reset
