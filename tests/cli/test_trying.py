"""A run with the embedded judge says once that it is for trying the tool, and what to take instead."""

from __future__ import annotations

import pytest
from cli_run import METRIC, good_rows, run, write_rows

from geval_local import Judge
from geval_local.models.registry import label_of
from geval_local.testing import MockJudge


@pytest.mark.parametrize(("judges", "told"), [(["nano"], "nano"), (["smol"], None), (["nano", "smol"], "nano")])
@pytest.mark.parametrize("verb", ["score", "run"])
def test_the_closing_lines_name_the_next_step(tmp_path, monkeypatch, verb, judges, told):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Judge, "load", lambda options, **more: MockJudge(name=label_of(options)))
    monkeypatch.setattr("geval_local.engine.open.check_backend", lambda choice: None)
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    write_rows(tmp_path / "data.jsonl", good_rows(3))
    words = ["data.jsonl", "-m", "clarity.yaml", *(word for judge in judges for word in ("-j", judge)), "--no-cache"]
    if verb == "run":
        file = tmp_path / "e.yaml"
        file.write_text(f"data: {{a: data.jsonl, b: data.jsonl}}\nmetrics: [clarity.yaml]\njudges: {judges}\n")
        words = ["e.yaml"]
    done = run(verb, *words, home=tmp_path / "home")
    lines = [line for line in done.stderr.splitlines() if "for trying the tool" in line]
    assert [line.split(" is ")[0] for line in lines] == ([] if told is None else [told])
    assert all("-j smol" in line and "-j DIR" in line for line in lines)
