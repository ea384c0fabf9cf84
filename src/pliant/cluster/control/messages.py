"""The kinds of control messages between members of a cluster: the bodies of their envelopes.

A message never holds weights, tensors or code.
"""

from collections.abc import Mapping
from dataclasses import fields
from math import isfinite
from typing import Annotated

import msgspec

from pliant.cluster.lead.overview import ClusterStatus
from pliant.cluster.net.activation_coding import Coding
from pliant.cluster.net.comm import NOTE_LIMIT_BYTES
from pliant.errors import PeerMisbehaved
from pliant.ir.dilation import Dilation
from pliant.ir.link import Link
from pliant.ir.partition import Partition
from pliant.ir.topology import Capability, Drift, HandOver, StageTimes


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Any of those below. A new field stands last and has a default, for members that do not send it."""


Epoch = Annotated[int, msgspec.Meta(ge=-1, le=1 << 62)]
"""The last epoch that a worker has seen, of any primary; -1 before the first."""


Amount = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]


class Hello(Message, frozen=True):
    """A worker offers itself, and its models by identity; `engine` carries its data.

    It `holds_codes` if partitions with `bits` mean something to it, and `holds_submodels` if sizes behind a
    model's identity do.
    """

    version: str
    data_address: str
    n_threads: int
    free_bytes: Amount
    models: tuple[str, ...]
    last_epoch: Epoch = -1
    engine: str = "zmq"
    holds_codes: bool = False
    holds_submodels: bool = False


class Welcome(Message, frozen=True):
    """The primary takes a worker in, or back."""

    version: str


class Refused(Message, frozen=True):
    """The primary will not work with this worker; `reason` says what has to change."""

    reason: str


class Prepare(Message, frozen=True):
    """Hold ready: plan number `plan` of a model, and where the other members' data goes.

    Members meet at `place` in the order of `members`, where that is given. With `is_in_place`, all other
    plans are given up first, once nothing runs: there is no memory for both.
    """

    plan: int
    model: str
    partition: Partition
    coding: Coding
    members: tuple[str, ...]
    addresses: dict[str, str]
    place: str = ""
    is_in_place: bool = False


class Ready(Message, frozen=True):
    """Plan `plan` can begin; those of its weights that were not here yet took `load_s` to load."""

    plan: int
    load_s: Seconds
    loaded_bytes: Amount
    free_bytes: Amount


class Unable(Message, frozen=True):
    """Plan `plan` cannot be held here: the model is missing, or memory."""

    plan: int
    reason: str


class Measure(Message, frozen=True):
    """Measure: this device with a model of so many tokens, or, without a model, links among `members`.

    Those meet at `place` in this order, where that is given.
    All measure links at once, by tags of `epoch`; devices one after another, as some may share a core.
    """

    epoch: int
    model: str | None
    tokens: int
    members: tuple[str, ...]
    addresses: dict[str, str]
    place: str = ""


class MeasuredLink(msgspec.Struct, frozen=True, array_like=True):
    """One direction of one pair; `rtt_s` is the network's alone, there and back."""

    src: str
    dst: str
    rtt_s: Seconds
    bandwidth_Bps: Annotated[float, msgspec.Meta(gt=0.0, le=1e15)]


def as_measured(links: Mapping[tuple[str, str], Link]) -> tuple[MeasuredLink, ...]:
    """Links by (source, destination), as they are told."""
    return tuple(MeasuredLink(*ends, 2 * link.latency_s, link.bandwidth_Bps) for ends, link in links.items())


class MeasuredDevice(msgspec.Struct, frozen=True):
    """A capability as it is told: `dilation` is of what the device computes."""

    cycles_per_flop: float
    frequency_Hz: float
    free_bytes: int
    call_s: float = 0.0
    curves: tuple[StageTimes, ...] = ()
    drifts: tuple[Drift, ...] = ()
    dilation: float = 1.0
    send: HandOver = HandOver()
    take: HandOver = HandOver()

    def __post_init__(self) -> None:
        self.capability()

    def capability(self) -> Capability:
        """Raises ProfileError, also where it is decoded, for one that cannot be."""
        return Capability(**msgspec.structs.asdict(self) | {"dilation": Dilation(self.dilation)})


def as_told(device: Capability) -> MeasuredDevice:
    """A capability for a message."""
    told = {field.name: getattr(device, field.name) for field in fields(device)}
    return MeasuredDevice(**told | {"dilation": device.dilation.compute})


