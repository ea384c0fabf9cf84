"""The exception tree. All errors that user input can cause derive from PliantError.

PliantError
├── ModelError            a model directory or its weights cannot be used
├── GraphError            a graph is malformed or cannot be compiled
│   ├── ShapeError        the shapes of a node's inputs do not fit each other
│   └── MissingValueError a shape depends on the values of inputs, which were not given
├── InputError            a request's text, label or option is invalid
├── StoreError            a store is missing, damaged, or of another version
├── BudgetError           no plan meets the requested latency or memory
├── ProfileError          a device cannot be measured
├── KernelError           no kernel can be generated or loaded for this CPU
├── LaneError             a step of a running program failed
├── ClusterError          devices cannot work together: a bad key, address or message, an epoch that ended
│   ├── PeerLostError     a peer stopped, froze or was disconnected
│   ├── PeerProtocolError a peer violated the protocol
│   └── NonFiniteError    a member computed numbers that are not finite
├── RouteError            no endpoint may answer a request, or a message between nodes cannot be read
│   ├── DeadlineError     no endpoint is expected to meet a request's deadline
│   └── PeerCurveError    a node sent an invalid time curve
├── MulticastError        no announcement or discovery: no multicast network, or no zeroconf
└── NodeError             a node cannot start, or refuses a request
"""


class PliantError(Exception):
    """The base class of all errors that pliant raises for invalid input or a failing device."""


class ModelError(PliantError):
    """A model directory, its configuration or its weights cannot be used."""


class GraphError(PliantError):
    """A graph is malformed, or contains an operator, type or shape that cannot be compiled."""


class ShapeError(GraphError):
    """The inputs of the node `where` do not fit each other at the shapes that were fed."""

    def __init__(self, message: str, where: str) -> None:
        super().__init__(message)
        self.where = where


class MissingValueError(GraphError):
    """A graph's shapes depend on the values of the inputs `names`, which are needed to compile it."""

    def __init__(self, message: str, names: frozenset[str]) -> None:
        super().__init__(message)
        self.names = names


class InputError(PliantError):
    """A request's text, label file or option is invalid."""


class StoreError(PliantError):
    """A store is missing, damaged, half-written, or of another format version."""


class BudgetError(PliantError):
    """No plan meets the requested latency or memory; the message names the nearest feasible one.

    `short_bytes` is the number of bytes missing in a budget that models share; None if unknown.
    """

    def __init__(self, message: str, short_bytes: int | None = None) -> None:
        super().__init__(message)
        self.short_bytes = short_bytes


class ProfileError(PliantError):
    """A device cannot be measured, or a profile does not cover the requested shape."""


class KernelError(PliantError):
    """No kernel can be generated or loaded for this CPU."""


class LaneError(PliantError):
    """A step of a running program failed; the cause is chained."""


class ClusterError(PliantError):
    """Devices cannot work together: a bad key, address or message, or an epoch that has ended."""


class PeerLostError(ClusterError):
    """No message from `peer` arrived in time, or its connection ended."""

    def __init__(self, message: str, peer: str) -> None:
        super().__init__(message)
        self.peer = peer


class PeerProtocolError(ClusterError):
    """`peer` violated the protocol: a wrong length, version or form of a message."""

    def __init__(self, message: str, peer: str) -> None:
        super().__init__(message)
        self.peer = peer


class NonFiniteError(ClusterError):
    """`peer` computed numbers that are not finite: it, or the request's input, is at fault."""

    def __init__(self, message: str, peer: str) -> None:
        super().__init__(message)
        self.peer = peer


class RouteError(PliantError):
    """No endpoint may answer a request, or a message between nodes cannot be read."""


class DeadlineError(RouteError):
    """No endpoint is expected to meet a request's deadline; the fastest would take `soonest_s` seconds."""

    def __init__(self, message: str, soonest_s: float) -> None:
        super().__init__(message)
        self.soonest_s = soonest_s


class PeerCurveError(RouteError):
    """A node sent an invalid time curve: unsorted, not finite, negative, or too long."""


class MulticastError(PliantError):
    """The network has no multicast, or zeroconf is not installed."""


class NodeError(PliantError):
    """A node cannot start, or refuses a request with the HTTP `status`; retry after `retry_after_s`."""

    def __init__(self, message: str, status: int = 400, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s
