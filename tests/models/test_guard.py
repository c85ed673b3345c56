"""What a host program sets in PyTorch: it changes no figure of any engine, and is as it was afterwards."""

from __future__ import annotations

import ast
import threading
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from prompts import VOCAB, documents
from tiny import byte_tokenizer, save_judge, tiny_model

import geval_local
from geval_local.engine.backend import Draw, Sampling
from geval_local.engine.batched import PaddedEngine
from geval_local.engine.choose import choose_engine
from geval_local.engine.prefix_sharing.engine import PrefixSharingEngine
from geval_local.engine.self_check import check_engine
from geval_local.engine.shared_cache import SharedCacheEngine
from geval_local.engine.transformers_backend import TransformersBackend
from geval_local.judge.judge import Judge
from geval_local.models.guard import GuardedLock, guarded
from geval_local.models.head import Head, Trunk
from geval_local.thinking import Drawing

BACKENDS = torch.backends
#: All that a guard has to leave as it was.
PRECISIONS = (
    BACKENDS,
    BACKENDS.cuda.matmul,
    BACKENDS.mkldnn.matmul,
    BACKENDS.mkldnn.conv,
    BACKENDS.mkldnn.rnn,
    BACKENDS.cudnn,
    BACKENDS.cudnn.conv,
    BACKENDS.cudnn.rnn,
)


def older(read):
    try:
        return read()
    except RuntimeError:
        return "may not be read"


def state():
    return [
        *(part.fp32_precision for part in PRECISIONS),
        older(torch.get_float32_matmul_precision),
        older(lambda: BACKENDS.cudnn.allow_tf32),
        older(lambda: BACKENDS.cuda.matmul.allow_tf32),
        BACKENDS.cuda.matmul.allow_fp16_accumulation,
        BACKENDS.cuda.matmul.allow_fp16_reduced_precision_reduction,
        BACKENDS.cuda.matmul.allow_bf16_reduced_precision_reduction,
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.get_default_dtype(),
        torch.get_default_device(),
    ]


INITIAL = state()


@contextmanager
def changed(owner, name, value):
    """Set an attribute of PyTorch; afterwards everything is as it is in a new process."""
    try:
        setattr(owner, name, value)
        yield
    finally:
        for part, precision in zip(PRECISIONS, INITIAL, strict=False):
            part.fp32_precision = precision
        torch.set_float32_matmul_precision("highest")
        BACKENDS.cudnn.allow_tf32 = True
        BACKENDS.cuda.matmul.allow_tf32 = False
        for name in ("reduced_precision_reduction", "accumulation"):
            setattr(BACKENDS.cuda.matmul, f"allow_fp16_{name}", name != "accumulation")
        BACKENDS.cuda.matmul.allow_bf16_reduced_precision_reduction = True
        for part, precision in zip(PRECISIONS, INITIAL, strict=False):
            part.fp32_precision = precision
        assert state() == INITIAL


@contextmanager
def called(set_it, value, usual):
    set_it(value)
    try:
        yield
    finally:
        set_it(usual)


SETTINGS = {
    "matmul medium": partial(called, torch.set_float32_matmul_precision, "medium", "highest"),
    "matmul high": partial(called, torch.set_float32_matmul_precision, "high", "highest"),
    "all bf16": partial(changed, BACKENDS, "fp32_precision", "bf16"),
    "all tf32": partial(changed, BACKENDS, "fp32_precision", "tf32"),
    "mkldnn.matmul bf16": partial(changed, BACKENDS.mkldnn.matmul, "fp32_precision", "bf16"),
    "mkldnn.conv bf16": partial(changed, BACKENDS.mkldnn.conv, "fp32_precision", "bf16"),
    "cuda.matmul tf32": partial(changed, BACKENDS.cuda.matmul, "fp32_precision", "tf32"),
    "allow_tf32": partial(changed, BACKENDS.cuda.matmul, "allow_tf32", True),
    "no cudnn tf32": partial(changed, BACKENDS.cudnn, "allow_tf32", False),
    "fp16 accumulation": partial(changed, BACKENDS.cuda.matmul, "allow_fp16_accumulation", True),
    "autocast bf16": partial(torch.autocast, "cpu"),
    "autocast fp16": partial(torch.autocast, "cpu", dtype=torch.float16),
    "device meta": partial(torch.device, "meta"),
    "default device meta": partial(called, torch.set_default_device, "meta", None),
    "default dtype bf16": partial(called, torch.set_default_dtype, torch.bfloat16, torch.float32),
    "default dtype float64": partial(called, torch.set_default_dtype, torch.float64, torch.float32),
}


def engine_of(name, model):
    head = Head(model)
    padded = PaddedEngine(model, head, batch_tokens=60)
    return {
        "padded": lambda: padded,
        "plain": lambda: PaddedEngine(model, head, batch_tokens=1, plain=True),
        "trie": lambda: PrefixSharingEngine(model, head, batch_tokens=60, padded=padded),
        "cache": lambda: SharedCacheEngine(model, head, batch_tokens=60, padded=padded),
    }[name]()


def figures(engine, requests):
    """Read label log-probabilities as a caller who takes no turn."""
    found = {}
    for pack, readouts in engine.execute(requests, engine.plan(requests)):
        found.update(zip(pack.requests, readouts, strict=True))
    return np.concatenate([found[index].label_logprobs for index in range(len(requests))])


