"""Between the host and the device without waiting: index tensors go over, figures come back.

A copy from ordinary memory makes a GPU finish everything before it. One from pinned memory takes its turn in the queue,
and so the host can prepare the next pack while the device computes the one before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Arriving", "to_device"]


def to_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy an array to a device; on a GPU the copy is queued behind the work that is there already."""
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
