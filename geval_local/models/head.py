"""Read-out: hidden states at the read-out positions become exact next-token log-probabilities.

The head of a causal LM is more than a matrix: Granite divides by ``logits_scaling``, Gemma 2 soft-caps, Cohere
multiplies by ``logit_scale``, OPT casts. So the model's own ``forward`` is run with two parts exchanged: a trunk that
returns the chosen hidden states, and a head that computes in float32. Whatever the architecture does to its
logits happens.

Index tensors go to the device and figures come back without waiting: a copy from ordinary memory makes a GPU finish
everything before it, one from pinned memory takes its turn in the queue.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedModel

from geval_local.errors import UnsupportedModelError

__all__ = [
    "HEAD_ELEMENTS",
    "MAX_ELEMENTS",
    "Arriving",
    "EdgeLogprobs",
    "Head",
    "PendingLogprobs",
    "exact_products",
    "gpus_of",
    "input_device",
    "to_device",
    "trunk_name",
    "trunk_of",
]


def to_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy an array to a device; on a GPU the copy is queued after the work that is queued already."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class Arriving:
    """A tensor on its way to the host.

    Parameters
    ----------
    tensor : Tensor
        On any device; the copy is queued at once.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._event: Any = None
        if tensor.device.type != "cuda":
            self._host = tensor.cpu()
            return
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._host.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(torch.cuda.current_stream(tensor.device))

    def wait(self) -> NDArray[Any]:
        """Wait until it is there."""
        if self._event is not None:
            self._event.synchronize()
        array: NDArray[Any] = self._host.numpy()
        return array


OTHER_TOKENS = 8
#: Where causal LMs keep their base model, if not where they say.
_TRUNK_NAMES = ("model", "transformer", "backbone")
#: Most logits at once, and most weights of the head that are held in float32 at once.
MAX_ELEMENTS = 1 << 26
HEAD_ELEMENTS = 1 << 26


@dataclass(frozen=True)
class EdgeLogprobs:
    """What one read-out brings back to the host.

    Attributes
    ----------
    logprobs : ndarray of float64, shape (positions, width)
        Log-probabilities of the tokens asked for.
    top_tokens : ndarray of int64, shape (positions, k)
        The likeliest next tokens at each position, likeliest first.
    top_probs : ndarray of float64, shape (positions, k)
        Their probabilities.
    """

    logprobs: NDArray[np.float64]
    top_tokens: NDArray[np.int64]
    top_probs: NDArray[np.float64]


class PendingLogprobs:
    """Log-probabilities on their way to the host.

    Parameters
    ----------
    figures : Arriving
        A row per position: log-probabilities, the likeliest tokens, their probabilities.
    width : int
        How many log-probabilities there are in a row.
    """

    def __init__(self, figures: Arriving, width: int) -> None:
        self._figures = figures
        self._width = width

    def wait(self) -> EdgeLogprobs:
        """Wait until they are there."""
        logprobs, rest = np.split(self._figures.wait().astype(np.float64), [self._width], axis=1)
        tokens, probs = np.split(rest, 2, axis=1)
        return EdgeLogprobs(logprobs, tokens.astype(np.int64), probs)


class _TrunkOutput:
    """What a trunk returns: hidden states first, and None for whatever else an architecture asks for."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> torch.Tensor | None:
        return self.last_hidden_state if index == 0 else None

    def __getattr__(self, name: str) -> None:
        return None


class _GivenHiddenStates(nn.Module):
    """Stands in for a model's trunk and returns hidden states that were computed before.

    Everything else that a head looks up on its trunk (Falcon-H1: a multiplier of the logits) is the real trunk's.
    """

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.hidden = torch.empty(0)
        self.__dict__["real_trunk"] = trunk  # not a submodule: nothing may move or convert it through this one

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

    Its ``base_model_prefix`` says so, except where that is the name that the model has inside a larger one (Llama 4).

    Raises
    ------
    UnsupportedModelError
        If the model has no separate base model.
    """
    for name in (model.base_model_prefix, *_TRUNK_NAMES):
        trunk = getattr(model, name, None) if name else None
        if isinstance(trunk, nn.Module) and trunk is not model:
            return name
    raise UnsupportedModelError(f"{type(model).__name__} has no base model apart from its head")


def trunk_of(model: PreTrainedModel) -> nn.Module:
    """Return the part of a causal LM that computes final hidden states (its base model).

    Raises
    ------
    UnsupportedModelError
        If the model has no separate base model.
    """
    trunk = getattr(model, trunk_name(model))
    decoder = getattr(trunk, "decoder", None)
    return decoder if isinstance(decoder, nn.Module) else trunk


def input_device(model: PreTrainedModel) -> torch.device:
    """Device on which a model takes its token ids, also when its layers are spread over several or offloaded."""
    return _device_of(model.get_input_embeddings(), model)