@pytest.mark.parametrize("kind", ["gemma3", "qwen3_moe"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_no_setting_changes_a_figure_of_any_engine(setting, kind):
    requests = documents(seed=3)[:6]
    model = tiny_model(kind, VOCAB, torch.float32, hidden_size=64, intermediate_size=256)
    for name in ("padded", "plain", "trie", "cache"):
        expected = figures(engine_of(name, model), requests)
        with SETTINGS[setting]():
            before = state()
            assert np.array_equal(figures(engine_of(name, model), requests), expected), name
            assert state() == before


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_judge_loads_thinks_writes_and_checks_itself_under_any_setting(tmp_path_factory, setting):
    directory, backend, expected = usual_judge(tmp_path_factory)
    with SETTINGS[setting]():
        before = state()
        assert what_it_writes(backend) == expected
        again = Judge.load(directory, style="completion", dtype="float32").backend
        assert again.facts.report.engine == "trie"
        assert what_it_writes(again) == expected
        assert state() == before


_KEPT: list = []


def usual_judge(factory) -> tuple[Path, TransformersBackend, list]:
    if not _KEPT:
        tokenizer = byte_tokenizer()
        model = tiny_model("qwen3", len(tokenizer), torch.float32)
        directory = save_judge(factory.mktemp("guarded"), model, tokenizer)
        backend = Judge.load(directory, style="completion", dtype="float32").backend
        _KEPT.append((directory, backend, what_it_writes(backend)))
    return _KEPT[0]


def what_it_writes(backend):
    draws = [Draw(np.arange(8, 8 + size, dtype=np.int32), size) for size in (9, 4, 9, 20)]
    drawn = [
        one for batch in backend.sample(draws, Sampling(Drawing(0.8, 0.95), 12, lambda *_: False)) for one in batch
    ]
    ids = np.arange(10, 40, dtype=np.int32)
    text = backend.write_list(ids, max_new_tokens=12, on_token=lambda _: None)
    texts = backend.write_paragraphs([ids, ids[:7]], max_new_tokens=8, on_token=lambda _: None)
    return [sorted(drawn), text, texts]


def test_self_check_and_probe_are_guarded():
    model = tiny_model("llama", VOCAB, torch.bfloat16)
    with torch.autocast("cpu"), torch.device("meta"):
        engine, report = choose_engine(model, Head(model), batch_tokens=256)
        assert report.engine == "trie"
        findings = check_engine(model, engine, report).findings
    assert [one.name for one in findings if not one.passed] == []


def test_settings_are_restored_after_an_error_and_inherited_ones_still_follow():
    model = tiny_model("llama", VOCAB, torch.float32)
    with SETTINGS["all bf16"](), torch.autocast("cpu"):
        before = state()
        with pytest.raises(IndexError):
            Trunk(model)(torch.tensor([[VOCAB + 5]]))
        with pytest.raises(ZeroDivisionError), GuardedLock(), guarded:
            _ = 1 / (BACKENDS.mkldnn.matmul.fp32_precision != "ieee")
        assert state() == before
        BACKENDS.fp32_precision = "ieee"
        assert BACKENDS.mkldnn.matmul.fp32_precision == "ieee", "it follows the setting for all"


def test_one_thread_that_ends_takes_nothing_from_another():
    entered, leave = threading.Event(), threading.Event()

    def other():
        with guarded:
            entered.set()
            leave.wait(300)

    with SETTINGS["matmul medium"](), torch.autocast("cpu"):
        thread = threading.Thread(target=other)
        thread.start()
        entered.wait(300)
        with guarded:
            assert not torch.is_autocast_enabled("cpu")
        assert torch.is_autocast_enabled("cpu")
        assert BACKENDS.mkldnn.matmul.fp32_precision == "ieee", "the other thread still computes"
        with guarded:
            leave.set()
            thread.join()
            assert BACKENDS.mkldnn.matmul.fp32_precision == "ieee"
        assert torch.get_float32_matmul_precision() == "medium"


# --- tensors without a device -----------------------------------------------------------------------------------------

FACTORIES = {
    *("arange", "as_tensor", "asarray", "empty", "empty_strided", "eye", "full", "hann_window", "linspace", "logspace"),
    *("ones", "rand", "randint", "randn", "randperm", "range", "scalar_tensor", "tensor", "tril_indices"),
    *("triu_indices", "zeros", "Generator"),
}


def without_device(source: str) -> list[int]:
    """List the lines that make a tensor wherever the program that calls has its default device."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "torch"
        and node.func.attr in FACTORIES
        and not any(keyword.arg in ("device", None) for keyword in node.keywords)
    ]


def test_every_tensor_is_made_with_a_device():
    assert without_device("torch.zeros(3, dtype=torch.int8)\ntorch.ones(2, device='cpu')") == [1]
    package = Path(geval_local.__file__).parent
    files = [path for room in ("engine", "models", "tokens", "judge") for path in (package / room).rglob("*.py")]
    assert len(files) > 40
    found = {str(path.relative_to(package)): without_device(path.read_text("utf-8")) for path in files}
    assert {name: lines for name, lines in found.items() if lines} == {}
