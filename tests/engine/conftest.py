"""A program that serves a tiny model, the directory of that model, and a server like vLLM's at an address."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import Program, Served
from served_kit import served_model
from tiny import byte_tokenizer, save_judge

from geval_local.engine.served_client import KEY_VARIABLE


@pytest.fixture
def quick_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask again without pauses, and with no key."""
    monkeypatch.setattr("geval_local.engine.served_client.PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


@pytest.fixture
def program() -> Program:
    return Program(served_model())


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_judge(tmp_path_factory.mktemp("judge") / "tiny", served_model(), byte_tokenizer())


@pytest.fixture
def served(program: Program, directory: Path) -> Served:
    return Served(program, byte_tokenizer(), str(directory))


@pytest.fixture
def address(served: Served) -> Iterator[str]:
    with served.running() as found:
        yield found
