"""Bearer tokens, TLS, and checks of addresses to listen at."""

import hashlib
import hmac
import logging
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, final
from urllib.parse import urlsplit

from pliant.errors import NodeError
from pliant.secret_files import format_mode, is_exposed
from pliant.secret_sources import is_credential, variable_of
from pliant.serve.access.roles import Role
from pliant.settings import secret_variable

_LOG = logging.getLogger("pliant.serve")
_LIMIT_BYTES = 1 << 16
_SHORTEST = 16


@final
class AccessTokens:
    """Tokens of clients, of other nodes (`peers`) and of `operators`.

    Without tokens of clients or peers, a node is open. Raises NodeError if a token is of two kinds.
    """

    def __init__(
        self, clients: Sequence[str] = (), peers: Sequence[str] = (), operators: Sequence[str] = ()
    ) -> None:
        if len({*clients}) + len({*peers}) + len({*operators}) > len({*clients, *peers, *operators}):
            raise NodeError(
                "a token has two roles, so that a client could act as a node or an operator; give "
                "--token-file, --peer-token-file and --operator-token-file different tokens."
            )
        kinds = ((Role.CLIENT, clients), (Role.PEER, peers), (Role.OPERATOR, operators))
        self._known = tuple(
            RoleToken(role, token, _digest(token.encode())) for role, kind in kinds for token in kind
        )

    def __bool__(self) -> bool:
        return self.has(Role.CLIENT) or self.has(Role.PEER)

    def has(self, role: Role) -> bool:
        """Whether there are tokens of `role`."""
        return any(known.role is role for known in self._known)

    @property
    def kinds(self) -> tuple[tuple[str, ...], ...]:
        """The tokens of clients, of peers and of operators."""
        return tuple(tuple(known.token for known in self._known if known.role is role) for role in Role)

    @property
    def peers(self) -> tuple[str, ...]:
        return self.kinds[1]

    @property
    def upstream_token(self) -> str | None:
        """The first peer token, which this node sends to upstreams."""
        return next(iter(self.kinds[1]), None)

    def find(self, authorization: str | None) -> "RoleToken | None":
        """The token in an `Authorization` header; None if it is unknown.

        SHA-256 digests of equal length are compared with all tokens in constant time, so the duration reveals
        neither the length of a token nor how much of a guess was right.
        """
        scheme, _, given = (authorization or "").partition(" ")
        digest, found = _digest(given.strip().encode("utf-8", "surrogateescape")), None
        for known in self._known:
            if hmac.compare_digest(known.digest, digest):
                found = known
        return found if scheme.lower() == "bearer" else None


@dataclass(frozen=True, slots=True)
class RoleToken:
    """A token with the `role` it grants; `digest` is its SHA-256."""

    role: Role
    token: str = field(repr=False)
    digest: bytes = field(repr=False)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def bearer(token: str | None) -> dict[str, str]:
    """The Authorization header for `token`; empty without a token."""
    return {} if token is None else {"authorization": f"Bearer {token}"}


