"""Parse the options of a member of a cluster: its key, memory, ports and dilation."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

from pliant.api.model import Model
from pliant.api.open_encoder import encoder_of
from pliant.cluster.net.key import Key, default_path, read_key
from pliant.errors import BudgetError, InputError
from pliant.ir.dilation import Dilation
from pliant.plan.split.activation_bytes import whole_memory_bytes
from pliant.quantities import format_bytes, parse_bytes
from pliant.run.process_memory import MemoryBudget
from pliant.run.reservation import Reservation
from pliant.settings import cache_folder

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


@contextmanager
def reserve_weights(
    budget: MemoryBudget, model: Model, memory: str | int | None, cache: Path | None = None
) -> Iterator[Reservation]:
    """Yield the limit of `model`'s layers on a cluster's primary, reserved in `budget` within the context.

    The limit is `memory` (`@PATH` is read now), by default the bytes of all layers in float32, and of the
    activations of the longest input, with which this device can answer without workers. Other sessions free
    weights for it. Raises BudgetError, with the missing bytes, if the budget cannot hold it, and ModelError
    or StoreError if the model cannot be read.
    """
    limit = memory_source(memory)
    if limit is None:
        encoder = encoder_of(model, cache_folder(cache))
        n_bytes = whole_memory_bytes(encoder.spec, encoder.spec.max_rows)
        encoder.release()
    else:
        n_bytes = limit()
    reservation = Reservation(f"{model.name} (cluster)")
    try:
        budget.reserve_fixed(reservation, n_bytes)
    except BudgetError as error:
        raise BudgetError(
            f"the weights of {model.name} for its cluster take {format_bytes(n_bytes)} on this device, but "
            f"of the {format_bytes(budget.total_bytes)} that all models share the others leave only "
            f"{format_bytes(budget.room_for(reservation))}. Raise that limit, or give the cluster less: "
            "`memory` in its [[model]], or in Python a Cluster with `memory`; its workers hold the rest.",
            error.short_bytes,
        ) from error
    try:
        yield reservation
    finally:
        budget.release(reservation)


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
