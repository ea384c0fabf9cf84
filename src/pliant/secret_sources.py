"""Where a secret is read from, by its path: a file, an environment variable, or a credential of systemd.

`env:NAME` is a variable, and `credential:NAME` what `LoadCredential=` gives the service.
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
    """`path`, or the file of the credential that it names. Raises NodeError where systemd gave none."""
    name = str(path)
    if not name.startswith(CREDENTIAL):
        return path
    folder, name = credentials_folder(), name.removeprefix(CREDENTIAL)
    if folder is None or not name or "/" in name or name in (".", ".."):
        raise NodeError(
            f"there is no credential {name!r:.80}: systemd gives it by LoadCredential=NAME:FILE in the unit."
        )
    return folder / name


def is_credential(path: Path) -> bool:
    """Whether systemd has put the file there for this service, which it lets read it by an ACL: as 0440."""
    return path.parent == credentials_folder()
