"""What every engine of `pliant.cluster.net.comm.Comm` promises, run against all of them."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import numpy as np
import psutil
import pytest

from pliant.cluster.net.comm import NOTE_LIMIT_BYTES, Comm, Tag, Traffic
from pliant.errors import ClusterError, PeerLostError, PeerProtocolError
from tests.conformance.comm_engines import ENGINES, Members

# Where a time-out is not what is tested: long enough for a machine that does something else meanwhile.
PATIENT_S = 60.0
# What "fast" has to beat: far below PATIENT_S, far above what a busy machine needs.
SOON_S = 20.0


# A process that imports torch takes seconds to start, and each group starts two.
_ENGINES = [pytest.param(e, marks=pytest.mark.slow) if e == "gloo" else e for e in ENGINES]


@pytest.fixture(params=_ENGINES)
def members(request: pytest.FixtureRequest) -> Iterator[Members]:
    with ENGINES[request.param]() as make:
        yield make


@pytest.fixture
def pair(members: Members) -> tuple[Comm, Comm]:
    """Two members of which the test may close one, or end an epoch."""
    made = members(["ada", "bob"])
    return made["ada"], made["bob"]


@pytest.fixture(scope="module", params=_ENGINES)
def shared_pair(request: pytest.FixtureRequest) -> Iterator[tuple[Comm, Comm]]:
    """Two members for all tests after which both can go on."""
    with ENGINES[request.param]() as make:
        made = make(["ada", "bob"])
        yield made["ada"], made["bob"]


_SEGMENTS = count()


@pytest.fixture
def tag() -> Callable[[int], Tag]:
    """`tag(step)` is in a segment of this test's own, so that no other test's messages have it."""
    segment = next(_SEGMENTS)
    return lambda step: Tag(0, segment, step)


def _bytes(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, n, dtype=np.uint8)


@pytest.mark.parametrize("n", [0, 1, 1000, 1_000_000, 20_000_000])
def test_a_message_of_any_size_arrives_as_it_was_sent(
    shared_pair: tuple[Comm, Comm], tag: Callable[[int], Tag], n: int
) -> None:
    """Nothing, one byte, and more than any socket buffer holds."""
    ada, bob = shared_pair
    sent, got = _bytes(n), np.zeros(n, np.uint8)
    ada.send("bob", tag(0), sent)
    assert bob.receive("ada", tag(0), got, PATIENT_S).note == b""
    assert np.array_equal(got, sent)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64"])
def test_arrays_of_any_type_and_layout_travel(
    shared_pair: tuple[Comm, Comm], tag: Callable[[int], Tag], dtype: str
) -> None:
    """A share of columns is not contiguous; compact exchanges send half floats and bytes."""
    ada, bob = shared_pair
    whole = np.arange(60).astype(dtype).reshape(6, 10)
    got = np.zeros((6, 3), dtype)
    ada.send("bob", tag(0), whole[:, 4:7])
    bob.receive("ada", tag(0), got, PATIENT_S)
    assert np.array_equal(got, whole[:, 4:7])


def test_the_buffer_may_be_reused_once_send_returned(
    shared_pair: tuple[Comm, Comm], tag: Callable[[int], Tag]
) -> None:
    """Arenas are overwritten by the next step."""
    ada, bob = shared_pair
    buffer = _bytes(1_000_000)
    sent = buffer.copy()
    ada.send("bob", tag(0), buffer)
    buffer[:] = 0
    got = np.zeros_like(sent)
    bob.receive("ada", tag(0), got, PATIENT_S)
    assert np.array_equal(got, sent)


def test_messages_are_told_apart_by_tag_not_by_order(pair: tuple[Comm, Comm]) -> None:
    """Each lane waits for its own step, whichever comes first."""
    ada, bob = pair
    tags = [Tag(e, s, t) for e in (1, 2) for s in (0, 1) for t in range(5)]
    for i, tag in enumerate(tags):
        ada.send("bob", tag, np.full(7, i, np.int64))
    for i in np.random.default_rng(3).permutation(len(tags)):
        got = np.zeros(7, np.int64)
        bob.receive("ada", tags[i], got, PATIENT_S)
        assert (got == i).all()


def test_a_receive_may_be_posted_before_the_send(
    shared_pair: tuple[Comm, Comm], tag: Callable[[int], Tag]
) -> None:
    """Who is done early waits."""
    ada, bob = shared_pair
    got = np.zeros(100, np.float32)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(bob.receive, "ada", tag(0), got, PATIENT_S)
        ada.send("bob", tag(0), np.ones(100, np.float32))
        waiting.result()
    assert (got == 1).all()


def test_many_threads_of_many_members_do_not_mix_their_messages(members: Members) -> None:
    """One lane per direction and pair runs on every member at once."""
    names = ["ada", "bob", "cyd"]
    made = members(names)
    n_rounds = 20

    def talk(src: str, dst: str) -> None:
        for i in range(n_rounds):
            value = hash((src, dst, i)) % 1000
            made[src].send(dst, Tag(0, i, 1), np.full(500 + i, value, np.int32))

    def listen(src: str, dst: str) -> None:
        for i in range(n_rounds):
            got = np.zeros(500 + i, np.int32)
            made[dst].receive(src, Tag(0, i, 1), got, PATIENT_S)
            assert (got == hash((src, dst, i)) % 1000).all()

    pairs = [(a, b) for a in names for b in names if a != b]
    with ThreadPoolExecutor(2 * len(pairs)) as pool:
        for done in [pool.submit(f, *pair) for pair in pairs for f in (talk, listen)]:
            done.result()


@pytest.mark.parametrize("n", [0, 99, 101, 100_000])
def test_another_length_than_expected_is_refused_by_name(
    shared_pair: tuple[Comm, Comm], tag: Callable[[int], Tag], n: int
) -> None:
    """Gloo aborts on a longer message and takes a shorter one silently; nobody may compute on that."""
    ada, bob = shared_pair
    ada.send("bob", tag(0), _bytes(n))
    with pytest.raises(PeerProtocolError, match=rf"ada sent {n:,} bytes .* expects 100") as caught:
        bob.receive("ada", tag(0), np.zeros(100, np.uint8), PATIENT_S)
    assert caught.value.peer == "ada"
    ada.send("bob", tag(1), _bytes(5))  # one lie does not end the connection
    bob.receive("ada", tag(1), np.zeros(5, np.uint8), PATIENT_S)


def test_a_message_that_does_not_come_is_given_up_in_time(
    shared_pair: tuple[Comm, Comm], tag: Callable[[int], Tag]
) -> None:
    """A frozen peer must not freeze the others."""
    _, bob = shared_pair
    start = time.monotonic()
    with pytest.raises(PeerLostError, match=r"waited 0.2 s .* of ada") as caught:
        bob.receive("ada", tag(0), np.zeros(1, np.uint8), 0.2)
    assert 0.2 <= time.monotonic() - start < SOON_S
    assert caught.value.peer == "ada"


def test_a_peer_that_closes_is_noticed_at_once(pair: tuple[Comm, Comm]) -> None:
    """A device that ends need not cost the time-out."""
    ada, bob = pair
    ada.send("bob", Tag(0, 0, 0), _bytes(1))
    bob.receive("ada", Tag(0, 0, 0), np.zeros(1, np.uint8), PATIENT_S)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(bob.receive, "ada", Tag(0, 0, 1), np.zeros(1, np.uint8), PATIENT_S)
        start = time.monotonic()
        ada.close()
        with pytest.raises(PeerLostError) as caught:
            waiting.result()
    assert caught.value.peer == "ada"
    with pytest.raises(PeerLostError):  # and later ones need not wait either
        bob.receive("ada", Tag(0, 0, 2), np.zeros(1, np.uint8), PATIENT_S)
    with pytest.raises(PeerLostError):
        bob.send("ada", Tag(0, 0, 3), _bytes(1))
    assert time.monotonic() - start < SOON_S


def test_the_others_go_on_when_one_has_left(members: Members) -> None:
    """The survivors repeat the segment with each other."""
    made = members(["ada", "bob", "cyd"])
    made["ada"].send("cyd", Tag(0, 0, 0), np.zeros(1, np.uint8))  # the loss of what never was is not told
    made["cyd"].receive("ada", Tag(0, 0, 0), np.zeros(1, np.uint8), PATIENT_S)
    made["cyd"].close()
    with pytest.raises(PeerLostError):
        made["ada"].receive("cyd", Tag(0, 0, 0), np.zeros(1, np.uint8), PATIENT_S)
    made["ada"].drop(0)
    made["bob"].drop(0)
    got = np.zeros(10, np.uint8)
    made["ada"].send("bob", Tag(1, 0, 0), np.ones(10, np.uint8))
    made["bob"].receive("ada", Tag(1, 0, 0), got, PATIENT_S)
    assert (got == 1).all()


def test_drop_wakes_all_who_wait_in_that_epoch_and_no_others(pair: tuple[Comm, Comm]) -> None:
    """An abort frees every lane; the next epoch's receives may be posted already."""
    ada, bob = pair
    got = np.zeros(1, np.uint8)
    with ThreadPoolExecutor(4) as pool:
        old = [
            pool.submit(bob.receive, "ada", Tag(e, 0, i), np.zeros(1, np.uint8), PATIENT_S)
            for i, e in enumerate((3, 3, 2))
        ]
        new = pool.submit(bob.receive, "ada", Tag(4, 0, 0), got, PATIENT_S)
        bob.drop(3)
        for waiting in old:
            with pytest.raises(ClusterError, match=r"epoch [23] has ended"):
                waiting.result()
        ada.send("bob", Tag(4, 0, 0), np.full(1, 9, np.uint8))
        new.result()
    assert got[0] == 9


