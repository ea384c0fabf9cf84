"""Parse the options of a member of a cluster: its key, memory, ports and dilation."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from pliant.cluster.net.key import Key, default_path, read_key
from pliant.errors import InputError
from pliant.ir.dilation import Dilation
from pliant.quantities import parse_bytes

T = TypeVar("T")


def cluster_key(key: Key | str | os.PathLike[str] | None) -> Key:
    """Return the key, by default from the user's own file. Raises ClusterError if there is none."""
    if isinstance(key, Key):
        return key
    return read_key(default_path() if key is None else Path(key))


def memory_source(memory: str | int | None) -> Callable[[], int] | None:
    """Return the function that gives the bytes for models: fixed, or read from a file (`@PATH`) each time."""
    if memory is None:
        return None
    if isinstance(memory, str) and memory.startswith("@"):
        return _FileValue(Path(memory[1:]), parse_bytes, "a size such as 1GB")
    n_bytes = parse_bytes(memory)
    return lambda: n_bytes


def data_ports(asked: str | int | None) -> Sequence[int]:
    """Return the ports for incoming tensors: any free one (None), one, or a range such as `29501-29510`."""
    if asked is None:
        return (0,)
    first, dash, last = str(asked).partition("-")
    ends = [int(end) if end.isascii() and end.isdigit() else 0 for end in (first, last if dash else first)]
    if not 0 < ends[0] <= ends[1] < 1 << 16:
        raise InputError(
            f"{asked!r} is not a port for tensors: give one of 1 to 65535, or a range such as 29501-29510."
        )
    return range(ends[0], ends[1] + 1)


def dilation_source(dilation: str) -> Callable[[], Dilation]:
    """Return the function that gives the dilation: fixed, or read from a file (`@PATH`) each time."""
    if dilation.startswith("@"):
        return _FileValue(Path(dilation[1:]), _parse_dilation, "a number such as 4")
    found = _parse_dilation(dilation)
    return lambda: found


def _parse_dilation(text: str) -> Dilation:
    try:
        times = float(text)
    except ValueError:
        times = 0.0
    if not 1 <= times < float("inf"):
        raise InputError(
            f"a device is emulated 1 or more times slower, not {text.strip()!r}; give a number such as 4."
        )
    return Dilation(times)


class _FileValue(Generic[T]):
    """The value in a file, read at each call; the last valid value if the file cannot be read."""

    def __init__(self, path: Path, parse: Callable[[str], T], what: str) -> None:
        self._path, self._parse, self._what = path, parse, what
        self._last = self._read()

    def __call__(self) -> T:
        with suppress(InputError):
            self._last = self._read()
        return self._last

    def _read(self) -> T:
        try:
            return self._parse(self._path.read_text())
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise InputError(
                f"@{self._path} cannot be read: {reason}. Name a file that contains {self._what}."
            ) from error
