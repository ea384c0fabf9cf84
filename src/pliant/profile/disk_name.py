"""The disk that a folder is on, as the system names it."""

import os
from pathlib import Path

_SYS = Path("/sys")


def disk_name(folder: Path, sys: Path = _SYS) -> str:
    """Return a name of the disk of `folder` that stays when the machine starts again; "" if it is unknown.

    It is the disk's model, or the name of its mapping, else that of its device. A file system in memory, of
    the network or of several disks has none.
    """
    number = folder.stat().st_dev
    device = (sys / "dev" / "block" / f"{os.major(number)}:{os.minor(number)}").resolve()
    if not device.is_dir():
        return ""
    disk = device.parent if (device / "partition").exists() else device
    for file in ("device/model", "dm/name"):
        try:
            return (disk / file).read_text().strip()
        except OSError:
            continue
    return disk.name
