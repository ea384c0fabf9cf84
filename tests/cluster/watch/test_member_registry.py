"""What the primary remembers of members: penalties, and what a newcomer cannot hold."""

from pliant.cluster.control.messages import Hello
from pliant.cluster.watch.member_registry import MemberRegistry
from pliant.cluster.watch.peer_roster import MAX_PEERS

HELLO = Hello("1", "tcp://127.0.0.1:1", 1, 10**9, ())


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def away_s(monitor: MemberRegistry, clock: Clock, waited_s: float = 0.0) -> float:
    """Fail once more; how long the member stays out for it."""
    monitor.record_failure("a", waited_s)
    member = monitor.get("a")
    assert member is not None
    return member.away_until_s - clock.now_s


def test_penalties_double_until_a_run_ended_well() -> None:
    """A member that fails again and again is asked less and less; one that came good is not kept out for
    minutes because of what it did long ago."""
    clock = Clock()
    monitor = MemberRegistry(clock)
    monitor.register("a", HELLO)
    assert [away_s(monitor, clock) for _ in range(3)] == [0.5, 1.0, 2.0]
    monitor.reset_failures("a")
    assert away_s(monitor, clock) == 0.5
    member = monitor.get("a")
    assert member is not None
    assert member.n_faults == 4


def test_a_member_is_away_as_long_as_others_waited_for_it() -> None:
    """A worker too slow to load its weights held up all requests for a minute again and again, half a second
    after each minute."""
    clock = Clock()
    monitor = MemberRegistry(clock)
    monitor.register("a", HELLO)
    assert [away_s(monitor, clock, 60.0) for _ in range(3)] == [60.0, 120.0, 240.0]


def test_who_says_hello_again_holds_no_older_plan() -> None:
    """It may be a new process under an old name: a plan that the old one held would fail on it."""
    monitor = MemberRegistry(Clock())
    assert monitor.register("a", HELLO, 1).first_plan == 1
    assert monitor.register("a", HELLO, 7).first_plan == 7


def test_the_clock_of_the_shortest_round_trip_is_kept_until_clocks_have_parted() -> None:
    """The first ping may meet a busy device, and be milliseconds off; hours later none is worth much."""
    clock = Clock()
    monitor = MemberRegistry(clock)
    monitor.register("a", HELLO)

    def offset_s() -> float:
        member = monitor.get("a")
        assert member is not None
        return member.offset_s

    monitor.set_clock("a", 5e-3, 1e-2)
    monitor.set_clock("a", 1e-4, 2e-4)
    assert offset_s() == 1e-4
    monitor.set_clock("a", 3e-3, 8e-3)
    assert offset_s() == 1e-4
    clock.now_s = 3600.0
    monitor.set_clock("a", 0.1, 8e-3)
    assert offset_s() == 0.1


def test_made_up_names_do_not_fill_the_memory() -> None:
    """A process with the key can make up names without end: absent ones are forgotten first."""
    monitor = MemberRegistry(lambda: 0.0)
    hello = Hello("1", "", 1, 1, ())
    monitor.register("ada", hello)
    for number in range(3 * MAX_PEERS):
        monitor.refuse(f"n{number}", "no message", is_barred=True)
        monitor.register(f"m{number}", hello)
        monitor.mark_absent(f"m{number}")
    assert len(monitor.members) <= MAX_PEERS
    assert monitor.is_here("ada")
