"""Guard: the bytes that members of a cluster, and nodes, send each other.

Protects clusters and nodes that are upgraded a device at a time. `tests/golden/guards/messages.json` holds
what today's code sends: a commit that changes it says why, and raises the protocol's number where the version
before could not read it (`pytest tests/guards/test_messages.py --update-golden`).
`tests/fixtures/formats/v*/messages.json` hold what released versions send; these files are never changed, and
neighbouring versions read them to the same values. Run `python -m tests.fixtures.formats.make` for a new one.
"""

import json
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import numpy as np
import pytest

from pliant.cluster.control import messages
from pliant.cluster.control.message_codec import decode
from pliant.cluster.net.frame import BadFrame
from pliant.ir.envelope import VERSION, EnvelopeError
from tests.fixtures.formats.versions import released
from tests.guards.messages import CONTROL, FORMER, Guarded, guarded

GUARDED = guarded()


def test_every_message_has_the_bytes_it_had(golden: Callable[[str, str], None]) -> None:
    """Encoders are what older versions meet first."""
    sent = {name: one.sent.hex() for name, one in GUARDED.items()}
    golden("guards/messages.json", json.dumps(sent, indent=1) + "\n")


def test_every_kind_of_control_message_is_guarded() -> None:
    """One that is added belongs into tests/guards/messages.py."""
    kinds = set(get_args(messages.AnyMessage)) - {messages.UnknownMessage, messages.UnreadableMessage}
    assert {type(message) for message in CONTROL} == kinds


def _kept() -> list[tuple[str, str, bytes]]:
    """(version, name, bytes) of all that released versions send, by the names of today.

    In protocol 2 the words of control messages were kept without the letters that they came in.
    """
    found = []
    for version, path in released("messages.json").items():
        sent = {name: bytes.fromhex(text) for name, text in json.loads(path.read_text()).items()}
        front = sent.pop("cluster letter WORD", b"").removesuffix(b"body")
        words = {f"cluster {message.__struct_config__.tag}" for message in CONTROL}
        found += [(version, name, (front if name in words else b"") + data) for name, data in sent.items()]
    return found


@pytest.mark.parametrize(("version", "name", "sent"), _kept(), ids=lambda value: str(value)[:40])
def test_bytes_of_released_versions_are_read_to_the_same_values(version: str, name: str, sent: bytes) -> None:
    """From the file, not from today's encoder: an upgrade must not lose what the others say.

    A kind may go only when no neighbouring version sends it; then its fixture's folder goes too.
    """
    read, wanted = FORMER[version].get(name) or (GUARDED[name].read, GUARDED[name].value)
    if isinstance(wanted, np.ndarray):
        np.testing.assert_allclose(read(sent), wanted, rtol=1e-6)
    else:
        assert read(sent) == wanted


@pytest.mark.parametrize("one", CONTROL, ids=lambda one: one.__struct_config__.tag)
def test_control_messages_of_the_next_version_are_read_and_of_others_refused(one: Any) -> None:
    """The next version may append fields, which are ignored; two versions away is refused by name."""
    _, sender, incarnation, body = msgspec.msgpack.decode(
        GUARDED[f"cluster {one.__struct_config__.tag}"].sent
    )
    for more in ([], ["appended", {"more": 1}]):
        sent = msgspec.msgpack.encode([VERSION + 1, sender, incarnation, [*body, *more], *more])
        assert decode(sent).body == one
    far = msgspec.msgpack.encode([VERSION + 2, sender, incarnation, body])
    with pytest.raises(EnvelopeError, match=f"'ada' speaks version {VERSION + 2} of the protocol"):
        decode(far)


def test_frames_of_neighbouring_versions_are_read_and_others_refused() -> None:
    """They carry activations; byte 4 is the version."""
    one = GUARDED["cluster frame"]
    for number in (VERSION - 1, VERSION, VERSION + 1):
        assert one.read(_numbered(one, number)) == one.value
    for number in (VERSION - 2, VERSION + 2):
        with pytest.raises(BadFrame, match=f"speaks version {number} of the protocol"):
            one.read(_numbered(one, number))


@pytest.mark.parametrize("name", ["node word", "node route"])
def test_fields_that_a_later_node_adds_are_ignored(name: str) -> None:
    """They came with an upgrade of the other node alone."""
    one = GUARDED[name]
    more = {**json.loads(one.sent), "added": {"x": [1, None]}}
    assert one.read(json.dumps(more).encode()) == one.value


def test_every_field_of_a_message_differs_from_its_default() -> None:
    """A field that is lost on the way must show."""
    for message in (*CONTROL, GUARDED["node route"].value, GUARDED["cluster note"].value):
        for field in msgspec.structs.fields(message):
            assert getattr(message, field.name) != field.default, (message.__struct_config__.tag, field.name)


def _numbered(one: Guarded, version: int) -> bytes:
    return one.sent[:4] + bytes((version,)) + one.sent[5:]
