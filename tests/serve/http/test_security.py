"""Tokens, addresses and certificates: who gets in, and what is refused before anybody could."""

from pathlib import Path

import pytest

from pliant.errors import NodeError
from pliant.serve.http.security import Address, Tls, Tokens, check_exposure, parse_address, read_tokens

TOKEN = "0123456789abcdef"


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_any_of_the_tokens_opens_and_nothing_else() -> None:
    """Two tokens hold while one is being replaced by the other."""
    tokens = Tokens([TOKEN, "fedcba9876543210"])
    assert tokens.admit(f"Bearer {TOKEN}")
    assert tokens.admit("bearer fedcba9876543210")
    for wrong in (
        None,
        "",
        TOKEN,
        "Bearer",
        "Bearer ",
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}0",
        "Bearer \udcff",
    ):
        assert not tokens.admit(wrong), wrong


def test_it_is_known_which_token_was_shown() -> None:
    """A node below that still has the old one is told of changes with that."""
    tokens = Tokens(["client-token-0123"], [TOKEN, "fedcba9876543210"])
    assert tokens.shown("Bearer client-token-0123") is None
    assert tokens.admit("Bearer client-token-0123")
    assert tokens.shown("Bearer  fedcba9876543210") == "fedcba9876543210"
    assert tokens.shown(f"Basic {TOKEN}") is None
    assert Tokens().shown(f"Bearer {TOKEN}") is None


def test_without_tokens_everybody_is_let_in() -> None:
    """That is what loopback is for."""
    assert Tokens().admit(None)
    assert Tokens().is_peer(None)


def test_a_token_file_has_a_token_a_line(tmp_path: Path) -> None:
    """Comments tell tokens apart."""
    path = written(tmp_path / "t", f"# first\n{TOKEN}\n\n{TOKEN}2\n")
    assert read_tokens(path) == (TOKEN, f"{TOKEN}2")


@pytest.mark.parametrize("text", ["", "# nothing\n", "short\n", f"{TOKEN} {TOKEN}\n", "é" * 20])
def test_a_file_without_a_safe_token_is_refused(tmp_path: Path, text: str) -> None:
    """A token that can be guessed is none."""
    with pytest.raises(NodeError):
        read_tokens(written(tmp_path / "t", text))


def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """The secret would not be one; the message says what to do."""
    with pytest.raises(NodeError, match="chmod 600"):
        read_tokens(written(tmp_path / "t", TOKEN, 0o644))
    with pytest.raises(NodeError, match="cannot be read"):
        read_tokens(tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", Address("127.0.0.1", 8080)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:80", Address("::1", 80)),
        ("0.0.0.0:1", Address("0.0.0.0", 1)),
    ],
)
def test_addresses_are_read_as_they_are_shown(text: str, address: Address) -> None:
    """What a node prints, another can be given."""
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", "8080", ":8080", "host", "host:", "host:x", "host:70000", "::1:80", "h:-1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """Better than to listen somewhere else."""
    with pytest.raises(NodeError):
        parse_address(text)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org"])
def test_strangers_are_not_let_near_an_open_node(host: str) -> None:
    """Loopback by default; elsewhere a token, or the user's word."""
    listen = Address(host, 80)
    with pytest.raises(NodeError, match="--token-file"):
        check_exposure(listen, Tokens(), is_insecure=False)
    check_exposure(listen, Tokens([TOKEN]), is_insecure=False)
    check_exposure(listen, Tokens(), is_insecure=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    """The demo starts with one line."""
    check_exposure(Address(host, 80), Tokens(), is_insecure=False)


def test_a_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    """Half of the options is a mistake, not plain HTTP."""
    with pytest.raises(NodeError, match="both"):
        Tls(cert=tmp_path / "c")
    with pytest.raises(NodeError, match="no certificate"):
        Tls(tmp_path / "c", tmp_path / "k").server()
    with pytest.raises(NodeError, match="authority"):
        Tls(ca=tmp_path / "none").client()
    assert Tls().server() is None
