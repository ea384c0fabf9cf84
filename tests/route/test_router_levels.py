"""A router whose endpoints offer levels of accuracy, and whose upstreams hang, leave and come back."""

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.errors import RouteError
from pliant.ir.curve import MAX_SECONDS, OUT_OF_REACH_S, Curve
from pliant.ir.endpoint import ServiceLevel
from pliant.ir.times.bounded_level import scale_curve
from pliant.route.advert_cache import advert_of, wait_beyond
from pliant.route.choice.candidate import Candidate
from pliant.route.choice.choose_endpoint import CLUSTER, LOCAL
from pliant.route.choice.request_terms import Terms
from pliant.route.curve_advert import CurveAdvert
from pliant.route.level_bounds import LevelBounds
from pliant.route.router import Router
from pliant.route.router_settings import BoundRule, RouterSettings, paper_settings
from pliant.route.router_tasks import PingTask, ProbeTask
from tests.route.routers import FAST, LINK, SETTINGS, router, word


def _levels(seconds: float, accuracy: float | None = None) -> tuple[ServiceLevel, ...]:
    return (ServiceLevel(Curve(((0, seconds),)), accuracy),)


def test_an_endpoint_that_offers_levels_is_probed_when_it_was_quicker_before() -> None:
    """Its inputs go up once it has slowed down: nothing else would show that it has recovered."""
    node = router("up")  # 0.1 s away
    node.offer(_levels(0.05))
    node.record_local_answer(5, 0.05, 0.0)
    node.offer(_levels(5.0))
    node.record_local_answer(5, 5.0, 1.0)
    assert node.choose(5, 1.0).target == "up"
    probes = [
        due
        for now_s in range(2, 200)
        for due in node.take_due_tasks(float(now_s))
        if isinstance(due, ProbeTask)
    ]
    assert len(probes) >= 3
    assert {probe.endpoint for probe in probes} == {LOCAL}


def test_an_endpoint_is_probed_at_a_length_that_it_has_memory_for() -> None:
    """The latest input went up for its length; a probe of that length would fail, or show nothing."""
    node = router("up")  # 0.1 s away
    quick, slow = (tuple(level.limited(5) for level in _levels(seconds)) for seconds in (0.05, 5.0))
    node.offer(quick)
    node.record_local_answer(5, 0.05, 0.0)
    assert node.choose(9, 0.5).target == "up"
    node.offer(slow)
    node.record_local_answer(5, 5.0, 1.0)
    probes = []
    for now_s in range(2, 200):
        node.choose(9, float(now_s))
        probes += [due for due in node.take_due_tasks(float(now_s)) if isinstance(due, ProbeTask)]
    assert len(probes) >= 3
    assert {probe.length for probe in probes} == {5}


def test_one_slow_answer_is_enough_for_probes_soon() -> None:
    """Levels that follow from an answer are offered after it is told: those of before looked well, and the
    next probe was half a minute away, while every request was refused."""
    node = router()
    node.offer(_levels(1.0))
    for at_s in (1.0, 2.0):
        node.record_local_answer(5, 1.0, at_s)
        node.choose(5, at_s)
    node.record_local_answer(5, 3.0, 5.0)
    node.offer(_levels(3.0))
    node.choose(5, 5.5)
    assert 5.0 < node.next_due_s(5.5) <= 5.0 + 3.0 / 0.33
    assert any(isinstance(due, ProbeTask) for due in node.take_due_tasks(5.0 + 3.0 / 0.33))