def test_messages_of_dropped_epochs_are_forgotten_and_discarded(pair: tuple[Comm, Comm]) -> None:
    """What a slow peer still sends of an aborted segment must not be taken for the repeated one."""
    ada, bob = pair
    ada.send("bob", Tag(1, 0, 0), _bytes(10))
    ada.send("bob", Tag(2, 0, 0), _bytes(10))
    bob.receive("ada", Tag(2, 0, 0), np.zeros(10, np.uint8), PATIENT_S)
    bob.drop(1)
    ada.send("bob", Tag(1, 0, 1), _bytes(10))  # ada has not heard of it yet
    ada.send("bob", Tag(2, 0, 1), _bytes(10))
    for step in (0, 1):
        with pytest.raises(ClusterError, match="epoch 1 has ended"):
            bob.receive("ada", Tag(1, 0, step), np.zeros(10, np.uint8), PATIENT_S)
    bob.receive("ada", Tag(2, 0, 1), np.zeros(10, np.uint8), PATIENT_S)
    with pytest.raises(ClusterError, match="epoch 1 has ended"):
        bob.send("ada", Tag(1, 0, 2), _bytes(10))


def test_counters_count_payload_bytes_exactly(pair: tuple[Comm, Comm]) -> None:
    """Table 3's bytes are asserted from them: neither tags nor notes nor frames may show."""
    ada, bob = pair
    sizes = [0, 1, 114_688, 131_072]
    for i, n in enumerate(sizes):
        ada.send("bob", Tag(0, 0, i), _bytes(n), note=b"n" * i)
        bob.receive("ada", Tag(0, 0, i), np.zeros(n, np.uint8), PATIENT_S)
    bob.send("ada", Tag(0, 1, 0), _bytes(12))
    ada.receive("bob", Tag(0, 1, 0), np.zeros(12, np.uint8), PATIENT_S)
    assert dict(ada.counters) == {"bob": Traffic(sum(sizes), 12)}
    assert dict(bob.counters) == {"ada": Traffic(12, sum(sizes))}


