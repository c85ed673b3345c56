"""The GPU's attention, run here: eager in every test, compiled in the slow ones, counted on the meta device."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from example_counts import example_count
from hypothesis import given, settings
from hypothesis import strategies as st
from prompts import SERVED, VOCAB, distinct_tokens, documents, largest_difference, logprobs
from tiny import tiny_model

from geval_local.engine import choose
from geval_local.engine.batched import PaddedEngine
from geval_local.engine.choose import choose_engine
from geval_local.engine.prefix_sharing import flex
from geval_local.engine.prefix_sharing.attention import PackAttention
from geval_local.engine.prefix_sharing.engine import PrefixSharingEngine
from geval_local.engine.prefix_sharing.flex import TILE, FlexKernel, Intervals, find_kernel, ladder, why_no_kernel
from geval_local.engine.prefix_sharing.key_value_store import PathStore
from geval_local.engine.prefix_sharing.packs import lay_requests_out
from geval_local.engine.prefix_sharing.prompt_trie import build_stream, lay_out
from geval_local.models.head import Head

#: One prompt at a time, these compute attention or routing in float32 whatever the dtype of the model.
FLOAT64_TOLERANCE = {"gemma2": 1e-5, "deepseek_v3": 1e-5}
SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=9)


def engines(model, batch_tokens, kernel):
    head = Head(model)
    alone = PaddedEngine(model, head, batch_tokens=1)
    return alone, PrefixSharingEngine(model, head, batch_tokens=batch_tokens, padded=alone, kernel=kernel)


@pytest.fixture
def small_tiles():
    flex.TILE = 4
    yield
    flex.TILE = TILE


# --- attention visibility ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=example_count(200))
@given(SEQUENCES, st.data())
@pytest.mark.usefixtures("small_tiles")
def test_intervals_and_tiles_say_what_the_prompts_say(sequences, data):
    stream, _ = build_stream([np.array(sequence, dtype=np.int32) for sequence in sequences], [[] for _ in sequences])
    path, prefixes = [], []
    for token, position in zip(stream.tokens.tolist(), stream.positions.tolist(), strict=True):
        path[position:] = [token]
        prefixes.append(tuple(path))
    start = data.draw(st.integers(0, len(stream) - 1))
    stop = data.draw(st.integers(start + 1, len(stream)))
    sinks = data.draw(st.booleans())
    span = data.draw(st.none() | st.integers(1, 5))
    intervals = Intervals.of(lay_out(stream, start, stop), sinks=sinks)
    keys = [prefixes[index] for index in [*stream.root_path(start), *range(start, stop)]]
    expected = np.zeros((intervals.queries, intervals.keys), dtype=bool)
    for row, query in enumerate(prefixes[start:stop]):
        for column, key in enumerate(keys):
            expected[row, column] = query[: len(key)] == key and (span is None or len(query) - len(key) < span)
        expected[row, -1] |= sinks
    rows, tokens = np.arange(intervals.queries)[:, None], stop - start
    found = (intervals.starts <= rows) & (rows < intervals.ends)
    if span is not None:
        found &= intervals.query_positions[:, None] - intervals.key_positions < span
    assert np.array_equal(found[:tokens], expected[:tokens])
    some, whole = intervals.tiles(span)
    for row, column in itertools.product(range(some.shape[0]), range(some.shape[1])):
        tile = expected[row * 4 : row * 4 + 4, column * 4 : column * 4 + 4]
        real = tile[: max(0, tokens - row * 4)]
        assert some[row, column] or whole[row, column] or not tile.any()
        assert not whole[row, column] or real.all()
        assert not (some[row, column] and whole[row, column])
        assert row * 4 < tokens or not (some[row, column] or whole[row, column])


def test_tiles_out_of_reach_are_not_computed():
    stream, _ = build_stream([np.arange(3000, dtype=np.int32)], [[]])
    intervals = Intervals.of(lay_out(stream, 0, 3000), sinks=False)
    some, whole = intervals.tiles(None)
    assert some.sum() + whole.sum() == 24 * 25 // 2
    some, whole = intervals.tiles(256)
    assert some.sum() + whole.sum() <= 24 * 3


def test_shapes_are_few():
    assert {length: ladder(length) for length in (1, 129, 257, 385, 1000, 1025, 2000)} == {
        1: 256,
        129: 256,
        257: 384,
        385: 512,
        1000: 1024,
        1025: 1536,
        2000: 2048,
    }
    assert len({ladder(length) for length in range(1, 16_385)}) <= 15
    assert all(ladder(length) % TILE == 0 for length in range(1, 20_000, 7))


# --- exactness --------------------------------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("kind", SERVED)
def test_float64_equals_one_at_a_time_on_every_architecture(kind):
    model = tiny_model(kind, VOCAB)
    requests = documents(documents=2)
    alone, trie = engines(model, 10_000, FlexKernel(backend=None))
    expected = logprobs(alone, requests)
    tolerance = FLOAT64_TOLERANCE.get(kind, 1e-10)
    assert largest_difference(logprobs(trie, requests), expected) < tolerance
    assert trie.computed_tokens == distinct_tokens(requests)
    in_pieces = engines(model, 50, FlexKernel(backend=None))[1]
    assert largest_difference(logprobs(in_pieces, requests), expected) < tolerance


@pytest.mark.slow
@pytest.mark.sweep("gemma2", "gpt_oss")
@pytest.mark.parametrize("kind", ["mistral", "gemma2", "gemma3", "gpt_oss", "cohere2"])
def test_prompts_of_several_tiles_beyond_the_window(kind):
    model = tiny_model(kind, VOCAB, sliding_window=150)
    requests = documents(seed=2, stem=330, documents=2)
    alone, trie = engines(model, 200, FlexKernel(backend=None))
    assert largest_difference(logprobs(trie, requests), logprobs(alone, requests)) < FLOAT64_TOLERANCE.get(kind, 1e-10)


CASES = {
    "full": {},
    "sliding": {"span": 100},
    "capped": {"softcap": 2.0},
    "sinks": {"sinks": True},
    "sliding with a cap and sinks": {"span": 100, "softcap": 2.0, "sinks": True},
}


def attention_of(kernel, *, span=None, softcap=None, sinks=False, dtype=torch.float32):
    """Attention of a document with candidates behind a path, and the same with a dense mask."""
    random = np.random.default_rng(0)
    stem, more = random.integers(0, 50, 300), random.integers(0, 50, (6, 40))
    sequences = [np.concatenate([stem, one]).astype(np.int32) for one in more]
    stream, _ = build_stream(sequences, [[] for _ in sequences])
    layout = lay_out(stream, 200, len(stream))
    intervals = Intervals.of(layout, sinks=sinks)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(heads, length, 32, generator=generator).to(dtype)
        for heads, length in ((8, intervals.queries), (2, intervals.keys), (2, intervals.keys))
    )
    scores = torch.randn(8, generator=generator) if sinks else None
    if sinks:
        value[:, -1] = 0
    mask = kernel.mask(intervals, span, torch.device("cpu"))
    with torch.inference_mode():
        found = kernel(query, key, value, mask, scale=0.2, softcap=softcap, sinks=scores)
    rows = np.arange(intervals.queries)[:, None]
    sees = (intervals.starts <= rows) & (rows < intervals.ends)
    if span is not None:
        sees &= intervals.query_positions[:, None] - intervals.key_positions < span
    wide = torch.matmul(query.double(), key.double().repeat_interleave(4, 0).mT) * 0.2
    wide = wide if softcap is None else softcap * torch.tanh(wide / softcap)
    if scores is not None:
        wide[:, :, -1] = scores[:, None].double()
    wide = wide.masked_fill(~torch.from_numpy(sees), -torch.inf)
    tokens = layout.stop - layout.start
    expected = torch.matmul(wide[:, :tokens].softmax(-1), value.double().repeat_interleave(4, 0))
    return found[:, :tokens].double(), expected


@pytest.mark.sweep
@pytest.mark.parametrize("case", CASES)
def test_the_kernel_equals_a_dense_mask(case):
    found, expected = attention_of(FlexKernel(backend=None), **CASES[case])
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-6)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("compiled_here")
def test_the_compiled_kernel_equals_a_dense_mask(case):
    kernel = FlexKernel()
    try:
        found, expected = attention_of(kernel, **CASES[case])
    except TypeError:
        skip_if_cpp_is_wrong(kernel)
        raise
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-6)


@pytest.fixture
def compiled_here():
    """Compile in this process: there is one kernel to compile, and each process of a pool imports torch first."""
    from torch._inductor import config

    with config.patch(compile_threads=1):
        yield


def skip_if_cpp_is_wrong(kernel):
    if any("CppCompileError" in reason for reason in kernel.refused.values()):
        pytest.skip("torch writes C++ for a window of dynamic length that does not compile; no CPU is served by it")


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["llama", "gpt_oss"])
@pytest.mark.usefixtures("compiled_here")
def test_the_compiled_kernel_serves_an_engine(kind):
    model = tiny_model(kind, VOCAB, torch.float32, initializer_range=0.1, head_dim=16)
    requests = documents(seed=1)
    alone, trie = engines(model, 10_000, FlexKernel())
    found = logprobs(trie, requests)
    skip_if_cpp_is_wrong(trie.kernel)
    assert trie.kernel.refused == {}
    assert largest_difference(found, logprobs(alone, requests)) < 2e-5


# --- graphs -----------------------------------------------------------------------------------------------------------


def counting(graphs):
    def backend(module, _):
        graphs.append(module)
        return module.forward

    return backend


def test_three_judges_of_one_process_have_at_most_two_graphs_each():
    """Beyond Dynamo's limit attention would be unfused without a word, whatever the judge."""
    torch._dynamo.reset()
    flex.compiled.cache_clear()
    graphs, kernel = [], None
    backend = counting(graphs)
    for kind, dtype in (("llama", torch.float32), ("gemma3", torch.bfloat16), ("gpt_oss", torch.float32)):
        before = len(graphs)
        model = tiny_model(kind, VOCAB, dtype, **({} if kind == "llama" else {"sliding_window": 150}))
        kernel = FlexKernel(backend=backend)
        # One tile, several; queries as many as keys, fewer; a length that is on the ladder already.
        for budget, stem in ((100, 60), (256, 256), (10_000, 300)):
            logprobs(engines(model, budget, kernel)[1], documents(seed=1, stem=stem, documents=1, candidates=2))
        assert kernel.refused == {}
        assert len(kernel.seen) == (1 if kind == "llama" else 2)
        assert 1 <= len(graphs) - before <= 2, (kind, dtype)
    flex.compiled.cache_clear()


