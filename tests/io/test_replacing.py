"""A file that is replaced whole: what a killed process leaves is removed, and what others have is not."""

from __future__ import annotations

import os
import signal
import stat

import pytest

from geval_local.files import replacing, temporary_path, write_atomically

pytest.importorskip("fcntl", reason="needs locks of files")


def killed_while_writing(path):
    """Begin to write a file in a process that gets SIGKILL then."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        with replacing(path) as file:
            file.write(b"half")
            os.write(tell, b"x")
            signal.pause()
    os.read(told, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(told)
    os.close(tell)


def test_what_a_killed_process_left_goes_with_the_next_write(tmp_path):
    path = tmp_path / "page.html"
    killed_while_writing(path)
    killed_while_writing(path)
    (first,) = [one for one in tmp_path.iterdir() if one.suffix == ".tmp"]  # the second one removed that of the first
    write_atomically(path, "whole", private=False)
    assert not first.exists()
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]
    assert path.read_text() == "whole"


def test_a_file_that_is_being_written_and_the_users_stay(tmp_path):
    path = tmp_path / "page.html"
    mark = "0123456789abcdef"
    (tmp_path / "kept").write_text("kept")
    users = [f".page.html.{mark[:15]}.tmp", f".page.htm.{mark}.tmp", f"page.html.{mark}.tmp", f".page.html.{mark}.tmp~"]
    for name in users:
        (tmp_path / name).write_text("mine")
    os.mkfifo(tmp_path / f".page.html.{mark}.tmp")
    (tmp_path / f".page.html.{mark[::-1]}.tmp").symlink_to(tmp_path / "kept")
    with replacing(path) as file:
        file.write(b"slow")
        write_atomically(path, "quick", private=False)
        assert path.read_text() == "quick"
    assert path.read_text() == "slow"
    assert all((tmp_path / name).read_text() == "mine" for name in users)
    assert stat.S_ISFIFO((tmp_path / f".page.html.{mark}.tmp").lstat().st_mode)
    assert (tmp_path / "kept").read_text() == "kept"
    assert (tmp_path / f".page.html.{mark[::-1]}.tmp").is_symlink()


def test_a_file_that_is_taken_for_a_leftover_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    path, real, taken = tmp_path / "page.html", os.dup, []

    def dup(descriptor):
        if not taken:
            taken.extend(one for one in tmp_path.iterdir() if one.suffix == ".tmp")
            taken[0].unlink()
        return real(descriptor)

    monkeypatch.setattr(os, "dup", dup)
    write_atomically(path, "whole", private=False)
    assert taken
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]


def test_a_mark_is_its_owners(tmp_path):
    path = tmp_path / "page.html"
    partial = temporary_path(path, "run")
    partial.write_text("of a run")
    write_atomically(path, "whole", private=False)
    assert partial.read_text() == "of a run"
