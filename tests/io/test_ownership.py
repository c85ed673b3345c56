"""Whose a file is: what this tool wrote and nobody changed is its own; anything else is the user's."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from geval_local.errors import OutputError
from geval_local.io.ownership import (
    check_replaceable,
    checksummed,
    file_sha256,
    is_unedited,
    owned,
    read_own_record,
    sealed,
)

FORM = "geval-local test"
TEXTS = {
    "record": json.dumps(checksummed({"format": FORM, "text": "é <", "number": 0.1})),
    "text": sealed("<html>\n<p>é</p>\n</html>\n\n", FORM),
    "empty text": sealed("", FORM),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_a_file_says_itself_that_nobody_changed_it(tmp_path, kind):
    path = tmp_path / "file"
    path.write_text(TEXTS[kind], encoding="utf-8")
    assert owned(path, FORM)
    assert not owned(path, "geval-local other")
    assert not owned(path)
    check_replaceable(path, FORM)
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert not owned(path, FORM), place
    for edited in (content + b"x", b"<" + content, content[:-2], b"", content + content):
        path.write_bytes(edited)
        assert not owned(path, FORM)
        with pytest.raises(OutputError, match="not an unchanged result of this tool"):
            check_replaceable(path, FORM)
        check_replaceable(path, FORM, overwrite=True)


def test_a_record_may_be_laid_out_anew_and_not_changed(tmp_path):
    record = checksummed({"format": FORM, "pages": {"b": 1, "a": 2}})
    path = tmp_path / "file.json"
    path.write_text(json.dumps(record, indent=3, sort_keys=True))
    assert read_own_record(path, FORM) == record
    assert not is_unedited(record | {"more": 1})
    assert not is_unedited({key: value for key, value in record.items() if key != "checksum"})


def test_a_content_on_record_elsewhere(tmp_path):
    path = tmp_path / "file"
    path.write_text("rows")
    assert owned(path, digests=[None, file_sha256(path)])
    assert not owned(path, digests=[None])
    assert not owned(path, digests=["0" * 64])
    assert not owned(tmp_path / "nothing", digests=[file_sha256(path)])


@pytest.mark.parametrize("kind", ["link", "hard link", "directory", "pipe", "socket path"])
def test_what_is_no_lone_file_is_never_ours(tmp_path, kind):
    kept, path = tmp_path / "kept", tmp_path / "file"
    kept.write_text("rows")
    {
        "link": lambda: path.symlink_to(kept),
        "hard link": lambda: path.hardlink_to(kept),
        "directory": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "socket path": lambda: path.symlink_to("nowhere"),
    }[kind]()
    assert not owned(path, digests=[file_sha256(kept)])
    for overwrite in (False, True):
        with pytest.raises(OutputError, match="cannot write") as caught:
            check_replaceable(path, digests=[file_sha256(kept)], overwrite=overwrite)
        assert caught.value.hint


def test_a_name_that_no_file_can_have_is_refused_in_words(tmp_path):
    for name in ("x" * 300, "a\0b"):
        with pytest.raises(OutputError, match="cannot write"):
            check_replaceable(tmp_path / name)
    check_replaceable(tmp_path / "free")


def test_it_loads_no_heavy_library():
    code = "import sys, geval_local.io.ownership; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "pyarrow", "tokenizers"} & set(done.stdout.split())
