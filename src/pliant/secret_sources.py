"""Resolve the path of a secret: a file, an environment variable, or a systemd credential.

`env:NAME` is an environment variable; `credential:NAME` is a credential that `LoadCredential=` passes to the
service.
"""

from pathlib import Path

from pliant.errors import NodeError
from pliant.settings import credentials_folder

VARIABLE, CREDENTIAL = "env:", "credential:"


def variable_of(path: Path) -> str | None:
    """The environment variable that `path` names; None for a file."""
    text = str(path)
    return text.removeprefix(VARIABLE) if text.startswith(VARIABLE) else None


def secret_path(path: Path) -> Path:
    """Return `path`, or the file of the credential that it names. Raises NodeError if systemd passed none."""
    name = str(path)
    if not name.startswith(CREDENTIAL):
        return path
    folder, name = credentials_folder(), name.removeprefix(CREDENTIAL)
    if folder is None or not name or "/" in name or name in (".", ".."):
        raise NodeError(
            f"there is no credential {name!r:.80}: add LoadCredential=NAME:FILE to the systemd unit."
        )
    return folder / name


def is_credential(path: Path) -> bool:
    """Whether systemd put the file there for this service, with access by an ACL (shown as mode 0440)."""
    return path.parent == credentials_folder()