def test_an_endpoint_that_slowed_is_probed_often_while_inputs_come_and_seldom_else() -> None:
    """Under deadlines a slow endpoint is not chosen, and its estimate stays as it was when it was slow; a
    device on a battery that nobody asks must not spend a tenth of its time on probes."""
    node = router("up", settings=RouterSettings(100))
    quick = (ServiceLevel(Curve(((0, 0.008),)), 0.8), ServiceLevel(Curve(((0, 0.04),)), 0.9))
    slow = (ServiceLevel(Curve(((0, 0.4),)), 0.8), ServiceLevel(Curve(((0, 2.0),)), 0.9))
    node.offer(quick)
    node.record_local_answer(5, 0.04, 0.0)
    node.offer(slow)
    node.record_local_answer(5, 2.0, 1.0)

    def probed_s(first: int, last: int, *, is_asked: bool) -> list[int]:
        found = []
        for now_s in range(first, last):
            if is_asked:
                node.choose(5, float(now_s))
            if ProbeTask(5) in node.take_due_tasks(float(now_s)):
                found.append(now_s)
                node.record_local_answer(5, 2.0, float(now_s))
        return found

    assert probed_s(2, 30, is_asked=True) == [
        3,
        5,
        7,
        9,
        11,
        13,
        15,
        17,
        19,
        21,
        23,
        25,
        27,
        29,
    ]  # five times 0.4 s
    assert len(probed_s(30, 150, is_asked=False)) in (3, 4)  # every 30 s
    node.add_predecessor("below", None, 150.0)
    assert len(probed_s(150, 160, is_asked=False)) >= 4, "nodes below wait for it"
    node.offer(quick)
    node.record_local_answer(5, 0.04, 160.0)
    assert probed_s(161, 300, is_asked=True) == []


def test_what_a_gap_held_up_is_no_measure_of_the_way() -> None:
    """After a gap of a second a way of 0.1 s was believed to take two, and nothing was sent there for a
    minute: TCP sent both pings once more, long after they were handed over."""
    node = router("up")
    node.offer(_levels(5.0, 0.92))
    node.record_overdue("up", 5, 0.5, 1.0)
    node.record_ping("up", 1.6, 0.0, word("up"), 2.7)  # sent into the gap
    node.record_ping("up", 0.9, 0.0, word("up"), 2.7)
    option = next(option for option in node.options(5, 2.8) if option.name == "up")
    assert option.seconds < 0.2
    assert node.take_due_tasks(2.8) == (PingTask("up"),), "the way is measured anew"
    node.record_ping("up", 0.1, 0.0, word("up"), 2.9)
    assert node.take_due_tasks(3.9) == ()


def test_an_upstream_that_tells_no_accuracy_has_that_of_the_model_here() -> None:
    """Identities fit, so that it is the same model: an older node is no better for saying less."""
    node = router("up")
    node.offer(_levels(0.01, 0.92))
    assert node.choose(90, 1.0).target == LOCAL, "as accurate, and sooner"
    node.offer(_levels(50.0, 0.92))
    assert node.choose(90, 2.0, terms=Terms(accuracy_floor=0.9)).target == "up"
    assert [level.accuracy for level in node.advertise(2.0).levels] == [0.92]


def test_requests_to_an_upstream_that_left_and_came_back_leave_the_queue_they_were_in() -> None:
    """Its new queue would count less than nothing."""
    node = router("up")
    passages = [node.enter("up", 5, 0.0) for _ in range(3)]
    for ticket in passages:
        node.send("up", ticket, 0.0)
    node.remove_successor("up")
    node.add_successor("up", LINK)
    for ticket in passages:
        node.leave("up", ticket, 1.0)
    state = node.state("up", 1.0)
    assert state is not None
    assert (state.n_in_flight, state.n_waiting) == (0, 0)


def test_a_request_waits_behind_what_is_before_it_at_the_level_that_answers() -> None:
    """A quick answer counts as one in the queue: it would seem to wait as long as for the best one."""
    node, levels = router("up"), (*_levels(1.0, 0.8), *_levels(4.0, 0.9))
    node.record_ping("up", 0.1, 0.0, CurveAdvert("up", levels, frozenset({"up"}), (1, 2)), 0.0)
    waits = list[float]()
    for level in (levels[0], levels[1], None):
        ticket = node.enter("up", 5, 1.0, level)
        node.send("up", ticket, 1.0)
        state = node.state("up", 1.0)
        assert state is not None
        waits.append(state.wait_s)
        node.leave("up", ticket, 1.0)
    assert waits == pytest.approx([0.9, 3.9, 3.9], abs=0.02)


