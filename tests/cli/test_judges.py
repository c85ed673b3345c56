"""``judges``: the list, the audit, and fetching without a network."""

from __future__ import annotations

import json

import pytest
from cli_run import METRIC, judge_directory, run

from geval_local import Judge


def test_list_tells_what_is_here(tmp_path):
    models = tmp_path / "models.yaml"
    models.write_text(
        f"default: tiny\njudges:\n  tiny: {{path: {judge_directory()}, style: completion, parameters: 35e3}}\n"
        "  away: {hub: some/model, license: MIT, context: 512}\n",
        encoding="utf-8",
    )
    done = run("judges", "list", "--models", models, home=tmp_path)
    assert done.exit_code == 0, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "(default)" in lines["tiny"]
    assert lines["tiny"].split()[-1] == "yes"
    assert lines["away"].split()[-1] == "no"
    assert "512" in lines["away"]
    listed = {
        one["name"]: one
        for one in json.loads(run("judges", "list", "--models", models, "--json", home=tmp_path).stdout)
    }
    assert listed["tiny"]["present"]
    assert listed["tiny"]["default"]
    assert not listed["away"]["present"]


def test_list_groups_by_memory_and_says_what_a_judge_is(tmp_path):
    models = tmp_path / "models.yaml"
    models.write_text(
        "judges:\n"
        "  huge: {hub: a/huge, parameters: 70e9}\n"
        "  edge: {hub: a/edge, parameters: 2e9, context: 9000, license: MIT, unconfirmed: [license, context]}\n"
        "  next: {hub: a/next, parameters: 2.1e9, made_for: judging, hybrid: true}\n"
        "  mixture: {hub: a/mixture, parameters: 20e9, active_parameters: 3e9, quantization: mxfp4}\n"
        "  sizeless: {hub: a/sizeless}\n",
        encoding="utf-8",
    )
    done = run("judges", "list", "--models", models, home=tmp_path)
    assert done.exit_code == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines() if line.strip()]
    group, groups = "", {}
    for line in lines:
        group = line if line.startswith("weights") else group
        groups[line.split()[0]] = group
    assert groups["nano"] == groups["edge"] == "weights up to 4 GB"
    assert groups["next"] == "weights up to 8 GB"
    assert groups["mixture"] == "weights up to 16 GB"
    assert groups["huge"] == "weights above 80 GB"
    assert groups["sizeless"] == lines[-2] == "weights of unknown size"
    rows = {line.split()[0]: line for line in lines}
    assert rows["nano"] == "nano (default) 4.9 M 10 MB 4096 - Apache-2.0 yes"
    assert rows["edge"] == "edge 2.0 B 4.0 GB 9000? - MIT? no"
    assert rows["next"] == "next 2.1 B 4.2 GB - for judging, hybrid - no"
    assert rows["mixture"] == "mixture 20.0 B 10.6 GB - MoE, 3.0 B used, mxfp4 - no"
    assert "?: no source confirms it" in done.stderr
    judging = {line.split()[0] for line in lines if "for judging" in line}
    assert {"prometheus-2-7b", "selene-1-mini", "flow-judge", "m-prometheus-7b", "skywork-critic-8b"} <= judging


@pytest.mark.slow
def test_check_prints_the_audit(tmp_path):
    metric = tmp_path / "clarity.yaml"
    metric.write_text(METRIC.replace("1-5", "0-10"), encoding="utf-8")
    done = run("judges", "check", judge_directory(), "--metric", metric, home=tmp_path)
    assert done.exit_code == 0, done.stderr
    judge = Judge.load(judge_directory())
    for part in (judge.fingerprint, "float32", "trie", "- Clarity:", "1 opens 10", "label mass", "one by one"):
        assert part in done.stdout
    stored = sum(file.stat().st_size for file in judge_directory().glob("*.safetensors"))
    kept = judge.backend.loaded.memory_bytes
    assert f"{stored / 1e3:.0f} kB as stored, {kept / 1e3:.0f} kB in memory, computed in float32" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("reasons ")]
    assert " no, because it " in line


