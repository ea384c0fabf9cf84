"""A known model, loaded or not, and the requests that wait for it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import Literal, final, overload

from pliant.errors import DeadlineError, NodeError, PliantError
from pliant.route.choice.objective import Objective
from pliant.route.choice.request_terms import NO_TERMS, Terms
from pliant.serve.answers.metrics import Metrics
from pliant.serve.node.serving_node import ServingNode
from pliant.serve.repository.live_model import LiveModel
from pliant.serve.repository.model_entry import ModelEntry, ModelKey
from pliant.serve.telemetry.log_lines import MODEL_LOG
from pliant.serve.telemetry.request_context import ServedModel, inner_span

_LOG = logging.getLogger(MODEL_LOG)

ModelState = Literal["READY", "UNAVAILABLE", "LOADING", "UNLOADING"]
"""States of the protocol's model repository extension."""
NEVER, UNLOADED, EVICTED = "not loaded yet", "unloaded", "evicted"
_UNLOADING = "it is being unloaded, after its pending requests"
"""Reasons why a model is not ready."""


@dataclass(frozen=True, slots=True)
class IndexRow:
    """A row of the repository index; `reason` explains why a model is not ready."""

    name: str
    version: str
    state: ModelState
    reason: str


@dataclass(eq=False, slots=True)
class ModelSlot:
    """A known model. With `is_wanted`, a request loads it if needed."""

    entry: ModelEntry
    state: ModelState = "UNAVAILABLE"
    reason: str = NEVER
    is_wanted: bool = False
    live: LiveModel | None = None
    metrics: Metrics | None = None
    """Those of its loaded models, one after the other, and of refusals; None before either."""
    loading: "asyncio.Task[None] | None" = None
    load_s: float | None = None
    """Seconds of the last load, with evictions; None before the first load."""
    loading_since_s: float | None = None
    terms: Terms = NO_TERMS
    """Default terms of its requests, known after the first load."""
    waiters: "list[asyncio.Future[LiveModel]]" = field(default_factory=list)

    @property
    def key(self) -> ModelKey:
        return self.entry.key

    @property
    def model(self) -> ServedModel:
        """The model fields of its log lines, also if it is not loaded."""
        return ServedModel(self.key.name, self.key.version) if self.live is None else self.live.node.model

    def count(self) -> Metrics:
        """Its metrics, which begin with the first response."""
        if self.metrics is None:
            self.metrics = Metrics()
        return self.metrics

    def wait_s(self, now_s: float) -> float:
        """Estimated remaining loading time; 0 if it is loaded or never was."""
        if self.live is not None or self.load_s is None:
            return 0.0
        begun_s = now_s if self.loading_since_s is None else self.loading_since_s
        return max(self.load_s - (now_s - begun_s), 0.0)

    def hold_for_waiters(self, now_s: float) -> None:
        """Let waiting requests hold the model before it can be evicted again."""
        assert self.live is not None
        for waiter in self._take_waiters():
            self.live.hold(now_s)
            waiter.set_result(self.live)

    def fail_waiters(self, error: Exception) -> None:
        """Fail waiting requests with `error`."""
        for waiter in self._take_waiters():
            waiter.set_exception(error)

    def take_live(self, live: LiveModel) -> LiveModel | None:
        """Use `live` from now on; returns the previous model."""
        old, self.live, self.metrics = self.live, live, live.node.metrics
        self.state, self.reason, self.is_wanted, self.terms = "READY", "", True, live.node.terms
        return old

    def use_defaults(self, terms: Terms, objective: Objective) -> None:
        """Use these for requests from now on, except what the model's entry says itself."""
        own = self.entry.endpoints
        self.terms = own.terms.with_defaults(terms)
        if self.live is not None:
            self.live.node.terms, self.live.node.objective = self.terms, own.objective or objective

    @asynccontextmanager
    async def within(self, terms: Terms, clock: Callable[[], float]) -> AsyncIterator[None]:
        """Context of a wait for the model, at most until the deadline of `terms`. Raises NodeError (503)."""
        try:
            async with asyncio.timeout(None if terms.best_effort else terms.deadline_s):
                yield
        except TimeoutError:  # other loads came first, or this one takes longer than the last
            wait_s = self.wait_s(clock())
            why = f"{self.key} was not loaded within the deadline of {terms.deadline_s:.3g} s: retry later."
            raise NodeError(why, 503, max(1, ceil(wait_s))) from DeadlineError(why, wait_s)

    async def wait_for_live(self, clock: Callable[[], float]) -> LiveModel:
        """Wait for the model that is being loaded, and hold it. Raises the error of the load."""
        waiter: asyncio.Future[LiveModel] = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        about = {"pliant.model": self.key.name, "pliant.model_version": self.key.version}
        with inner_span("load", "internal", about):
            try:
                return await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                    waiter.result().release(clock())
                raise

    def refuse_requests(self) -> None:
        """Refuse new requests, since the model will be unloaded."""
        self.is_wanted = False
        if self.live is not None:
            self.reason = _UNLOADING

    def log_delay(self, error: PliantError) -> None:
        """Log that the model could not be loaded now, so that its next request loads it."""
        _LOG.warning("%s is loaded on its next request: %s", self.key, error, extra=self.model.log_fields)

    async def retire(self, reason: str) -> bool:
        """Close the model after its pending requests; returns whether it was loaded."""
        live, self.live = self.live, None
        if live is not None:
            self.state = "UNLOADING"
            await live.close()
        self.state, self.reason = "UNAVAILABLE", reason
        return live is not None

    def _take_waiters(self) -> "list[asyncio.Future[LiveModel]]":
        waiting, self.waiters = [one for one in self.waiters if not one.done()], []
        return waiting


Slots = Mapping[ModelKey, ModelSlot]


def find_slots(slots: Slots, name: str, version: str | None) -> list[ModelSlot]:
    """All versions of a model, or the given one, oldest first. Raises NodeError (404)."""
    found = sorted((slot for key, slot in slots.items() if key.name == name), key=lambda slot: slot.key.age)
    if not found:
        have = ", ".join(repr(one) for one in dict.fromkeys(key.name for key in slots)) or "none"
        raise NodeError(f"this node has no model {name[:80]!r}; it has {have}.", status=404)
    some = [slot for slot in found if version in (None, slot.key.version)]
    if not some:
        have = ", ".join(slot.key.version for slot in found)
        raise NodeError(f"{name} has no version {(version or '')[:80]!r}; it has {have}.", status=404)
    return some


async def for_each(slots: Iterable[ModelSlot], act: Callable[[ModelSlot], Awaitable[None]]) -> None:
    """Await `act` for one slot after the other."""
    for slot in slots:
        await act(slot)


@final
class LiveNodes(Sequence[ServingNode]):
    """A live view of the nodes of loaded models in `slots()`."""

    def __init__(self, slots: Callable[[], Slots]) -> None:
        self._slots = slots

    @overload
    def __getitem__(self, at: int) -> ServingNode: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[ServingNode]: ...

    def __getitem__(self, at: int | slice) -> ServingNode | Sequence[ServingNode]:
        return self._nodes()[at]

    def __len__(self) -> int:
        return len(self._nodes())

    def __iter__(self) -> Iterator[ServingNode]:
        return iter(self._nodes())

    def _nodes(self) -> list[ServingNode]:
        return [slot.live.node for slot in self._slots().values() if slot.live is not None]