def test_answers_that_are_not_waited_for_make_an_upstream_a_worse_promise() -> None:
    """One that hangs answers pings: by these alone every request would be sent there first."""
    node = router("up")
    node.offer(_levels(0.05))
    before = node.options(5, 1.0)
    for i in range(3):
        node.record_overdue("up", 5, 2.0, 1.0 + i)
        node.record_ping("up", 0.1, 0.0, word("up"), 1.5 + i)
    assert _bound_s(node, 5.0) > 1.0 > max(option.bound_s for option in before if option.name == "up")


def test_a_link_with_a_gap_is_not_used_until_a_word_comes_and_then_as_before() -> None:
    """For each request in the gap another learned nothing, waited for its whole deadline, and was refused."""
    node = router("up")
    node.offer(_levels(5.0, 0.92))
    before_s = _bound_s(node, 1.0)
    assert node.choose(5, 1.0).target == "up"
    for _ in range(4):
        node.record_overdue("up", 5, 0.5, 1.0)  # all were under way as the gap began
    assert node.choose(5, 1.0).target == LOCAL
    state = node.state("up", 1.0)
    assert state is not None
    assert (state.state, state.reason) == ("down", "did not answer in time")
    assert node.take_due_tasks(1.0) == (PingTask("up"),)
    node.record_ping("up", 0.1, 0.0, word("up"), 1.4)
    assert node.choose(5, 1.4).target == "up"
    assert _bound_s(node, 1.4) > before_s, "a link that carries hardly a byte answers pings"
    node.record_answer("up", 5, 100, 100, 0.1, 0.0, None, 1.5)
    assert _bound_s(node, 1.5) == pytest.approx(before_s)


def test_a_client_that_gives_up_early_keeps_no_one_from_an_upstream() -> None:
    """Within its bound an answer is late for some, and the upstream as good as it was."""
    node = router("up", settings=RouterSettings(100))
    node.offer(_levels(5.0, 0.92))
    for i in range(40):  # answers vary by a factor of three
        away_s = 0.1 if i % 2 else 0.3
        node.record_answer("up", 5, 100, 100, away_s, 0.0, word("up"), 1.0 + i)
    node.record_overdue("up", 5, 0.05, 60.0)
    assert node.choose(5, 60.0).target == "up"


def test_an_answer_that_was_given_up_before_it_was_expected_says_nothing() -> None:
    """A client in a hurry made an upstream look quicker than it is."""
    node = router("up")
    before_s = _bound_s(node, 1.0)
    for i in range(50):
        node.record_overdue("up", 5, -0.05, 1.0 + i)
    assert _bound_s(node, 60.0) == before_s


def test_an_upstream_that_hung_is_tried_again_once_it_answers_pings_for_long() -> None:
    """Requests under deadlines go elsewhere, so that none of them would show that it has recovered."""
    node = router("up")
    before_s = _bound_s(node, 1.0)
    for i in range(3):
        node.record_overdue("up", 5, 2.0, 1.0 + i)
        node.record_ping("up", 0.1, 0.0, word("up"), 1.5 + i)
    node.record_ping("up", 0.1, 0.0, word("up"), 10.0)
    assert _bound_s(node, 10.0) > 1.0
    node.record_ping("up", 0.1, 0.0, word("up"), 4.0 + SETTINGS.retry_limit_s)
    assert _bound_s(node, 70.0) == pytest.approx(before_s)


def _bound_s(node: Router, now_s: float) -> float:
    (bound_s,) = [option.bound_s for option in node.options(5, now_s) if option.name == "up"]
    return bound_s


def test_a_router_that_does_not_probe_does_not_where_levels_slowed() -> None:
    """As published CRIME has no probes: levels that were offered brought them about."""
    node = Router("me", paper_settings(100))
    for now_s, whole_s in enumerate((1.0, 4.0, 5.0)):
        node.offer(tuple(ServiceLevel(Curve(((0, part * whole_s),))) for part in (0.5, 1.0)))
        node.choose(10, float(now_s))
        node.record_local_answer(10, whole_s, now_s + 0.5)
    assert not [due for due in node.take_due_tasks(1000.0) if isinstance(due, ProbeTask)]


