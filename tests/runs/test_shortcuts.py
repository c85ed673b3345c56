"""Every shortcut in the pipeline gives the same result as the long way."""

from __future__ import annotations

import datetime
import enum
import io
import itertools
import json
import math
import threading
from contextlib import closing

import numpy as np
import pytest
from encoders import real_encoder
from example_counts import example_count
from hypothesis import example, given, settings
from hypothesis import strategies as st
from run_kit import execute, wanted, write_input
from tiny import byte_tokenizer

from geval_local.engine.interface import Position
from geval_local.engine.prefix_sharing.packs import lay_requests_out
from geval_local.engine.window import WINDOW, window_sizes
from geval_local.errors import Interrupted, UnscorableError
from geval_local.io.columns import ResultRow, to_json
from geval_local.io.input_files import read_samples
from geval_local.io.samples import Sample
from geval_local.io.writer import JsonlSink
from geval_local.metric import Metric
from geval_local.prompt import form_filler, render_form
from geval_local.runs.executor import read_windows, run_ahead
from geval_local.runs.store import PlanRecord, Store
from geval_local.score import Outcome
from geval_local.testing import MockEngine
from geval_local.tokens import encoder as segments
from geval_local.tokens.encoder import PromptEncoder
from geval_local.tokens.label_trie import LabelTrie, SurfaceForm
from geval_local.tokens.requests import Request, common_prefix

# --- output -----------------------------------------------------------------------------------------------------------


class _Colour(str, enum.Enum):
    RED = "red"


class _Number(int):
    def __str__(self) -> str:
        return "not this"


ODD = st.sampled_from(
    [
        *(
            math.nan,
            math.inf,
            -0.0,
            1e-7,
            1e22,
            "\ud800",
            "é\u2028\x00",
            b"\xff",
            (1, (2,)),
            {3: 4},
            {None: 1},
            {1.5: 2},
        ),
        *(np.float32(0.1), np.int64(7), np.array([1.0, math.nan]), datetime.date(2024, 5, 17), _Colour.RED, _Number(5)),
        *(True, None, 2**70, [], {}, {"\ud800": 1}, [{"deep": [math.nan, {2: "x"}]}]),
    ]
)
NAMES = st.text(max_size=4) | st.sampled_from(["\ud801", "geval_input", "é"]) | st.integers() | st.none()
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)


@pytest.mark.slow
@settings(max_examples=example_count(300))
@given(
    columns=st.dictionaries(NAMES, PLAIN | ODD, max_size=5),
    earlier=st.dictionaries(st.text(max_size=3), st.dictionaries(st.text(max_size=3), PLAIN | ODD), max_size=2),
    figures=st.dictionaries(st.text(max_size=3), st.dictionaries(st.text(max_size=3), PLAIN), max_size=2),
)
@example(columns={None: 1, True: 2, 1.5: 3}, earlier={}, figures={})
@example(columns={"a": 1}, earlier={}, figures={"m": {"score": math.nan, "error": "\udce9"}})
def test_a_line_is_the_strict_json_of_the_row(columns, earlier, figures):
    file = io.BytesIO()
    JsonlSink(file).write(ResultRow(columns, earlier, figures, False))
    line = file.getvalue().decode()
    assert line.count("\n") == 1
    assert json.loads(line) == json.loads(to_json({**columns, "geval": {**earlier, **figures}}))


# --- input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ('{"a": "\\ud800"}', "not valid Unicode"),
        ('{"\\ud800": "x"}', "not valid Unicode"),
        ('{"a": ["\\ud800"]}', "not valid Unicode"),
        ('{"a": 1, "a": 2}', "occurs twice"),
        ('{"a": NaN, "b": "é", "c": null, "d": true}', None),
        ('{"a": ' + "[" * 40 + "]" * 40 + "}", "nested deeper"),
        ('\ufeff{"a": 1}', "not valid JSON"),
        ('{"a": 1} x', "Extra data"),
    ],
)
def test_rows_without_nesting_are_checked_as_any_other(tmp_path, line, error):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": 1}\n' + line + "\n", encoding="utf-8")
    sample = list(read_samples(file))[1]
    assert (sample.error is None) if error is None else (error in str(sample.error))