class Measured(Message, frozen=True):
    """What was measured in `epoch`, or the reason why nothing was."""

    epoch: int
    device: MeasuredDevice | None
    links: tuple[MeasuredLink, ...]
    reason: str | None = None


class Forget(Message, frozen=True):
    """No plan but `keep` is needed any more."""

    keep: tuple[int, ...]


class Go(Message, frozen=True):
    """Run segment `segment` by plan `plan`; `entrants` first receive what lives at its start.

    `patience_s` bounds the wait for any one exchange of the segment.
    """

    epoch: int
    segment: int
    plan: int
    entrants: tuple[str, ...]
    patience_s: float


class Stop(Message, frozen=True):
    """Epoch `epoch` ends here for this worker, either as planned or because a member failed."""

    epoch: int


class Failed(Message, frozen=True):
    """A step of `epoch` failed here; `peer` is the member that it waited for, if it was one's doing."""

    epoch: int
    segment: int
    peer: str | None
    is_misbehaviour: bool
    reason: str


class Ran(msgspec.Struct, frozen=True, array_like=True):
    """When one step ran on the sender's clock, in seconds."""

    epoch: int
    segment: int
    step: int
    start_s: float
    end_s: float


class Report(Message, frozen=True):
    """Every step that a member ran in one epoch."""

    epoch: int
    spans: tuple[Ran, ...]


class Status(Message, frozen=True):
    """Free memory and the last epoch, said without being asked."""

    free_bytes: Amount
    last_epoch: Epoch = -1


class Who(Message, frozen=True):
    """Says that the receiver is not known here, and should say hello."""


class Ping(Message, frozen=True):
    """Asks for the other's clock; `sent_s` is the sender's."""

    sent_s: float


class Pong(Message, frozen=True):
    """Answers a ping: the asker's own `sent_s` and the clock here."""

    sent_s: float
    clock_s: float


class Heartbeat(Message, frozen=True):
    """The sender is here."""


class Bye(Message, frozen=True):
    """The sender leaves by its own will."""


class NotAdmitted(Message, frozen=True):
    """The sender does not listen to this member; `reason` says what has to change."""

    reason: str


class Inquire(Message, frozen=True):
    """Asks a primary for its state; whoever holds the key may ask, without being a worker."""


class Overview(Message, frozen=True):
    """Answers an inquiry."""

    status: ClusterStatus


class Unknown(Message, frozen=True):
    """A message of a kind that a later version added. Never sent."""


class Unreadable(Message, frozen=True):
    """What a peer sent that is no message, or one of another version. Never sent."""

    why: str
    is_other_version: bool


Sent = (
    Hello | Welcome | Refused | Prepare | Ready | Unable | Forget | Go | Stop | Failed | Report | Status
    | Measure | Measured | Who | Ping | Pong | Heartbeat | Bye | NotAdmitted | Inquire | Overview
)  # fmt: skip
AnyMessage = Sent | Unknown | Unreadable


class Note(msgspec.Struct, frozen=True, array_like=True):
    """What rides on an exchange: when it left (sender's clock), free memory, and times of this segment.

    `compute_s` holds the seconds of each kind of stage that the sender has run in this segment, `arrived`
    the bytes that came from each member and the seconds from their leaving, by its clock, to their arrival,
    by the sender's.
    """

    sent_s: float
    free_bytes: int
    compute_s: dict[str, float]
    arrived: dict[str, tuple[int, float]] = {}


_encoder = msgspec.msgpack.Encoder()
_note_decoder = msgspec.msgpack.Decoder(Note)


def encode_note(note: Note) -> bytes:
    """`note` as bytes, without what it says of links where that would be too much."""
    data = _encoder.encode(note)
    if len(data) <= NOTE_LIMIT_BYTES:
        return data
    return _encoder.encode(Note(note.sent_s, note.free_bytes, note.compute_s))


def decode_note(data: bytes, peer: str) -> Note:
    """Raises PeerMisbehaved naming `peer` for anything but a note with numbers that can be."""
    try:
        note = _note_decoder.decode(data)
    except msgspec.DecodeError as error:
        raise PeerMisbehaved(f"{peer} sent what is no note: {error}", peer) from error
    amounts = (note.free_bytes, *note.compute_s.values(), *(n for n, _ in note.arrived.values()))
    seconds = [s for _, s in note.arrived.values()]
    if not (all(0 <= amount < float("inf") for amount in amounts) and all(map(isfinite, seconds))):
        raise PeerMisbehaved(f"{peer} claims amounts that cannot be: {note}.", peer)
    return note
