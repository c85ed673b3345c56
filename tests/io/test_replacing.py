"""A file that is replaced whole, or not at all."""

from __future__ import annotations

from contextlib import suppress

from geval_local.files import replacing, temporary_path, write_atomically


def test_a_write_within_a_write_and_the_files_of_others(tmp_path):
    path = tmp_path / "page.html"
    users = [".page.html.tmp", ".page.html.0123456789abcdef.tmp", "page.html.tmp"]
    for name in users:
        (tmp_path / name).write_text("mine")
    with replacing(path) as file:
        file.write(b"slow")
        write_atomically(path, "quick", private=False)
        assert path.read_text() == "quick"
    assert path.read_text() == "slow"
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([*users, "page.html"])
    assert all((tmp_path / name).read_text() == "mine" for name in users)


def test_a_write_that_fails_leaves_the_former_file_alone(tmp_path):
    path = tmp_path / "page.html"
    write_atomically(path, "whole", private=False)
    with suppress(ZeroDivisionError), replacing(path) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]
    assert path.read_text() == "whole"


def test_a_mark_is_its_owners(tmp_path):
    path = tmp_path / "page.html"
    partial = temporary_path(path, "run")
    partial.write_text("of a run")
    write_atomically(path, "whole", private=False)
    assert partial.read_text() == "of a run"