@pytest.mark.slow
def test_check_in_json_reads_the_example_as_the_judge_does(tmp_path):
    metric = tmp_path / "clarity.yaml"
    metric.write_text(METRIC, encoding="utf-8")
    command = ("judges", "check", judge_directory(), "-m", metric, "--batch-tokens", "4096", "--json")
    record = json.loads(run(*command, home=tmp_path).stdout)
    assert record["prompt"]["bos_count"] == 1
    assert record["parameters"] == Judge.load(judge_directory()).backend.loaded.parameters
    assert 0 <= record["batch_difference"] < 1e-4
    assert record["batches"] < len(record["batch_lengths"])
    # A random model writes nothing of use, which is told and fails nothing.
    assert record["reasons"]["can_write"] is False
    assert record["reasons"]["because"] in (
        "it repeats itself",
        "it cites nothing of the text",
        "the judge wrote nothing",
    )


@pytest.mark.slow
def test_a_large_judge_on_a_cpu_is_checked_in_full_on_request(tmp_path, monkeypatch):
    metric = tmp_path / "clarity.yaml"
    metric.write_text(METRIC, encoding="utf-8")
    monkeypatch.setattr("geval_local.cli.commands.judges.LARGE", 1000)
    command = ("judges", "check", judge_directory(), "-m", metric)
    done = run(*command, home=tmp_path)
    assert done.exit_code == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("reasons ")]
    assert " not tried, because on a CPU each token takes all " in line
    assert "--self-check" in line
    record = json.loads(run(*command, "--json", home=tmp_path).stdout)
    assert record["reasons"]["can_write"] is None
    assert len(record["batch_lengths"]) == 3
    record = json.loads(run(*command, "--json", "--self-check", home=tmp_path).stdout)
    assert record["reasons"]["can_write"] is False
    assert len(record["batch_lengths"]) == 5
    assert record["self_check"]["passed"]


@pytest.mark.slow
def test_check_needs_no_steps_of_the_judges_own(tmp_path):
    done = run("judges", "check", judge_directory(), home=tmp_path)
    assert done.exit_code == 0
    assert "steps" not in done.stderr
    assert not (tmp_path / "steps").exists()


def test_an_unknown_judge_is_named_with_near_ones(tmp_path):
    done = run("judges", "check", "qwen2.5-1.5", home=tmp_path)
    assert done.exit_code == 2
    assert "did you mean qwen2.5-1.5b" in done.stderr


def test_missing_weights_say_how_to_fetch_and_carry_them(tmp_path):
    done = run("judges", "check", "qwen2.5-0.5b", home=tmp_path)
    assert done.exit_code == 2
    assert "geval-local judges fetch qwen2.5-0.5b" in done.stderr
    assert str(tmp_path) in done.stderr


def test_fetch_hands_name_and_directory_on(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("geval_local.models.fetch.fetch", lambda *given: asked.append(given) or tmp_path / "got")
    assert run("judges", "fetch", "qwen3-4b", home=tmp_path).stdout == f"{tmp_path / 'got'}\n"
    unlisted = run("judges", "fetch", "some/unlisted", "-o", tmp_path / "got", home=tmp_path)
    assert f"judges check {tmp_path / 'got'}" in unlisted.stderr
    assert [(entry.hub, directory) for entry, directory in asked] == [
        ("Qwen/Qwen3-4B", None),
        ("some/unlisted", tmp_path / "got"),
    ]


def test_a_directory_has_nothing_to_fetch(tmp_path):
    done = run("judges", "fetch", judge_directory(), home=tmp_path)
    assert done.exit_code == 2
    assert "nothing to fetch" in done.stderr


@pytest.mark.slow
def test_check_checks_the_device_too(tmp_path, monkeypatch):
    command = ("judges", "check", judge_directory(), "--self-check")
    done = run(*command, home=tmp_path)
    assert done.exit_code == 0, done.stderr
    for part in ("this device", "token budget", "ok     attention", "ok     out of memory"):
        assert part in done.stdout
    monkeypatch.setattr("geval_local.models.memory.is_out_of_memory", lambda error: False)
    monkeypatch.setattr("geval_local.engine.self_check.distance", lambda found, expected, dtype: float("nan"))
    broken = run(*command, "--json", home=tmp_path)
    assert broken.exit_code == 1
    assert "failed: packed against one at a time, out of memory" in broken.stderr
    record = json.loads(broken.stdout)["self_check"]
    assert record["passed"] is False
    checks = {check["name"]: check for check in record["checks"]}
    assert checks["attention"]["passed"] is True
    assert "OutOfMemoryError" in checks["out of memory"]["text"]
    assert checks["packed against one at a time"]["figures"]["difference"] is None
    assert record["device"]["probe"]["probe_tokens"] > 0
    assert record["device"]["torch"]