@pytest.mark.sweep
@pytest.mark.parametrize("heads", [(1, 1), (4, 1)])
def test_what_happens_between_packs_makes_no_graph(heads):
    """One head, packs of one token and of whole tiles, TF32."""
    torch._dynamo.reset()
    flex.compiled.cache_clear()
    graphs = []
    kernel = FlexKernel(backend=counting(graphs))
    sizes = dict(zip(("num_attention_heads", "num_key_value_heads"), heads, strict=True))
    model = tiny_model("llama", VOCAB, torch.float32, **sizes)
    precision = torch.get_float32_matmul_precision()
    try:
        for asked in ("highest", "high"):
            torch.set_float32_matmul_precision(asked)
            for budget, stem in ((1, 2), (128, 127), (256, 256), (384, 500), (999, 331)):
                logprobs(engines(model, budget, kernel)[1], documents(seed=1, stem=stem, documents=1, candidates=2))
    finally:
        torch.set_float32_matmul_precision(precision)
        flex.compiled.cache_clear()
    assert kernel.refused == {}
    assert len(graphs) == 1


def test_a_pack_as_long_as_the_ladder_is_copied_to_the_common_layout():
    attention = PackAttention(lay_out(*one_stream(256)), PathStore(), kernel=FlexKernel(backend=None))
    strided = torch.randn(256, 4, 8).transpose(0, 1)
    assert not strided.is_contiguous()
    assert attention.rounded([strided], 256).is_contiguous()


