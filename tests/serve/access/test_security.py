"""Tokens, addresses and certificates: who gets in, and what is refused before anybody could."""

import hmac
from pathlib import Path

import pytest

from pliant.errors import NodeError
from pliant.serve.access.roles import Role
from pliant.serve.access.security import (
    AccessTokens,
    ListenAddress,
    Tls,
    check_exposure,
    parse_address,
    read_tokens,
    warn_unencrypted,
)
from tests.serve.nodes import running_models

TOKEN = "0123456789abcdef"


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_any_of_the_tokens_opens_and_nothing_else() -> None:
    """Two tokens hold while one is being replaced by the other."""
    tokens = AccessTokens([TOKEN, "fedcba9876543210"])
    assert role_of(tokens, f"Bearer {TOKEN}") is Role.CLIENT
    assert role_of(tokens, "bearer fedcba9876543210") is Role.CLIENT
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
        assert tokens.find(wrong) is None, wrong


def role_of(tokens: AccessTokens, authorization: str) -> Role | None:
    known = tokens.find(authorization)
    return None if known is None else known.role


def test_it_is_known_which_token_was_shown() -> None:
    """A node below that still has the old one is told of changes with that."""
    tokens = AccessTokens(["client-token-0123"], [TOKEN, "fedcba9876543210"], ["operator-token-01"])
    known = tokens.find("Bearer  fedcba9876543210")
    assert known is not None
    assert (known.role, known.token) == (Role.PEER, "fedcba9876543210")
    assert role_of(tokens, "Bearer client-token-0123") is Role.CLIENT
    assert role_of(tokens, "Bearer operator-token-01") is Role.OPERATOR
    assert tokens.upstream_token == TOKEN
    assert AccessTokens().find(f"Bearer {TOKEN}") is None
    assert TOKEN not in repr(known)


def test_every_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that a refusal takes says nothing about a token: not its length, its beginning, its place."""
    compared: list[tuple[int, int]] = []
    whole = hmac.compare_digest

    def recorded(known: bytes, given: bytes) -> bool:
        compared.append((len(known), len(given)))
        return whole(known, given)

    monkeypatch.setattr(hmac, "compare_digest", recorded)
    tokens = AccessTokens([TOKEN, "f" * 64], ["peer-token-0123456"])
    for given in (TOKEN, TOKEN[:-1], "f" * 64, "", "x" * 1000):
        compared.clear()
        tokens.find(f"Bearer {given}")
        assert compared == [(32, 32)] * 3


def test_a_token_file_has_a_token_a_line(tmp_path: Path) -> None:
    """Comments tell tokens apart."""
    path = written(tmp_path / "t", f"# first\n{TOKEN}\n\n{TOKEN}2\n")
    assert read_tokens(path) == (TOKEN, f"{TOKEN}2")


@pytest.mark.parametrize("text", ["", "# nothing\n", "short\n", f"{TOKEN} {TOKEN}\n", "é" * 20])
def test_a_file_without_a_safe_token_is_refused(tmp_path: Path, text: str) -> None:
    """A token that can be guessed is none."""
    with pytest.raises(NodeError):
        read_tokens(written(tmp_path / "t", text))


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o622, 0o777])
def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    """The secret would not be one; the message says what to do."""
    with pytest.raises(NodeError, match="chmod 600"):
        read_tokens(written(tmp_path / "t", TOKEN, mode))
    with pytest.raises(NodeError, match="cannot be read"):
        read_tokens(tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", ListenAddress("127.0.0.1", 8080)),
        ("localhost:0", ListenAddress("localhost", 0)),
        ("[::1]:80", ListenAddress("::1", 80)),
        ("0.0.0.0:1", ListenAddress("0.0.0.0", 1)),
    ],
)
def test_addresses_are_read_as_they_are_shown(text: str, address: ListenAddress) -> None:
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
    listen = ListenAddress(host, 80)
    with pytest.raises(NodeError, match="--token-file"):
        check_exposure(listen, AccessTokens(), is_insecure=False)
    check_exposure(listen, AccessTokens([TOKEN]), is_insecure=False)
    check_exposure(listen, AccessTokens(), is_insecure=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    """The demo starts with one line."""
    check_exposure(ListenAddress(host, 80), AccessTokens(), is_insecure=False)


def test_a_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    """Half of the options is a mistake, not plain HTTP."""
    with pytest.raises(NodeError, match="both"):
        Tls(cert=tmp_path / "c")
    with pytest.raises(NodeError, match="not a certificate"):
        Tls(tmp_path / "c", tmp_path / "k").server()
    with pytest.raises(NodeError, match="authority"):
        Tls(ca=tmp_path / "none").client()
    assert Tls().server() is None


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """Who has it can be this node."""
    written(tmp_path / "c", "")
    with pytest.raises(NodeError, match=r"mode 0644; limit 0600.*chmod 600"):
        Tls(tmp_path / "c", written(tmp_path / "k", "", 0o644)).server()


@pytest.mark.parametrize(
    ("host", "tokens", "is_warned"),
    [
        ("0.0.0.0", AccessTokens([TOKEN]), True),
        ("10.0.0.1", AccessTokens([], [TOKEN]), True),
        ("127.0.0.1", AccessTokens([TOKEN]), False),
        ("0.0.0.0", AccessTokens(), False),
    ],
)
def test_tokens_over_plain_http_are_warned_of_at_the_start(
    host: str, tokens: AccessTokens, is_warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Who runs the node may not know that nothing encrypts them."""
    warn_unencrypted(ListenAddress(host, 80), tokens, Tls())
    assert ("plain HTTP" in caplog.text) is is_warned
    assert TOKEN not in caplog.text


def test_tokens_over_plain_grpc_are_warned_of_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    """Also where HTTP is at loopback, as behind a proxy."""
    with running_models([], tokens=(TOKEN,), grpc=ListenAddress("0.0.0.0", 0)):
        assert "plain HTTP" in caplog.text
