"""Check that a file with a secret is not readable or writable by other users."""

import os
import stat

_OTHERS = 0o077
_OTHERS_AND_WRITERS = 0o037


def is_exposed(status: os.stat_result, is_given: bool = False) -> bool:
    """Whether the mode and owner of a file let users read or change it for whom it is not meant.

    Accepted are a file for its owner alone (0600, 0400), and a file of root that a group of this process may
    read (0440, 0640): Kubernetes mounts secrets so, with `fsGroup`. With `is_given` (a file from systemd,
    `secret_sources.is_credential`) 0440 is accepted as well: its group bits are those of an ACL.
    """
    is_mounted = status.st_uid == 0 and status.st_gid in {os.getegid(), *os.getgroups()}
    is_mounted |= is_given and status.st_uid in (0, os.geteuid())
    return bool(status.st_mode & (_OTHERS_AND_WRITERS if is_mounted else _OTHERS))


def format_mode(status: os.stat_result) -> str:
    """The mode as `chmod` takes it."""
    return f"{stat.S_IMODE(status.st_mode):04o}"