def one_stream(length):
    stream, _ = build_stream([np.arange(length, dtype=np.int32)], [[]])
    return stream, 0, length


class Small(FlexKernel):
    """A card whose shared memory holds blocks of `most` values, such as 32 by 512."""

    most = 32 * 512

    def __init__(self, refuses=lambda query: False):
        super().__init__(backend=None)
        self.tried, compute = [], self.launch

        def attend(query, *given, kernel_options, **named):
            self.tried.append(kernel_options)
            if kernel_options.get("BLOCK_M", 128) * query.shape[-1] > self.most or refuses(query):
                raise RuntimeError("No valid triton configs. OutOfResources: out of resource: Required: 263680")
            return compute(query, *given, **named)

        self.launch = attend


@pytest.mark.parametrize(("size", "blocks"), [(128, [None]), (192, [None, 64]), (512, [64, 32])])
def test_a_kernel_too_large_for_the_card_is_tried_in_smaller_blocks_and_stays_there(size, blocks):
    kernel = Small()
    tensors = [torch.randn(2, 256, size) for _ in range(3)]
    mask = kernel.mask(Intervals.of(lay_out(*one_stream(200)), sinks=False), None, torch.device("cpu"))
    for _ in range(2):
        assert kernel(*tensors, mask, scale=0.1, softcap=None, sinks=None) is not None
    assert [options.get("BLOCK_M") for options in kernel.tried] == [*blocks, blocks[-1]]
    assert all(options["IS_DIVISIBLE"] is True for options in kernel.tried)


