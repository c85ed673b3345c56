"""Devices that this machine does not have: tensors that say they are there, and operations that insist on it.

Use as ``with SimulatedDevices(): model.to("cuda:1")``. Everything is computed on the CPU. As on real devices, an
operation on tensors of two devices fails, tensors elsewhere have no numpy array, and Apple's have no float64.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["Elsewhere", "SimulatedDevices"]

_CPU = torch.device("cpu")
#: Operations that take tensors of two devices: copies, and positions on the host.
_COPIES = ("copy_", "_to_copy")
_INDEXED = ("index", "index_put_", "index_put", "_index_put_impl_")
#: Methods that ask for a device's driver before they are dispatched, where their names differ.
_RENAMED = {"__invert__": "bitwise_not"}


class Elsewhere(torch.Tensor):
    """A tensor of the CPU that says it is on another device."""

    inner: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(
        cls, inner: torch.Tensor, device: torch.device | None = None, *, requires_grad: bool = False
    ) -> torch.Tensor:
        if device is None:  # accelerate makes parameters by their class
            return inner
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=device,
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})

    def __repr__(self) -> str:
        return f"Elsewhere({self.inner!r}, {self.device})"

    def __deepcopy__(self, memo: Any) -> Elsewhere:
        return Elsewhere(self.inner.clone(), self.device)

    def numpy(self, *_: Any, **__: Any) -> Any:
        """Fail, as it does for tensors of a device."""
        raise TypeError(f"can't convert {self.device} device type tensor to numpy")


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute an operation on the CPU, if its tensors are on one device."""
    name = func.overloadpacket.__name__
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    asked = kwargs.get("device")
    asked = None if asked is None else torch.device(asked)
    judged = tensors
    if name in _COPIES:
        judged = tensors[:1]
    elif name in _INDEXED:
        judged = [tensor for tensor in tensors if tensor.device != _CPU] or tensors
    devices = {tensor.device for tensor in judged if tensor.dim() or tensor.device != _CPU}
    if len(devices) > 1:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found {sorted(map(str, devices))} in {name}"
        )
    place = asked or next(iter(devices), _CPU)
    given = {key: value for key, value in kwargs.items() if key != "pin_memory"}
    if asked is not None:
        given["device"] = _CPU
    bare = tree_map(lambda leaf: leaf.inner if isinstance(leaf, Elsewhere) else leaf, (args, given))
    found = func(*bare[0], **bare[1])
    if func._schema.is_mutable and tensors and found is bare[0][0]:
        return args[0]

    def wrap(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or place == _CPU or isinstance(leaf, Elsewhere):
            return leaf
        if place.type == "mps" and leaf.dtype in (torch.float64, torch.complex128):
            raise TypeError(f"the MPS framework doesn't support float64 ({name})")
        return Elsewhere(leaf, place)

    return tree_map(wrap, found)


def _taken(func: Any, args: Any) -> Any:
    """Read or write a part of a tensor by its index."""
    place = args[0].device
    others = {leaf.device for leaf in tree_leaves(args[1:]) if isinstance(leaf, torch.Tensor) and leaf.dim()}
    if others - {place, _CPU} or (func is torch.Tensor.__setitem__ and _CPU in others and len(others) > 1):
        raise RuntimeError(f"a tensor of {place} is indexed by or set to one of {sorted(map(str, others))}")
    with torch._C.DisableTorchFunction():
        found = func(*tree_map(lambda leaf: leaf.inner if isinstance(leaf, Elsewhere) else leaf, args))
    return None if found is None else Elsewhere(found, place)


class _Event:
    """An event of a device that has always happened."""

    def record(self, *_: Any) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Do nothing."""


class _NoDriver(TorchFunctionMode):
    """Lets tensors be made and moved where PyTorch would first start a device's driver."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.to:
            tensor, *rest = args
            devices = [one for one in (*rest, kwargs.get("device")) if isinstance(one, (torch.device, str, int))]
            devices += [one.device for one in rest if isinstance(one, torch.Tensor)]
            dtypes = [one for one in (*rest, kwargs.get("dtype")) if isinstance(one, torch.dtype)]
            place = torch.device(devices[0]) if devices else tensor.device
            dtype = dtypes[0] if dtypes else tensor.dtype
            if place == tensor.device and dtype == tensor.dtype:
                return tensor
            return torch.ops.aten._to_copy.default(tensor, device=place, dtype=dtype)
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__) and isinstance(args[0], Elsewhere):
            return _taken(func, args)
        place = torch.device(kwargs.get("device") or _CPU)
        if place == _CPU or place.type == "meta":
            try:
                return func(*args, **kwargs)
            except RuntimeError as error:
                if "not linked with support" not in str(error):
                    raise
            return getattr(torch.ops.aten, _RENAMED.get(func.__name__, func.__name__))(*args, **kwargs)
        made = func(*args, **(kwargs | {"device": _CPU}))
        return torch.ops.aten._to_copy.default(made, device=place, dtype=made.dtype)


class SimulatedDevices(TorchDispatchMode):
    """Devices of any type while it is active: ``cuda:0``, ``cuda:1``, ``xpu``, ``mps``."""

    def __enter__(self) -> Any:
        self._patches = ExitStack()
        self._patches.enter_context(_NoDriver())
        # A module's parameters are replaced: their data alone would lose the class.
        future = torch.__future__
        self._patches.callback(
            future.set_overwrite_module_params_on_conversion, future.get_overwrite_module_params_on_conversion()
        )
        future.set_overwrite_module_params_on_conversion(True)
        self._patches.enter_context(mock.patch.object(torch.Tensor, "pin_memory", lambda tensor: tensor))
        self._patches.enter_context(mock.patch.object(torch.cuda, "Event", _Event))
        self._patches.enter_context(mock.patch.object(torch.cuda, "current_stream", return_value=None))
        self._patches.enter_context(mock.patch.object(torch.cuda, "synchronize", return_value=None))
        return super().__enter__()

    def __exit__(self, *problem: Any) -> None:
        super().__exit__(*problem)
        self._patches.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})
