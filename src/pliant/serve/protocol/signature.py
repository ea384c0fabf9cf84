"""The inputs and outputs of a model in the protocol."""

from dataclasses import dataclass
from typing import Any

from pliant.ir.port import Port, require_tensors
from pliant.run.session.session import Session
from pliant.run.session.text_session import TEXT


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of a model. A request has exactly the inputs of one of `alternatives`.

    `version` is that of the served model, for responses. With `is_tokenized`, the input `text` stands for the
    others, which a tokenizer makes of it.
    """

    name: str
    platform: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    alternatives: tuple[frozenset[str], ...]
    is_tokenized: bool = False
    version: str = ""

    @property
    def is_batchable(self) -> bool:
        """Whether a request may have several rows: the first dimension of all tensors is 1."""
        return all(port.dims is not None and port.dims[:1] == (1,) for port in (*self.inputs, *self.outputs))

    def has_rows(self, name: str) -> bool:
        """Whether a request may have several rows of the input `name`, which are answered one by one.

        Of a text that is tokenized, if each output has as many rows as the model's arrays.
        """
        if self.is_batchable or not self.is_tokenized or name != TEXT.name:
            return self.is_batchable
        rows = {(port.dims or (0,))[0] for port in (*self.inputs, *self.outputs) if port != TEXT}
        return len(rows) == 1 and not isinstance(rows.pop(), int)

    def shown_shape(self, port: Port) -> tuple[int, ...]:
        """The shape in the protocol: -1 for an open dimension, [-1] for an unknown rank."""
        shape = open_shape(port)
        return (-1, *shape[1:]) if self.has_rows(port.name) else shape


def signature(session: Session[Any]) -> Signature:
    """The signature of `session`. Raises InputError if its ports are not tensors."""
    require_tensors((*session.inputs, *session.outputs), "a node")
    inputs, ways, is_tokenized = session.inputs, session.ways, session.text_reader is not None
    if is_tokenized:
        inputs, ways = (*inputs, TEXT), (*ways, frozenset({TEXT.name}))
    return Signature(session.name, session.platform, inputs, session.outputs, ways, is_tokenized)


def open_shape(port: Port) -> tuple[int, ...]:
    """The shape of one input: -1 for an open dimension, [-1] for an unknown rank."""
    return (-1,) if port.dims is None else tuple(d if isinstance(d, int) else -1 for d in port.dims)
