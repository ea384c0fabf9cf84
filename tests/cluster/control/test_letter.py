"""Control messages as bytes: whole again, or refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.cluster.control.letter import VERSION, BadLetter, Kind, Letter, unpack
from pliant.cluster.net.comm import check_name
from pliant.errors import ClusterError

NAMES = st.text(min_size=1, max_size=60).filter(lambda name: name.split() == [name] and "/" not in name)


@given(st.sampled_from(Kind), NAMES, st.integers(0, 2**64 - 1), st.binary())
def test_what_was_packed_is_unpacked(kind: Kind, name: str, incarnation: int, body: bytes) -> None:
    """Every field at its limits."""
    letter = Letter(kind, name, incarnation, body)
    assert unpack(letter.packed()) == letter


@given(st.binary(max_size=100))
def test_random_bytes_are_refused(data: bytes) -> None:
    """Nothing else than BadLetter may come out: the thread of sockets lives on it."""
    with pytest.raises(BadLetter):
        unpack(data)


@pytest.mark.parametrize("n", range(18))
def test_a_letter_cut_in_its_head_or_name_is_refused(n: int) -> None:
    """A body may have any length, a name says its own."""
    with pytest.raises(BadLetter):
        unpack(Letter(Kind.WORD, "ada", 1).packed()[:n])


@pytest.mark.parametrize("name", ["my laptop", "attic/cpu", " ", "a\n"])
def test_a_name_that_no_partition_can_hold_is_refused(name: str) -> None:
    """Taken in, it would fail every plan of the primary; the device itself is told as it starts."""
    with pytest.raises(BadLetter, match="no blank and no '/'"):
        unpack(Letter(Kind.BEAT, name, 1).packed())
    with pytest.raises(ClusterError, match="give another --name"):
        check_name(name)


def test_another_version_is_refused_by_name() -> None:
    """Two releases in one cluster must hear which device to update."""
    data = bytearray(Letter(Kind.BEAT, "ada", 1).packed())
    data[4] = 7
    with pytest.raises(BadLetter, match="'ada' speaks version 7 of the protocol, this member version 1"):
        unpack(bytes(data))


def test_the_next_version_is_heard_and_its_new_kinds_are_heartbeats() -> None:
    """A cluster is updated a device at a time; what a newer one says besides must not cut it off."""
    data = bytearray(Letter(Kind.WORD, "ada", 1, b"hello").packed())
    data[4] = VERSION + 1
    assert unpack(bytes(data)) == Letter(Kind.WORD, "ada", 1, b"hello")
    data[5] = 200
    assert unpack(bytes(data)) == Letter(Kind.BEAT, "ada", 1, b"hello")
    data[4] = VERSION
    with pytest.raises(BadLetter, match="unknown form"):
        unpack(bytes(data))
