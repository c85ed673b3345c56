"""The dtype that ``auto`` would choose on an accelerator, for a real model on this machine."""

from __future__ import annotations

import pytest

from geval_local.models.load import load_model
from geval_local.models.precision import decide, measure
from geval_local.models.registry import find_judge
from geval_local.options import JudgeOptions

pytestmark = pytest.mark.slow


def test_float16_is_nearer_to_float32_and_has_room(smollm2):
    loaded = load_model(find_judge(smollm2), JudgeOptions(device="cpu"))
    assert loaded.precision.text("float32") == "float32 (exact to 1e-5)"
    found = measure(loaded.model, loaded.tokenizer, ["float16", "bfloat16"], style=loaded.entry.style, most=2)
    float16, bfloat16 = found.noise["float16"], found.noise["bfloat16"]
    assert 0 < float16.mean < bfloat16.mean
    assert 1e4 < found.largest_activation < 32_000  # a model with the large activations that real ones have
    name, reason = decide(found)
    assert name == "float16"
    assert "leave room" in reason
