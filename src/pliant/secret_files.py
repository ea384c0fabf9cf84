"""Whether a file with a secret is closed to others."""

import os
import stat

_OTHERS = 0o077
_OTHERS_AND_WRITERS = 0o037


def is_exposed(found: os.stat_result, is_given: bool = False) -> bool:
    """Whether others than those whom the file is for can read or change it, by its mode and owner.

    It is for its owner alone (0600, 0400), or belongs to root and may be read by a group of this process
    (0440, 0640): Kubernetes mounts secrets so, with `fsGroup`. One that `is_given` by
    systemd (`secret_sources.is_credential`) may be 0440 as well: the bits of its group are those of an ACL.
    """
    is_mounted = found.st_uid == 0 and found.st_gid in {os.getegid(), *os.getgroups()}
    is_mounted |= is_given and found.st_uid in (0, os.geteuid())
    return bool(found.st_mode & (_OTHERS_AND_WRITERS if is_mounted else _OTHERS))


def shown_mode(found: os.stat_result) -> str:
    """The mode as `chmod` takes it."""
    return f"{stat.S_IMODE(found.st_mode):04o}"
