"""Which replica a request goes to, without Ray around it."""

import asyncio
import pickle
import warnings
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install 'pliant[ray]'")
with warnings.catch_warnings():  # of pydantic, about Ray's models
    warnings.simplefilter("ignore")
    from ray.serve._private.common import (
        DeploymentHandleSource,
        DeploymentID,
        RequestMetadata,
        RequestProtocol,
        StreamingHTTPRequest,
    )
    from ray.serve.request_router import PendingRequest, ReplicaID

from pliant.ir.curve import Curve
from pliant.ray.replica_advert import InputSize, ReplicaAdvert
from pliant.ray.request_router import CurveRouter

DEPLOYMENT = DeploymentID("pliant")


class Replica:
    """As the router sees one: with its times, and the requests that it says it has."""

    def __init__(self, name: str, per_item_s: float | None, ongoing: int = 0) -> None:
        self.replica_id = ReplicaID(name, DEPLOYMENT)
        self.replica_metadata: dict[str, Any] = {}
        self.routing_stats = {} if per_item_s is None else _told(per_item_s)
        self.max_ongoing_requests = 8
        self.ongoing, self.n_asked = ongoing, 0

    async def get_queue_len(self, *, deadline_s: float) -> int:
        self.n_asked += 1
        return self.ongoing


def _told(per_item_s: float) -> dict[str, Any]:
    curve = Curve(((0, 0.001), (100, 100 * per_item_s)))
    return ReplicaAdvert(curve, InputSize(0.0, 1.0, 1, 1000)).encode()


