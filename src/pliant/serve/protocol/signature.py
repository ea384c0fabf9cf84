"""The inputs and outputs of a model in the protocol."""

from dataclasses import dataclass
from typing import Any

from pliant.ir.port import Port, require_tensors
from pliant.run.session.session import Session


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of a model. A request has exactly the inputs of one of `alternatives`."""

    name: str
    platform: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    alternatives: tuple[frozenset[str], ...]

    @property
    def is_batchable(self) -> bool:
        """Whether a request may have several rows: the first dimension of all tensors is 1."""
        return all(port.dims is not None and port.dims[:1] == (1,) for port in (*self.inputs, *self.outputs))

    def shown_shape(self, port: Port) -> tuple[int, ...]:
        """The shape in the protocol: -1 for an open dimension, [-1] for an unknown rank."""
        shape = open_shape(port)
        return (-1, *shape[1:]) if self.is_batchable else shape


def signature(session: Session[Any]) -> Signature:
    """The signature of `session`. Raises InputError if its ports are not tensors."""
    require_tensors((*session.inputs, *session.outputs), "a node")
    return Signature(session.name, session.platform, session.inputs, session.outputs, session.ways)


def open_shape(port: Port) -> tuple[int, ...]:
    """The shape of one input: -1 for an open dimension, [-1] for an unknown rank."""
    return (-1,) if port.dims is None else tuple(d if isinstance(d, int) else -1 for d in port.dims)
