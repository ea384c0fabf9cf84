"""What a model takes and gives, as the protocol says it."""

from dataclasses import dataclass
from typing import Any

from pliant.ir.port import Port, require_tensors
from pliant.run.session.session import Session


@dataclass(frozen=True, slots=True)
class Signature:
    """What a model takes and gives. A request brings the inputs of one of `alternatives`, no others."""

    name: str
    platform: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    alternatives: tuple[frozenset[str], ...]

    @property
    def is_batchable(self) -> bool:
        """Whether a request may bring several inputs: all tensors have a first dimension of 1, for one."""
        return all(port.dims is not None and port.dims[:1] == (1,) for port in (*self.inputs, *self.outputs))

    def shown_shape(self, port: Port) -> tuple[int, ...]:
        """As the protocol shows it: -1 for a dimension that is open, [-1] where even their number is."""
        shape = open_shape(port)
        return (-1, *shape[1:]) if self.is_batchable else shape


def signature(session: Session[Any]) -> Signature:
    """What the protocol says of `session`. Raises InputError for one whose ports are no tensors."""
    require_tensors((*session.inputs, *session.outputs), "a node")
    return Signature(session.name, session.platform, session.inputs, session.outputs, session.ways)


def open_shape(port: Port) -> tuple[int, ...]:
    """The shape of one input: -1 for a dimension that is open, [-1] where even their number is."""
    return (-1,) if port.dims is None else tuple(d if isinstance(d, int) else -1 for d in port.dims)
