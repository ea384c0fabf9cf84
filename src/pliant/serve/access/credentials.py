"""The current tokens, certificates and keys of a node: reloaded when their files change."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

from pliant.errors import NodeError
from pliant.serve.access.security import AccessTokens, Tls, read_tokens

_LOG = logging.getLogger("pliant.serve")
POLL_S: Final = 1.0
"""Polling interval of the files. They are reloaded after they have been unchanged for one interval, because a
certificate and its key are two files."""


@dataclass(frozen=True, slots=True)
class TokenFiles:
    """Token files by role; None if tokens are given in another way."""

    clients: Path | None = None
    peers: Path | None = None
    operators: Path | None = None

    def read(self, otherwise: AccessTokens) -> AccessTokens:
        """Read the tokens; roles without a file use those of `otherwise`. Raises NodeError."""
        kinds = zip((self.clients, self.peers, self.operators), otherwise.kinds, strict=True)
        return AccessTokens(*(given if path is None else read_tokens(path) for path, given in kinds))


@dataclass(frozen=True, slots=True)
class CredentialSet:
    """Credentials that were read from `files` and `tls` together, and are replaced all at once or not at all.

    `stamps` change with the files.
    """

    files: TokenFiles
    tls: Tls
    stamps: tuple[object, ...]
    tokens: AccessTokens
    server_tls: ssl.SSLContext | None
    client_tls: ssl.SSLContext
    key_pair: "PemKeyPair | None"


@dataclass(frozen=True, slots=True)
class PemKeyPair:
    """A certificate with its chain, and its key, in PEM."""

    cert: bytes
    key: bytes = field(repr=False)


@final
class Credentials:
    """The credentials that a node accepts and presents. `on_change` callbacks run on the event loop.

    Raises NodeError if the files are invalid at first. If they are invalid later, the error is logged and the
    previous credentials stay in use.
    """

    def __init__(self, tokens: AccessTokens, files: TokenFiles, tls: Tls) -> None:
        self._now = _read(files, tls, lambda: tokens)
        self._seen = self._now.stamps
        self.on_change: list[Callable[[], None]] = []

    @property
    def files(self) -> TokenFiles:
        """The token files that are read."""
        return self._now.files

    @property
    def tls(self) -> Tls:
        """The certificates and authorities that are read."""
        return self._now.tls

    @property
    def tokens(self) -> AccessTokens:
        return self._now.tokens

    @property
    def client_tls(self) -> ssl.SSLContext:
        return self._now.client_tls

    @property
    def server_tls(self) -> ssl.SSLContext | None:
        """The TLS context of new connections; None without TLS."""
        return self._now.server_tls

    @property
    def key_pair(self) -> PemKeyPair | None:
        """The certificate and key for libraries with their own TLS implementation."""
        return self._now.key_pair

    async def reload(self) -> None:
        """Read all files now, and the authorities of the system; what `use` is given meanwhile stays.

        Errors are logged, not raised: once, until the files change again.
        """
        before = self._now
        seen = await asyncio.to_thread(_stamps, _paths(before.files, before.tls))
        try:
            found = await self.read(before.files, before.tls)
        except NodeError as error:
            self._seen = seen
            _LOG.error("tokens and certificates were not reloaded: %s", error)
            return
        if self._now is not before:
            return
        self.use(found)
        if found.stamps != before.stamps:
            _LOG.warning("tokens and certificates were reloaded")

    async def read(self, files: TokenFiles, tls: Tls) -> CredentialSet:
        """Read these files for `use`; roles without a file keep their tokens. Raises NodeError."""
        return await asyncio.to_thread(_read, files, tls, lambda: files.read(self._now.tokens))

    def use(self, found: CredentialSet) -> None:
        """Accept and present these from now on; open connections keep theirs."""
        self._now, self._seen = found, found.stamps
        for changed in self.on_change:
            changed()

    async def watch(self) -> None:
        """Reload the files whenever they change, until cancelled."""
        last = self._seen
        while True:
            await asyncio.sleep(POLL_S)
            paths = _paths(self._now.files, self._now.tls)
            if not paths:
                continue
            try:
                found = await asyncio.to_thread(_stamps, paths)
                if found == last and found != self._seen:
                    await self.reload()
            except Exception:  # noqa: BLE001 - no thread could be started, for example: try again
                _LOG.exception("the files of tokens and certificates could not be checked")
            else:
                last = found


def _read(files: TokenFiles, tls: Tls, tokens: Callable[[], AccessTokens]) -> CredentialSet:
    """Read the certificates, and `tokens`, after the state of all files. Raises NodeError."""
    stamps = _stamps(_paths(files, tls))
    return CredentialSet(files, tls, stamps, tokens(), tls.server(), tls.client(), _read_key_pair(tls))


def _read_key_pair(tls: Tls) -> PemKeyPair | None:
    """Read the certificate and key. Raises NodeError if the files were deleted after the check."""
    if tls.cert is None or tls.key is None:
        return None
    try:
        return PemKeyPair(tls.cert.read_bytes(), tls.key.read_bytes())
    except OSError as error:
        raise NodeError(f"{tls.cert} and {tls.key} are not a certificate and its key: {error}.") from error


def _paths(files: TokenFiles, tls: Tls) -> tuple[Path, ...]:
    every = (files.clients, files.peers, files.operators, tls.cert, tls.key, tls.ca, tls.client_ca)
    return tuple(path for path in every if path is not None)


def _stamps(paths: Iterable[Path]) -> tuple[object, ...]:
    """Values that change with the files, also when a symbolic link to them changes, as in Kubernetes."""
    return tuple(_stamps_of(paths))


def _stamps_of(paths: Iterable[Path]) -> Iterable[object]:
    for path in paths:
        try:
            found = path.stat()
            yield (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        except OSError as error:
            yield error.errno
