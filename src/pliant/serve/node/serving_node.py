"""A node: answers each request by its best endpoint, local or upstream."""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, final

from pliant.errors import BudgetError, InputError, NodeError, RouteError
from pliant.ir.endpoint import Request
from pliant.route.choice.choose_endpoint import CLUSTER, LOCAL
from pliant.route.choice.objective import TIME, Objective, own_objective
from pliant.route.choice.request_terms import NO_TERMS, Terms
from pliant.route.curve_advert import Trail
from pliant.route.node_identity import Identity
from pliant.route.node_messages import NodeTime, RouteMessage
from pliant.route.predecessors import Listener
from pliant.route.router import Router
from pliant.run.process_memory import MemoryBudget, MemoryShare
from pliant.run.session.session import Session
from pliant.serve.answers.admission import Admission
from pliant.serve.answers.answer_energy import AnswerEnergy
from pliant.serve.answers.answer_parameters import answer_parameters
from pliant.serve.answers.dispatch import Dispatcher
from pliant.serve.answers.endpoint_memory import EndpointMemory, endpoint_memory
from pliant.serve.answers.explain_choice import Explanation, explain
from pliant.serve.answers.gather import gather
from pliant.serve.answers.metrics import GaugeValue, Metrics
from pliant.serve.answers.routed_request import RoutedRequest
from pliant.serve.answers.session_endpoint import SessionEndpoint
from pliant.serve.http.limits import Limits
from pliant.serve.node.infer_call import InferCall, InferResponse
from pliant.serve.node.node_gauges import read_gauges
from pliant.serve.node.worker_registry import worker_registry
from pliant.serve.page.answer_feed import AnswerFeed
from pliant.serve.protocol.client_messages import forwarded_body
from pliant.serve.protocol.idempotency import IdempotencyCache
from pliant.serve.protocol.inference import InferBody, InferRequest, read_request, signature
from pliant.serve.protocol.pending_request import LEAST_S, PendingRequest
from pliant.serve.protocol.replies import with_parameters, write_reply
from pliant.serve.protocol.row_requests import join_replies, write_row
from pliant.serve.telemetry.request_context import ServedModel, own_id
from pliant.serve.upstream.upstreams import Upstreams

MODEL_VERSION = "1"
"""The version of a model without an explicit one."""
_LOG = logging.getLogger("pliant.serve")
_ROWS_AT_ONCE = 32
"""Rows of one request that are processed at once at most."""