TOO_LARGE = [
    RuntimeError("No valid triton configs. OutOfResources: out of resource: shared memory, Required: 263680"),
    # As Inductor's own launcher raises it, and as it is quoted.
    torch.OutOfMemoryError("out of resource: triton_tem_fused_0 Required: 263680 Hardware limit: 232448"),
    RuntimeError("No valid triton configs. OutOfMemoryError: out of resource: triton_tem_fused_0 Required: 263680"),
    RuntimeError("PTXASError: ptxas error: Entry function uses too much shared data (0x1d000 bytes, 0x18c00 max)"),
    RuntimeError("CUDA error: too many resources requested for launch"),
]


@pytest.mark.parametrize("fits", range(5))
@pytest.mark.parametrize("error", TOO_LARGE, ids=range(5))
def test_every_rung_is_tried_and_beyond_the_last_the_layers_are_computed_in_pieces(monkeypatch, error, fits):
    kernel, tried = FlexKernel(backend=None), []
    compute = kernel.launch

    def attend(*given, **named):
        tried.append({name: value for name, value in named["kernel_options"].items() if name != "IS_DIVISIBLE"})
        if len(tried) <= fits:
            raise error
        return compute(*given, **named)

    monkeypatch.setattr(kernel, "launch", attend)
    tensors = [torch.randn(2, 256, 64) for _ in range(3)]
    mask = kernel.mask(Intervals.of(lay_out(*one_stream(200)), sinks=False), None, torch.device("cpu"))
    found = [kernel(*tensors, mask, scale=0.1, softcap=None, sinks=None) for _ in range(2)]
    ladder = list(flex.LADDER)
    assert tried == ([*ladder[: fits + 1], ladder[fits]] if fits < 4 else ladder)
    assert [out is None for out in found] == [fits == 4] * 2
    assert len(kernel.refused) == (fits == 4)


def test_memory_that_runs_out_says_nothing_about_a_kernel(monkeypatch):
    kernel = FlexKernel(backend=None)
    tensors = [torch.randn(2, 256, 64) for _ in range(3)]
    mask = kernel.mask(Intervals.of(lay_out(*one_stream(200)), sinks=False), None, torch.device("cpu"))
    text = "CUDA out of memory. Tried to allocate 2 GiB"
    for error in (torch.OutOfMemoryError(text), RuntimeError(f"No valid triton configs. OutOfMemoryError: {text}")):

        def attend(*_, error=error, **__):
            raise error

        monkeypatch.setattr(kernel, "launch", attend)
        with pytest.raises(RuntimeError, match="CUDA out of memory"):
            kernel(*tensors, mask, scale=0.1, softcap=None, sinks=None)
    assert (kernel.refused, set(kernel.settings)) == ({}, set())


