"""A session that answers by this device, a cluster or upstream nodes, whichever suits an input best."""

import asyncio
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from typing import Any, final

import numpy as np

from pliant.errors import DeadlineError, InputError, NodeError
from pliant.ir.curve import Curve
from pliant.ir.endpoint import Estimate, Request, ServiceLevel
from pliant.ir.reply import Reply
from pliant.quantities import parse_seconds
from pliant.route.choice.choose_endpoint import Option
from pliant.route.choice.objective import Objective, own_objective, parse_objective
from pliant.route.choice.request_terms import NO_TERMS, Terms
from pliant.route.curve_advert import Trail
from pliant.run.memory_use import MemoryUse
from pliant.run.session.feeds import FeedsLike, convert_feed
from pliant.run.session.ports import Feeds, copy_into
from pliant.run.session.session import Session
from pliant.run.session.text_feeds import as_bytes
from pliant.run.session.text_session import TextSession
from pliant.serve.answers.explain_choice import Explanation, explain_answer
from pliant.serve.answers.routed_request import RoutedAnswer, RoutedRequest
from pliant.serve.node.loop_thread import LoopThread
from pliant.serve.node.peers import PeerList, change_peers, list_peers, read_changes
from pliant.serve.node.power import as_radio, read_energy
from pliant.serve.node.routing import RoutedDetails, Routing
from pliant.serve.node.start_node import NodeOptions, cancel_and_wait, connect_node, make_node
from pliant.serve.protocol.client_messages import read_answer, write_request
from pliant.serve.protocol.inference import InferBody, InferRequest, RequestedOutput
from pliant.serve.protocol.pending_request import PendingRequest
from pliant.serve.telemetry.request_context import current_headers, enter_request
from pliant.serve.telemetry.tracing import SpanAttribute, make_tracer

_TOGETHER = 32
"""Texts of a list that are processed concurrently: more would only wait for each other."""
_QUEUE = 1 << 16
"""Queue limit: callers are threads with one request each, so memory limits their number."""


