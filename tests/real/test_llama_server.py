"""A real llama.cpp server against this package's own engine, on one GGUF file in float32."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np
import pytest
from cli_run import run
from gguf_kit import write_gguf
from llama_server import llama_server
from tiny import byte_tokenizer, tiny_model

from geval_local import Judge, Metric, score_file
from geval_local.errors import JudgeError

pytest.importorskip("xllamacpp")

#: As a chat of two marks that the byte tokenizer has.
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
BASE = {
    "criteria": "How well the output sums up the source.",
    "fields": {"source": "Source", "output": "Output"},
    "steps": ("Read both.", "Rate it."),
}
METRICS = {
    "five": Metric(name="five", scale="1-5", **BASE),
    "digits": Metric(name="digits", scale="0-100", **BASE),
    "yes": Metric(name="yes", scale={"Yes": 1, "No": 0}, **BASE),
    "words": Metric(name="words", scale={"poor": 1, "fair": 2, "good": 3}, **BASE),
}
SOURCES = ["The library reopened on Monday after eight months of repairs. ", "A storm closed the harbour. "]
ROWS = [{"source": SOURCES[number // 2], "output": f"It is open again, {number}."} for number in range(4)]
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    model = tiny_model("llama", len(byte_tokenizer(merges=[("1", "0"), ("1", "2")])))
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", model, template=TEMPLATE)


@pytest.fixture(scope="module")
def address(file):
    with llama_server(file) as found:
        yield found.address


@pytest.mark.parametrize("style", ["chat", "completion"])
def test_every_label_is_that_of_the_own_engine(address, file, style):
    served, own = (Judge.load(name, style=style, **more) for name, more in [(address, {}), (str(file), {})])
    for metric in METRICS.values():
        for one, other in zip(served.score_many(metric, ROWS), own.score_many(metric, ROWS), strict=True):
            assert one.error is None
            logs = np.log([*one.probabilities.values()]) - np.log([*other.probabilities.values()])
            assert np.abs(logs).max() < TOLERANCE
            assert one.label_mass == pytest.approx(other.label_mass, rel=TOLERANCE)


def test_its_facts(address, file):
    judge = Judge.load(address)
    signature = str(judge.signature(METRICS["five"]))
    assert "backend:served by llama.cpp " in signature
    assert "weights:named by the server, sha256 " in signature
    assert "cache:exact|" in signature
    assert judge.engine_report.difference < TOLERANCE
    assert judge.context == 4095
    assert judge.name == "served:tiny.gguf"


def test_figures_are_the_same_alone_and_again(address):
    judge = Judge.load(address)
    metric = METRICS["digits"]
    first = judge.score_many(metric, ROWS)
    for found in (judge.score_many(metric, ROWS[::-1])[::-1], [judge.score(metric, **row) for row in ROWS]):
        assert [one.value for one in found] == pytest.approx([one.value for one in first], abs=1e-3)


def test_a_long_prompt_is_unscored_and_the_others_are_not(address):
    judge = Judge.load(address)
    found = judge.score_many(METRICS["five"], [ROWS[0], {"source": "Long. " * 800, "output": "x"}])
    assert found[0].is_scored
    assert "4095" in found[1].error


def test_thoughts_are_drawn_by_their_seeds(address, tmp_path):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "five.yaml").write_text(METRICS["five"].to_yaml())
    written = []
    for name in ("a", "b"):
        asked = ["score", "rows.jsonl", "-m", "five.yaml", "-j", address, "--think", "2", "--think-tokens", "12"]
        asked += ["--keep-thoughts", "--no-cache", "-o", f"{name}.jsonl"]
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            done = run(*asked, home="home")
        assert done.exit_code == 0, done.stderr
        written.append([json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()])
    assert all(row["geval"]["five"]["thought_count"] == 2 for row in written[0])
    texts = [[row["geval"]["five"]["thoughts"] for row in rows] for rows in written]
    # A server rounds by what it computes beside a request, and now and then a token is another one for that.
    both = zip(chain.from_iterable(texts[0]), chain.from_iterable(texts[1]), strict=True)
    assert [first == second for first, second in both].count(False) <= 1
    assert len({json.dumps(one) for one in texts[0]}) > 1


def test_two_runs_at_once_have_the_figures_of_one(address):
    metric = METRICS["digits"]
    expected = [one.value for one in Judge.load(address).score_many(metric, ROWS)]
    judges = [Judge.load(address), Judge.load(address)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda judge: judge.score_many(metric, ROWS), judges))
    for scores in found:
        assert [one.value for one in scores] == pytest.approx(expected, abs=1e-3)


def test_judges_check_compares_it_with_the_own_engine(address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "five.yaml").write_text(METRICS["five"].to_yaml())
    asked = ("judges", "check", address, "-m", "five.yaml")
    record = json.loads(run(*asked, "--json", home="home").stdout)
    assert record["own_engine_difference"] < TOLERANCE
    assert "in units of the scale (the same file)" in " ".join(run(*asked, home="home").stdout.split())


def test_a_server_that_ends_stops_the_run_and_another_one_continues_it(file, tmp_path, monkeypatch):
    monkeypatch.setattr("geval_local.engine.served_client.PAUSES", (0.0,))
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    with llama_server(file) as found:
        judge = Judge.load(found.address)
    with pytest.raises(JudgeError, match="does not answer"):
        score_file(rows, [METRICS["five"]], judge, output=tmp_path / "out.jsonl", use_cache=False)
    with llama_server(file) as found:
        judge = Judge.load(found.address)
        result = score_file(rows, [METRICS["five"]], judge, output=tmp_path / "out.jsonl", use_cache=False)
    assert result.summaries[0].scored == len(ROWS)
