"""Routers that tell each other: levels, circles, deaths and returns."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pliant.ir.curve import line
from pliant.ir.link import Link
from pliant.route.choice.choose_endpoint import LOCAL
from pliant.route.curve_advert import Trail
from pliant.route.predecessors import Listener
from pliant.route.router import Router
from pliant.route.router_tasks import BroadcastTask, PingTask
from tests.route.routers import MAX_N, SETTINGS


@dataclass(slots=True)
class World:
    """Routers that hear each other at once, or late; no time passes but what `tick` adds."""

    routers: dict[str, Router]
    now_s: float = 0.0
    dead: set[str] = field(default_factory=set)

    def tick(self, step_s: float = 0.5) -> None:
        self.now_s += step_s
        for name, node in self.routers.items():
            if name in self.dead:
                continue
            for due in node.take_due_tasks(self.now_s):
                if isinstance(due, PingTask):
                    self._ping(node, due.successor)
                elif isinstance(due, BroadcastTask):
                    for predecessor in due.predecessors:
                        if predecessor not in self.dead:
                            self.routers[predecessor].handle_broadcast(name, due.advert, self.now_s)

    def _ping(self, node: Router, name: str) -> None:
        if name in self.dead:
            node.record_failure(name, self.now_s)
            return
        peer = self.routers[name]
        peer.add_predecessor(node.name, Listener(f"http://{node.name}"), self.now_s)
        node.record_ping(name, 0.01, 0.0, peer.advertise(self.now_s, node.name), self.now_s)

    def walk(self, source: str, n: int) -> list[str]:
        """Where a request goes, by the trail."""
        at, trail = source, Trail()
        while True:
            trail = trail.visit(at)
            target = self.routers[at].choose(n, self.now_s, trail=trail).target
            if target == LOCAL:
                return list(trail.path)
            at, trail = target, trail.next_hop()


def world(edges: Sequence[tuple[str, str]], slopes: dict[str, float], seed: int = 0) -> World:
    routers = {
        name: Router(name, SETTINGS, line(0.0, slope, MAX_N), started=seed) for name, slope in slopes.items()
    }
    for a, b in edges:
        routers[a].add_successor(b, Link(0.01, 250e3))
    made = World(routers)
    for _ in range(10):
        made.tick()
    return made


def test_a_curve_travels_through_levels() -> None:
    """CRIME 4.3.3: the source hears of the server's load through the gateway."""
    made = world([("a", "b"), ("b", "c")], {"a": 0.1, "b": 0.05, "c": 0.001})
    assert made.walk("a", 90) == ["a", "b", "c"]
    c = made.routers["c"]
    for i in range(20):
        c.record_local_answer(50 + i, 1.0 * (50 + i), made.now_s)
    for _ in range(4):
        made.tick(0.1)
    assert made.walk("a", 90) == ["a", "b"]
    assert made.routers["a"].choose(90, made.now_s).seconds == pytest.approx(4.51, rel=0.01)


def test_nothing_counts_to_infinity() -> None:
    """The textbook case: two nodes that ask each other, and the one that both relied on dies.

    By distance alone each would take the other for a way to the server, and they would raise each other's
    times step by step. Here both know at once.
    """
    made = world([("a", "b"), ("b", "a"), ("a", "c"), ("b", "c")], {"a": 0.1, "b": 0.2, "c": 0.001})
    assert made.walk("b", 90) == ["b", "c"]
    made.dead.add("c")
    for name in "ab":
        made.routers[name].record_failure("c", made.now_s)
    for _ in range(3):
        made.tick(0.1)
    assert made.walk("b", 90) == ["b", "a"]
    assert made.routers["a"].advertise(made.now_s).curve.at(90) == pytest.approx(9.0)
    assert made.routers["b"].advertise(made.now_s).curve.at(90) == pytest.approx(9.01)


@given(
    st.sets(st.tuples(st.sampled_from("abcde"), st.sampled_from("abcde")), max_size=20),
    st.lists(st.floats(0.001, 1.0), min_size=5, max_size=5),
    st.sets(st.sampled_from("abcde"), max_size=2),
)
@example({("a", "b"), ("b", "d"), ("d", "c")}, [1.0, 1.0, 0.25, 0.5, 1.0], {"b"})
@settings(max_examples=60)
def test_any_graph_settles_on_least_times_without_circles(
    edges: set[tuple[str, str]], slopes: list[float], dead: set[str]
) -> None:
    """With circles in it, and after deaths: every told time is that of a real way, and no request turns."""
    ways = [(a, b) for a, b in sorted(edges) if a != b]
    made = world(ways, dict(zip("abcde", slopes, strict=True)))
    made.dead |= dead
    for _ in range(300):
        made.tick(2.0)  # upstreams that surprised nobody are pinged every four minutes, idle ones every eight
    alive = [name for name in "abcde" if name not in dead]
    best = {name: slopes["abcde".index(name)] * 90 for name in alive}
    for _ in alive:  # Bellman and Ford
        for a, b in ways:
            if a in best and b in best:
                best[a] = min(best[a], best[b] + 0.01)
    for name in alive:
        path = made.walk(name, 90)
        assert len(set(path)) == len(path)
        # never better than the best way; words are corrected from 1 ms and 5 % at each hop on
        told = made.routers[name].advertise(made.now_s).curve.at(90)
        assert told >= best[name] - 1e-9
        if not _has_circle(ways):
            assert told <= best[name] * 1.05**4 + 0.004


def _has_circle(edges: list[tuple[str, str]]) -> bool:
    left = list(edges)
    while left:
        ends = {b for _, b in left} - {a for a, _ in left}
        fewer = [(a, b) for a, b in left if b not in ends]
        if len(fewer) == len(left):
            return True
        left = fewer
    return False


def test_a_node_that_is_restarted_is_used_again() -> None:
    """Its stamps begin anew and it knows nobody; pings find it."""
    made = world([("a", "b"), ("b", "c")], {"a": 0.1, "b": 0.05, "c": 0.001})
    made.dead.add("b")
    made.routers["a"].record_failure("b", made.now_s)
    assert made.walk("a", 90) == ["a"]
    made.routers["b"] = Router("b", SETTINGS, line(0.0, 0.05, MAX_N), started=1)
    made.routers["b"].add_successor("c", Link(0.01, 250e3))
    made.dead.clear()
    for _ in range(10):
        made.tick()
    assert made.walk("a", 90) == ["a", "b", "c"]
