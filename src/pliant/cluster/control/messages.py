"""The kinds of control messages between members of a cluster: the bodies of their envelopes.

A message never holds weights, tensors or code.
"""

from collections.abc import Mapping
from dataclasses import fields
from math import isfinite
from typing import Annotated

import msgspec

from pliant.cluster.lead.status_report import ClusterStatus
from pliant.cluster.net.activation_coding import Coding
from pliant.cluster.net.comm import NOTE_LIMIT_BYTES
from pliant.errors import PeerProtocolError
from pliant.ir.capability import Capability, Drift, MessageOverhead, StageTimes
from pliant.ir.dilation import Dilation
from pliant.ir.link import Link
from pliant.ir.partition import Partition


class ControlMessage(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all messages. Add new fields last and with a default, for members that do not send them.

    `tag` is the kind on the wire; it stays when a class is renamed.
    """


Epoch = Annotated[int, msgspec.Meta(ge=-1, le=1 << 62)]
"""The last epoch that a worker has seen from any primary; -1 before the first."""


NonNegativeInt = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]


class Hello(ControlMessage, frozen=True):
    """A worker registers with its models, by identity; `engine` is its data transport.

    `holds_codes`: the worker supports partitions with `bits`. `holds_submodels`: it supports submodel sizes
    after a model's identity. `packs_texts`: it supports runs of several texts.
    """

    version: str
    data_address: str
    n_threads: int
    free_bytes: NonNegativeInt
    models: tuple[str, ...]
    last_epoch: Epoch = -1
    engine: str = "zmq"
    holds_codes: bool = False
    holds_submodels: bool = False
    packs_texts: bool = False


class Welcome(ControlMessage, frozen=True):
    """The primary accepts a worker, or accepts it again."""

    version: str


class JoinRefusal(ControlMessage, frozen=True, tag="Refused"):
    """The primary rejects this worker; `reason` says what has to change."""

    reason: str


class PrepareRequest(ControlMessage, frozen=True, tag="Prepare"):
    """Prepare plan number `plan` of a model; `addresses` are the other members' data addresses.

    If `rendezvous` is set, members meet there in the order of `members`. With `is_in_place`, all other plans
    are freed first, when no segment runs: memory does not suffice for both.
    """

    plan: int
    model: str
    partition: Partition
    coding: Coding
    members: tuple[str, ...]
    addresses: dict[str, str]
    rendezvous: str = ""
    is_in_place: bool = False


class PrepareSuccess(ControlMessage, frozen=True, tag="Ready"):
    """Plan `plan` is ready; loading its missing weights took `load_s`."""

    plan: int
    load_s: Seconds
    loaded_bytes: NonNegativeInt
    free_bytes: NonNegativeInt


class PrepareFailure(ControlMessage, frozen=True, tag="Unable"):
    """Plan `plan` cannot be prepared: the model or memory is missing."""

    plan: int
    reason: str


class MeasureRequest(ControlMessage, frozen=True, tag="Measure"):
    """Measure this device with a model of `tokens` tokens or, without a model, the links among `members`.

    If `rendezvous` is set, members meet there in this order. All members measure links concurrently, by tags
    of `epoch`; devices measure in turn, because some may share a core.
    """

    epoch: int
    model: str | None
    tokens: int
    members: tuple[str, ...]
    addresses: dict[str, str]
    rendezvous: str = ""


class LinkMeasurement(msgspec.Struct, frozen=True, array_like=True):
    """One direction of one pair; `rtt_s` is the network's round trip only."""

    src: str
    dst: str
    rtt_s: Seconds
    bandwidth_Bps: Annotated[float, msgspec.Meta(gt=0.0, le=1e15)]


def to_link_measurements(links: Mapping[tuple[str, str], Link]) -> tuple[LinkMeasurement, ...]:
    """Convert links by (source, destination) for a message."""
    return tuple(
        LinkMeasurement(*ends, 2 * link.latency_s, link.bandwidth_Bps) for ends, link in links.items()
    )


class DeviceMeasurement(msgspec.Struct, frozen=True):
    """A capability in a message: `dilation` is that of the device's compute."""

    cycles_per_flop: float
    frequency_Hz: float
    free_bytes: int
    call_s: float = 0.0
    curves: tuple[StageTimes, ...] = ()
    drifts: tuple[Drift, ...] = ()
    dilation: float = 1.0
    send: MessageOverhead = MessageOverhead()
    take: MessageOverhead = MessageOverhead()

    def __post_init__(self) -> None:
        self.capability()

    def capability(self) -> Capability:
        """Convert to a capability. Raises ProfileError for invalid values, also on decoding."""
        return Capability(**msgspec.structs.asdict(self) | {"dilation": Dilation(self.dilation)})


def to_device_measurement(device: Capability) -> DeviceMeasurement:
    """Convert a capability for a message."""
    told = {field.name: getattr(device, field.name) for field in fields(device)}
    return DeviceMeasurement(**told | {"dilation": device.dilation.compute})


class MeasureReply(ControlMessage, frozen=True, tag="Measured"):
    """The result of the measurement in `epoch`, or the reason why there is none."""

    epoch: int
    device: DeviceMeasurement | None
    links: tuple[LinkMeasurement, ...]
    reason: str | None = None


class ReleaseRequest(ControlMessage, frozen=True, tag="Forget"):
    """Free all plans except `keep`."""

    keep: tuple[int, ...]


class SegmentRequest(ControlMessage, frozen=True, tag="Go"):
    """Run segment `segment` by plan `plan`; `entrants` first receive the tensors live at its start.

    `timeout_s` is the timeout of each exchange in the segment. `lengths` are the rows of each of several
    texts, in order; empty for one text of all rows.
    """

    epoch: int
    segment: int
    plan: int
    entrants: tuple[str, ...]
    timeout_s: float
    lengths: tuple[int, ...] = ()


class StopRequest(ControlMessage, frozen=True, tag="Stop"):
    """Epoch `epoch` ends for this worker, as planned or because a member failed."""

    epoch: int


class SegmentFailure(ControlMessage, frozen=True, tag="Failed"):
    """A step of `epoch` failed here; `peer` is the member that caused it, if one did.

    If it `is_non_finite`, the peer sent numbers that are not finite; older releases report misbehaviour.
    """

    epoch: int
    segment: int
    peer: str | None
    is_misbehaviour: bool
    reason: str
    is_non_finite: bool = False


class StepSpan(msgspec.Struct, frozen=True, array_like=True):
    """Start and end of one step, in seconds on the sender's clock."""

    epoch: int
    segment: int
    step: int
    start_s: float
    end_s: float


class SpanReport(ControlMessage, frozen=True, tag="Report"):
    """The times of every step that a member ran in one epoch."""

    epoch: int
    spans: tuple[StepSpan, ...]


class StatusUpdate(ControlMessage, frozen=True, tag="Status"):
    """Free memory and the last epoch, sent without a request."""

    free_bytes: NonNegativeInt
    last_epoch: Epoch = -1


class HelloRequest(ControlMessage, frozen=True, tag="Who"):
    """The receiver is not registered here and should send Hello."""


class Ping(ControlMessage, frozen=True):
    """Requests the other member's clock; `sent_s` is the sender's."""

    sent_s: float


class Pong(ControlMessage, frozen=True):
    """Answers a ping: the `sent_s` of the ping, and the clock here."""

    sent_s: float
    clock_s: float


class Heartbeat(ControlMessage, frozen=True):
    """The sender is alive."""


class Bye(ControlMessage, frozen=True):
    """The sender leaves voluntarily."""


class AdmissionRefusal(ControlMessage, frozen=True, tag="NotAdmitted"):
    """The sender refuses this member; `reason` says what has to change."""

    reason: str


class StatusRequest(ControlMessage, frozen=True, tag="Inquire"):
    """Requests a primary's state; allowed for any holder of the key, worker or not."""


class StatusReply(ControlMessage, frozen=True, tag="Overview"):
    """Answers an inquiry."""

    status: ClusterStatus


class UnknownMessage(ControlMessage, frozen=True):
    """A message of a kind added by a later version. Never sent."""


class UnreadableMessage(ControlMessage, frozen=True):
    """A message from a peer that cannot be decoded, or has an unsupported version. Never sent."""

    why: str
    is_other_version: bool


WireMessage = (
    Hello | Welcome | JoinRefusal | PrepareRequest | PrepareSuccess | PrepareFailure | ReleaseRequest
    | SegmentRequest | StopRequest | SegmentFailure | SpanReport | StatusUpdate | MeasureRequest
    | MeasureReply | HelloRequest | Ping | Pong | Heartbeat | Bye | AdmissionRefusal | StatusRequest
    | StatusReply
)  # fmt: skip
AnyMessage = WireMessage | UnknownMessage | UnreadableMessage


class Note(msgspec.Struct, frozen=True, array_like=True):
    """Metadata of an exchange: send time (sender's clock), free memory, and times of this segment.

    `compute_s` holds the seconds of each kind of stage that the sender has run in this segment. `arrived`
    holds, per member, the bytes received from it and the sum over its messages of the seconds from send (its
    clock) to arrival (the sender's clock). `n_arrived` holds the number of these messages; older releases
    omit it.
    """

    sent_s: float
    free_bytes: int
    compute_s: dict[str, float]
    arrived: dict[str, tuple[int, float]] = {}
    n_arrived: dict[str, int] = {}


_encoder = msgspec.msgpack.Encoder()
_note_decoder = msgspec.msgpack.Decoder(Note)


def encode_note(note: Note) -> bytes:
    """Encode `note`, without the link times if it would exceed the limit."""
    data = _encoder.encode(note)
    if len(data) <= NOTE_LIMIT_BYTES:
        return data
    return _encoder.encode(Note(note.sent_s, note.free_bytes, note.compute_s))


def decode_note(data: bytes, peer: str) -> Note:
    """Decode a note. Raises PeerProtocolError naming `peer` if it is malformed or its numbers are invalid."""
    try:
        note = _note_decoder.decode(data)
    except msgspec.DecodeError as error:
        raise PeerProtocolError(f"{peer} sent an invalid note: {error}", peer) from error
    amounts = (note.free_bytes, *note.compute_s.values(), *(n for n, _ in note.arrived.values()))
    amounts += (*note.n_arrived.values(),)
    seconds = [note.sent_s, *(s for _, s in note.arrived.values())]
    if not (all(0 <= amount < float("inf") for amount in amounts) and all(map(isfinite, seconds))):
        raise PeerProtocolError(f"{peer} claims amounts that cannot be: {note}.", peer)
    return note
