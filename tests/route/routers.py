"""A router with upstreams that are a fixed way off, for tests that tell it of events."""

from pliant.ir.curve import Curve, line
from pliant.ir.endpoint import ServiceLevel
from pliant.ir.link import Link
from pliant.route.curve_advert import CurveAdvert
from pliant.route.router import Router
from pliant.route.router_settings import RouterSettings

MAX_N = 100
LINK = Link(0.1, 250e3)
SETTINGS = RouterSettings(MAX_N)
SLOW, FAST = line(0.0, 0.01, MAX_N), line(0.01, 0.001, MAX_N)


def only(curve: Curve) -> tuple[ServiceLevel, ...]:
    """The levels of an endpoint that has one way to answer."""
    return (ServiceLevel(curve),)


def word(node: str, curve: Curve = FAST, *through: str, stamp: tuple[int, int] = (0, 0)) -> CurveAdvert:
    return CurveAdvert(node, only(curve), frozenset({node, *through}), stamp)


def router(*upstreams: str, settings: RouterSettings = SETTINGS, name: str = "me") -> Router:
    """At 0 s, all upstreams pinged: 100 ms away, FAST."""
    made = Router(name, settings, SLOW)
    for up in upstreams:
        made.add_successor(up, LINK)
    made.take_due_tasks(0.0)
    for up in upstreams:
        made.record_ping(up, 0.1, 0.0, word(up), 0.0)
    return made