@final
class ServingNode:
    """A node; call on one event loop. Without `upstreams`, which are set later, it answers locally.

    `terms` and `objective` are the defaults of requests that start here. `queue` requests may wait for each
    endpoint. `energy` counts joules. `cluster` is a session of several devices that runs the full model of
    `served`; raises InputError if the models differ. `admission` and the budget `memory` are shared by all
    models of this device. `feed` records answers for the page. `metrics` are those of earlier nodes of the
    model, which continue.
    """

    def __init__(
        self,
        served: Session[Any],
        router: Router,
        queue: int,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        terms: Terms = Terms(),  # noqa: B008 - frozen
        objective: Objective = TIME,
        version: str | None = None,
        cluster: Session[Any] | None = None,
        energy: AnswerEnergy = AnswerEnergy(),  # noqa: B008 - frozen
        admission: Admission | None = None,
        memory: MemoryBudget | None = None,
        feed: AnswerFeed | None = None,
        model_version: str = MODEL_VERSION,
        metrics: Metrics | None = None,
    ) -> None:
        self.identity = Identity(served.identity, version)
        self.terms, self.objective = terms, objective
        self.served, self.router, self.limits, self.clock = served, router, limits, clock
        self.signature = replace(signature(served), version=model_version)
        self.counts_joules = router.settings.power is not None
        self.is_draining = False
        self._queue = max(1, queue)
        self.run = secrets.token_hex(8)
        """Identifies this run of the node."""
        self.n_open = 0
        self.metrics = metrics or Metrics()
        self.model = ServedModel(served.name, model_version, served.identity or "")
        about = (router.name, model_version, self.model.identity, served.platform, version or "")
        common = (self.metrics, self._on_refit, clock)
        self._memory = memory
        queued = admission or Admission(queue, clock)
        self._own_admissions = [] if admission else [queued]
        here = {LOCAL: SessionEndpoint(served, router, queued, *common, energy=energy)}
        if cluster is not None:
            self._check_same(cluster)
            router.add_endpoint(CLUSTER, watts=energy.most_W())
            admission = Admission(queue, clock)
            self._own_admissions.append(admission)
            here[CLUSTER] = SessionEndpoint(cluster, router, admission, *common, CLUSTER, energy)
        for target in here:
            self.metrics.begin(target, is_upstream=False)
        self.local = here[LOCAL]
        self.sessions = (served,) if cluster is None else (served, cluster)
        self.workers = worker_registry(self.sessions)
        """The workers of the cluster that it leads; None without a cluster."""
        self.feed = feed or AnswerFeed(clock)
        self.dispatcher = Dispatcher(router, here, self.metrics, self.signature, clock)
        self.metrics.attach(self._states, about, None if self.workers is None else self.workers.status)
        self._idempotency: IdempotencyCache[InferResponse] = IdempotencyCache(
            clock, lambda answer: len(answer.body.content)
        )

    @property
    def name(self) -> str:
        return self.router.name

    @property
    def upstreams(self) -> Upstreams | None:
        """The upstream nodes; None if all requests are answered locally."""
        return self.dispatcher.upstreams

    @property
    def share(self) -> MemoryShare | None:
        """This model's share of the common memory budget, with that of its cluster; None if it has none."""
        owners = [one.budgeted for one in self.sessions if one.budgeted is not None]
        return None if self._memory is None else self._memory.joint_share(owners)

    @property
    def budget_bytes(self) -> int | None:
        """The memory budget shared by all models; None without a budget."""
        return None if self._memory is None else self._memory.total_bytes

    @property
    def rows_at_once(self) -> int:
        """Rows or texts of one request that are processed at once, so that the queue has room for them."""
        return min(_ROWS_AT_ONCE, self._queue)

    async def infer(self, call: InferCall) -> InferResponse:
        """Answer a call, locally or upstream; a repeated id is not run again.

        Raises InputError for input that the model does not accept, BudgetError if the accuracy or the memory
        for the length is not available, and NodeError for a routing loop (508), full queues (503) and a
        failing model (500).
        """
        begun_s = self.clock()
        start_s = begun_s - call.waited_s
        served = self.served
        is_source = call.route is None or not call.route.path
        about = (self.signature, self.limits, served.max_items, is_source)
        request = read_request(call.body, call.header_bytes, *about)
        if request.n_rows != 1:
            self.metrics.statistics.decoding.add(self.clock() - begun_s, 0)
            return await self._infer_rows(call, request, start_s)
        given = served.request(request.tensors)
        self.metrics.statistics.decoding.add(self.clock() - begun_s)
        n = given.length
        if n > served.max_length:
            raise InputError(f"the input has length {n}; at most {served.max_length} is read.")
        asked = self._route_request(call, request, given, start_s)
        target, outcome, kept = LOCAL, "failed", ""
        self.n_open += 1
        try:
            if call.id is None:
                answer = await self._answer(asked)
            else:  # an equal id with another body is another request
                key = f"{call.id} {asked.shows_endpoints} {len(call.body)} {hash(call.body)}"
                answer = await self._idempotency(key, lambda: self._answer(asked))
            target, outcome = answer.target, "ok"
            kept = "late" if asked.pending.met(self.clock()) is False else "met"
        except BudgetError:
            outcome = "refused"
            raise
        except NodeError as error:
            outcome = "refused" if error.status == 503 else "failed"
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            self.n_open -= 1
            if self._memory is not None and served.budgeted is not None:
                self._memory.count_of_node(served.budgeted, is_refused=outcome == "refused")
            self.metrics.statistics.add(outcome == "ok", self.clock() - start_s)
            self.metrics.child(self.metrics.requests, target, outcome).inc()
            self.metrics.child(self.metrics.request_seconds, target).observe(self.clock() - start_s)
            if not asked.pending.has_no_terms:
                self.metrics.child(self.metrics.attainment, target, kept or outcome).inc()
        self._count(call, answer)
        return answer

    async def _infer_rows(self, call: InferCall, request: InferRequest, start_s: float) -> InferResponse:
        """Answer a request with several rows, each as a separate request. Raises like `infer`."""
        terms = request.terms.with_defaults(self.terms)

        def ask(row: int) -> Awaitable[InferResponse]:
            left = terms
            if terms.deadline_s is not None:
                left = replace(terms, deadline_s=max(terms.deadline_s + start_s - self.clock(), LEAST_S))
            body = write_row(request, row, self.signature, left)
            id = None if call.id is None else f"{call.id[-56:]}-{row}"
            one = replace(call, body=body.content, header_bytes=body.header_bytes, id=id, waited_s=0.0)
            return self.infer(one)

        rows = [partial(ask, row) for row in range(request.n_rows)]
        found = await gather(rows, self.rows_at_once)
        spent = NodeTime(self.clock() - start_s, max(one.spent.waited_s for one in found))
        accuracies = [one.accuracy for one in found if one.accuracy is not None]
        nodes, targets = {one.node for one in found}, {one.target for one in found}
        joined_s = self.clock()
        body = join_replies(request, [one.body for one in found], self.signature)
        self.metrics.statistics.encoding.add(self.clock() - joined_s, 0)
        return InferResponse(
            body,
            targets.pop() if len(targets) == 1 else LOCAL,
            nodes.pop() if len(nodes) == 1 else self.name,
            spent,
            sum(one.length for one in found),
            min(accuracies) if len(accuracies) == len(found) else None,
        )

    def limit_queue(self, queue: int) -> None:
        """Change the queue limit of each endpoint."""
        self._queue = max(1, queue)
        for admission in self._own_admissions:
            admission.queue = queue
        if self.upstreams is not None:
            self.upstreams.slots.most = queue

    def protocol_statistics(self) -> dict[str, Any]:
        """The model's statistics in the protocol's form."""
        return self.metrics.statistics.to_protocol(self.model.name, self.model.version, self.metrics.registry)

    def _count(self, call: InferCall, answer: InferResponse) -> None:
        """Count the bytes and accuracy of an answer."""
        target = answer.target
        self.metrics.child(self.metrics.client_bytes, target, "in").inc(len(call.body))
        self.metrics.child(self.metrics.client_bytes, target, "out").inc(len(answer.body.content))
        if answer.accuracy is not None:
            self.metrics.child(self.metrics.accuracy, target).observe(answer.accuracy)

    def heard_of(self, route: RouteMessage, listener: Listener | None) -> None:
        """Record a request or ping of another node, which gets change notifications at `listener`."""
        if route.sender is not None and route.sender != self.name:
            self.router.add_predecessor(route.sender, listener, self.clock())

    def explain(self, n: int, terms: Terms = NO_TERMS, objective: str | None = None) -> Explanation:
        """Explain the current choice for an input of length n; `terms` and `objective` override this node's.

        Raises InputError for an objective that is unknown here.
        """
        own = own_objective(objective, self.counts_joules) or self.objective
        for local in self.dispatcher.here.values():
            local.offer_length(n)
        found = explain(self.router, n, own, terms.with_defaults(self.terms), self.clock(), self._memory_of)
        return found if self._memory is None else replace(found, memory=self._memory.shares)

    def probe(self, n: int, endpoint: str = LOCAL) -> None:
        """Time a sample of length n locally, unless the model is busy: its requests are timed anyway."""
        if not self.is_draining:
            self.dispatcher.here[endpoint].probe(n)

    def drain(self) -> None:
        """Report the node as not ready; it still answers requests."""
        self.is_draining = True

    def close(self) -> None:
        """Close after all admitted requests; a shared admission stays open."""
        for admission in self._own_admissions:
            admission.close()
        for local in self.dispatcher.here.values():
            local.close()
        self.metrics.detach(self._states)

    def _check_same(self, cluster: Session[Any]) -> None:
        """Raise InputError unless `cluster` serves the same model."""
        other = signature(cluster)
        if (other.name, other.outputs) != (self.signature.name, self.signature.outputs):
            raise InputError(
                f"the cluster has {other.name} with outputs {[p.name for p in other.outputs]}, this device "
                f"{self.signature.name} with {[p.name for p in self.signature.outputs]}: open the same model."
            )

    def _memory_of(self, endpoint: str, n: int, accuracy: float | None) -> EndpointMemory:
        return endpoint_memory(self.sessions[self.router.endpoints.index(endpoint)], n, accuracy)

    def _on_refit(self) -> None:
        if self.upstreams is not None:
            self.upstreams.changed()

    async def _answer(self, asked: RoutedRequest) -> InferResponse:
        found = await self.feed.record_request(asked, self.dispatcher.answer)
        start_s, body = self.clock(), found.content
        said = answer_parameters(asked, found, self.router, start_s, self._memory_of)
        if isinstance(body, InferBody):
            body = with_parameters(body, said, self.signature)
        else:
            body = write_reply(asked.request, body.outputs, self.signature, said)
        self.metrics.statistics.encoding.add(self.clock() - start_s)
        spent, length = found.spent, asked.pending.length
        return InferResponse(body, found.target, found.node, spent, length, found.accuracy)

    def _route_request(
        self, call: InferCall, request: InferRequest, given: Request, start_s: float
    ) -> RoutedRequest:
        """The request with its terms: those of its source, if another node forwarded it."""
        terms, route = request.terms.with_defaults(self.terms), call.route
        own = own_objective(request.objective, self.counts_joules)
        objective = own or self.objective
        if route is not None and route.path:
            terms = Terms(
                None if route.deadline_s is None else max(route.deadline_s, LEAST_S),
                route.accuracy_floor,
                route.best_effort,
            )
            own = route.wanted  # joules of a node's default count at the source alone (CRIME 4.4)
            objective = own if own is not None and self.counts_joules else TIME
        due_s = None if terms.deadline_s is None else start_s + terms.deadline_s
        about = due_s, terms.accuracy_floor, bool(terms.best_effort), call.client
        pending = PendingRequest(given, *about, given_s=terms.deadline_s)
        id, body = call.id or own_id(), InferBody(call.body, call.header_bytes)
        write = partial(forwarded_body, body, request, given.tensors, self.signature)
        shows = request.explains and call.may_explain is not None and call.may_explain()
        trail = self._trail(call)
        return RoutedRequest(request, pending, trail, id, write, route, objective, own, shows)

    def _states(self) -> Iterator[GaugeValue]:
        return read_gauges(self)

    def _trail(self, call: InferCall) -> Trail:
        """The path of the request including this node. Raises NodeError for a loop."""
        given = Trail() if call.route is None or not call.route.path else call.route.trail
        try:
            return Trail(given.path, min(given.hops_left, self.limits.hops)).visit(self.name)
        except RouteError as error:
            raise NodeError(str(error), status=508) from error
