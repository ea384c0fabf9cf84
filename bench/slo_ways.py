"""The ways to answer in bench/slo.py: single endpoints, and routers that choose among them.

A way is a context manager that yields a function `ask` (slo_rig.Ask).
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection, HTTPException
from math import inf
from queue import Empty, LifoQueue
from threading import Event
from typing import Any
from urllib.parse import urlsplit

import numpy as np

import pliant
from pliant.api.open_cluster import Cluster
from pliant.cluster.control.timeouts import ClusterTimeouts
from pliant.errors import PliantError
from pliant.ir.dilation import Dilation
from pliant.ir.program import Compute
from pliant.plan.split.split_program import HEAD, INPUT
from pliant.profile.disk_fit import timing
from pliant.route.router_settings import BoundRule, RouterSettings
from pliant.run.session.session import Session
from pliant.serve.node.routed_session import RoutedSession
from pliant.serve.node.routing import Routing
from slo_records import Answer, Ask, RefusedError
from slo_rig import GATEWAY, LOCAL, MODEL, PORT, SILENCE_S, Bed, headers, infer_body

_PATIENCE_S = 120.0
_WARM = ("a film .", "it 's a charming and often affecting journey for a while , and then rather less so")
_N_WARM, _N_ENDS = 6, 20
_LOOK_S = 1.0  # as a node does
_WARM_DEADLINE_S = 1.0
"""Long enough for any level of the cluster, so that the quickest of the equally accurate ones is warm too."""
_STALE_S = 1.0
"""The age up to which an estimate is used."""
_N_CONNECTIONS = 8


@contextmanager
def local_alone(bed: Bed) -> Iterator[Ask]:
    """An elastic session: each request in turn, with its floor and the remaining time until its deadline."""
    with open_local(bed) as session, _in_turn(_answer_in_time(session, "local")) as ask:
        yield ask


@contextmanager
def cluster_alone(bed: Bed) -> Iterator[Ask]:
    """The cluster's session on any available members, asked as `local_alone` is: the whole model, or a
    submodel that keeps the deadline and the floor.
    """
    with open_cluster(bed) as session, ThreadPoolExecutor(1) as looking:
        closing = Event()
        follower = looking.submit(_follow_cluster, session, closing)
        try:
            with _in_turn(_answer_in_time(session, "cluster")) as ask:
                yield ask
        finally:
            closing.set()
            follower.result()


def _follow_cluster(session: Any, closing: Event) -> None:
    """Predict times again for changed workers at intervals."""
    while not closing.wait(_LOOK_S):
        session.look_again()


@contextmanager
def upstream_alone(bed: Bed) -> Iterator[Ask]:
    """A client of the gateway with a timeout at the deadline and persistent connections.

    A timed-out request closes its connection; a new one is opened before the next request.
    """
    idle: LifoQueue[HTTPConnection] = LifoQueue()
    path, at = f"/v2/models/{MODEL}/infer", urlsplit(bed.url).netloc
    for _ in range(_N_CONNECTIONS):
        connection = HTTPConnection(at, timeout=_PATIENCE_S)
        connection.connect()
        idle.put(connection)

    def ask(text: str, deadline_s: float, floor: float) -> Answer:
        try:
            connection = idle.get_nowait()
        except Empty:
            connection = HTTPConnection(at)
        connection.timeout = deadline_s
        if connection.sock is not None:
            connection.sock.settimeout(deadline_s)
        body = infer_body(text, deadline_s=deadline_s, accuracy_floor=floor)
        try:
            connection.request("POST", path, body, headers(bed))
            response = connection.getresponse()
            status, content = response.status, response.read()
        except (OSError, HTTPException) as error:
            connection.close()
            opening.submit(reopen, connection)
            raise RefusedError(f"no answer: {type(error).__name__}") from error
        idle.put(connection)
        if status != 200:
            raise RefusedError(f"status {status}: {content[:200].decode(errors='replace')}")
        told = json.loads(content)
        outputs = {output["name"]: output["data"] for output in told["outputs"]}
        return Answer("gateway", outputs["label"][0], told.get("parameters", {}).get("accuracy"))

    def reopen(connection: HTTPConnection) -> None:
        with suppress(OSError):
            connection.timeout = _PATIENCE_S
            connection.connect()
        idle.put(connection)

    with ThreadPoolExecutor(_N_CONNECTIONS) as opening:
        yield ask
    while not idle.empty():
        idle.get().close()


@contextmanager
def routed(
    bed: Bed,
    *,
    has_cluster: bool = True,
    has_upstream: bool = True,
    is_elastic: bool = True,
    bounds: BoundRule = "adaptive",
) -> Iterator[Ask]:
    """pliant's router over all three, in one session.

    With `is_elastic` off, every request asks for the whole model's accuracy. Deadlines are checked with
    `bounds`, among endpoints: within an endpoint, a session picks its level by bounds that adapt.
    """
    with ExitStack() as ends:
        local = ends.enter_context(open_local(bed))
        settings = RouterSettings(
            local.max_length,
            degree=local.degree,
            bounds=bounds,
        )
        session = ends.enter_context(
            RoutedSession(
                local,
                ends.enter_context(open_cluster(bed)) if has_cluster else None,
                [bed.url] if has_upstream else (),
                routing=Routing(token=bed.token, settings=settings),
            )
        )
        whole = local.best or 0.0

        def ask(text: str, deadline_s: float, floor: float) -> Answer:
            try:
                reply = session(text, latency=deadline_s, floor=floor if is_elastic else whole)
            except PliantError as error:
                raise RefusedError(str(error)) from error
            where = reply.endpoint if reply.endpoint in (LOCAL, "cluster") else GATEWAY
            details = reply.details
            work_s = details.expected.level.curve.at(reply.length)
            unused_s = 0.0 if details.unused is None else details.unused.seconds
            return Answer(where, reply.label, reply.accuracy, work_s, unused_s)

        yield ask


Way = Callable[[Bed], AbstractContextManager[Ask]]
SINGLES: Mapping[str, Way] = {"local": local_alone, "cluster": cluster_alone, "upstream": upstream_alone}
ROUTED: Mapping[str, Way] = {"pliant": routed}
"""Ways that choose among all endpoints."""
ABLATED: Mapping[str, Way] = {
    "without cluster": partial(routed, has_cluster=False),
    "without upstreams": partial(routed, has_upstream=False),
    "without elasticity": partial(routed, is_elastic=False),
    "bounds of the start": partial(routed, bounds="fixed"),
    "without bounds": partial(routed, bounds="none"),
}
"""pliant's router, each without one of its parts."""


