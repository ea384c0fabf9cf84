"""Whether a file with a secret is closed to others."""

import os
import stat

_OTHERS = 0o077
_OTHERS_AND_WRITERS = 0o037


def is_exposed(found: os.stat_result) -> bool:
    """Whether others than those whom the file is for can read or change it, by its mode and owner.

    It is for its owner alone (0600, 0400), or belongs to root and may be read by a group of this process
    (0440, 0640): Kubernetes mounts secrets so, with `fsGroup`.
    """
    is_mounted = found.st_uid == 0 and found.st_gid in {os.getegid(), *os.getgroups()}
    return bool(found.st_mode & (_OTHERS_AND_WRITERS if is_mounted else _OTHERS))


def shown_mode(found: os.stat_result) -> str:
    """The mode as `chmod` takes it."""
    return f"{stat.S_IMODE(found.st_mode):04o}"
