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

from pliant.cluster.control import letter, messages
from pliant.cluster.net import frame
from pliant.errors import PeerMisbehaved
from tests.fixtures.formats.versions import released
from tests.guards.messages import ADDED, CONTROL, Guarded, guarded

GUARDED = guarded()


def test_every_message_has_the_bytes_it_had(golden: Callable[[str, str], None]) -> None:
    """Encoders are what older versions meet first."""
    sent = {name: one.sent.hex() for name, one in GUARDED.items()}
    golden("guards/messages.json", json.dumps(sent, indent=1) + "\n")


def test_every_kind_of_control_message_is_guarded() -> None:
    """One that is added belongs into tests/guards/messages.py."""
    kinds = set(get_args(messages.AnyMessage)) - {messages.Unknown}
    assert {type(message) for message in CONTROL} == kinds


@pytest.mark.parametrize("name", GUARDED)
@pytest.mark.parametrize("version", released("messages.json"))
def test_bytes_of_released_versions_are_read_to_the_same_values(version: str, name: str) -> None:
    """From the file, not from today's encoder: an upgrade must not lose what the others say."""
    kept = _kept(version)
    if name not in kept:
        pytest.skip(f"{version} had no such message")
    found, wanted = GUARDED[name].read(kept[name]), GUARDED[name].value
    if name in ADDED.get(version, {}):
        wanted = msgspec.structs.replace(wanted, **ADDED[version][name])
    if isinstance(wanted, np.ndarray):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    else:
        assert found == wanted


@pytest.mark.parametrize("version", released("messages.json"))
def test_no_message_of_a_released_version_is_forgotten(version: str) -> None:
    """A kind may go only when no neighbouring version sends it; then its fixture's folder goes too."""
    assert _kept(version).keys() <= GUARDED.keys()


@pytest.mark.parametrize("one", CONTROL, ids=lambda one: type(one).__name__)
def test_control_messages_of_neighbouring_versions_are_read_and_others_refused(one: Any) -> None:
    """The next version may append fields, which are ignored; two versions away is refused by name."""
    sent = GUARDED[f"cluster {type(one).__name__}"].sent
    longer = msgspec.msgpack.encode([*msgspec.msgpack.decode(sent[1:]), "appended", {"more": 1}])
    own = messages.PROTOCOL
    for number, body in ((own - 1, sent[1:]), (own + 1, sent[1:]), (own + 1, longer)):
        assert messages.decode(bytes((number,)) + body, "b") == one
    with pytest.raises(PeerMisbehaved, match=f"b speaks version {own + 2} of the protocol"):
        messages.decode(bytes((own + 2,)) + sent[1:], "b")


def test_envelopes_of_neighbouring_versions_are_read_and_others_refused() -> None:
    """Letters carry control messages, frames carry activations; byte 4 of each is its version."""
    kinds: tuple[tuple[str, int, type[Exception]], ...] = (
        ("cluster letter WORD", letter.VERSION, letter.BadLetter),
        ("cluster frame", frame.VERSION, frame.BadFrame),
    )
    for name, own, refused in kinds:
        one = GUARDED[name]
        assert one.read(_numbered(one, own + 1)) == one.value
        with pytest.raises(refused, match=f"speaks version {own + 2} of the protocol"):
            one.read(_numbered(one, own + 2))


@pytest.mark.parametrize("name", ["node word", "node word, to protocol 1", "node route"])
def test_fields_that_a_later_node_adds_are_ignored(name: str) -> None:
    """They came with an upgrade of the other node alone."""
    one = GUARDED[name]
    more = {**json.loads(one.sent), "added": {"x": [1, None]}}
    assert one.read(json.dumps(more).encode()) == one.value


def test_every_field_of_a_message_differs_from_its_default() -> None:
    """A field that is lost on the way must show."""
    for message in (*CONTROL, GUARDED["node route"].value, GUARDED["cluster note"].value):
        for field in msgspec.structs.fields(message):
            assert getattr(message, field.name) != field.default, (type(message).__name__, field.name)


def _numbered(one: Guarded, version: int) -> bytes:
    return one.sent[:4] + bytes((version,)) + one.sent[5:]


def _kept(version: str) -> dict[str, bytes]:
    known = json.loads(released("messages.json")[version].read_text())
    return {name: bytes.fromhex(text) for name, text in known.items()}
