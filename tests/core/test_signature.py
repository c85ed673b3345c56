"""Signatures: what is written is read again, whatever a name or a scale contains, and nothing hides a difference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geval_local.errors import DataError, OutputError
from geval_local.metric import Metric
from geval_local.runs.manifest import JudgeRecord
from geval_local.runs.run import meet
from geval_local.signature import Signature, signature_differences, signature_parts
from geval_local.testing import MockJudge

PLAIN = Signature(
    judge="nano@a0bcfa2891f0ba7a",
    tokenizer="72bb725abc67f294",
    metric="m@1",
    steps="none",
    scale="1-5",
    style="completion",
    dtype="float32",
    attention="sdpa",
    estimator="exact",
    transformers="5.23.0",
    torch="2.13.0",
    version="0.1.0",
)
#: Texts that look like other parts of a signature.
FORGED = ("a|version:1", "a|judge:x@1|tokenizer:0", "a%7Cversion:1", "%", "%25", "a\nb", "a|b", "@|@", "a|further:{}")


def test_a_plain_signature_is_written_as_before() -> None:
    assert str(PLAIN) == (
        "judge:nano@a0bcfa2891f0ba7a|tokenizer:72bb725abc67f294|metric:m@1|steps:none|scale:1-5|style:completion|"
        "dtype:float32|attention:sdpa|estimator:exact|transformers:5.23.0|torch:2.13.0|version:0.1.0"
    )


@pytest.mark.parametrize("text", FORGED)
@pytest.mark.parametrize("key", ["judge", "scale", "metric"])
def test_a_value_cannot_end_its_part(key: str, text: str) -> None:
    forged: dict[str, Any] = {key: f"{text}@0" if key == "judge" else text}
    signature = replace(PLAIN, **forged)

    assert Signature.parse(str(signature)) == signature
    assert "\n" not in str(signature)


@given(st.dictionaries(st.sampled_from(["judge", "scale", "style", "metric", "dtype"]), st.text(max_size=12)))
def test_whatever_the_values_are_the_line_has_them(values: dict[str, str]) -> None:
    signature = replace(PLAIN, **values)

    assert Signature.parse(str(signature)) == signature


@pytest.mark.parametrize("name", [f"nano@a0bcfa2891f0ba7a{rest}" for rest in ("|version:1", "|dtype:x|torch:2", "%7C")])
def test_a_name_does_not_hide_other_weights(name: str) -> None:
    honest, other = (str(replace(PLAIN, judge=f"{name}@{content}")) for content in ("1111", "2222"))

    assert signature_differences(honest, other) == {"judge": (f"{name}@1111", f"{name}@2222")}


def test_a_key_that_stands_twice_is_refused() -> None:
    with pytest.raises(DataError, match="'version' twice"):
        signature_parts(f"{PLAIN}|version:0.1.0")


def test_a_signature_without_a_key_is_refused() -> None:
    with pytest.raises(DataError, match="lacks dtype"):
        Signature.parse(str(PLAIN).replace("|dtype:float32", ""))


def test_further_settings_stand_before_the_versions() -> None:
    signature = replace(PLAIN, further={"context": "4096"})

    assert "|estimator:exact|context:4096|transformers:" in str(signature)
    assert Signature.parse(str(signature)) == signature


def test_other_weights_under_the_same_signature_are_another_judge() -> None:
    record = JudgeRecord(name="n", choice={}, fingerprint="1", engine="trie", signatures={"m": str(PLAIN)})

    with pytest.raises(OutputError, match="fingerprint was 1, is 2"):
        meet(record, record.model_copy(update={"fingerprint": "2"}))


def test_the_context_counts_where_a_field_is_shortened() -> None:
    plain = Metric(name="m", criteria="c", fields={"output": "Output"}, steps=["s"], scale="1-5")
    cut = plain.model_copy(update={"shorten": "output"})
    signatures = {
        (metric.shorten, context): str(MockJudge(context=context).signature(metric))
        for metric in (plain, cut)
        for context in (400, 4000)
    }

    assert signatures[None, 400] == signatures[None, 4000]
    differ = signature_differences(signatures["output", 400], signatures["output", 4000])
    assert differ == {"context": ("400", "4000")}