def _device_of(module: nn.Module, model: PreTrainedModel) -> torch.device:
    """Device on which a module computes: that of its weight or, where accelerate keeps that elsewhere, of its hook."""
    weight = getattr(module, "weight", None)
    if isinstance(weight, torch.Tensor) and weight.device.type != "meta":
        return weight.device
    device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
    if device is None:
        return model.device
    return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)


class Head:
    """The model's own way from final hidden states to logits, in float32 (float64 for a float64 model).

    Parameters
    ----------
    model : PreTrainedModel
        A causal LM. Its parameters are shared; a head's that are narrower are widened slice by slice as they are used.

    Raises
    ------
    UnsupportedModelError
        If the model has no separate base model, or no head.
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

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute logits.

        Parameters
        ----------
        hidden : Tensor, shape (positions, hidden)
            Final hidden states, after the trunk's last norm.

        Returns
        -------
        Tensor, shape (positions, vocabulary), float32 or float64
        """
        self._trunk.hidden = hidden.to(self.device, self.dtype)[None]
        # The token is never looked at; forward wants one input or the other.
        token = torch.zeros((1, 1), dtype=torch.long, device=self.device)
        with exact_products():
            logits = self._model(input_ids=token, use_cache=False, return_dict=True).logits[0]
        self._trunk.hidden = torch.empty(0)
        return logits.to(self.dtype)  # type: ignore[no-any-return]

    @torch.inference_mode()
    def edge_logprobs(self, hidden: torch.Tensor, tokens: NDArray[np.int64]) -> EdgeLogprobs:
        """Compute the log-probabilities of given tokens over the full vocabulary's softmax.

        Parameters
        ----------
        hidden : Tensor, shape (positions, hidden)
            Final hidden states at the read-out positions.
        tokens : ndarray of int64, shape (positions, width)
            Tokens to read at each position (any valid token where a row needs fewer).

        Returns
        -------
        EdgeLogprobs
        """
        return self.start_edge_logprobs(hidden, tokens).wait()

    @torch.inference_mode()
    def start_edge_logprobs(self, hidden: torch.Tensor, tokens: NDArray[np.int64]) -> PendingLogprobs:
        """Do as `edge_logprobs` without waiting for the device; parameters as there."""
        wanted = to_device(tokens, self.device)
        step = max(1, MAX_ELEMENTS // int(self._model.config.get_text_config().vocab_size))
        parts: list[torch.Tensor] = []
        for start in range(0, hidden.shape[0], step):
            logits = self.logits(hidden[start : start + step])
            normalizer = torch.logsumexp(logits, dim=-1, keepdim=True)
            chosen = logits.gather(1, wanted[start : start + step].to(logits.device)) - normalizer
            top = logits.topk(min(OTHER_TOKENS, logits.shape[-1]), dim=-1)
            # Token numbers are exact in float32 too, so one copy to the host takes everything. Some devices have no
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
    """A linear head in a wider dtype than its weights: slices of the vocabulary are widened one after the other.

    The products are those of a widened copy, which would take 2 to 5 GB and is nobody's plan.
    """

    def __init__(self, head: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.__dict__["head"] = head  # not a submodule: nothing may move or convert it through this one
        self.weight = torch.empty(0, dtype=dtype)  # what casts its input to the head's dtype casts to this one

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        head = self.__dict__["head"]
        # Weights that accelerate has put elsewhere are there between these two calls only.
        hook = getattr(head, "_hf_hook", None)
        if hook is not None:
            (hidden,), _ = hook.pre_forward(head, hidden)
        weight, bias = head.weight, getattr(head, "bias", None)
        hidden = hidden.to(weight.device, self.weight.dtype)
        logits = hidden.new_empty((*hidden.shape[:-1], len(weight)))
        step = max(1, HEAD_ELEMENTS // weight.shape[1])
        for start in range(0, len(weight), step):
            part = slice(start, start + step)
            wide_bias = None if bias is None else bias[part].to(hidden.dtype)
            logits[..., part] = nn.functional.linear(hidden, weight[part].to(hidden.dtype), wide_bias)
        return logits if hook is None else hook.post_forward(head, logits)


def _widened(module: nn.Module | None, dtype: torch.dtype) -> nn.Module | None:
    """Give a head that computes in a wider dtype; itself where it is wide enough already."""
    if module is None or all(parameter.dtype == dtype for parameter in module.parameters()):
        return module
    if isinstance(module, nn.Linear) and module.weight.dim() == 2 and module.weight.is_floating_point():
        return _WideHead(module, dtype)
    return copy.deepcopy(module).to(dtype)


@contextmanager
def exact_products() -> Iterator[None]:
    """Compute float32 products in float32: environments may ask for TF32, which has ten bits of fraction."""
    before = torch.get_float32_matmul_precision()
    if before == "highest":
        yield
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def gpus_of(model: PreTrainedModel) -> list[torch.device]:
    """List the CUDA devices (AMD's count as such) that hold a part of a model."""
    return sorted({parameter.device for parameter in model.parameters() if parameter.is_cuda}, key=str)