def test_what_failed_is_not_counted(shared_pair: tuple[Comm, Comm], tag: Callable[[int], Tag]) -> None:
    """A message that nobody could use moved no payload."""
    ada, bob = shared_pair
    before = bob.counters.get("ada", Traffic())
    ada.send("bob", tag(0), _bytes(3))
    with pytest.raises(PeerProtocolError):
        bob.receive("ada", tag(0), np.zeros(4, np.uint8), PATIENT_S)
    with pytest.raises(PeerLostError):
        bob.receive("ada", tag(1), np.zeros(4, np.uint8), 0.01)
    assert bob.counters.get("ada", Traffic()) == before


def test_notes_arrive_with_their_message(shared_pair: tuple[Comm, Comm], tag: Callable[[int], Tag]) -> None:
    """Compute seconds and free memory ride on the exchanges."""
    ada, bob = shared_pair
    notes = [b"", b"x", bytes(range(256)) * (NOTE_LIMIT_BYTES // 256)]
    for i, note in enumerate(notes):
        ada.send("bob", tag(i), _bytes(i), note)
    for i, note in reversed(list(enumerate(notes))):
        assert bob.receive("ada", tag(i), np.zeros(i, np.uint8), PATIENT_S).note == note
    with pytest.raises(ValueError, match=f"{NOTE_LIMIT_BYTES + 1} bytes"):
        ada.send("bob", tag(9), _bytes(1), b"x" * (NOTE_LIMIT_BYTES + 1))


def test_a_target_that_cannot_be_written_is_refused(
    shared_pair: tuple[Comm, Comm], tag: Callable[[int], Tag]
) -> None:
    """A silent copy would leave the arena untouched."""
    _, bob = shared_pair
    with pytest.raises(ValueError, match="C-contiguous, writable"):
        bob.receive("ada", tag(0), np.zeros((4, 4), np.uint8)[:, :2], PATIENT_S)


def test_an_unknown_member_is_an_error(shared_pair: tuple[Comm, Comm], tag: Callable[[int], Tag]) -> None:
    """A plan that names nobody must not wait for him."""
    with pytest.raises(ClusterError, match="no member eve"):
        shared_pair[0].send("eve", tag(0), _bytes(1))


def test_close_frees_waiting_threads_and_may_be_repeated(pair: tuple[Comm, Comm]) -> None:
    """Ctrl-C ends a member while its lanes wait."""
    _, bob = pair
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(bob.receive, "ada", Tag(0, 0, 0), np.zeros(1, np.uint8), PATIENT_S)
        bob.close()
        with pytest.raises(ClusterError, match="bob has closed"):
            waiting.result()
    bob.close()
    for use in (
        lambda: bob.send("ada", Tag(0, 0, 0), _bytes(1)),
        lambda: bob.receive("ada", Tag(0, 0, 0), np.zeros(1, np.uint8), PATIENT_S),
    ):
        with pytest.raises(ClusterError, match="bob has closed"):
            use()


@pytest.mark.parametrize("engine", _ENGINES)
def test_close_leaves_no_thread_and_no_process(engine: str) -> None:
    """A worker serves for months: nothing may pile up."""

    def alive() -> set[object]:
        return {*threading.enumerate(), *psutil.Process().children(recursive=True)}

    before = alive()
    for _ in range(2):
        with ENGINES[engine]() as make:
            made = make(["ada", "bob"])
            made["ada"].send("bob", Tag(0, 0, 0), _bytes(10))
            made["bob"].receive("ada", Tag(0, 0, 0), np.zeros(10, np.uint8), PATIENT_S)
            for comm in made.values():
                comm.close()
    assert alive() <= before


def test_a_member_that_returns_is_heard_again(members: Members) -> None:
    """A worker that was restarted is taken in at the next boundary."""
    made = members(["ada", "bob"])
    made["bob"].close()
    with pytest.raises(PeerLostError):
        made["ada"].receive("bob", Tag(0, 0, 0), np.zeros(1, np.uint8), PATIENT_S)
    made["ada"].drop(0)
    made |= members(["bob"])
    got = np.zeros(3, np.uint8)
    for src, dst in (("ada", "bob"), ("bob", "ada")):
        made[src].send(dst, Tag(1, 0, 0), np.full(3, 5, np.uint8))
        made[dst].receive(src, Tag(1, 0, 0), got, PATIENT_S)
        assert (got == 5).all()
