"""What a card changes, without one: kinds of layer, verdicts that are kept, time, packages, budgets that recover."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from architectures import unusual
from prompts import VOCAB, documents, largest_difference, logprobs
from tiny import tiny_model

import geval_local
from geval_local.engine import choose, probe
from geval_local.engine.backend import EngineReport
from geval_local.engine.batched import PaddedEngine
from geval_local.engine.choose import choose_engine, missing_packages
from geval_local.engine.prefix_sharing import flex
from geval_local.engine.prefix_sharing.flex import FlexKernel
from geval_local.engine.self_check import check_engine
from geval_local.engine.shared_cache import SharedCacheEngine
from geval_local.engine.window import Unit, execute, regrow
from geval_local.models import verdicts
from geval_local.models.head import Head, trunk_of
from geval_local.models.verdicts import verdict_of


class Faulty(FlexKernel):
    """A kernel that raises, or is wrong, where `fails` says so of a kind of layer."""

    def __init__(self, fails, error=None):
        super().__init__(backend=None)
        self.fails, self.error, self.served = fails, error, set()

    def compute(self, query, key, value, mask, scale, softcap, sinks, kind):
        if self.fails(kind) and self.error is not None:
            raise RuntimeError(self.error)
        out = super().compute(query, key, value, mask, scale, softcap, sinks, kind)
        self.served.add(kind)
        return out.flip(0) if self.fails(kind) else out  # a norm would hide a factor


def chosen_with(monkeypatch, kernel, model):
    monkeypatch.setattr(choose, "find_kernel", lambda device: kernel)
    return choose_engine(model, Head(model))


@pytest.mark.parametrize("error", [None, "no kernel image is available"])
def test_float32_has_no_veto_on_the_kernel_that_will_be_used(monkeypatch, error):
    kernel = Faulty(lambda kind: kind.dtype == torch.float32, error)
    model = tiny_model("llama", VOCAB, torch.bfloat16)
    engine, report = chosen_with(monkeypatch, kernel, model)
    assert (report.engine, engine.kernel) == ("trie", kernel)
    assert "its kernel was probed in bfloat16 only" in report.text
    assert "in pieces" not in report.text
    kernel.served.clear()
    logprobs(engine, documents())
    assert {kind.dtype for kind in kernel.served} == {torch.bfloat16}


@pytest.mark.parametrize("error", [None, "out of resource: shared memory, Required: 263680"])
def test_a_kernel_that_fails_for_one_kind_of_layer_serves_the_others(monkeypatch, error):
    kernel = Faulty(lambda kind: kind.windowed, error)
    model = tiny_model("gemma3", VOCAB, torch.float32)
    engine, report = chosen_with(monkeypatch, kernel, model)
    assert (report.engine, engine.kernel) == ("trie", kernel)
    assert "sliding layers with heads of 16 in pieces: " in report.text
    assert [kind.windowed for kind in kernel.seen if kind.key in kernel.refused] == [True]
    alone = PaddedEngine(model, Head(model), batch_tokens=1)
    assert largest_difference(logprobs(engine, documents()), logprobs(alone, documents())) < 1e-3


def test_what_float32_cannot_compute_at_all_is_no_verdict(monkeypatch):
    """As the grouped product of a mixture's experts, on some cards."""
    model = tiny_model("llama", VOCAB, torch.bfloat16)
    forward = model.model.forward

    def narrow(*given, **named):
        if model.dtype == torch.float32:
            raise RuntimeError("grouped_mm expects bfloat16")
        return forward(*given, **named)

    monkeypatch.setattr(model.model, "forward", narrow)
    report = choose_engine(model, Head(model))[1]
    assert report.engine == "trie"
    assert "not in float32: RuntimeError: grouped_mm expects bfloat16: probed in torch.bfloat16 only" in report.text


