"""Notes, which ride on exchanges: there and back, and what is none."""

import msgspec
import pytest

from pliant.cluster.control.messages import Note, decode_note, encode_note
from pliant.cluster.net.comm import NOTE_LIMIT_BYTES
from pliant.errors import PeerProtocolError


def test_fields_that_are_not_known_here_are_ignored() -> None:
    """A neighbouring version may append fields."""
    note = Note(1.0, 5, {"attend": 0.1}, {"a": (8, 0.5)}, {"a": 2})
    fields = [*msgspec.msgpack.decode(encode_note(note)), {"new": 1}]
    assert decode_note(msgspec.msgpack.encode(fields), "b") == note


def test_an_earlier_release_sends_no_number_of_messages() -> None:
    note = Note(1.0, 5, {"attend": 0.1}, {"a": (8, 0.5)})
    fields = msgspec.msgpack.decode(encode_note(note))[:4]
    assert decode_note(msgspec.msgpack.encode(fields), "b") == note


def test_a_note_fits_its_limit_or_leaves_out_the_links() -> None:
    """A thousand links are no reason to fail a send."""
    note = Note(1.0, 2, {"attend": 0.5}, {f"device{i}": (1, 1.0) for i in range(1000)})
    data = encode_note(note)
    assert len(data) <= NOTE_LIMIT_BYTES
    assert decode_note(data, "b") == Note(1.0, 2, {"attend": 0.5})


@pytest.mark.parametrize(
    "note",
    [
        Note(0.0, -1, {}),
        Note(0.0, 1, {"a": float("nan")}),
        Note(0.0, 1, {"a": -1}),
        Note(0.0, 1, {}, {}, {"a": -1}),
        Note(float("-inf"), 1, {}),
    ],
)
def test_a_note_that_cannot_be_true_is_refused(note: Note) -> None:
    """Plans are made of these numbers."""
    with pytest.raises(PeerProtocolError, match="cannot be"):
        decode_note(encode_note(note), "b")
