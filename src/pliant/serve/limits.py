"""What a node takes from a client before it says no. Knows no socket and no request."""

from dataclasses import dataclass, fields

from pliant.errors import InputError


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on sizes (bytes), counts and waits (seconds); all positive.

    `head_s` is how long a request line with its headers may take, `body_s` the whole body, `idle_s` how long
    a connection may lie between requests, `write_s` how long an answer may wait to be read, `hop_s` how long
    an answer from upstream may take at most. `hops` is how often a request may be passed on.
    """

    body_bytes: int = 16 << 20
    head_bytes: int = 32 << 10
    n_headers: int = 100
    n_tensors: int = 64
    n_dims: int = 8
    n_connections: int = 1024
    head_s: float = 10.0
    body_s: float = 30.0
    idle_s: float = 120.0
    write_s: float = 30.0
    hop_s: float = 60.0
    hops: int = 8

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise InputError(
                    f"a limit of {value} for {field.name} lets nothing through; give more than 0."
                )