def test_a_verdict_is_kept_for_just_this_judge_device_and_software(monkeypatch, tmp_path):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path))
    model = tiny_model("llama", VOCAB, torch.float32)
    probes, probe = [], choose.probe_sharing
    monkeypatch.setattr(choose, "probe_sharing", lambda *given: probes.append(1) or probe(*given))

    def probed(fingerprint="f" * 64):
        before = len(probes)
        report = choose_engine(model, Head(model), verdict=verdict_of(model, fingerprint))[1]
        return len(probes) - before, report

    first, again = probed(), probed()
    assert (first[0], again[0]) == (1, 0)
    assert first[1] == again[1]
    assert probed("e" * 64)[0] == 1
    with monkeypatch.context() as patch:
        patch.setattr(verdicts, "digest_of_sources", lambda: "another")
        assert probed()[0] == 1
    assert probed()[0] == 0
    monkeypatch.setattr(verdicts, "version_of", lambda package: "another")
    assert probed()[0] == 1
    for file in (tmp_path / "verdicts").iterdir():
        file.write_text("{ cut", encoding="utf-8")
    assert probed()[0] == 1


def _edit(change):
    def edit(file):
        record = json.loads(file.read_text(encoding="utf-8"))
        change(record)
        file.write_text(json.dumps(record), encoding="utf-8")

    return edit


def _replace_by_folder(file):
    file.unlink()
    file.mkdir()


DAMAGE = {
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-20]),
    "no text": lambda file: file.write_bytes(b"\xff\x00" * 99),
    "nested": lambda file: file.write_text("[" * 100_000, encoding="utf-8"),
    "a list": lambda file: file.write_text("[1]", encoding="utf-8"),
    "a folder": _replace_by_folder,
    "more fields": _edit(lambda record: next(iter(record["findings"].values())).update(more=1)),
    "fewer fields": _edit(lambda record: next(iter(record["findings"].values())).clear()),
    "another engine": _edit(lambda record: next(iter(record["findings"].values())).update(engine="fast")),
    "findings of another kind": _edit(lambda record: record.update(findings=[["precision", "float16"]])),
    "another device": _edit(lambda record: record["identity"].update(devices=[["cuda:0"]])),
    "no identity": _edit(lambda record: record.pop("identity")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_verdict_that_is_not_as_it_was_written_is_found_out_again(monkeypatch, tmp_path, damage):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path))
    model = tiny_model("llama", VOCAB, torch.float32)
    first = choose_engine(model, Head(model), verdict=verdict_of(model, "f" * 64))[1]
    (file,) = (tmp_path / "verdicts").iterdir()
    DAMAGE[damage](file)
    passes = []
    trunk_of(model).register_forward_pre_hook(lambda *_: passes.append(1))
    assert choose_engine(model, Head(model), verdict=verdict_of(model, "f" * 64))[1] == first
    assert passes


def test_several_keep_their_verdicts_at_once(monkeypatch, tmp_path):
    """A reader sees nothing or a whole finding; who writes last may take the others' with it."""
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path))
    model = tiny_model("llama", VOCAB, torch.float32)

    def work(number):
        verdict, found = verdict_of(model, "f" * 64), []
        for _ in range(10):
            verdict.keep(f"finding {number}", EngineReport("trie", probe_tokens=number))
            found += [verdict.read(f"finding {other}", EngineReport) for other in range(4)]
        return found

    with ThreadPoolExecutor(4) as pool:
        found = [one for part in pool.map(work, range(4)) for one in part]
    assert all(one is None or one.probe_tokens == number % 4 for number, one in enumerate(found))
    assert any(found)
    assert len(list((tmp_path / "verdicts").iterdir())) == 1


def test_a_verdict_with_a_gap_is_not_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path))
    monkeypatch.setattr(choose, "why_no_kernel", lambda device: "Triton is not installed")
    model = tiny_model("llama", VOCAB, torch.float32)
    assert choose_engine(model, Head(model), "trie", verdict=verdict_of(model, "f" * 64))[1].note is not None
    assert not any((tmp_path / "verdicts").iterdir())


@pytest.mark.parametrize("broken", ["sliding", "all"])
def test_what_a_kernel_was_refused_for_is_known_at_the_second_start(monkeypatch, tmp_path, broken):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path))
    model = tiny_model("gemma3", VOCAB, torch.float32)

    def start():
        kernel = Faulty(lambda kind: kind.windowed or broken == "all", "CUDA error: an illegal address")
        monkeypatch.setattr(choose, "find_kernel", lambda device: kernel)
        return choose_engine(model, Head(model), "trie", verdict=verdict_of(model, "f" * 64)), kernel

    (engine, first), _ = start()
    passes = []
    trunk_of(model).register_forward_pre_hook(lambda *_: passes.append(1))
    (again, report), kernel = start()
    assert not passes
    assert report == first
    assert (engine.kernel is None) == (again.kernel is None) == (broken == "all")
    logprobs(again, documents())
    assert all(kind.windowed is False for kind in kernel.served)


