"""Settings that a server rejects at start."""

from __future__ import annotations

import pytest

from geval_local.errors import ConfigurationError
from geval_local.serve.settings import ServeSettings, read_key


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "example.org", ""])
def test_an_address_that_others_reach_needs_a_key(host):
    with pytest.raises(ConfigurationError, match="needs an API key"):
        ServeSettings(host=host)
    assert ServeSettings(host=host, api_key="k").api_key == "k"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_this_machine_alone_needs_none(host):
    assert ServeSettings(host=host).api_key is None


@pytest.mark.parametrize(
    "fields", [{"max_body": 0}, {"queue": 0}, {"rotations": 0}, {"port": 70000}, {"api_key": ""}, {"api_key": "ä"}]
)
def test_values_out_of_range(fields):
    with pytest.raises(ConfigurationError):
        ServeSettings(**fields)


@pytest.mark.parametrize(("text", "size"), [("16MiB", 16 << 20), ("500KB", 500_000), ("7", 7), ("1 gib", 1 << 30)])
def test_sizes(text, size):
    assert ServeSettings(max_body=text).max_body == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "0", "1,5MiB", "1 XiB"])
def test_no_sizes(text):
    with pytest.raises(ConfigurationError, match="max_body"):
        ServeSettings(max_body=text)


def test_the_key_comes_from_a_file_or_the_environment(tmp_path):
    (tmp_path / "key").write_text("from-file\n")
    assert read_key(tmp_path / "key", {"GEVAL_LOCAL_API_KEY": "other"}) == "from-file"
    assert read_key(None, {"GEVAL_LOCAL_API_KEY": "from-environment"}) == "from-environment"
    assert read_key(None, {}) is None
    (tmp_path / "empty").write_text("\n")
    for file, environment in ((tmp_path / "empty", {}), (tmp_path / "none", {}), (None, {"GEVAL_LOCAL_API_KEY": " "})):
        with pytest.raises(ConfigurationError):
            read_key(file, environment)
