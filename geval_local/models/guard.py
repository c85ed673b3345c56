"""The guard of every pass: what a host program sets in PyTorch changes no figure.

A program may ask for faster products (TF32, bfloat16), for another default dtype or device, or run its code under
autocast. The figures of a judge depend on none of these, and all of them are as they were afterwards.
"""

from __future__ import annotations

import threading
from contextlib import ContextDecorator, ExitStack, suppress
from typing import Any

import torch

#: Settings of half-precision products that have values of their own, and PyTorch's defaults.
_PRODUCTS = {
    "allow_fp16_accumulation": False,
    "allow_fp16_reduced_precision_reduction": True,
    "allow_bf16_reduced_precision_reduction": True,
}
_AUTOCAST = ("cpu", "cuda", "xpu", "mps")


class Guard(ContextDecorator):
    """Keeps a host program's settings away from what is computed; may be entered again, and by several threads.

    Some settings are those of the process: the first thread that enters changes them, the last one that leaves
    restores them. The others are those of a thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = 0
        self._process = ExitStack()
        self._here = threading.local()

    def __enter__(self) -> None:
        depth = getattr(self._here, "depth", 0)
        if not depth:
            with ExitStack() as stack:
                for kind in _AUTOCAST:
                    if torch.is_autocast_enabled(kind):
                        stack.enter_context(torch.autocast(kind, enabled=False))
                if torch.get_default_device().type != "cpu":
                    stack.enter_context(torch.device("cpu"))
                with self._lock:
                    if not self._threads:
                        self._process = _exact_process()
                    self._threads += 1
                self._here.stack = stack.pop_all()
        self._here.depth = depth + 1

    def __exit__(self, *_: object) -> None:
        self._here.depth -= 1
        if not self._here.depth:
            with self._lock:
                self._threads -= 1
                if not self._threads:
                    self._process.close()
            self._here.stack.close()


guarded = Guard()


class GuardedLock:
    """The lock of a model that computes, held under the guard; the same thread may take it again."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            guarded.__enter__()
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            guarded.__exit__()
        finally:
            self._lock.release()


def _exact_process() -> ExitStack:
    """Give the process PyTorch's defaults, and exact products in float32; what is returned restores its settings."""
    backends: Any = torch.backends
    cuda, mkldnn, cudnn = backends.cuda.matmul, backends.mkldnn, backends.cudnn
    with ExitStack() as stack:
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        for name, value in _PRODUCTS.items():
            stack.callback(setattr, cuda, name, getattr(cuda, name))
            setattr(cuda, name, value)
        # They are restored from the last to the first: cuDNN before its parts, which may follow it, and the older names
        # before all, each of which sets several of the newer ones.
        parts = (cuda, mkldnn.matmul, mkldnn.conv, mkldnn.rnn, cudnn.conv, cudnn.rnn, cudnn)
        for part in parts:
            stack.callback(_restore, part, part.fp32_precision)
        with suppress(RuntimeError):  # a newer one was set, which forbids reading the older
            stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        with suppress(RuntimeError):
            stack.callback(setattr, cudnn, "allow_tf32", cudnn.allow_tf32)
        torch.set_float32_matmul_precision("highest")
        cudnn.allow_tf32 = False
        # By default cuDNN's convolutions and recurrent layers have TF32, with its ten-bit fraction.
        for part in parts:
            part.fp32_precision = "ieee"
        return stack.pop_all()


def _restore(part: Any, precision: str) -> None:
    """Restore a precision, which may be that of all backends."""
    part.fp32_precision = "none"
    if part.fp32_precision != precision:
        part.fp32_precision = precision
