"""Read-out: hidden states at the read-out positions become exact next-token log-probabilities.

The head of a causal LM is more than a matrix: Granite divides by ``logits_scaling``, Gemma 2 soft-caps, Cohere
multiplies by ``logit_scale``, OPT casts. So the model's own ``forward`` is run with two parts exchanged: a trunk that
returns the chosen hidden states, and a float32 copy of the head. Whatever the architecture does to its logits happens.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedModel

from geval_local.errors import UnsupportedModelError
from geval_local.models.transfer import Arriving, to_device

__all__ = ["EdgeLogprobs", "Head", "PendingLogprobs", "input_device", "trunk_name", "trunk_of"]

OTHER_TOKENS = 8
#: Where causal LMs keep their base model, if not where they say.
_TRUNK_NAMES = ("model", "transformer", "backbone")
_MAX_ELEMENTS = 1 << 26


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
        logprobs, rest = np.split(self._figures.wait(), [self._width], axis=1)
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
    """Device on which a model takes its token ids, also when its layers are spread over several."""
    weight = model.get_input_embeddings().weight
    return weight.device if isinstance(weight, torch.Tensor) and weight.device.type != "meta" else model.device


class Head:
    """The model's own way from final hidden states to logits, in float32 (float64 for a float64 model).

    Parameters
    ----------
    model : PreTrainedModel
        A causal LM. Its parameters are shared, except for the head's, which are copied to float32 where they are
        narrower.

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
        weight = getattr(head, "weight", None)
        self.device = (
            weight.device if isinstance(weight, torch.Tensor) and weight.device.type != "meta" else model.device
        )

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
        step = max(1, _MAX_ELEMENTS // int(self._model.config.get_text_config().vocab_size))
        parts: list[torch.Tensor] = []
        for start in range(0, hidden.shape[0], step):
            logits = self.logits(hidden[start : start + step])
            normalizer = torch.logsumexp(logits, dim=-1, keepdim=True)
            chosen = logits.gather(1, wanted[start : start + step].to(logits.device)) - normalizer
            top = logits.topk(min(OTHER_TOKENS, logits.shape[-1]), dim=-1)
            # Token numbers are exact in float64, and so one copy to the host takes everything.
            figures = (chosen.double(), top.indices.double(), (top.values - normalizer).exp().double())
            parts.append(torch.cat(figures, dim=1))
        return PendingLogprobs(Arriving(torch.cat(parts)), tokens.shape[1])


def _shallow_copy(model: PreTrainedModel) -> PreTrainedModel:
    clone = copy.copy(model)
    clone.__dict__["_modules"] = dict(model._modules)
    # accelerate's hooks replace `forward` on the instance and would call the original model.
    for name in ("forward", "_old_forward", "_hf_hook"):
        clone.__dict__.pop(name, None)
    return clone


def _widened(module: nn.Module | None, dtype: torch.dtype) -> nn.Module | None:
    """Copy a head to a wider dtype; share it where it is wide enough already."""
    if module is None or all(parameter.dtype == dtype for parameter in module.parameters()):
        return module
    return copy.deepcopy(module).to(dtype)