@settings(max_examples=example_count(100))
@given(st.text(st.sampled_from(" \t\x1c\u00a0\u3000aé"), max_size=4))
def test_a_text_that_needs_no_second_look_is_not_empty(text):
    sample = Sample({"output": text})
    if text.strip():
        assert sample.texts(["output"]) == {"output": text}
    else:
        with pytest.raises(UnscorableError, match=r"is (empty|only white space)"):
            sample.texts(["output"])


# --- prompts and tokens -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", [None, "Rate {{Document}} and {{Summary}}.\n\n- Coherence:"])
def test_a_filler_fills_every_form_anew(template):
    metric = Metric(
        name="m", criteria="c", scale="1-5", fields={"source": "Source", "output": "Summary"}, template=template
    )
    fill = form_filler(metric)
    rows = [{"output": f"o{number}", "source": "{{Summary}}\n\nSummary:", "other": "x"} for number in range(3)]
    assert [fill(row) for row in rows] == [render_form(metric, row) for row in rows]
    assert len({fill(row).text for row in rows}) == 3


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_texts_that_are_encoded_in_batches_keep_their_places(at_once, monkeypatch):
    monkeypatch.setattr(segments, "AT_ONCE", at_once)
    encoder = PromptEncoder(byte_tokenizer())
    texts = [f"{number} text.\nSame line {number % 2}\nEnd" for number in range(7)]
    alone = [encoder.encode_texts([text])[0].tolist() for text in texts]
    for least in (0, 1 << 30):
        encoder.shared_texts.least = least
        assert [ids.tolist() for ids in encoder.encode_texts(texts)] == alone


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["mistral", "qwen"])
def test_pieces_get_the_ids_that_are_given_out_and_the_prefix(name):
    encoder = real_encoder(name)
    texts = ["A </s><|im_end|> b\nThen c", "A </s><|im_end|> b\nThen d\nE"]
    raw = [encoding.ids for encoding in encoder.backend.encode_batch_fast(texts, add_special_tokens=False)]
    expected = [[*encoder.prefix_ids, *encoder.original_ids[ids].tolist()] for ids in raw]
    for least in (0, 1 << 30):
        encoder.shared_texts.least = least
        found = encoder.encode_texts(texts)
        assert [ids.tolist() for ids in found] == expected
        assert {ids.dtype for ids in found} == {np.dtype(np.int32)}


# --- plan and store ---------------------------------------------------------------------------------------------------


def test_requests_of_several_tries_are_read_at_their_own_nodes():
    digits = LabelTrie([SurfaceForm(0, "1", (1,)), SurfaceForm(1, "10", (1, 0)), SurfaceForm(2, " 2", (9, 2))], 3)
    plain = LabelTrie([SurfaceForm(0, "a", (5,)), SurfaceForm(1, "b", (6,))], 2)
    requests = [
        Request(np.array(ids, dtype=np.int32), trie)
        for ids, trie in (([7, 7, 1], digits), ([7, 7], plain), ([7, 7, 1], plain), ([7, 7], digits))
    ]
    work = lay_requests_out(range(4), requests)
    found = {}
    for place, position in zip(work.places.tolist(), work.positions, strict=True):
        path = [*work.stream.tokens[work.stream.root_path(place)].tolist(), int(work.stream.tokens[place])]
        found[position] = path
    expected = {
        Position(number, node): [*request.ids.tolist(), *inner.path]
        for number, request in enumerate(requests)
        for node, inner in enumerate(request.trie.inner_nodes)
    }
    assert found == expected


