"""A file that is replaced whole: it is the old one or the new one, and what others have stays."""

from __future__ import annotations

import os
import signal

from geval_local.files import replacing, temporary_path, write_atomically


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


def test_what_a_killed_process_left_is_in_nobodys_way(tmp_path):
    path = tmp_path / "page.html"
    write_atomically(path, "before", private=False)
    killed_while_writing(path)
    assert path.read_text() == "before"
    write_atomically(path, "whole", private=False)
    assert path.read_text() == "whole"
    assert [one.name for one in tmp_path.iterdir() if not one.name.startswith(".")] == ["page.html"]


def test_two_that_write_a_file_do_not_meet(tmp_path):
    path = tmp_path / "page.html"
    with replacing(path) as file:
        file.write(b"slow")
        write_atomically(path, "quick", private=False)
        assert path.read_text() == "quick"
    assert path.read_text() == "slow"


def test_a_mark_is_its_owners(tmp_path):
    path = tmp_path / "page.html"
    partial = temporary_path(path, "run")
    partial.write_text("of a run")
    write_atomically(path, "whole", private=False)
    assert partial.read_text() == "of a run"