@pytest.mark.parametrize(
    ("kind", "engine", "sizes"), [("falcon_h1", "cache", {}), ("mistral", "trie", {"sliding_window": 3000})]
)
def test_a_second_start_probes_nothing(monkeypatch, tmp_path, kind, engine, sizes):
    """Neither where a cache is shared, nor where a window is longer than a probe may be at any start."""
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path))
    monkeypatch.setitem(probe.PROBE_OPERATIONS, "cpu", 0.0)
    model = tiny_model(kind, VOCAB, torch.float32, **sizes)
    passes = []
    trunk_of(model).register_forward_pre_hook(lambda *_: passes.append(1))
    first = choose_engine(model, Head(model), verdict=verdict_of(model, "f" * 64))[1]
    assert (first.engine, first.window) == (engine, sizes.get("sliding_window"))
    assert passes
    passes.clear()
    again, report = choose_engine(model, Head(model), verdict=verdict_of(model, "f" * 64))
    assert (again.name, report) == (engine, first)
    assert not passes


def test_without_a_kernel_a_gpu_shares_the_models_own_cache(monkeypatch):
    monkeypatch.setattr(choose, "why_no_kernel", lambda device: "Triton is not installed (pip install triton-windows)")
    model = tiny_model("llama", VOCAB, torch.float32)
    engine, report = choose_engine(model, Head(model))
    assert (engine.name, report.engine) == ("cache", "cache")
    assert "pip install triton-windows" in report.text
    engine, report = choose_engine(model, Head(model), "trie")
    assert engine.name == "trie"
    assert "attention in pieces" in report.text


@pytest.mark.parametrize(("platform", "package"), [("win32", "triton-windows"), ("linux", "triton")])
def test_the_package_of_the_kernel_is_named(monkeypatch, platform, package):
    monkeypatch.setattr(flex.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "platform", platform)
    assert flex.why_no_kernel(torch.device("cuda")).endswith(f"(pip install {package})")


RECURRENT = {
    "qwen3_5": "flash-linear-attention causal-conv1d",
    "jamba": "mamba-ssm causal-conv1d",
    "falcon_mamba": "mamba-ssm causal-conv1d",
    "mamba2": "mamba-ssm causal-conv1d",
    "falcon_h1": "mamba-ssm causal-conv1d",
}


def test_a_hybrid_says_which_packages_it_lacks(monkeypatch, caplog):
    model = unusual("qwen3_next")
    assert missing_packages(model) is None  # on a CPU they would not help
    before = choose.input_device
    monkeypatch.setattr(choose, "version_of", lambda package: None)
    monkeypatch.setattr(choose, "input_device", lambda model: torch.device("cuda"))
    note = missing_packages(model)
    assert note.endswith("pip install flash-linear-attention causal-conv1d")
    monkeypatch.setattr(choose, "version_of", lambda package: "1" if package == "causal-conv1d" else None)
    assert missing_packages(model).endswith("pip install flash-linear-attention")
    assert missing_packages(tiny_model("llama", VOCAB)) is None
    monkeypatch.setattr(choose, "version_of", lambda package: None)
    for kind, packages in RECURRENT.items():
        model = tiny_model(kind, VOCAB) if kind in ("falcon_h1", "mamba2") else unusual(kind)
        note = missing_packages(model)
        assert note.endswith(f"pip install {packages}"), kind
    monkeypatch.setattr(choose, "input_device", before)
    monkeypatch.setattr(choose, "missing_packages", lambda model: note)
    assert note in choose_engine(model, Head(model))[1].text
    assert note in caplog.text


@pytest.mark.parametrize("depth", [1, 3])
def test_a_shared_cache_computed_ahead_gives_the_same_bits(depth):
    model = tiny_model("falcon_h1", VOCAB, torch.float32)
    alone = PaddedEngine(model, Head(model), batch_tokens=1)
    engine = SharedCacheEngine(model, Head(model), batch_tokens=50, padded=alone)
    assert engine.look_ahead == 0
    assert len(engine.plan(documents())) > depth + 1
    expected = logprobs(engine, documents())
    engine.look_ahead = depth
    assert largest_difference(logprobs(engine, documents()), expected) == 0


