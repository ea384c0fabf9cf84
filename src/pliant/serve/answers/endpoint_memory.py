"""The memory of an endpoint of this device: what it holds, may hold, and loads for an answer."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from pliant.cluster.lead.status_report import ClusterStatus
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.split.stage_graphs import weight_bytes
from pliant.quantities import format_bytes
from pliant.run.memory_use import MemoryNeed
from pliant.run.session.session import Session


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of weights that the latest run placed on a device of a cluster, and bytes free for models there.

    None if unknown: before the first run, and the free memory of the primary, whose limit is `most_bytes`.
    """

    name: str
    held_bytes: int | None
    free_bytes: int | None
    most_bytes: int | None = None

    def __str__(self) -> str:
        most = "" if self.most_bytes is None else f" of {format_bytes(self.most_bytes)}"
        held = "" if self.held_bytes is None else f" {format_bytes(self.held_bytes)} held{most}"
        free = "" if self.free_bytes is None else f" {format_bytes(self.free_bytes)} free"
        return f"{self.name}{held}{',' if held and free else ''}{free}"


@dataclass(frozen=True, slots=True)
class EndpointMemory:
    """The bytes that an endpoint holds on this device now, of at most `most_bytes` (None: no limit).

    An answer loads `load_bytes` besides, None if unknown. `devices` are those of a cluster.
    """

    held_bytes: int
    most_bytes: int | None = None
    load_bytes: int | None = None
    devices: tuple[DeviceMemory, ...] = ()

    def __str__(self) -> str:
        if self.devices:
            return f"memory of {', '.join(map(str, self.devices))}"
        most = "" if self.most_bytes is None else f" of {format_bytes(self.most_bytes)}"
        load = f", an answer loads {format_bytes(self.load_bytes)}" if self.load_bytes else ""
        return f"memory {format_bytes(self.held_bytes)} held{most}{load}"


class SplitModel(Protocol):
    """A model that a cluster runs in parts."""

    @property
    def spec(self) -> EncoderSpec: ...

    @property
    def identity(self) -> str: ...


@runtime_checkable
class SplitSession(Protocol):
    """A cluster's session."""

    encoder: SplitModel

    def status(self) -> ClusterStatus:
        """The members and the latest plan."""


def endpoint_memory(served: Session[Any], n: int, accuracy: float | None) -> EndpointMemory:
    """The memory of a local session, or of a cluster's, for an answer of length n and `accuracy`. Fast."""
    need = served.need(n, accuracy)
    devices = tuple(_devices(served, need)) if isinstance(served, SplitSession) else ()
    return EndpointMemory(need.held_bytes, need.most_bytes, need.load_bytes, devices)


def _devices(served: SplitSession, need: MemoryNeed) -> Iterator[DeviceMemory]:
    status, placed = served.status(), dict[str, int]()
    if status.plan is not None and status.plan.model == served.encoder.identity:
        placed = weight_bytes(served.encoder.spec, status.plan.partition)
    yield DeviceMemory(status.name, need.held_bytes, None, need.most_bytes)
    for member in status.members:
        if member.is_usable:
            yield DeviceMemory(member.name, placed.get(member.name), member.free_bytes)