@final
class RoutedSession(Session[RoutedDetails]):
    """Combines `local`, a `cluster` session of the same model, and upstreams, with a deadline per request.

    A request without a deadline gets the most accurate answer. With a deadline it gets the quickest answer
    within `RESOLUTION` of the most accurate one that is expected in time; if there is none, DeadlineError
    gives the soonest one, unless `terms.best_effort`. With only a floor it gets the soonest answer that
    reaches the floor. The session owns `local` and the contents of `owned`; it runs an event loop on a thread
    of its own.
    """

    platform = "pliant_routed"

    def __init__(
        self,
        local: Session[Any],
        cluster: Session[Any] | None = None,
        upstreams: Sequence[str] = (),
        terms: Terms = NO_TERMS,
        routing: Routing = Routing(),  # noqa: B008 - frozen
        owned: ExitStack | None = None,
    ) -> None:
        super().__init__()
        self.local, self._owned = local, owned or ExitStack()
        self.name, self.identity, self.labels = local.name, local.identity, local.labels
        self.inputs, self.outputs, self.max_length = local.inputs, local.outputs, local.max_length
        usual = routing.objective
        usual = parse_objective(usual) if isinstance(usual, str) else usual
        if usual.per_joule and routing.power is None:
            raise InputError("an objective of joules needs the power of this device: add `power`.")
        local.levels()  # plans are made before the first request
        radios = routing.cluster_radio, routing.worker_radio
        energy = read_energy(routing.power, routing.worker_power, local, *radios)
        options = NodeOptions(
            name=routing.name or f"session-{secrets.token_hex(4)}",
            upstreams=tuple(upstreams),
            discovers=routing.discover,
            peer_tokens=() if routing.token is None else (routing.token,),
            tls=routing.tls,
            queue=_QUEUE,
            terms=terms,
            objective=usual,
            energy=energy,
            radio=None if routing.radio is None else as_radio(routing.radio),
            routing=routing.settings,
        )
        self._node = make_node(options, local, cluster)
        self._tracer = make_tracer()
        self._texts = asyncio.Semaphore(_TOGETHER)
        self._stack = AsyncExitStack()
        self._loop = LoopThread("pliant-route")
        try:
            self._loop.run(self._connect(options))
        except BaseException:
            self.close()
            raise

    # User interface

    def __call__(
        self,
        value: Any,
        /,
        pair: str | None = None,
        *,
        latency: str | float | None = None,
        floor: float | None = None,
        best_effort: bool | None = None,
        objective: str | None = None,
    ) -> Any:
        """The reply to a text, a pair of texts or feeds by name.

        For a list of texts or pairs, a list of replies. `latency`, `floor` (the lowest accuracy, a fraction),
        `best_effort` and `objective` ("time", "energy" or "mix:0.3", which is 0.7 seconds + 0.3 joules) apply
        to this call. The texts of a list are separate, concurrent requests. Raises InputError, DeadlineError,
        and BudgetError if no endpoint reaches the floor.
        """
        terms = Terms(None if latency is None else parse_seconds(latency), floor, best_effort)
        own = own_objective(objective, self._node.counts_joules)
        if isinstance(value, list):
            if pair is not None:
                raise InputError("`pair` belongs to one text: give a list of (text, pair) instead.")
            asked = [
                self._read_value(*item) if isinstance(item, tuple) else self._read_value(item)
                for item in value
            ]
            return self._loop.run(self._answer_all(asked, terms, own))
        return self._loop.run(self._answer_one(self._read_value(value, pair), terms, own))

    def explain(
        self,
        tokens: int,
        latency: str | float | None = None,
        floor: float | None = None,
        objective: str | None = None,
    ) -> Explanation:
        """Explain the current choice for an input of `tokens` items, endpoint by endpoint.

        The other arguments are those of a call. Raises InputError for more items than the model reads, and
        for terms out of range.
        """
        is_whole = isinstance(tokens, int | np.integer) and not isinstance(tokens, bool)
        if not is_whole or not 0 <= tokens <= self.max_length:
            raise InputError(f"tokens is {tokens!r:.40}; give a whole number, 0 to {self.max_length}.")
        terms = Terms(None if latency is None else parse_seconds(latency), floor)

        async def explained() -> Explanation:
            await self._node.dispatcher.look()
            return self._node.explain(int(tokens), terms, objective)

        return self._loop.run(explained())

    @property
    def plan(self) -> Any:
        """The plan of the local session."""
        return self.local.plan

    @property
    def weight_bytes(self) -> int:
        return self.local.weight_bytes

    @property
    def memory(self) -> MemoryUse:
        return self.local.memory

    def profile(self, feeds: FeedsLike, runs: int = 20) -> Any:
        """Profile an answer of the local session."""
        return self.local.profile(feeds, runs)

    def retarget(self, latency: str | float | None = None, **options: Any) -> None:
        """Change the default deadline of calls; other options are passed to the local session."""
        if options:
            self.local.retarget(**options)
        if latency is not None:
            self._node.terms = replace(self._node.terms, deadline_s=parse_seconds(latency))
        elif not options:
            raise InputError("there is nothing to change: give latency, such as '20ms'.")

    def list_peers(self) -> PeerList:
        """Return the upstreams with their states, and the cluster's workers."""

        async def listed() -> PeerList:
            return list_peers(self._node)

        return self._loop.run(listed())

    def change_peers(
        self,
        add: Collection[str] = (),
        remove: Collection[str] = (),
        add_workers: Collection[str] = (),
        remove_workers: Collection[str] = (),
    ) -> PeerList:
        """Add and remove upstreams (URLs) and workers (names) atomically, like `POST /v2/pliant/peers`.

        Other threads may ask meanwhile: their requests use the peers that are left. Waits up to 2 s for the
        first contact with new upstreams, and returns the peers after the change. Raises InputError, changing
        nothing, for an invalid URL, a worker that never joined, and too many upstreams.
        """
        given = {"add": add, "remove": remove, "add_workers": add_workers, "remove_workers": remove_workers}
        changes = read_changes(given)

        async def changed() -> PeerList:
            change_peers(self._node, changes)
            if changes.add and self._node.upstreams is not None:
                await self._node.upstreams.first_contacts()
            return list_peers(self._node)

        return self._loop.run(changed())

    def close(self) -> None:
        if self._loop.close(self._stack.aclose):
            self._node.close()
            self._owned.close()

    # Endpoint interface

    @property
    def ways(self) -> tuple[frozenset[str], ...]:
        return self.local.ways

    @property
    def best(self) -> float | None:
        return self.levels()[-1].accuracy

    def request(self, feeds: Mapping[str, np.ndarray]) -> Request:
        return self.local.request(feeds)

    def sample(self, length: int) -> dict[str, np.ndarray]:
        return self.local.sample(length)

    def levels(self) -> tuple[ServiceLevel, ...]:
        """The best endpoint's times for each accuracy, without queues."""

        async def told() -> tuple[ServiceLevel, ...]:
            await self._node.dispatcher.look()
            return self._node.dispatcher.make_advert(None).levels

        return self._loop.run(told())

    def curve(self, accuracy_floor: float = 0.0) -> Curve:
        """Seconds by length at the lowest level that reaches the floor. Raises BudgetError."""
        for level in self.levels():
            if level.reaches(accuracy_floor):
                return level.curve
        return self.local.curve(accuracy_floor)  # raises an error with the available levels

    def estimate(self, request: Request) -> Estimate:
        """The estimate of the current choice. Raises DeadlineError and BudgetError."""
        terms = Terms(request.deadline_s, request.accuracy_floor).with_defaults(self._node.terms)

        async def chosen() -> Option:
            self._node.dispatcher.offer(PendingRequest(request))
            now_s, objective = self._node.clock(), self._node.objective
            router = self._node.router
            return router.choose(request.length, now_s, objective, terms=terms, is_coming=False).option

        option = self._loop.run(chosen())
        return Estimate(option.seconds, option.accuracy, option.bound_s)

    def answer(self, request: Request) -> Reply[RoutedDetails]:
        terms = Terms(request.deadline_s, request.accuracy_floor)
        return self._loop.run(self._answer_one((request, self._upstream_feeds(request)), terms))

    # Below

    async def _connect(self, options: NodeOptions) -> None:
        upstreams = await connect_node(self._node, options, self._stack)
        task = asyncio.get_running_loop().create_task(upstreams.run())
        self._stack.push_async_callback(cancel_and_wait, task)
        await upstreams.first_contacts()

    def _read_value(
        self, value: Any, pair: str | None = None
    ) -> tuple[Request, Mapping[str, np.ndarray] | None]:
        """The request of a value, and the feeds for upstreams; None for pairs, which the protocol lacks."""
        if isinstance(value, Mapping):
            request = self.local.request(value)
            return request, self._upstream_feeds(request)
        if not isinstance(self.local, TextSession):
            raise InputError(f"{self.name} reads arrays: give feeds by name, such as run() takes.")
        encoded = self.local.encode(value, pair)
        request = Request(encoded.n_tokens, tensors={"ids": encoded.ids, "types": encoded.types})
        return request, {"text": as_bytes(value)} if pair is None else self._upstream_feeds(request)

    def _upstream_feeds(self, request: Request) -> Mapping[str, np.ndarray] | None:
        """The feeds of a request for upstreams; None if the protocol cannot carry them."""
        if request.text is not None:
            return {"text": as_bytes(request.text)}
        if not isinstance(self.local, TextSession):
            ports = {port.name: port for port in self.inputs}
            return {name: convert_feed(ports[name], array) for name, array in request.tensors.items()}
        if np.any(request.tensors["types"]):
            return None
        return {"ids": np.asarray(request.tensors["ids"], np.int64).reshape(1, -1)}

    async def _answer_all(
        self,
        asked: Sequence[tuple[Request, Mapping[str, np.ndarray] | None]],
        terms: Terms,
        own: Objective | None,
    ) -> list[Reply[RoutedDetails]]:
        async def one_of(one: tuple[Request, Mapping[str, np.ndarray] | None]) -> Reply[RoutedDetails]:
            async with self._texts:
                return await self._answer_one(one, terms, own)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one_of(one)) for one in asked]
        return [task.result() for task in tasks]

    async def _answer_one(
        self,
        asked: tuple[Request, Mapping[str, np.ndarray] | None],
        terms: Terms,
        own: Objective | None = None,
    ) -> Reply[RoutedDetails]:
        start_s, clock_s = time.perf_counter(), self._node.clock()
        terms = terms.with_defaults(self._node.terms)
        given, feeds = asked
        due_s = None if terms.deadline_s is None else clock_s + terms.deadline_s
        asked_of = due_s, terms.accuracy_floor, bool(terms.best_effort)
        pending = PendingRequest(given, *asked_of, given_s=terms.deadline_s)
        outputs = tuple(RequestedOutput(port, True) for port in self.outputs)
        infer = InferRequest(secrets.token_hex(8), feeds or {}, outputs, NO_TERMS)
        trail = Trail(hops_left=0 if feeds is None else Trail().hops_left).visit(self._node.name)
        signature = self._node.signature
        inquiry = RoutedRequest(
            infer,
            pending,
            trail,
            infer.id,
            lambda: write_request(infer, signature),
            None,
            own or self._node.objective,
            own,
        )
        about: dict[str, SpanAttribute] = {"pliant.node": self._node.name, "pliant.length": given.length}
        try:
            with enter_request(current_headers(), self._node.model, self._tracer, "request", about):
                answer = await self._node.dispatcher.answer(inquiry)
        except NodeError as error:
            if isinstance(error.__cause__, DeadlineError):
                raise error.__cause__ from None
            raise
        return self._reply_of(answer, given.length, time.perf_counter() - start_s, terms)

    def _reply_of(
        self, answer: RoutedAnswer, length: int, seconds: float, terms: Terms
    ) -> Reply[RoutedDetails]:
        choice, content = answer.choice, answer.content
        inner = None if isinstance(content, InferBody) else content.details
        rows = explain_answer(self._node.router, length, choice, self._node.clock())
        chosen = (choice.reason, choice.option, rows)
        details = RoutedDetails(answer.node, *chosen, inner, answer.is_hedged, answer.unused)
        if not isinstance(content, InferBody):
            return replace(
                content,
                endpoint=answer.endpoint,
                seconds=seconds,
                target_s=terms.deadline_s,
                details=details,
            )
        outputs, said = read_answer(content, self._node.signature)
        accuracy = said.get("accuracy")
        fields: dict[str, Any] = {"outputs": outputs}
        if isinstance(self.local, TextSession):
            fields = self.local.outputs_of(outputs["vector" if self.labels is None else "logits"][0])
        return Reply(
            endpoint=answer.endpoint,
            seconds=seconds,
            details=details,
            length=length,
            waited_s=answer.spent.waited_s,
            target_s=terms.deadline_s,
            energy_j=answer.energy_j,
            accuracy=float(accuracy) if isinstance(accuracy, int | float) else None,
            **fields,
        )

    def _run(self, feeds: FeedsLike, out: Feeds | None) -> dict[str, np.ndarray]:
        outputs = dict(self(feeds).outputs)
        return outputs | {name: copy_into(out, name, outputs[name]) for name in out or {}}

    def _reply(self, request: Request) -> Reply[RoutedDetails]:
        return self.answer(request)
