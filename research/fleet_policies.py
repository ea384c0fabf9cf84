"""Policies for choosing endpoints, compared in simulated fleets with the same knowledge and rules.

A policy sees the data of a node's router: levels, times with bounds, waits. The simple policies consider only
endpoints that are expected to meet the request's terms (by their bounds, or else by their medians), pick one
of these, and use the best level that meets the terms, as pliant does.
"""

from collections.abc import Callable, Collection, Mapping
from random import Random

from pliant.route.choice.choose_endpoint import Choice, Option
from pliant.route.choice.objective import TIME
from pliant.route.choice.request_terms import Terms
from pliant.route.curve_advert import Trail
from pliant.route.router import Router

Policy = Callable[[Router, int, float, Collection[str], Trail, Terms, Random, bool], Choice]
"""(router, length, now, excluded endpoints, trail, terms, random generator, whether the request is new) ->
the choice; raises as `choose`.
"""
_Pick = Callable[[Router, float, list[str], Random], str]


def routed(
    router: Router,
    n: int,
    now_s: float,
    exclude: Collection[str],
    trail: Trail,
    terms: Terms,
    _: Random,
    is_new: bool,
) -> Choice:
    """pliant's policy: the least time, within the resolution of the most accurate answer in time."""
    return router.choose(n, now_s, TIME, exclude, trail, terms, is_coming=is_new)


def _simple(pick: _Pick) -> Policy:
    def policy(
        router: Router,
        n: int,
        now_s: float,
        exclude: Collection[str],
        trail: Trail,
        terms: Terms,
        random: Random,
        is_new: bool,
    ) -> Choice:
        options = router.options(n, now_s, TIME, terms)
        here = router.endpoints
        allowed = [o for o in options if o.name not in exclude and (trail.hops_left > 0 or o.name in here)]
        names = _able(allowed, terms)
        if names:
            one = pick(router, now_s, names, random)
            exclude = [*exclude, *[o.name for o in options if o.name != one]]
        return router.choose(n, now_s, TIME, exclude, trail, terms, is_coming=is_new)

    return policy


def _able(options: list[Option], terms: Terms) -> list[str]:
    """Endpoints whose bounds meet the terms; if there are none, those whose medians do. In a fixed order."""
    kept = [o for o in options if o.excluded is None]
    bounded = [o for o in kept if terms.deadline_s is None or o.bound_s <= terms.deadline_s]
    return sorted(o.name for o in bounded or kept)


def _random(router: Router, now_s: float, names: list[str], random: Random) -> str:
    return random.choice(names)


def _nearest(router: Router, now_s: float, names: list[str], random: Random) -> str:
    return min(names, key=lambda name: _distance_s(router, name, now_s))


def _two_choices(router: Router, now_s: float, names: list[str], random: Random) -> str:
    """The one with the shorter wait of two random endpoints (Mitzenmacher, IEEE TPDS 2001)."""
    two = random.sample(names, min(2, len(names)))
    return min(two, key=lambda name: _wait_s(router, name, now_s))


def _distance_s(router: Router, name: str, now_s: float) -> float:
    state = router.state(name, now_s)
    return 0.0 if state is None else state.rtt_s


def _wait_s(router: Router, name: str, now_s: float) -> float:
    state = router.state(name, now_s)
    if state is not None:
        return state.wait_s
    return next(way.fixed_s for way in router.ways_here if way.name == name)


POLICIES: Mapping[str, Policy] = {
    "pliant": routed,
    "random": _simple(_random),
    "nearest": _simple(_nearest),
    "two choices": _simple(_two_choices),
}