def is_unencrypted(url: str) -> bool:
    """Whether data to `url` travels unencrypted: over plain HTTP to another machine."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not ListenAddress(parts.hostname or "", 0).is_loopback


def unencrypted_warning(url: str) -> str:
    """The warning for a token that is sent unencrypted."""
    return (
        f"a token is sent to {url} over plain HTTP, where others on the network can read and use it: give "
        "that node --tls-cert and --tls-key, and name it by https."
    )


def read_tokens(path: Path) -> tuple[str, ...]:
    """Read the tokens in a file, one per line; empty lines and lines that begin with # are skipped.

    `env:NAME` reads the environment variable instead. A node sends the first of its peer tokens to others.
    Raises NodeError if there is no token, if one is too short to be safe, or if other users can read the
    file.
    """
    variable = variable_of(path)
    text = _file_text(path) if variable is None else secret_variable(variable)
    if text is None:
        raise NodeError(f"the environment variable {variable} is not set: it must hold tokens, one a line.")
    lines = (line.strip() for line in text.splitlines())
    tokens = tuple(line for line in lines if line and not line.startswith("#"))
    if not tokens:
        raise NodeError(f"{path} holds no token; write one a line, such as `openssl rand -hex 32` prints.")
    for number, token in enumerate(tokens, 1):
        if len(token) < _SHORTEST or not token.isprintable() or " " in token:
            raise NodeError(
                f"token {number} of {path} has {len(token)} characters; give at least {_SHORTEST}, without "
                "spaces, such as `openssl rand -hex 32` prints."
            )
    return tokens


def _file_text(path: Path) -> str:
    """Read a token file. Raises NodeError if it is unreadable, or readable by other users."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            text = file.read(_LIMIT_BYTES).decode("ascii")
    except OSError as error:
        raise NodeError(f"the token file {path} cannot be read: {error.strerror}. Name another.") from error
    except UnicodeDecodeError as error:
        raise NodeError(f"{path} holds no tokens: a token is made of ASCII characters.") from error
    if is_exposed(found, is_credential(path)):
        raise NodeError(
            f"the token file {path} is open to others (mode {format_mode(found)}; limit 0600, or 0440 of "
            f"root and a group of this process): run `chmod 600 {path}`."
        )
    return text


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: the certificate and key of a node, and the CAs that verify others' certificates.

    `ca` verifies upstreams. `client_ca` verifies callers: with it, a caller may present a certificate, and
    only callers with one are accepted as nodes.
    """

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    client_ca: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise NodeError("a certificate needs its key: give both --tls-cert and --tls-key.")
        if self.client_ca is not None and self.cert is None:
            raise NodeError(
                f"--client-ca {self.client_ca} asks for certificates, which only TLS carries: give "
                "--tls-cert and --tls-key."
            )

    def server(self) -> ssl.SSLContext | None:
        """The server context, None without a certificate. Raises NodeError if the files are invalid."""
        if self.cert is None or self.key is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._show(context, self.cert, self.key)
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_OPTIONAL
            try:
                context.load_verify_locations(self.client_ca)
            except (OSError, ssl.SSLError) as error:
                raise NodeError(f"{self.client_ca} is not a certificate authority: {error}.") from error
        return context

    def _show(self, context: ssl.SSLContext, cert: Path, key: Path) -> None:
        self._check_key(key)
        try:
            context.load_cert_chain(cert, key)
        except (OSError, ssl.SSLError) as error:
            raise NodeError(f"{cert} and {key} are not a certificate and its key: {error}.") from error

    def _check_key(self, key: Path) -> None:
        try:
            found = key.stat()
        except OSError as error:
            raise NodeError(f"{self.cert} and {key} are not a certificate and its key: {error}.") from error
        if is_exposed(found, is_credential(key)):
            raise NodeError(
                f"the key {key} is open to others (mode {format_mode(found)}; limit 0600, or 0440 of root "
                f"and a group of this process): run `chmod 600 {key}`; or get a new one if it was read."
            )

    def client(self) -> ssl.SSLContext:
        """The client context: verifies servers by `ca` or the system's CAs, and presents `cert` on request.

        Raises NodeError.
        """
        try:
            context = ssl.create_default_context(cafile=None if self.ca is None else str(self.ca))
        except (OSError, ssl.SSLError) as error:
            raise NodeError(f"{self.ca} is not a certificate authority: {error}.") from error
        if self.cert is not None and self.key is not None:
            self._show(context, self.cert, self.key)
        return context


def names_of(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The names in a certificate as `ssl` returns it: the common names, then the alternative names."""
    if not certificate:
        return ()
    parts = [field for part in certificate.get("subject", ()) for field in part]
    subject = [value for name, value in parts if name == "commonName"]
    kinds = ("DNS", "IP Address", "URI")
    return (*subject, *(value for kind, value in certificate.get("subjectAltName", ()) if kind in kinds))


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """The address a node listens at."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether the address is only reachable from this machine."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_address(text: str) -> ListenAddress:
    """Parse `HOST:PORT`, IPv6 in brackets. Raises NodeError."""
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if (
        not bare
        or (":" in bare and bare == host)
        or not port.isascii()
        or not port.isdigit()
        or int(port) > 65535
    ):
        raise NodeError(f"{text!r} is not an address to listen at; give HOST:PORT, such as 127.0.0.1:8080.")
    return ListenAddress(bare, int(port))


def check_exposure(listen: ListenAddress, tokens: AccessTokens, is_insecure: bool) -> None:
    """Raise NodeError if other machines could reach a node that needs no token."""
    if listen.is_loopback or tokens or is_insecure:
        return
    raise NodeError(
        f"{listen} can be reached from other machines, and no token is required: give --token-file FILE, "
        "listen at 127.0.0.1, or give --insecure if the network is trusted."
    )


def warn_unencrypted(listen: ListenAddress, tokens: AccessTokens, tls: Tls) -> None:
    """Log a warning if callers from other machines would send tokens unencrypted."""
    if tokens and tls.cert is None and not listen.is_loopback:
        _LOG.warning(
            "tokens are sent to %s over plain HTTP: give --tls-cert and --tls-key, unless a "
            "proxy on this machine, or a private network, carries them.",
            listen,
        )


def check_discovery(listen: ListenAddress, peer_tokens: Sequence[str], is_insecure: bool) -> bool:
    """Whether discovery is limited to nodes on this machine, as the node itself is.

    Raises NodeError if unknown hosts could become upstreams of a node on an untrusted network.
    """
    if peer_tokens or is_insecure:
        return False
    if listen.is_loopback:
        return True
    raise NodeError(
        "any host on the network could announce a node and receive inputs: give --peer-token-file "
        "FILE, shared by all nodes, or --insecure if the network is trusted."
    )
