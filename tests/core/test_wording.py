"""A parameter in a message is written as its reader writes it: keyword arguments in Python, keys in a YAML file."""

from __future__ import annotations

import ast

import pytest
from ruamel.yaml import YAML

from geval_local.errors import ConfigurationError
from geval_local.wording import in_python, in_yaml

PARAMETERS = [
    ("`fields=output=answer`", {"fields": {"output": "answer"}}),
    ("`fields=output='bot reply'` `fields=source=x`", {"fields": {"output": "bot reply", "source": "x"}}),
    ("`fields=output=turns.0.content`", {"fields": {"output": "turns.0.content"}}),
    ("`human=METRIC=FIELD`", {"human": {"METRIC": "FIELD"}}),
    ("`encoding=cp1252`", {"encoding": "cp1252"}),
    ("`limit=10`", {"limit": 10}),
    ("`across=judge` `across=metric`", {"across": ["judge", "metric"]}),
    ("`steps=False`", {"steps": False}),
    ("`fields=output='yes: no'`", {"fields": {"output": "yes: no"}}),
    ("`style=on`", {"style": "on"}),
    ("`vllm={'quantization': 'fp8'}`", {"vllm": {"quantization": "fp8"}}),
    ("`overrides=data.test.limit=10`", {"overrides": "data.test.limit=10"}),
    ("`judge=NAME` `judge=NAME,dtype=float64`", {"judge": ["NAME", "NAME,dtype=float64"]}),
]


@pytest.mark.parametrize(("text", "meant"), PARAMETERS)
def test_a_parameter_is_python_and_yaml(text, meant):
    """What a reader copies means the same in both languages; their own parsers read it."""
    call = ast.parse(f"f({in_python(text).strip('`')})", mode="eval").body
    assert {word.arg: ast.literal_eval(word.value) for word in call.keywords} == meant
    assert YAML(typ="safe").load(in_yaml(text).strip("`")) == meant


def test_names_and_other_texts_stay():
    for text in ("leave `dtype` out", "`geval-local score F -o O`", "in '`dtype`.csv' and /`dtype`/x", "`limit="):
        assert in_python(text) == in_yaml(text) == text
    assert in_yaml("`overwrite=True`, `limit=3`", but=["overwrite"]) == "`overwrite=True`, `limit: 3`"
    assert in_python("`a=1` or `b=x` `b=y` `c`") == '`a=1` or `b=["x", "y"]` `c`'


def test_an_error_reads_as_python_and_keeps_what_other_readers_need():
    error = ConfigurationError("wrong", hint="Add `fields=output=a`.")
    assert str(error) == 'wrong\nAdd `fields={"output": "a"}`.'
    assert (error.hint, error.text) == ("Add `fields=output=a`.", "wrong\nAdd `fields=output=a`.")
