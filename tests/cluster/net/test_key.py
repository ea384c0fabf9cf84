"""The cluster's key file: who may read it, and what happens when it is wrong."""

import stat
from pathlib import Path

import pytest
import zmq.auth

from pliant.cluster.net.key import Key, default_path, make_key, new_key, read_key
from pliant.errors import ClusterError


def test_a_key_is_read_as_it_was_made(tmp_path: Path) -> None:
    """Members copy the file."""
    path = tmp_path / "deep" / "cluster.key"
    assert make_key(path) == read_key(path)


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    """Whoever reads it may join."""
    make_key(tmp_path / "deep" / "cluster.key")
    assert stat.S_IMODE((tmp_path / "deep" / "cluster.key").stat().st_mode) == 0o600
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["cluster.key"]


def test_the_file_is_a_zeromq_certificate(tmp_path: Path) -> None:
    """Other tools of that world can use it."""
    key = make_key(tmp_path / "k")
    assert zmq.auth.load_certificate(tmp_path / "k") == (key.public, key.secret)


@pytest.mark.parametrize("mode", [0o644, 0o620, 0o606, 0o660])
def test_a_file_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    """It may have been read already; the message says what to do."""
    make_key(tmp_path / "k")
    (tmp_path / "k").chmod(mode)
    with pytest.raises(ClusterError, match=f"mode {mode:04o}; limit 0600.*chmod 600"):
        read_key(tmp_path / "k")


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    """A new one would lock out all who hold the old one."""
    key = make_key(tmp_path / "k")
    with pytest.raises(ClusterError, match="is there already"):
        make_key(tmp_path / "k")
    assert read_key(tmp_path / "k") == key


def test_a_missing_key_names_the_command_that_makes_one(tmp_path: Path) -> None:
    """The first thing a new user meets."""
    with pytest.raises(ClusterError, match="pliant cluster key"):
        read_key(tmp_path / "k")


@pytest.mark.parametrize("text", ["", "hello", 'public-key = "x"', "\0\xff" * 100])
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    """Half a copy is no key."""
    path = tmp_path / "k"
    path.write_bytes(text.encode("latin-1"))
    path.chmod(0o600)
    with pytest.raises(ClusterError, match=r"holds no cluster key: .* `pliant cluster key`"):
        read_key(path)


def test_halves_of_two_keys_are_refused(tmp_path: Path) -> None:
    """Edited by hand, it would admit nobody and say nothing."""
    with pytest.raises(ClusterError, match="do not belong together"):
        Key(new_key().public, new_key().secret)


def test_the_secret_is_not_shown() -> None:
    """Keys end up in tracebacks and logs."""
    key = new_key()
    assert key.secret.decode() not in repr(key)


def test_the_default_lies_in_the_folder_for_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """One place for every verb."""
    monkeypatch.setenv("XDG_CONFIG_HOME", "/etc/x")
    assert default_path() == Path("/etc/x/pliant/cluster.key")