def test_a_budget_that_was_halved_is_said_and_recovers(monkeypatch, caplog):
    model = tiny_model("llama", VOCAB, torch.float32)
    engine, _ = choose_engine(model, Head(model), batch_tokens=400)
    forward, most = model.model.forward, [100]

    def limited(input_ids, **options):
        if input_ids.numel() > most[0]:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return forward(input_ids=input_ids, **options)

    monkeypatch.setattr(model.model, "forward", limited)
    list(execute(engine, documents()))
    small = engine.limit
    assert small <= 100
    assert f"passes of at most {small} tokens instead of 400" in caplog.text
    most[0] = 1000
    caplog.clear()
    limits = []
    list(execute(engine, documents()))
    assert engine.limit == small  # within a run
    for _ in range(4):
        regrow(engine)
        list(execute(engine, documents()))
        limits.append(engine.limit)
    assert limits == [min(400, small * 2**power) for power in (1, 2, 3, 4)]
    assert limits[-1] == 400
    assert caplog.text == ""


@pytest.mark.parametrize("kind", ["trie", "cache"])
def test_what_serves_the_rest_of_the_prompts_has_a_budget_that_recovers_too(caplog, kind):
    """As prompts beyond the switch of a long rotary embedding."""
    model = tiny_model("llama", VOCAB, torch.float32)
    padded = PaddedEngine(model, Head(model), batch_tokens=400)
    made = {"trie": choose.PrefixSharingEngine, "cache": SharedCacheEngine}[kind]
    engine = made(model, Head(model), batch_tokens=400, padded=padded)
    requests = documents()

    class Small:
        limit = 50

        def execute(self, *given):
            padded.limit = self.limit
            return PaddedEngine.execute(padded, *given)

    units = [Unit((pack,)) for pack in padded.plan(requests)]
    padded.execute = Small().execute
    list(execute(engine, requests, units))
    assert "passes of at most 50 tokens instead of 400" in caplog.text
    regrow(engine)
    assert (padded.limit, engine.limit) == (100, 400)


def test_a_fault_of_the_device_leaves_what_was_found_before(monkeypatch):
    """What describes the device, and asks it, comes first; findings are handed on as they come."""
    model = tiny_model("llama", VOCAB, torch.float32, initializer_range=0.1)
    engine, report = choose_engine(model, Head(model))
    told, broken = [], []

    def found(finding):
        told.append(finding.name)
        if len(told) == 2:
            broken.append(True)

    forward = model.model.forward

    def sticky(*given, **named):
        if broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return forward(*given, **named)

    monkeypatch.setattr(model.model, "forward", sticky)
    check = check_engine(model, engine, report, found)
    assert told == [finding.name for finding in check.findings]
    assert check.findings[0].passed
    assert "computed ahead" in check.failed
    assert check.device["batch_tokens"] == engine.batch_tokens


def test_segments_of_memory_may_grow_unless_the_user_says_otherwise():
    """Set by importing the package, before PyTorch starts."""
    code = "import os, sys, geval_local; print(os.environ.get('PYTORCH_ALLOC_CONF'), 'torch' in sys.modules)"
    import os
    import subprocess

    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTORCH_")}
    theirs = ({f"PYTORCH_{name}ALLOC_CONF": "x"} for name in ("CUDA_", "HIP_"))
    cases = [({}, "expandable_segments:True False"), *((own, "None False") for own in theirs)]
    for own, expected in [*cases, ({"PYTORCH_ALLOC_CONF": "backend:native"}, "backend:native False")]:
        found = subprocess.run(
            [sys.executable, "-c", code], env=plain | own, capture_output=True, text=True, check=True, cwd="/"
        )
        assert found.stdout.strip() == expected
    assert geval_local.__version__


def test_compilations_are_kept_in_the_users_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")
    flex.keep_compilations()
    assert not (tmp_path / "compiled").exists()
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    flex.keep_compilations()
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    assert cache_dir() == str(tmp_path / "compiled")
    assert (tmp_path / "compiled").stat().st_mode & 0o077 == 0