class Clock:
    """Seconds, as a test sets them."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def router(clock: Clock) -> CurveRouter:
    made = CurveRouter(
        deployment_id=DEPLOYMENT,
        handle_source=DeploymentHandleSource.UNKNOWN,
        use_replica_queue_len_cache=True,
        get_curr_time_s=clock,
    )
    made.initialize_state()
    return made


def pending(id: str, *args: Any, **more: Any) -> PendingRequest:
    return PendingRequest(list(args), {}, RequestMetadata(id, id, **more))


def names(ranks: list[list[Any]]) -> list[str]:
    """In order; each rank holds one replica, for else Serve would choose by the length of their queues."""
    assert all(len(rank) == 1 for rank in ranks)
    return [rank[0].replica_id.unique_id for rank in ranks]


async def first(router: CurveRouter, replicas: list[Replica], request: PendingRequest) -> str:
    """The replica that is preferred for a request."""
    return names(await router.choose_replicas(replicas, request))[0]


async def _pending(*texts: str) -> list[PendingRequest]:
    return [pending(str(i), text) for i, text in enumerate(texts)]


def test_a_queue_fills_before_a_slow_replica_is_used(router: CurveRouter) -> None:
    """3.5 times as slow: two requests wait for the quick one before the fourth ends first at the other."""
    replicas = [Replica("slow", 0.0035), Replica("quick", 0.001)]

    async def run() -> list[str]:
        return [await first(router, replicas, one) for one in await _pending(*["x" * 100] * 5)]

    assert asyncio.run(run()) == ["quick", "quick", "quick", "slow", "quick"]


def test_short_requests_go_where_long_ones_do_not(router: CurveRouter) -> None:
    """By bytes: where the quick replica is at work, a short text ends sooner at the slow one."""
    replicas = [Replica("slow", 0.004), Replica("quick", 0.001)]

    async def run() -> list[str]:
        return [await first(router, replicas, one) for one in await _pending("x" * 100, "x" * 100, "x" * 10)]

    assert asyncio.run(run()) == ["quick", "quick", "slow"]


def test_a_replica_counts_for_what_its_requests_took(router: CurveRouter, clock: Clock) -> None:
    """Not for what its model took alone: whatever else a machine does shows in when requests end."""
    busy, other = Replica("busy", 0.001), Replica("other", 0.0015)

    async def run() -> list[str]:
        found = []
        for one in await _pending(*["x" * 100] * 6):
            found.append(await first(router, [busy, other], one))
            clock.now_s += 0.5 if found[-1] == "busy" else 0.2
            replica = busy if found[-1] == "busy" else other
            router.on_request_completed(replica.replica_id, one.metadata.internal_request_id)
        return found

    assert asyncio.run(run()) == ["busy"] + ["other"] * 5


def test_ended_and_cancelled_requests_leave_the_queue(router: CurveRouter) -> None:
    """Else a replica would look busy for ever, and get nothing."""
    quick, slow = Replica("quick", 0.001), Replica("slow", 0.0019)

    async def run() -> list[str]:
        asked = await _pending(*["x" * 100] * 4)
        found = [await first(router, [slow, quick], one) for one in asked[:1]]
        asked[0].future.cancel()
        await asyncio.sleep(0)  # callbacks of the future run
        found.append(await first(router, [slow, quick], asked[1]))
        found.append(await first(router, [slow, quick], asked[2]))
        router.on_request_completed(quick.replica_id, "1")
        router.on_request_completed(slow.replica_id, "2")
        found.append(await first(router, [slow, quick], asked[3]))
        return found

    assert asyncio.run(run()) == ["quick", "quick", "slow", "quick"]


def test_a_full_replica_hands_on_what_it_was_counted_for(router: CurveRouter) -> None:
    """Serve asks the next rank where the best has no room, and says so afterwards."""
    quick, slow = Replica("quick", 0.001), Replica("slow", 0.0015)

    async def run() -> list[str]:
        router.update_replicas([quick, slow])
        one, two, three = await _pending(*["x" * 100] * 3)
        found = [await first(router, [slow, quick], one)]
        router.on_sent(one, slow)
        found.append(await first(router, [slow, quick], two))
        router.update_replicas([quick])  # the slow one is gone, with what it had
        router.update_replicas([quick, slow])
        found.append(await first(router, [slow, quick], three))
        return found

    assert asyncio.run(run()) == ["quick", "quick", "slow"]


def test_requests_of_other_routers_count_and_are_asked_for_anew(router: CurveRouter, clock: Clock) -> None:
    """A count is as old as the last request that was sent there: it must not keep requests away for long."""
    quick, slow = Replica("quick", 0.001), Replica("slow", 0.004)
    router.on_new_queue_len_info(quick.replica_id, 2000)

    async def run() -> list[str]:
        asked = await _pending(*["x" * 100] * 3)
        found = [await first(router, [slow, quick], asked[0])]
        assert quick.n_asked == 0
        router.on_request_completed(slow.replica_id, "0")
        clock.now_s += 10.0
        found.append(await first(router, [slow, quick], asked[1]))
        while not quick.n_asked:
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # what it said is noted
        found.append(await first(router, [slow, quick], asked[2]))
        return found

    assert asyncio.run(run()) == ["slow", "slow", "quick"]
    assert quick.n_asked == 1


def test_a_replica_that_told_nothing_is_tried_first(router: CurveRouter) -> None:
    """Nothing else would show what it can do; a second one is tried before it gets a second request."""
    replicas = [Replica("known", 0.001), Replica("new", None), Replica("newer", None)]

    async def run() -> list[str]:
        return [await first(router, replicas, one) for one in await _pending("x", "x")]

    assert asyncio.run(run()) == ["new", "newer"]


def test_http_requests_are_sized_by_their_headers(router: CurveRouter) -> None:
    """The body stays with the proxy until a replica asks; what needs no model counts nothing."""
    replicas = [Replica("quick", 0.001), Replica("slow", 0.004)]

    def http(id: str, path: str, length: bytes) -> PendingRequest:
        scope = {"type": "http", "path": path, "headers": [(b"content-length", length)]}
        given = pickle.dumps(StreamingHTTPRequest(scope, proxy_actor_name="proxy"))
        return pending(id, given, _request_protocol=RequestProtocol.HTTP)

    async def run() -> list[str]:
        path = "/v2/models/sst2/infer"
        asked = [
            http("a", path, b"100"),
            http("b", "/v2/health/live", b"0"),
            http("c", path, b"10"),
            http("d", path, b"100"),
        ]
        return [await first(router, replicas, one) for one in asked]

    assert asyncio.run(run()) == ["quick", "slow", "slow", "quick"]
