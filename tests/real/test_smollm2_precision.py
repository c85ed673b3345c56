"""The dtype that ``auto`` would choose on an accelerator, for a real model on this machine."""

from __future__ import annotations

import pytest

from geval_local.models.precision import decide, measure

pytestmark = pytest.mark.slow


@pytest.mark.nightly
def test_float16_is_nearer_to_float32_and_has_room(smollm2_judge):
    loaded = smollm2_judge.backend.loaded
    assert loaded.precision.text("float32") == "float32 (exact to 1e-5)"
    found = measure(loaded.model, loaded.tokenizer, ["float16", "bfloat16"], style=loaded.entry.style, most=1)
    float16, bfloat16 = found.noise["float16"], found.noise["bfloat16"]
    assert 0 < float16.mean < bfloat16.mean
    assert 1e4 < found.largest_activation < 32_000  # a model with the large activations that real ones have
    name, reason = decide(found)
    assert name == "float16"
    assert "leave room" in reason