@contextmanager
def open_local(bed: Bed) -> Iterator[Session[Any]]:
    """A warm elastic session on the local device, which follows the device's dilation."""
    with pliant.open(MODEL, threads=1, preload="100MB", adapt=False, dilation=bed.pace()) as session:

        def follow(dilation: Dilation) -> None:
            session.runner.dilation = dilation

        session.runner.is_steady = True
        for text in _WARM * _N_WARM:
            request = session.request({"text": np.array([text.encode()], object)})
            session.answer(replace(request, deadline_s=0.2))
        bed.pace.watchers.append(follow)
        try:
            yield session
        finally:
            bed.pace.watchers.remove(follow)


@contextmanager
def open_cluster(bed: Bed) -> Iterator[Any]:
    """The model on a cluster with all workers of the testbed, measured and warm.

    Each input and head on this device counts at most its 95th percentile without rests in between.
    """
    patience, most_s = ClusterTimeouts(silence_s=SILENCE_S), _ends_s(bed)
    with Cluster(
        bed.listen, key=bed.key, name="local", threads=1, dilation=bed.pace, patience=patience
    ) as cluster:
        session = cluster.open(MODEL)
        cluster.wait(len(bed.workers), _PATIENCE_S)
        session.curve()
        cluster.leader.builder.emulated.most_s = lambda work: most_s.get(work.kernel, inf)
        for text in _WARM * _N_WARM:
            session(text)
            request = session.request({"text": np.array([text.encode()], object)})
            session.answer(replace(request, deadline_s=_WARM_DEADLINE_S))
        yield session


def _ends_s(bed: Bed) -> dict[str, float]:
    """The 95th percentiles of a primary's inputs and heads, by kernel, without dilation."""
    found: dict[str, list[float]] = {INPUT: [], HEAD: []}
    with Cluster(f"{bed.network[LOCAL].address}:{PORT + 1}", key=bed.key, threads=1) as alone:
        session = alone.open(MODEL)
        for text in _WARM * _N_ENDS:
            details = session(text).details
            for step, span in zip(details.program.steps, details.spans, strict=True):
                if isinstance(step.work, Compute) and step.work.kernel in found:
                    found[step.work.kernel].append(span.seconds)
    return {kernel: timing(seconds).p95_s for kernel, seconds in found.items()}


def _answer_in_time(session: Session[Any], name: str) -> Callable[[str, float, float], Answer]:
    """A function that answers by a session, given a text, the seconds until its deadline, and its floor.

    A request that the endpoint could not answer in time even if idle is refused, unless there was no answer
    for a second, so that the session notices when the endpoint becomes faster.
    """
    answered_s = 0.0

    def answer(text: str, left_s: float, floor: float) -> Answer:
        nonlocal answered_s
        request = session.request({"text": np.array([text.encode()], object)})
        asked = replace(request, deadline_s=left_s, accuracy_floor=floor)
        expected_s = session.estimate(asked).seconds
        if expected_s > left_s and time.perf_counter() - answered_s < _STALE_S:
            raise RefusedError(f"an answer is expected after {expected_s:.3f} s, and due in {left_s:.3f} s")
        reply = session.answer(asked)
        answered_s = time.perf_counter()
        assert reply.label is not None
        return Answer(name, reply.label, reply.accuracy)

    return answer


@contextmanager
def _in_turn(answer: Callable[[str, float, float], Answer]) -> Iterator[Ask]:
    """`answer` for one request at a time, first come, first served; refused after its deadline."""
    with ThreadPoolExecutor(1) as turn:

        def ask(text: str, deadline_s: float, floor: float) -> Answer:
            due_s = time.perf_counter() + deadline_s

            def act() -> Answer:
                left_s = due_s - time.perf_counter()
                if left_s <= 0.0:
                    raise RefusedError("its turn came after its deadline")
                return answer(text, left_s, floor)

            return turn.submit(act).result()

        yield ask
