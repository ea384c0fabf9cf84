"""The exception tree. Every error that user input can cause descends from PliantError.

PliantError
├── ModelError        a model directory or its weights cannot be used
├── GraphError        a graph's operators and tensors do not fit, or cannot be compiled
│   ├── ShapeError    a node's tensors do not fit each other at these shapes
│   └── ValueNeeded   a shape follows from the values of inputs that were given without
├── InputError        a request's text, label or option is invalid
├── StoreError        a store is missing, damaged, or of another version
├── BudgetError       no plan meets the latency or memory asked for
├── ProfileError      a device cannot be measured
├── KernelError       no kernel can be generated or loaded for this CPU
├── LaneError         a step of a running program failed
├── ClusterError      devices cannot work together: a key, an address, a message, an epoch that ended
│   ├── PeerLost      a peer is gone, frozen or cut off
│   └── PeerMisbehaved a peer sent what was not agreed
├── RouteError        no device may answer a request, or what nodes tell each other cannot be read
│   ├── DeadlineError no answer is expected by a request's deadline
│   └── PeerCurveError a node sent a time curve that cannot be
├── MulticastError    nobody can be announced or found: no multicast here, or no zeroconf
└── NodeError         a node cannot listen, or says no to a request
"""


class PliantError(Exception):
    """The root of everything pliant raises on bad input or a failing device."""


class ModelError(PliantError):
    """A model directory, its configuration or its weights cannot be used."""


class GraphError(PliantError):
    """A graph is malformed, or holds an operator, type or shape that cannot be compiled."""


class ShapeError(GraphError):
    """The inputs of the node `where` do not fit each other at the shapes that were fed."""

    def __init__(self, message: str, where: str) -> None:
        super().__init__(message)
        self.where = where


class ValueNeeded(GraphError):  # noqa: N818 - it asks, and is answered by values
    """A graph's shapes follow from the values of the inputs `names`, which have to be known first."""

    def __init__(self, message: str, names: frozenset[str]) -> None:
        super().__init__(message)
        self.names = names


class InputError(PliantError):
    """A request's text, label file or option is invalid."""


class StoreError(PliantError):
    """A store is missing, damaged, half-written, or of another format version."""


class BudgetError(PliantError):
    """No plan meets the latency or memory asked for; the message names the nearest feasible one.

    `short_bytes` more, where it is known, would have to be free in a budget that models share.
    """

    def __init__(self, message: str, short_bytes: int | None = None) -> None:
        super().__init__(message)
        self.short_bytes = short_bytes


class ProfileError(PliantError):
    """A device cannot be measured, or a profile does not cover what is asked of it."""


class KernelError(PliantError):
    """No kernel can be generated or loaded for this CPU."""


class LaneError(PliantError):
    """A step of a running program failed; the cause is chained."""


class ClusterError(PliantError):
    """Devices cannot work together: a bad key, address or message, or an epoch that has ended."""


class PeerLost(ClusterError):  # noqa: N818 - it says what happened, as the issue names it
    """Nothing came from `peer` in time, or its connection ended."""

    def __init__(self, message: str, peer: str) -> None:
        super().__init__(message)
        self.peer = peer


class PeerMisbehaved(ClusterError):  # noqa: N818
    """`peer` sent something else than was agreed: another length, version or form."""

    def __init__(self, message: str, peer: str) -> None:
        super().__init__(message)
        self.peer = peer


class RouteError(PliantError):
    """No device may answer a request, or what nodes tell each other cannot be read."""


class DeadlineError(RouteError):
    """No answer is expected by a request's deadline; the soonest would take `soonest_s` seconds."""

    def __init__(self, message: str, soonest_s: float) -> None:
        super().__init__(message)
        self.soonest_s = soonest_s


class PeerCurveError(RouteError):
    """A node sent a time curve that cannot be: unsorted, not finite, negative, or too long."""


class MulticastError(PliantError):
    """A network carries no multicast, or zeroconf is not installed."""


class NodeError(PliantError):
    """A node cannot be set up, or says no to a request with `status` of HTTP; it may be asked again later."""

    def __init__(self, message: str, status: int = 400, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s
