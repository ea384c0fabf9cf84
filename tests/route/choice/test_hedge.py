"""When an answer is begun here while one from above is awaited, against the rule written out."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pliant.ir.curve import Curve
from pliant.ir.endpoint import ServiceLevel
from pliant.ir.times.timing import chance
from pliant.route.choice.candidate import Candidate
from pliant.route.choice.choose_endpoint import CLUSTER, LOCAL, Choice, choose, choose_soonest
from pliant.route.choice.crowding import Crowding
from pliant.route.choice.hedge import Hedge, hedge, overdue_s, spare_s
from pliant.route.choice.request_terms import Terms

seconds = st.floats(0.001, 2.0).map(lambda x: round(x, 3))


def candidate(name: str, quick_s: float, whole_s: float, spread: float, wait_s: float = 0.0) -> Candidate:
    """Two levels, of 0.8 and 0.9."""
    levels = tuple(
        ServiceLevel(Curve(((0, s),)), accuracy, Curve(((0, s * spread),)))
        for s, accuracy in ((quick_s, 0.8), (quick_s + whole_s, 0.9))
    )
    return Candidate(name, levels, wait_s)


@given(
    seconds,
    seconds,
    seconds,
    seconds,
    st.floats(1.0, 3.0),
    seconds,
    seconds,
    st.sampled_from([None, 0.85, 0.95]),
)
@example(0.05, 0.05, 0.02, 0.001, 1.375, 0.001, 1.5, 0.85)
@example(0.05, 0.05, 0.1, 0.05, 1.375, 0.001, 1.5, None)
def test_an_answer_begun_then_is_bound_to_be_in_time_and_as_late_as_that_allows(
    here_s: float,
    more_s: float,
    above_s: float,
    way_s: float,
    spread: float,
    wait_s: float,
    deadline_s: float,
    floor: float | None,
) -> None:
    """Else it comes too late to help, or doubles what most requests cost."""
    here = candidate(LOCAL, here_s, more_s, spread, wait_s)
    above = candidate("up", above_s, more_s, spread, way_s)
    willing = Terms(deadline_s, None if floor == 0.95 else floor, best_effort=True)
    choice = choose(5, [above], terms=willing)
    found = hedge(5, choice, [here], Terms(deadline_s, floor))
    work_s = here_s + (more_s if floor == 0.85 else 0.0)
    latest_s = deadline_s - 1.05 * (wait_s + spread * work_s) - 0.005
    if floor == 0.95:
        assert found is None
        return
    is_sure = choice.option.bound_s <= deadline_s
    if latest_s <= 0.0 or (is_sure and latest_s < choice.seconds):  # not by its bound, but it may help
        latest_s = min(choice.option.bound_s, deadline_s - 1.05 * (wait_s + work_s) - 0.005)
        twice = 1.0 - chance(choice.seconds, choice.option.bound_s, latest_s)
        if latest_s < choice.seconds or twice > 0.25:
            assert found is None, "most would be answered twice"
            return
    else:  # well beyond its bound, with half of the spare time left
        bound_s = choice.option.bound_s
        latest_s = min(latest_s, max(3.0 * bound_s, (bound_s + latest_s) / 2.0))
    assert found is not None
    assert abs(found.after_s - latest_s) < 1e-9
    assert found.after_s > 0.0
    assert found.choice.target == LOCAL


def test_a_frozen_upstream_leaves_time_for_the_most_accurate_answer_here() -> None:
    """A gateway hung for 27 times its bound: this device started its quickest level 8 ms before the last
    moment, and was late on a busy machine.
    """
    here = candidate(LOCAL, 0.05, 0.05, 1.07)  # 0.8 within 54 ms, 0.9 within 107 ms
    above = candidate("up", 0.02, 0.02, 1.375)
    choice = choose(5, [above])
    found = hedge(5, choice, [here], Terms(1.5, 0.8))
    assert found is not None
    assert choice.option.bound_s == pytest.approx(0.055)
    assert 3 * 0.055 < found.after_s < 0.75
    assert found.choice.option.level.accuracy == 0.9
    short = hedge(5, choice, [here], Terms(0.16, 0.8))  # no more than three bounds
    assert short is not None
    assert short.choice.option.level.accuracy == 0.8
    assert short.after_s == pytest.approx(0.16 - 1.05 * 0.0535 - 0.005)


def test_the_most_accurate_endpoint_that_is_in_time_is_the_hedge() -> None:
    """Not the soonest one, if there is time for the other."""
    quick, whole = candidate(LOCAL, 0.05, 0.05, 1.07), candidate(CLUSTER, 0.2, 0.2, 1.07)
    whole = replace(whole, levels=tuple(replace(one, accuracy=0.95) for one in whole.levels))
    choice = choose(5, [candidate("up", 0.02, 0.02, 1.375)])
    for deadline_s, target in ((1.5, CLUSTER), (0.2, LOCAL)):
        found = hedge(5, choice, [quick, whole], Terms(deadline_s, 0.8))
        assert found is not None
        assert found.choice.target == target


def latest_hedge(n: int, choice: Choice, here: Candidate, terms: Terms) -> Hedge | None:
    """The soonest level, as late as its bound allows, unless that makes more requests late than it saves."""
    found = choose_soonest(n, [here], terms)
    assert found is not None
    assert terms.deadline_s is not None
    after_s = terms.deadline_s - 1.05 * found.option.bound_s - 0.005
    is_worth = after_s >= choice.seconds or choice.option.bound_s > terms.deadline_s
    if after_s <= 0.0 or not is_worth:
        return None  # started by its median, if at all: the first property above
    if here.crowding is None:
        return Hedge(found, after_s)
    work_s = found.option.level.curve.at(n)
    begun, late = (
        1.0 - chance(choice.seconds, choice.option.bound_s, at_s) for at_s in (after_s, terms.deadline_s)
    )
    delayed = here.crowding.expected_late(found.option.seconds - work_s, work_s)
    return None if begun * delayed > late else Hedge(found, after_s)


@given(
    st.floats(0.02, 0.2),
    st.floats(1.1, 3.0),
    st.floats(0.01, 0.1),
    st.floats(1.5, 30.0),
    st.floats(0.0, 0.05),
    st.none() | st.builds(Crowding, st.floats(0.1, 20.0), st.floats(0.0, 0.3)),
    st.floats(0.3, 2.0),
)
@example(0.063, 2.1, 0.043, 5.4, 0.042, Crowding(1.4, 0.004), 0.74)
@example(0.05, 1.1, 0.02, 28.3, 0.0, None, 1.5)
def test_an_earlier_start_loses_no_hedge_and_keeps_the_margin(
    above_s: float,
    spread: float,
    quick_s: float,
    more: float,
    wait_s: float,
    crowding: Crowding | None,
    deadline_s: float,
) -> None:
    """The earlier and longer hedge made more requests late than it saves: none was started at all. A level
    that takes 0.736 s was started with 1 ms to spare.
    """
    here = replace(candidate(LOCAL, quick_s, (more - 1.0) * quick_s, 1.3, wait_s), crowding=crowding)
    choice = choose(5, [Candidate("up", candidate("up", above_s, above_s, spread).levels[:1])])
    terms = Terms(deadline_s, 0.8)
    latest, found = latest_hedge(5, choice, here, terms), hedge(5, choice, [here], terms)
    if latest is None:
        return
    assert found is not None
    assert found.after_s <= latest.after_s
    assert found.after_s + 1.05 * found.choice.option.bound_s + 0.005 <= deadline_s + 1e-9


def test_nothing_is_begun_without_a_deadline_or_an_endpoint_with_room() -> None:
    """There is no time by which it would have to be begun."""
    here, above = candidate(LOCAL, 0.1, 0.1, 1.2), candidate("up", 0.01, 0.01, 1.2)
    assert hedge(5, choose(5, [above]), [here], Terms(accuracy_floor=0.8)) is None
    assert hedge(5, choose(5, [above]), [], Terms(1.0)) is None
    assert hedge(5, choose(5, [above]), [here], Terms(1.0)) is not None


@given(
    seconds, seconds, st.sampled_from([0.8, 0.9]), st.sampled_from([0.8, 0.9]), seconds, st.floats(1.0, 3.0)
)
def test_a_late_turn_is_left_at_once_for_as_good_an_answer_and_at_the_last_moment_for_a_worse_one(
    here_s: float, there_s: float, here: float, there: float, deadline_s: float, spread: float
) -> None:
    """A request with a minute left went to an endpoint of 0.6 after 11 ms in the queue of one of 0.95."""

    def only(name: str, took_s: float, accuracy: float) -> Choice:
        level = ServiceLevel(Curve(((0, took_s),)), accuracy, Curve(((0, took_s * spread),)))
        return choose(1, [Candidate(name, (level,))])

    found = spare_s(only(LOCAL, here_s, here), only("other", there_s, there), Terms(deadline_s))
    if there >= here and there_s * spread <= deadline_s:
        assert found == 0.0
    elif found > 0.0:
        # what is begun then is bound to be in time, with 5 % and 5 ms to spare
        assert found + 1.05 * there_s * spread + 0.005 <= deadline_s + 1e-9
    else:
        assert 1.05 * there_s * spread + 0.005 >= deadline_s - 1e-9


@given(seconds, st.floats(1.0, 3.0), seconds, seconds)
def test_what_is_overdue_is_joined_by_another_that_can_still_be_in_time(
    work_s: float, spread: float, other_s: float, deadline_s: float
) -> None:
    """A worker became twenty times slower: its bound was over when nobody else could answer in time."""
    other = choose(5, [candidate("up", other_s, 0.0, 1.2)], terms=Terms(deadline_s, best_effort=True))
    bound_s = spread * work_s
    after_s = overdue_s(work_s, bound_s, other, deadline_s)
    latest_s = deadline_s - 1.05 * other_s - 0.005
    if after_s is None:
        assert latest_s < bound_s
        assert latest_s < work_s or chance(work_s, bound_s, latest_s) < 0.75
        return
    assert work_s <= after_s <= min(bound_s, latest_s)
    assert chance(work_s, bound_s, after_s) >= 0.75


def test_a_late_turn_is_left_at_once_for_an_answer_at_the_edge_of_the_resolution() -> None:
    """0.753 - 0.0025 > 0.7505 in floating point: the choice counted these as equal, the move did not."""

    def only(name: str, accuracy: float) -> Choice:
        return choose(1, [Candidate(name, (ServiceLevel(Curve(((0, 1.0),)), accuracy),))])

    assert spare_s(only(LOCAL, 0.753), only("other", 0.7505), Terms(10.0)) == 0.0
    assert spare_s(only(LOCAL, 0.753), only("other", 0.7504), Terms(10.0)) > 0.0