def test_only_layers_of_a_kind_that_does_not_fit_are_computed_in_pieces(caplog):
    """As with Gemma 4, whose full layers have wider heads than its sliding ones."""
    model = tiny_model("gemma3", VOCAB, sliding_window=16)
    alone = engines(model, 1000, None)[0]
    kernel = FlexKernel(backend=None)
    compute, served = kernel.compute, []

    def call(query, key, value, mask, scale, softcap, sinks, kind):
        if not kind.windowed:
            raise RuntimeError("out of resource: shared memory")
        served.append(kind)
        return compute(query, key, value, mask, scale, softcap, sinks, kind)

    kernel.compute = call
    trie = engines(model, 1000, kernel)[1]
    assert largest_difference(logprobs(trie, documents()), logprobs(alone, documents())) < 1e-10
    assert served
    assert [kind.windowed for kind in kernel.seen if kind.key in kernel.refused] == [False]
    assert "full layers with heads of 16 is computed in pieces" in caplog.text


# --- the gate ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_kernel_is_chosen_where_it_is_exact(monkeypatch):
    kernel = FlexKernel(backend=None)
    monkeypatch.setattr(choose, "find_kernel", lambda device: kernel)
    model = tiny_model("llama", VOCAB, torch.float32)
    used = []
    monkeypatch.setattr(
        FlexKernel, "mask", lambda self, *given, mask=FlexKernel.mask: used.append(1) or mask(self, *given)
    )
    engine, report = choose_engine(model, Head(model))
    assert (report.engine, report.note) == ("trie", None)
    used.clear()
    logprobs(engine, documents())
    assert used


class Refusing(FlexKernel):
    def compute(self, *_):
        raise RuntimeError("no kernel image is available for this device")


class Wrong(FlexKernel):
    def compute(self, *given):
        return super().compute(*given) * 1.5


@pytest.mark.parametrize(("kind", "word"), [(Refusing, "no kernel image"), (Wrong, "differ by")])
def test_a_kernel_that_raises_or_errs_is_left_out_of_the_budget_and_of_the_work(monkeypatch, caplog, kind, word):
    monkeypatch.setattr(choose, "find_kernel", lambda device: kind(backend=None))
    monkeypatch.setattr(choose, "gpus_of", lambda model: [torch.device("cuda", 0)])
    for name, value in {"mem_get_info": (1 << 40, 1 << 40), "memory_allocated": 0, "memory_reserved": 0}.items():
        monkeypatch.setattr(torch.cuda, name, lambda device=None, value=value: value)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device=None: 1)
    model = tiny_model("llama", VOCAB, torch.float32)
    engine, report = choose_engine(model, Head(model))
    assert (report.engine, engine.batch_tokens) == ("trie", choose.MOST)
    assert "attention in pieces" in report.text
    assert word in report.text
    assert word in caplog.text
    alone = PaddedEngine(model, Head(model), batch_tokens=1)
    assert largest_difference(logprobs(engine, documents()), logprobs(alone, documents())) < 1e-3


def test_a_gpu_without_triton_is_told(monkeypatch):
    cuda = torch.device("cuda")
    monkeypatch.setattr(flex.importlib.util, "find_spec", lambda name: None if name == "triton" else object())
    assert find_kernel(cuda) is None
    assert why_no_kernel(cuda) == "Triton is not installed (pip install triton)"
    monkeypatch.setattr(choose, "why_no_kernel", lambda device: why_no_kernel(cuda))
    model = tiny_model("llama", VOCAB, torch.float32)
    assert "Triton is not installed" in choose_engine(model, Head(model))[1].text


@pytest.mark.parametrize("device", ["cpu", "mps", "xpu"])
def test_other_devices_are_served_in_pieces_without_a_word(device):
    assert find_kernel(torch.device(device)) is None
    assert why_no_kernel(torch.device(device)) is None


def test_a_stream_of_requests_is_what_the_budget_is_measured_on():
    model = tiny_model("llama", VOCAB)
    work = lay_requests_out(range(8), choose.branching_requests(model))
    assert 1.9 * choose.LEAST < len(work.stream) <= 2 * choose.LEAST
    # The first pack is all of one document, which the second one still needs.
    assert work.stream.root_path(choose.LEAST).tolist() == list(range(choose.LEAST))
    assert len(work.stream.chain_starts) >= 16
