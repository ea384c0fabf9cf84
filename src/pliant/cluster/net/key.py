"""The key of a cluster: one CURVE key pair in a file that every member holds.

The file is a ZeroMQ certificate (readable by `zmq.auth`). Any process that can read it may join, under any
name.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile

from pliant.cluster.net.zmq_sockets import zmq
from pliant.errors import ClusterError
from pliant.secret_files import format_mode, is_exposed
from pliant.secret_sources import is_credential
from pliant.settings import config_folder

_LIMIT_BYTES = 1 << 16
_FORM = """\
#   The key of a pliant cluster. Whoever holds this file may join it: copy it to its members over a
#   channel that nobody else reads, and keep its mode at 0600.
metadata
curve
    public-key = "{public}"
    secret-key = "{secret}"
"""


@dataclass(frozen=True, slots=True)
class Key:
    """A CURVE key pair, each half 40 characters of Z85 (ZeroMQ RFC 32)."""

    public: bytes
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        try:
            belongs = zmq.curve_public(self.secret) == self.public
        except (ValueError, zmq.ZMQError):
            belongs = False
        if not belongs:
            raise ClusterError("the two halves of this key do not belong together, or are not CURVE keys.")


def default_path() -> Path:
    """Return the default path of a user's key, in the configuration folder."""
    return config_folder() / "cluster.key"


def new_key() -> Key:
    """Return a new random key pair."""
    return Key(*zmq.curve_keypair())


def make_key(path: Path) -> Key:
    """Write a new key to `path` atomically, readable only by its owner, and return it.

    Raises ClusterError if the file exists or cannot be written.
    """
    key = new_key()
    text = _FORM.format(public=key.public.decode(), secret=key.secret.decode())
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.") as file:  # made with mode 0600
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.link(file.name, path)
    except FileExistsError:
        raise ClusterError(
            f"{path} is there already: members that hold it would be locked out by a new key. Delete it "
            "first, or name another file."
        ) from None
    except OSError as error:
        raise ClusterError(
            f"no key can be written to {path}: {error.strerror}. Name another file."
        ) from error
    return key


def read_key(path: Path) -> Key:
    """Read the key in `path`.

    Raises ClusterError if the file is missing, is not a key, or is accessible to other users.
    """
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            text = file.read(_LIMIT_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        raise ClusterError(
            f"there is no cluster key at {path}: make one with `pliant cluster key` on one device, copy it "
            "to the others."
        ) from None
    except OSError as error:
        raise ClusterError(
            f"the cluster key at {path} cannot be read: {error.strerror}. Name the file."
        ) from error
    if is_exposed(found, is_credential(path)):
        raise ClusterError(
            f"the cluster key at {path} is open to others (mode {format_mode(found)}; limit 0600, or 0440 of "
            f"root and a group of this process): run `chmod 600 {path}`; if others may have read it, make a "
            "new key for all members."
        )
    halves = dict(_field(line) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    try:
        return Key(halves["public-key"].encode(), halves["secret-key"].encode())
    except (KeyError, ClusterError) as error:
        raise ClusterError(
            f"{path} holds no cluster key: copy it again from a member, or delete it and make a new one "
            "with `pliant cluster key`."
        ) from error


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition("=")
    return name.strip(), value.strip().strip('"')
