"""Who is here and who is silent, decided on times made up."""

from pliant.cluster.watch.peer_roster import MAX_PEERS, PeerRoster


def test_a_peer_arrives_once_and_falls_silent_once() -> None:
    """Callers act on changes, not on states."""
    roll: PeerRoster[int] = PeerRoster(silence_s=1.0)
    assert roll.record("ada", 7, 0, 0.0) is True
    assert roll.record("ada", 7, 0, 0.9) is False
    assert roll.mark_silent(1.8) == []
    assert roll.mark_silent(2.0) == ["ada"]
    assert roll.mark_silent(3.0) == []
    assert roll.routes() == {}
    assert roll.record("ada", 7, 0, 4.0) is True
    assert roll.heard_s("ada") == 4.0
    assert roll.heard_s("bob") is None


def test_a_name_is_not_taken_over_while_its_owner_is_here() -> None:
    """Two workers started with one name must not answer for each other."""
    roll: PeerRoster[int] = PeerRoster(silence_s=1.0)
    roll.record("ada", 7, 1, 0.0)
    assert roll.record("ada", 8, 2, 0.5) is None
    assert roll.routes() == {"ada": 1}
    assert roll.mark_silent(1.1) == ["ada"]  # the other one's beats do not keep the first alive
    assert roll.record("ada", 8, 2, 1.2) is True
    assert roll.routes() == {"ada": 2}


def test_good_bye_of_another_process_does_not_end_a_peer() -> None:
    """A second process with the same name may end whenever it likes."""
    roll: PeerRoster[int] = PeerRoster(silence_s=1.0)
    roll.record("ada", 7, 1, 0.0)
    assert not roll.leave("ada", 8)
    assert roll.leave("ada", 7)
    assert not roll.leave("ada", 7)
    assert not roll.leave("bob", 1)


def test_a_peer_is_reached_by_the_way_it_last_came() -> None:
    """After a reconnection the old way leads nowhere."""
    roll: PeerRoster[int] = PeerRoster(silence_s=1.0)
    roll.record("ada", 7, 1, 0.0)
    roll.record("ada", 7, 2, 0.5)
    assert roll.routes() == {"ada": 2}


def test_who_took_over_a_route_ends_the_processes_that_had_it() -> None:
    """An address leads to one process at a time."""
    roll: PeerRoster[int] = PeerRoster(silence_s=1.0)
    for name, incarnation, route in (("ada", 7, 1), ("bob", 8, 2), ("eve", 9, 1)):
        roll.record(name, incarnation, route, 0.0)
    assert roll.replace(9, lambda route: route == 1) == {"ada": 7}
    assert roll.replace(9, lambda route: route == 1) == {}
    assert roll.routes() == {"bob": 2, "eve": 1}


def test_nobody_is_blamed_for_the_time_this_process_was_stopped() -> None:
    """After SIGSTOP and SIGCONT all peers look silent; they spoke, and nobody listened."""
    roll: PeerRoster[int] = PeerRoster(silence_s=1.0)
    roll.record("ada", 7, 1, 0.0)
    roll.reset_timers(100.0)
    assert roll.mark_silent(100.5) == []
    assert roll.mark_silent(101.5) == ["ada"]


def test_made_up_names_do_not_fill_the_memory() -> None:
    """A process with the key can make up names without end; members that left make room for others."""
    roll: PeerRoster[int] = PeerRoster(silence_s=1.0)
    for number in range(MAX_PEERS):
        assert roll.has_room(f"n{number}")
        roll.record(f"n{number}", 1, 0, float(number % 2))
    assert not roll.has_room("bob")
    assert roll.has_room("n0")
    assert len(roll.mark_silent(1.5)) == MAX_PEERS / 2
    assert roll.has_room("bob")
    assert roll.heard_s("n0") is None
    assert roll.heard_s("n1") == 1.0