def test_a_router_without_bounds_keeps_deadlines_by_medians() -> None:
    """CRIME as published has no bounds; bench/slo.py measures what they are worth."""
    quick = ServiceLevel(Curve(((0, 0.02),)), 0.8)
    whole = ServiceLevel(Curve(((0, 0.1),)), 0.9, Curve(((0, 0.3),)))
    for bounds, accuracy in (("adaptive", 0.8), ("none", 0.9)):
        node = Router("here", RouterSettings(100, bounds=bounds))
        node.offer((quick, whole))
        assert node.choose(5, 1.0, terms=Terms(deadline_s=0.2)).option.accuracy == accuracy


def test_fixed_bounds_are_those_at_the_start_over_the_latest_medians() -> None:
    """What adapting them is worth; bench/slo.py runs it beside a router without any."""
    node = router("up", settings=RouterSettings(100, bounds="fixed"))
    for whole_s, spread in ((0.1, 1.5), (0.2, 4.0)):
        levels = [(0.8, 0.5), (0.9, 1.0)]
        curves = [(accuracy, Curve(((0, part * whole_s),))) for accuracy, part in levels]
        told = tuple(ServiceLevel(c, a, scale_curve(c, spread)) for a, c in curves)
        node.offer(told)
        node.record_advert("up", replace(word("up"), levels=told), 1.0)
        for option in node.options(5, 1.0, terms=Terms(accuracy_floor=0.9)):
            way_s = 0.1 if option.name == "up" else 0.0
            assert option.bound_s == pytest.approx(way_s + 1.5 * whole_s)


def test_an_upstream_is_bound_neither_by_its_word_nor_by_what_was_late_without_bounds() -> None:
    for bounds in get_args(BoundRule):
        node = router("up", settings=RouterSettings(100, bounds=bounds))
        for _ in range(2):
            node.record_overdue("up", 5, 2.0, 1.0)
            node.record_ping("up", 0.1, 0.0, word("up"), 1.0)
        (up,) = [option for option in node.options(5, 2.0) if option.name == "up"]
        assert (up.bound_s > up.seconds) is (bounds != "none")


def test_a_router_with_fixed_bounds_keeps_the_bound_of_the_way_and_detects_silence() -> None:
    """Only their adaptation is switched off: the way varied as much as before, and nothing hedged it."""
    for bounds in get_args(BoundRule):
        node, after = router("up", settings=RouterSettings(100, bounds=bounds)), list[float]()
        for spread in (1.5, 5.0):  # of the first 40 answers, and of later ones
            for i in range(40):
                way_s = 0.1 * (spread if i % 4 == 0 else 1.0)
                node.record_answer("up", 5, 0, 0, way_s, 0.0, word("up"), 0.01 * i)
            after.append(_way_bound(node))
        first, last = after
        assert (first > 1.2) is (bounds != "none")
        assert (last > 1.2 * first) is (bounds == "adaptive")
        if bounds != "none":
            node.record_overdue("up", 5, 0.001, 1.0)
            assert _way_bound(node) == pytest.approx(max(2.0, last))
        node.record_overdue("up", 5, 50.0, 1.0)
        state = node.state("up", 1.0)
        assert state is not None
        assert state.state == "down"


def _way_bound(node: Router) -> float:
    (up,) = [option for option in node.options(5, 1.0) if option.name == "up"]
    return (up.bound_s - FAST.at(5)) / (up.seconds - FAST.at(5))


@given(st.lists(st.tuples(st.floats(1e-6, 1.0), st.floats(1.0, 9.0)), min_size=2, max_size=5), st.data())
def test_fixed_bounds_are_kept_for_each_level_and_length(
    points: list[tuple[float, float]], data: st.DataObject
) -> None:
    """The largest ratio of the best level scaled all: that of a time of 10 us at length 0 made a bound of
    65 ms at length 64 one of 6.5 s, and what was told first was not a bound of the start.
    """
    curve = Curve(tuple((16 * i, seconds) for i, (seconds, _) in enumerate(points)))
    bound = Curve(tuple((16 * i, seconds * spread) for i, (seconds, spread) in enumerate(points)))
    told = (ServiceLevel(curve, 0.8, bound), ServiceLevel(scale_curve(curve, 2.0), 0.9, bound.plus(9.0)))
    bounds = LevelBounds(RouterSettings(100, bounds="fixed"))
    pace, most_n = data.draw(st.floats(0.5, 2.0)), 16 * len(points) - 10
    for now in (told, told[:1], told):
        for before, level in zip(now, bounds.applied_to(now), strict=True):
            for n in range(most_n):
                assert level.bound_curve.at(n) == pytest.approx(before.bound_curve.at(n))
    slower = [replace(level, curve=scale_curve(level.curve, pace), bound=None) for level in told]
    for first, level in zip(told, bounds.applied_to(slower), strict=True):
        for n, _ in curve.points:
            assert level.bound_curve.at(n) == pytest.approx(pace * first.bound_curve.at(n))