@given(st.lists(st.integers(0, 1), max_size=5), st.lists(st.integers(0, 1), max_size=5))
def test_common_prefix(first, second):
    expected = next((n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    found = common_prefix(np.array(first, dtype=np.int32), np.array(second, dtype=np.int32))
    assert found == (min(len(first), len(second)) if expected is None else expected)


@pytest.mark.parametrize("rows", [0, 1, 31, 32, 33, 64, 100])
def test_rows_are_stored_whatever_their_number_and_the_first_one_stays(rows, tmp_path):
    def outcomes(value: float) -> dict[int, Outcome]:
        return {row: Outcome(np.array([value, -float(row)]), prompt_tokens=row, sample_key=row) for row in range(rows)}

    with closing(Store(tmp_path / "store", "run", is_new=True)) as store:
        store.begin_window(0, 0, {0: PlanRecord(1, 1)}, [(0, 3, 1, Outcome(error="first"))] if rows else [])
        store.add(0, ((0, row, outcome) for row, outcome in outcomes(-1.0).items()))
        store.add(0, ((0, row, outcome) for row, outcome in outcomes(-2.0).items()))
        found = store.outcomes(0, 0, 0, 1000)
    assert sorted(found) == sorted({*range(rows), *([3] if rows else [])})
    for row, outcome in found.items():
        if row == 3:
            assert outcome.error == "first"
        else:
            assert outcome.label_logprobs is not None
            assert (outcome.label_logprobs.tolist(), outcome.prompt_tokens) == ([-1.0, -float(row)], row)


# --- threads ----------------------------------------------------------------------------------------------------------


def test_windows_come_in_order_and_their_threads_end_with_them():
    before = threading.active_count()
    samples = [Sample({"output": str(number)}) for number in range(10)]
    seen: list[str] = []

    def prepare(window):
        seen.append(threading.current_thread().name)
        return list(window)

    ahead = run_ahead(read_windows(iter(samples), 4, [prepare, None], lambda group, first, stop: first == 4))
    windows = list(ahead)
    assert [(one.number, one.first, len(one.samples)) for one in windows] == [(0, 0, 4), (1, 4, 4), (2, 8, 2)]
    assert [one.prepared[0] is None for one in windows] == [False, True, False]
    assert set(seen) == {"geval-local reader_0"}
    assert threading.active_count() == before

    endless = (Sample({"output": "x"}) for _ in iter(int, 1))
    ahead = run_ahead(read_windows(endless, 4, [prepare], lambda group, first, stop: False))
    next(ahead)
    ahead.close()
    assert threading.active_count() == before


def test_a_model_does_not_wait_for_a_whole_window_of_rows():
    read: list[int] = []
    samples = (Sample({"output": str(read.append(number) or number)}) for number in range(10_000))
    ahead = run_ahead(read_windows(samples, WINDOW, [list], lambda group, first, stop: False))
    first = next(ahead)
    assert len(first.samples) == 256
    sizes = [len(first.samples), *(len(window.samples) for window in ahead)]
    assert sizes == [256, 512, 1024, 2048, 4096, 10_000 - 7936]
    # Below this there is nothing to wait for, and what --window says holds.
    assert list(itertools.islice(window_sizes(1000), 3)) == [1000] * 3


@pytest.mark.slow
def test_a_run_with_small_first_windows_is_resumed_to_the_last_byte(tmp_path, monkeypatch):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    file = write_input(tmp_path / "in.jsonl", 3000)
    whole = execute(tmp_path / "whole", wanted(file, window=2048))[0]
    with pytest.raises(Interrupted):
        execute(tmp_path / "run", wanted(file, window=2048), stop_after=30)
    assert execute(tmp_path / "run", None)[0].read_bytes() == whole.read_bytes()
    made = MockEngine(batch_tokens=6000, sensitive=True)
    assert execute(tmp_path / "run", wanted(file, window=2048), lambda: made)[0].read_bytes() == whole.read_bytes()
    assert made.executed_packs == 0


def test_what_the_reader_raises_comes_out_behind_the_windows_before_it():
    def broken():
        yield from (Sample({"output": "x"}) for _ in range(4))
        raise OSError("the disk is gone")

    before = threading.active_count()
    ahead = run_ahead(read_windows(broken(), 4, [None], lambda group, first, stop: False))
    assert next(ahead).number == 0
    with pytest.raises(OSError, match="the disk is gone"):
        next(ahead)
    assert threading.active_count() == before
