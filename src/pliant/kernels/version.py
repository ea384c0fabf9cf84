"""The version of the kernel generators: a hash of this package's source."""

import hashlib
import time
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent
_IMPORTED_S = time.time()


def source_version(folder: Path, read_s: float) -> str | None:
    """SHA-256 over the names and bytes of the Python files under `folder`; None if the version is unknown.

    It is unknown if no file can be read, or if one changed after `read_s` (seconds since the epoch): the
    running code may then be older than the files, and an old kernel would be stored under the new version.
    """
    digest = hashlib.sha256()
    files = sorted(folder.rglob("*.py"))
    try:
        for path in files:
            if path.stat().st_mtime > read_s:
                return None
            data = path.read_bytes()
            digest.update(f"{path.relative_to(folder).as_posix()} {len(data)}\n".encode() + data)
    except OSError:
        return None
    return digest.hexdigest() if files else None


@cache
def generator_version() -> str | None:
    """The version of the generators that this process imported, or None if it is unknown.

    The generators import only errors and annotation types from other packages of pliant, so equal versions
    write equal IR for one ISA row and one kernel.
    """
    return source_version(_FOLDER, _IMPORTED_S)
