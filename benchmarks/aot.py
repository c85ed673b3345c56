"""Compile the attention kernel for cards that are not here: whether it fits into shared memory, and spills.

    python benchmarks/aot.py --out aot.jsonl [--only "sm_90 .*bfloat16"]

Needs a CUDA build of PyTorch with Triton, and no card. `kernel_error`, which compares the kernel with float64 on a
card, is called on fake tensors with a driver that knows a card's limits and nothing else. Inductor writes the kernel,
Triton and ptxas make machine code, and where that asks for more shared memory than the card has, the driver says what
PyTorch's says, so that FlexKernel walks its own ladder of settings. One JSON line per case, as soon as it is compiled;
cases that the file already has are left out, so that it goes on where it was stopped. The exit code is 1 if a case
reached no setting that fits, or one that spills more registers than `STACK` and `WIDE_STACK` allow.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # compiled here, where the driver is
os.environ["TORCHINDUCTOR_USE_STATIC_CUDA_LAUNCHER"] = "0"  # it would ask a real driver

import torch
from attention_check import kernel_error
from first_contact import HEADS, MASKS
from numpy.typing import NDArray

from geval_local.engine.prefix_sharing.flex import FlexKernel

#: Compute capability -> bytes of shared memory of a block (CUDA's programming guide, "opt-in"), and multiprocessors.
CARDS = {90: (232_448, 132), 80: (166_912, 108), 89: (101_376, 128), 120: (101_376, 170)}
#: Bytes of stack that a thread may take for registers that it has no room for; float32 is for probes.
STACK = {torch.bfloat16: 512, torch.float16: 512, torch.float32: 16_384}
#: The same for heads of 512, which spill in the smallest blocks that were tried; slower, and not wrong.
WIDE_STACK = 2_560


class Loaded(BaseException):
    """The kernel fits and would be loaded now: what ends a case; no `except Exception` on the way may catch it."""


class Driver:
    """As much of a Triton driver as comes before the first byte reaches a card."""

    def __init__(self, capability: int) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", capability, 32)
        self.utils = SimpleNamespace(
            get_device_properties=lambda _: {"max_shared_mem": CARDS[capability][0]}, load_binary=self._load
        )
        self.refused: list[int] = []

    def get_current_target(self) -> Any:
        """Return what to compile for."""
        return self.target

    def get_current_device(self) -> int:
        """Return the one card."""
        return 0

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        """Note what a kernel asks for; Triton compares it with the limit right after this."""
        self.refused.append(metadata.shared)
        self.metadata = metadata

    def _load(self, name: str, binary: bytes, shared: int, _: int) -> None:
        raise Loaded(name, binary, shared)


def resources(binary: bytes) -> dict[str, int]:
    """Read a thread's registers and the bytes of its stack, where spilled registers go, from the machine code."""
    import tempfile

    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        listed = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    found = dict(re.findall(r"\b(REG|STACK|LOCAL):(\d+)", listed.stdout))
    return {"registers": int(found["REG"]), "stack_bytes": int(found["STACK"]) + int(found["LOCAL"])}


def compiled(capability: int, size: int, dtype: torch.dtype, given: dict[str, Any]) -> dict[str, Any]:
    """Compile one case, from the rung of the ladder that FlexKernel begins with to the one that fits."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from triton.runtime import driver

    card = Driver(capability)
    driver.set_active(card)
    torch._dynamo.reset()
    served = FlexKernel()
    begun = time.perf_counter()
    fits: dict[str, Any] = {"fits": False}
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            kernel_error(served, size, dtype, torch.device("cuda", 0), **given)
    except Loaded as found:
        _, binary, shared = found.args
        fits = {"fits": shared < CARDS[capability][0], "shared_bytes": shared, **resources(binary)}
        fits |= {"warps": card.metadata.num_warps, "stages": card.metadata.num_stages}
        card.refused.pop()
    return {
        **fits,
        "limit_bytes": CARDS[capability][0],
        "settings": next(iter(served.settings.values()), "PyTorch's own"),
        "too_large_bytes": card.refused,
        "refused": list(served.refused.values()),
        "seconds": round(time.perf_counter() - begun, 1),
    }


def shaped(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Stand in for a copy to a device: values play no part."""
    return torch.empty(array.shape, dtype=torch.from_numpy(array).dtype, device=device)


def pretend(capability: int) -> None:
    """Let PyTorch believe that it has one card of this kind."""
    from torch._dynamo.device_interface import CudaInterface

    torch._C._ensureCUDADeviceGuardSet()  # while PyTorch still knows that there is none
    processors = CARDS[capability][1]
    card = SimpleNamespace(
        name=f"sm_{capability}",
        major=capability // 10,
        minor=capability % 10,
        multi_processor_count=processors,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048 if capability in (80, 90) else 1536,
        max_threads_per_block=1024,
        warp_size=32,
        total_memory=80 << 30,
        shared_memory_per_block_optin=CARDS[capability][0],
    )
    answers = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_capability": (card.major, card.minor),
        "get_device_properties": card,
        "get_device_name": card.name,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": None,
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
    }
    for name, answer in answers.items():
        known = lambda *_, answer=answer, **__: answer  # noqa: E731
        mock.patch.object(torch.cuda, name, known).start()
        # Dynamo holds functions of torch.cuda under their names without the underscore.
        if hasattr(CudaInterface, name.lstrip("_")):
            mock.patch.object(CudaInterface, name.lstrip("_"), staticmethod(known)).start()
    # These would start CUDA.
    mock.patch("torch.accelerator.is_available", return_value=False).start()
    mock.patch("torch._inductor.fx_passes.joint_graph.lazy_init").start()
    mock.patch("geval_local.engine.prefix_sharing.flex.to_device", shaped).start()
    mock.patch("torch._subclasses.fake_tensor.init_gpu_context").start()
    mock.patch("torch._inductor.runtime.triton_helpers.set_driver_to_gpu").start()


def cases(only: str) -> Iterator[tuple[str, int, int, torch.dtype, dict[str, Any]]]:
    """All cases whose name matches, the common first."""
    for capability in CARDS:
        for dtype in STACK:
            for size in HEADS:
                for mask, given in MASKS.items():
                    name = f"sm_{capability} {str(dtype).removeprefix('torch.')} {size} {mask}"
                    if re.search(only, name):
                        yield name, capability, size, dtype, given


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression that a case's name must match")
    parser.add_argument("--card", type=int, choices=CARDS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, required=True, help="file of results, which is continued")
    options = parser.parse_args()
    lines = options.out.read_text(encoding="utf-8").splitlines() if options.out.exists() else []
    known = {json.loads(line)["case"] for line in lines if line.startswith("{")}
    chosen = [case for case in cases(options.only) if case[0] not in known]
    if options.card is None:  # much of PyTorch asks once what the card is: a process for each
        command = [sys.executable, __file__, "--only", options.only, "--out", str(options.out), "--card"]
        wanted = dict.fromkeys(str(capability) for _, capability, *_ in chosen)
        sys.exit(max((subprocess.run([*command, card]).returncode for card in wanted), default=0) != 0)
    pretend(options.card)
    failed = False
    for name, capability, size, dtype, given in chosen:
        if capability == options.card:
            found = compiled(capability, size, dtype, given)
            allowed = max(STACK[dtype], WIDE_STACK if size == max(HEADS) else 0)
            failed |= not found["fits"] or found["stack_bytes"] > allowed
            with options.out.open("a", encoding="utf-8") as results:
                results.write(json.dumps({"case": name, "torch": torch.__version__, **found}) + "\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
