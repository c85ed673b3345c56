"""Weights as they are stored: bfloat16, float16 or blocks of GGUF, widened for each product.

A `Stored` tensor reports the dtype that the model computes in, and contains the bytes of the file. The modules of
transformers use it like any other parameter: linear layers, embeddings, heads, experts, convolutions. Every function
gives the same result as with widened weights, to the bit. Matrix products widen into a buffer that the next product
reuses; an embedding widens the rows that it looks up; layout operations while a model is built (reordered rows, stacked
experts) move the bytes. Any other function gets a widened copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_iter, tree_map

from geval_local.models.gguf.blocks import BlockType
from geval_local.models.products import linear

#: Most weights of one product that are widened at once; a larger matrix (a head) is widened in slices of its rows.
SLICE = 1 << 26
#: A model of fewer weights is widened once: that costs 256 MB at most, and widening would slow down its small packs.
FEW = 1 << 26
#: Unused buffers by device and dtype; there are at most as many as concurrent products.
FREE: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
#: Smallest last dimension of a tensor that stays as stored; others (kernels of convolutions) are widened once.
_NARROWEST = 16


class Stored(torch.Tensor):
    """Weights that are kept in fewer bits than they are computed in, and are widened to `dtype`."""

    #: Numbers of a floating dtype, or the bytes of blocks, with a row's bytes along the last dimension.
    data_: torch.Tensor
    blocks: BlockType | None
    #: Whether the last two dimensions are swapped against those of the blocks.
    is_turned: bool
    # A copy of the tensor's own shape, which goes through `__torch_function__` in every product.
    shape_: tuple[int, ...]

    @staticmethod
    def __new__(  # noqa: D102 - the class's own docstring
        cls,
        data: torch.Tensor,
        blocks: BlockType | None = None,
        dtype: torch.dtype = torch.float32,
        is_turned: bool = False,
    ) -> Stored:
        shape = list(data.shape)
        if blocks is not None:
            shape[-1] = shape[-1] // blocks.size * blocks.elements
        if is_turned:
            shape[-2:] = shape[:-3:-1]
        strides = None if blocks is not None else data.stride()
        made: Stored = torch.Tensor._make_wrapper_subclass(cls, shape, strides=strides, dtype=dtype, device=data.device)
        made.data_, made.blocks, made.is_turned = data, blocks, is_turned
        made.shape_ = tuple(shape)
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        kind = self.data_.dtype if self.blocks is None else self.blocks.name
        return f"Stored({tuple(self.shape)}, {kind}, computed in {self.dtype})"

    @property
    def stored_bytes(self) -> int:
        """Bytes in memory."""
        return self.data_.nbytes

    def widened(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the weights in the dtype of the computation, in the first elements of `out` if given."""
        data = self.data_
        if self.is_turned:
            return Stored(data, self.blocks, self.dtype).widened(out).mT
        if self.blocks is None and data.dim() > 1 and not data.is_contiguous() and data.mT.is_contiguous():
            return self._like(data.mT).widened(out).mT
        if out is None:
            wide = torch.empty(self.shape_, dtype=self.dtype, device=data.device)
        else:
            wide = out[: math.prod(self.shape_)].view(self.shape_)
        if self.blocks is None:
            return wide.copy_(data)
        self.blocks.widen(data, wide)
        return wide

    def _like(self, data: torch.Tensor) -> Stored:
        return Stored(data, self.blocks, self.dtype, self.is_turned)

    def _moved(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Move to another device, or to another dtype of the computation (blocks), or widen (plain numbers)."""
        device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
        data = self.data_ if device is None else self.data_.to(device)
        dtype = dtype or self.dtype
        if dtype == self.dtype:
            return self if data is self.data_ else self._like(data)
        return data.to(dtype) if self.blocks is None else Stored(data, self.blocks, dtype, self.is_turned)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func in _HANDLERS:
            return _HANDLERS[func](*args, **kwargs)
        if name in ("__get__", "__set__") or name in _ABOUT:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if name in _LAYOUT and (kept := _laid_out(func, name, args, kwargs)) is not None:
            return kept
        if name in _PRODUCTS:
            with widened_in_buffers(args, kwargs) as (wide_args, wide_kwargs):
                return func(*wide_args, **wide_kwargs)
        return func(*tree_map(wide, args), **tree_map(wide, kwargs))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # Calls from C++ arrive here; `detach` and `alias` among them change no data.
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return args[0]._like(args[0].data_)
        return func(*tree_map(wide, args), **tree_map(wide, kwargs or {}))


def turned(tensor: torch.Tensor) -> torch.Tensor:
    """Swap the last two dimensions; blocks stay as they are and are swapped after widening."""
    if not isinstance(tensor, Stored) or tensor.blocks is None:
        return tensor.transpose(-2, -1)
    return Stored(tensor.data_, tensor.blocks, tensor.dtype, not tensor.is_turned)


def rows_in_turn(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Join two stacks of matrices with alternating rows; rows of blocks of one type stay as they are."""
    if isinstance(first, Stored) and isinstance(second, Stored):
        kinds = [(one.blocks, one.data_.dtype) for one in (first, second)]
        if kinds[0] == kinds[1]:
            return Stored(torch.stack((first.data_, second.data_), dim=2).flatten(1, 2), first.blocks, first.dtype)
    return torch.stack((wide(first), wide(second)), dim=2).flatten(1, 2)


def kept_narrow(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of a checkpoint for a model of some dtype: as stored if that saves memory, else widened."""
    if dtype != torch.float32 or tensor.dtype not in (torch.bfloat16, torch.float16):
        return tensor
    return Stored(tensor) if is_kept_narrow(tensor.dtype, tensor.shape) else tensor.float()


def is_kept_narrow(dtype: torch.dtype | None, shape: Sequence[int]) -> bool:
    """Whether numbers of a dtype are kept as they are in a model that computes in float32."""
    return dtype in (torch.bfloat16, torch.float16) and len(shape) in (2, 3) and shape[-1] >= _NARROWEST


def widened_if_few(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Widen the weights of a small model for good; those of a larger one stay as they are."""
    if not are_few(sum(one.numel() for one in weights.values())):
        return weights
    return {name: wide(one) for name, one in weights.items()}


def are_few(weights: int) -> bool:
    """Whether a model of so many weights is widened when it is loaded."""
    return weights <= FEW


def are_finite(numbers: torch.Tensor) -> bool:
    """Whether all numbers of a tensor are finite; integers and numbers of 8 bits are not checked."""
    if isinstance(numbers, Stored):
        return are_finite(numbers.data_) if numbers.blocks is None else numbers.blocks.is_finite(numbers.data_)
    if numbers.is_meta or not numbers.is_floating_point() or numbers.itemsize == 1:
        return True
    # A sum runs at memory speed, where `isfinite` builds a boolean tensor; but the sum itself may overflow. It widens
    # bfloat16 before it adds, so that a large matrix is added up in parts.
    numbers = numbers if numbers.dim() else numbers.reshape(1)
    rows = max(1, len(numbers) * SLICE // max(1, numbers.numel()))
    wide = torch.promote_types(numbers.dtype, torch.float32)
    return all(
        bool(torch.isfinite(part.sum(dtype=wide))) or bool(torch.isfinite(part).all())
        for part in torch.split(numbers, rows)
    )


def bytes_of(model: nn.Module) -> int:
    """Return the memory of a model's weights and buffers, tied ones once."""
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}.values()
    return sum(one.stored_bytes if isinstance(one, Stored) else one.nbytes for one in tensors)


def widen_module(module: nn.Module) -> None:
    """Widen a module's own weights permanently, before they are changed."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        if isinstance(parameter, Stored):
            setattr(module, name, nn.Parameter(parameter.widened(), requires_grad=False))


@contextmanager
def widened_in_buffers(args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """Yield arguments with weights widened into buffers, which are reused afterwards."""
    with ExitStack() as stack:

        def widen(value: Any) -> Any:
            return stack.enter_context(_widened_in_buffer(value)) if isinstance(value, Stored) else value

        yield tree_map(widen, args), tree_map(widen, kwargs)


@contextmanager
def _widened_in_buffer(weights: Stored) -> Iterator[torch.Tensor]:
    key, size = (weights.data_.device, weights.dtype), math.prod(weights.shape_)
    free = FREE.setdefault(key, [])
    try:  # another thread may take the last one
        buffer = free.pop()
    except IndexError:
        buffer = None
    if buffer is None or buffer.numel() < size:
        del buffer  # before the larger one is allocated
        with torch.inference_mode(False):  # so that passes outside of inference mode can use it too
            buffer = torch.empty(size, dtype=key[1], device=key[0])
    try:
        yield weights.widened(buffer)
    finally:
        free.append(buffer)


def release_buffers() -> None:
    """Free all unused buffers."""
    FREE.clear()


def wide(value: Any) -> Any:
    """Widen what is stored; all else stays."""
    return value.widened() if isinstance(value, Stored) else value


def _linear(given: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    if not isinstance(weight, Stored) or isinstance(bias, Stored) or isinstance(given, Stored):
        with widened_in_buffers((given, weight, bias), {}) as (args, _):
            return nn.functional.linear(*args)
    if len(weight.shape_) == 2 and math.prod(weight.shape_) > SLICE:
        return linear_in_slices(given, weight, bias)
    with _widened_in_buffer(weight) as wide:
        return linear(given, wide, bias)


def linear_in_slices(given: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Compute a product with a large matrix, of which no more than `SLICE` weights are widened at once."""
    found = given.new_empty((*given.shape[:-1], len(weight)))
    step = max(1, SLICE // weight.shape[1])
    for start in range(0, len(weight), step):
        part = slice(start, start + step)
        wide_bias = None if bias is None else bias[part].to(given.dtype)
        found[..., part] = linear(given, weight[part].to(given.dtype), wide_bias)
    return found


def _embedding(ids: torch.Tensor, weight: Stored, *_: Any, **__: Any) -> torch.Tensor:
    # Padding and scaling of gradients have no effect here, and no judge renormalises its rows.
    return weight._like(weight.data_[ids]).widened()


def _same(tensor: Stored, *_: Any, **__: Any) -> Stored:
    return tensor._like(tensor.data_)


_HANDLERS: dict[Any, Callable[..., Any]] = {
    nn.functional.linear: _linear,
    nn.functional.embedding: _embedding,
    torch.Tensor.to: Stored._moved,
    torch.Tensor.detach: _same,
    torch.Tensor.data.__get__: _same,  # type: ignore[attr-defined]
    torch.Tensor.cpu: lambda tensor: tensor._moved("cpu"),
    torch.Tensor.cuda: lambda tensor, device="cuda", **_: tensor._moved(device),
    torch.Tensor.float: lambda tensor: tensor._moved(torch.float32),
}
#: Methods that read or change a tensor's metadata.
_ABOUT = {"size", "stride", "dim", "numel", "nelement", "element_size", "is_floating_point", "is_complex", "__hash__"}
_ABOUT |= {"is_contiguous", "requires_grad_", "__len__", "ndimension", "get_device", "storage_offset", "_is_view"}
_ABOUT |= {"is_inference", "is_same_size", "is_signed", "is_conj", "is_neg", "retain_grad"}
#: Products whose result shares no memory with their arguments.
_PRODUCTS = {"mm", "addmm", "matmul", "__matmul__", "__rmatmul__", "bmm", "baddbmm", "_grouped_mm", "grouped_mm"}
_PRODUCTS |= {"grouped_mm_fallback", "einsum", "conv1d"}
#: Operations that move weights without computing anything; `_ROWS` keep rows whole.
_ROWS = {"cat", "stack", "chunk", "split", "__getitem__", "unsqueeze", "contiguous", "clone", "narrow", "select"}
_LAYOUT = _ROWS | {"t", "transpose", "permute", "reshape", "view", "squeeze", "flatten", "unflatten", "mT", "T"}


def _laid_out(func: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Apply a layout operation to the bytes; None if that is not possible."""
    tensors = [value for value in tree_iter((args, kwargs)) if isinstance(value, torch.Tensor)]
    stored = [tensor for tensor in tensors if isinstance(tensor, Stored)]
    first = stored[0]
    if any(
        (one.blocks, one.dtype, one.data_.dtype, one.is_turned)
        != (first.blocks, first.dtype, first.data_.dtype, first.is_turned)
        for one in stored
    ):
        return None
    if name in ("cat", "stack") and len(stored) != len(tensors):
        return None
    if first.blocks is not None and not _leaves_rows_whole(name, first, args, kwargs):
        return None
    found = func(*tree_map(_bytes, args), **tree_map(_bytes, kwargs))
    return tree_map(lambda value: first._like(value) if isinstance(value, torch.Tensor) else value, found)


def _leaves_rows_whole(name: str, tensor: Stored, args: Any, kwargs: Any) -> bool:
    last = tensor.dim() - 1
    if name in ("contiguous", "clone"):
        return True
    if name == "__getitem__":
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        if index == (Ellipsis,):
            return True
        used = sum(one is not None for one in index)
        most = last - 1 if tensor.is_turned else last
        return Ellipsis not in [one for one in index if not isinstance(one, torch.Tensor)] and used <= most
    if name not in _ROWS or tensor.is_turned:
        return False
    place = {"cat": 1, "stack": 1, "unsqueeze": 1, "narrow": 1, "select": 1}.get(name, 2)
    dim = kwargs.get("dim", args[place] if len(args) > place else 0)
    limit = last if name in ("stack", "unsqueeze") else last - 1
    return bool(0 <= dim <= limit)


def _bytes(value: Any) -> Any:
    return value.data_ if isinstance(value, Stored) else value
