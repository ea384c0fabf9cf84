"""What a user says of a member of a cluster, as values: its key, memory, ports and pace."""

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
    """The key in a file, or in the user's own. Raises ClusterError where there is none."""
    if isinstance(key, Key):
        return key
    return read_key(default_path() if key is None else Path(key))


def memory_source(memory: str | int | None) -> Callable[[], int] | None:
    """What a model may take: so many bytes, or what is written in a file (`@PATH`) whenever it is asked."""
    if memory is None:
        return None
    if isinstance(memory, str) and memory.startswith("@"):
        return _Watched(Path(memory[1:]), parse_bytes, "a size such as 1GB")
    n_bytes = parse_bytes(memory)
    return lambda: n_bytes


def data_ports(asked: str | int | None) -> Sequence[int]:
    """Where tensors may come in: any free port (None), one, or those of a range such as `29501-29510`."""
    if asked is None:
        return (0,)
    first, dash, last = str(asked).partition("-")
    ends = [int(end) if end.isascii() and end.isdigit() else 0 for end in (first, last if dash else first)]
    if not 0 < ends[0] <= ends[1] < 1 << 16:
        raise InputError(
            f"{asked!r} is no port for tensors: give one of 1 to 65535, or a range such as 29501-29510."
        )
    return range(ends[0], ends[1] + 1)


def dilation_source(dilation: str) -> Callable[[], Dilation]:
    """How much slower a device computes: a number, or what is written in a file (`@PATH`)."""
    if dilation.startswith("@"):
        return _Watched(Path(dilation[1:]), _parse_dilation, "a number such as 4")
    found = _parse_dilation(dilation)
    return lambda: found


def _parse_dilation(text: str) -> Dilation:
    try:
        times = float(text)
    except ValueError:
        times = 0.0
    if not 1 <= times < float("inf"):
        raise InputError(f"a device is emulated as 1 or more times slower, not {text.strip()!r}.")
    return Dilation(times)


class _Watched(Generic[T]):
    """What a file says whenever it is asked; the last that it said, once it cannot be read."""

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
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise InputError(
                f"@{self._path} cannot be read: {reason}. Name a file that holds {self._what}."
            ) from error
