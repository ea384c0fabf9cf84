"""Who is at fault, from reports alone."""

from pliant.cluster.watch.fault_attribution import Accusation, Verdict, attribute_faults


def waited(accuser: str, accused: str) -> Accusation:
    return Accusation(accuser, accused, False, f"{accuser} waited for {accused}")


def test_the_end_of_a_chain_is_at_fault() -> None:
    """p waits for a, which waits for b, which is stuck: a must stay."""
    found = attribute_faults("p", [waited("p", "a"), waited("a", "b")], {})
    assert [v.member for v in found] == ["b"]


def test_the_most_accused_of_a_circle_is_at_fault() -> None:
    """Both of a broken link accuse each other; one has to go, and others tip the scales."""
    found = attribute_faults("p", [waited("a", "b"), waited("b", "a"), waited("p", "b")], {})
    assert [v.member for v in found] == ["b"]


def test_silence_explains_all_waiting() -> None:
    """Whoever waited for the silent one is not to blame, though itself accused."""
    found = attribute_faults("p", [waited("p", "a")], {"b": 1.25})
    assert found == (Verdict("b", False, "not heard for 1.2 s"),)


def test_a_liar_is_named_as_one() -> None:
    """It is never taken in again, unlike a member that failed."""
    lie = Accusation("a", "b", True, "b sent 3 bytes")
    assert attribute_faults("p", [lie, waited("p", "a")], {}) == (Verdict("b", True, "b sent 3 bytes"),)


def test_who_accuses_the_primary_is_left_out_and_may_come_back() -> None:
    """The primary knows what it sent, and believes that the other may err."""
    lie = Accusation("a", "p", True, "p sent 3 bytes")
    (verdict,) = attribute_faults("p", [lie, waited("p", "b")], {})
    assert (verdict.member, verdict.is_liar) == ("a", False)


def test_nobody_is_at_fault_where_nothing_was_reported() -> None:
    """The repeat then goes on with everybody."""
    assert attribute_faults("p", [], {}) == ()


def test_who_said_goodbye_left() -> None:
    """It was heard this very moment: `not heard for 0.0 s` would puzzle a reader."""
    assert [v.reason for v in attribute_faults("p", (), {"a": 0.0, "b": 1.2})] == [
        "it left",
        "not heard for 1.2 s",
    ]