def test_fixed_bounds_stay_within_the_limits_of_curves() -> None:
    """A time of 1 us that was bound to a second, and that grows, was out of range, and no choice was made."""
    bounds = LevelBounds(RouterSettings(100, bounds="fixed"))
    (first,) = bounds.applied_to([ServiceLevel(Curve(((0, 1e-6),)), 0.9, Curve(((0, 1.0),)))])
    assert first.bound_curve.at(5) == pytest.approx(1.0)
    (slow,) = bounds.applied_to([ServiceLevel(Curve(((0, 60.0),)), 0.9, Curve(((0, 61.0),)))])
    assert slow.bound_curve.at(5) == MAX_SECONDS
    (away,) = bounds.applied_to([ServiceLevel(Curve(((0, OUT_OF_REACH_S),)), 0.9)])
    assert away.bound_curve.at(5) == OUT_OF_REACH_S


def test_a_level_without_a_time_at_first_keeps_its_first_bound() -> None:
    bounds = LevelBounds(RouterSettings(100, bounds="fixed"))
    for told_s, bound_s in ((0.01, 0.01), (0.5, 0.01)):
        level = ServiceLevel(Curve(((0, 0.0), (64, 1.0))), 0.9, Curve(((0, told_s), (64, 1.5))))
        assert bounds.applied_to([level])[0].bound_curve.at(0) == bound_s


def test_another_rule_of_bounds_is_refused() -> None:
    with pytest.raises(RouteError, match="adaptive, fixed or none"):
        RouterSettings(100, bounds="often")  # type: ignore[arg-type]


def test_the_wait_that_is_told_is_that_of_endpoints_as_accurate_as_what_is_told() -> None:
    """An idle endpoint of 0.85 hid the queue of the only one of 0.92: predecessors were promised no wait."""
    node = router()
    node.offer(_levels(0.05, 0.85))
    node.add_endpoint(CLUSTER)
    node.offer(_levels(0.4, 0.92), CLUSTER)
    node.set_wait(3.0, 0.0, CLUSTER)
    told = node.advertise(60.0)
    assert told.levels[-1].accuracy == 0.92
    assert told.wait_s == pytest.approx(3.0)
    node.offer(_levels(0.05, 0.92))
    assert node.advertise(61.0).wait_s == 0.0, "the idle one gives the same answer, as soon as was told"


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from([0.8, 0.85, 0.9]), min_size=1, max_size=3, unique=True),
            st.floats(0.0, 2.0),
            st.floats(0.0, 2.0),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_the_wait_beyond_what_is_told_by_brute_force(ways: list[tuple[list[float], float, float]]) -> None:
    """Over every level that is as accurate as the best that is told."""
    candidates, waits_s = [], []
    for i, (accuracies, seconds, wait_s) in enumerate(ways):
        levels = tuple(ServiceLevel(Curve(((0, seconds + a),)), a) for a in sorted(accuracies))
        candidates.append(Candidate(f"way{i}", levels, 0.01 * i))
        waits_s.append(wait_s)
    told = advert_of("me", candidates, lambda _: frozenset({"me"}), 100, (0, 0))
    best = max(a for accuracies, _, _ in ways for a in accuracies)
    able = [(0.01 * i + s + best, w) for i, (accuracies, s, w) in enumerate(ways) if best in accuracies]
    beyond_s = min(s + w for s, w in able) - min(s for s, _ in able)
    found = wait_beyond(told, 5, candidates, waits_s)
    assert found == pytest.approx(beyond_s if beyond_s > 1e-4 else 0.0, abs=1e-4)
