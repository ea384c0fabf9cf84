"""The limits on requests and connections of clients."""

from dataclasses import dataclass, fields

from pliant.errors import InputError


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on sizes (bytes), counts and times (seconds); all positive.

    `n_elements` limits the elements of a request that are decoded one at a time: JSON numbers and BYTES; the
    default takes about 40 ms. `n_rows` limits the inputs of one request. `n_client_connections` and
    `client_buffer_bytes` hold for one address. `n_reserved_connections` come on top of `n_connections`, for
    health checks. `buffer_bytes` limits the request bodies that are being read or await their response, and
    separately the unsent responses.

    `head_s` limits the time of a request line with its headers, `stall_s` that without progress in a head or
    body, and `body_s` that of a body beyond its size over `body_Bps`. `idle_s` limits the time of a
    connection between requests, `write_s` that of a response until the client reads it, and `hop_s` that of a
    response from an upstream. `hops` limits how often a request is forwarded.
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
