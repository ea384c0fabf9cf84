"""Certificates for tests, from authorities that nobody else trusts."""

from pathlib import Path
from typing import Any, final

import pytest

from pliant.serve.access.security import Tls


@final
class Authority:
    """Issues certificates, in files below `folder`. Skips the test where trustme is missing."""

    def __init__(self, folder: Path) -> None:
        trustme = pytest.importorskip("trustme", reason="trustme, which makes certificates, is not installed")
        folder.mkdir(exist_ok=True)
        self._made: Any = trustme.CA()
        self._folder = folder
        self.ca = folder / "ca.pem"
        self._made.cert_pem.write_to_path(self.ca)

    def issue(self, *names: str, file: str = "node") -> tuple[Path, Path]:
        """The files of a certificate for `names` and of its key, replaced where they are there already."""
        made = self._made.issue_cert(*names)
        cert, key = self._folder / f"{file}.cert", self._folder / f"{file}.key"
        key.touch(mode=0o600)
        made.private_key_pem.write_to_path(key)
        cert.write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
        return cert, key

    def node(self, *names: str, file: str = "node", **more: Any) -> Tls:
        """What a node with such a certificate shows, which trusts this authority."""
        cert, key = self.issue(*names, file=file)
        return Tls(**{"cert": cert, "key": key, "ca": self.ca, **more})
