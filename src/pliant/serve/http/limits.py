"""The limits on what a node takes from a client."""

from dataclasses import dataclass, fields

from pliant.errors import InputError


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on sizes (bytes), counts and waits (seconds); all positive.

    `n_elements` bounds what of a request is decoded one element at a time: numbers as JSON, and BYTES; as
    many take about 40 ms. `n_rows` bounds the inputs of one request. `n_client_connections` and
    `client_buffer_bytes` hold for one address; `n_reserved_connections` are beyond `n_connections`, for
    questions about health. `buffer_bytes` bounds the bodies that are being read or wait for their answer, and
    as much again the answers that wait to be read.

    `head_s` is how long a request line with its headers may take, `stall_s` how long head or body may stand
    still, `body_s` how long a body may take beyond what its bytes take at `body_Bps`; `idle_s` how long a
    connection may lie between requests, `write_s` how long an answer may wait to be read, `hop_s` how long an
    answer from upstream may take at most. `hops` is how often a request may be passed on.
    """

    body_bytes: int = 16 << 20
    head_bytes: int = 32 << 10
    n_headers: int = 100
    n_tensors: int = 64
    n_dims: int = 8
    n_elements: int = 1 << 18
    n_rows: int = 1024
    n_connections: int = 1024
    n_client_connections: int = 512
    n_reserved_connections: int = 32
    buffer_bytes: int = 128 << 20
    client_buffer_bytes: int = 64 << 20
    body_Bps: int = 16 << 10
    head_s: float = 10.0
    stall_s: float = 5.0
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
        if min(self.buffer_bytes, self.client_buffer_bytes) < self.body_bytes:
            raise InputError(
                f"bodies of {self.body_bytes} bytes do not fit buffers of {self.buffer_bytes} bytes, "
                f"{self.client_buffer_bytes} for one client; raise buffer_bytes and client_buffer_bytes."
            )
